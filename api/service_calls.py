"""Calls of commands to a running service: a failure is one line, changes compare and set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from api.boundary import BAD_INPUT, REFUSED, exit_codes
from calib.errors import CalibrationError, ConfigurationError

if TYPE_CHECKING:
    import httpx

__all__ = [
    "ServiceCalls",
    "ServiceProblemError",
    "ServiceToken",
    "ServiceUrl",
    "service_exit_codes",
]

ServiceUrl = Annotated[
    str, typer.Option(envvar="DSPARK_CALIB_URL", help="Address of the running service.")
]
ServiceToken = Annotated[
    str | None,
    typer.Option(
        envvar="DSPARK_CALIB_TOKEN", show_envvar=True, help="Token with the scope operate."
    ),
]
DEFAULT_URL: Final = "http://127.0.0.1:8765"

_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 5.0
# The state of the service stands in the way, not the call.
_REFUSALS: Final = (409, 412)


class ServiceProblemError(CalibrationError):
    """An answer of the service that is no success.

    Attributes:
        status: HTTP status; 0 where there was no answer.
        slug: last part of the problem's type, such as ``precondition-failed``; empty if none.
    """

    def __init__(self, status: int, slug: str, text: str) -> None:
        self.status = status
        self.slug = slug
        super().__init__(text)


class ServiceCalls:
    """A connection to a service, closed at the end of its block.

    Args:
        url: address of the service, without a path.
        token: bearer token, or None.

    Raises:
        ConfigurationError: ``url`` is no address.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        import httpx  # here, not above: --help must not wait for it

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigurationError("url", url, "give http://host:port") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigurationError("url", url, "give http://host:port")
        self._url = url
        # A service on this machine is not behind the environment's proxy.
        self._client = httpx.Client(
            base_url=url, headers=headers, trust_env=not _is_loopback(parsed.host)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer of one call.

        Args:
            method: HTTP method.
            path: path below the address, such as ``/v1/drafters``.
            body: sent as JSON; None sends none.
            headers: more headers.
            parameters: query.
            timeout: seconds; None takes 30.

        Raises:
            ServiceProblemError: no answer, or one that is neither a success nor 304.
        """
        import httpx

        limits = httpx.Timeout(timeout or _SECONDS, connect=_CONNECT_SECONDS)
        try:
            answer = self._client.request(
                method,
                path,
                json=body,
                headers=headers,
                params=parameters,
                timeout=limits,
            )
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ServiceProblemError(
                0, "", f"{self._url}: {reason}; check the address and that the service runs"
            ) from error
        if answer.is_success or answer.status_code == 304:
            return answer
        raise _problem(answer)

    def drafter(self, name: str) -> tuple[dict[str, Any], str]:
        """A drafter as it is, and the ETag that a change of it must name.

        Raises:
            ServiceProblemError: as :meth:`call`.
        """
        answer = self.call("GET", f"/v1/drafters/{name}")
        return answer.json(), answer.headers["ETag"]

    def change(self, path: str, etag: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a change answers, made only if the drafter still is what ``etag`` names.

        Raises:
            ServiceProblemError: as :meth:`call`; status 412 when somebody was faster.
        """
        answer = self.call("POST", path, body=body or {}, headers={"If-Match": etag})
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def service_exit_codes() -> Iterator[None]:
    """As :func:`api.boundary.exit_codes`; what the service's state refuses has exit code 1."""
    with exit_codes():
        try:
            yield
        except ServiceProblemError as error:
            refused = error.status in _REFUSALS
            typer.echo(f"{'refused' if refused else 'error'}: {error}", err=True)
            raise typer.Exit(REFUSED if refused else BAD_INPUT) from error


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _problem(answer: httpx.Response) -> ServiceProblemError:
    """The service's own words, where the answer has some."""
    try:
        found = answer.json()
        text = f"{found['title']}: {found['detail']}" if found.get("detail") else found["title"]
        slug = str(found.get("type", "")).rpartition("/")[2]
    except (ValueError, KeyError, TypeError, AttributeError):
        text, slug = f"status {answer.status_code} without a reason", ""
    return ServiceProblemError(answer.status_code, slug, f"{text} (status {answer.status_code})")
