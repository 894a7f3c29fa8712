"""``/docs``: the OpenAPI document as a page that needs no other host.

Script and style of Swagger UI come from an installed distribution and are served from here, so the
page works where there is no internet, and its content security policy names nobody else.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from calib.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["PAGE", "install_documentation_page"]

PAGE: Final = "/docs"
"""Where the page is."""

_ASSETS: Final = f"{PAGE}/assets"
_SCRIPT: Final = f"{PAGE}/start.js"
_DISTRIBUTION: Final = "fastapi_offline"  # carries Swagger UI 5, which reads OpenAPI 3.1
# Swagger UI sets styles on its elements and draws its icons from data addresses.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# Addresses are relative, for a service that a proxy shows under a path of its own.
_HTML: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
<div id="page"></div>
<noscript>This page needs JavaScript; <a href="openapi.json">the document itself</a> does
not.</noscript>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
# Without a validator: it would be another host.
_START: Final = """"use strict";
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
"""


def install_documentation_page(app: FastAPI) -> None:
    """Add the page, its script and its assets to ``app``; none of them asks for a token.

    Raises:
        ConfigurationError: the assets are not installed.
    """
    page = _HTML.format(title=app.title)

    async def documentation_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def documentation_script() -> Response:
        return Response(_START, media_type="text/javascript")

    app.add_api_route(PAGE, documentation_page, include_in_schema=False)
    app.add_api_route(_SCRIPT, documentation_script, include_in_schema=False)
    app.mount(_ASSETS, StaticFiles(directory=_assets()), name="documentation_assets")


def _assets() -> Path:
    found = importlib.util.find_spec(_DISTRIBUTION)
    if found is None or found.origin is None:
        remedy = "install the service extra: pip install 'dspark-calib[service]'"
        raise ConfigurationError("fastapi-offline", None, remedy)
    return Path(found.origin).parent / "static"
