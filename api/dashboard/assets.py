"""Style sheet, script and icon: files of this package, served under a name that never changes
its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.conditional import none_match, strong_tag
from api.problems import ProblemError

__all__ = ["Asset", "asset_url", "assets", "serve_asset"]

_FOLDER: Final = Path(__file__).parent / "static"
_MEDIA: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        name: its name.
        body: its bytes.
        version: changes with the bytes; part of its address.
        media_type: what it is.
    """

    name: str
    body: bytes
    version: str
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Every file by name."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        media = _MEDIA.get(path.suffix)
        if media is not None:
            body = path.read_bytes()
            version = hashlib.sha256(body).hexdigest()[:12]
            found[path.name] = Asset(path.name, body, version, media)
    return found


def asset_url(name: str) -> str:
    """Address of a file as it is now.

    Raises:
        KeyError: there is none of this name; a fault of a template.
    """
    return f"/assets/{name}?v={assets()[name].version}"


async def serve_asset(request: Request, name: str) -> Response:
    """One file; whoever names its version may keep it for a year.

    Raises:
        ProblemError: 404 for another name.
    """
    asset = assets().get(name)
    if asset is None:
        raise ProblemError("not-found", "There is no such file.")
    request.scope["state"]["quiet"] = True
    tag = strong_tag(asset.body)
    current = request.query_params.get("v") == asset.version
    caching = "public, max-age=31536000, immutable" if current else "no-cache"
    headers = {"ETag": tag, "Cache-Control": caching}
    if not none_match(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
