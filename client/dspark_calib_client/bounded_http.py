"""One HTTP exchange that ends in time, whatever the other side does.

httpx bounds each read, so a server that sends one byte a second could hold an exchange for hours.
Here a timer ends the whole exchange: it shuts the socket down, which wakes a blocked read or write
at once. :meth:`BoundedHttp.abort` does the same from any thread. What a timer cannot reach is name
resolution and connecting; those are bounded per address by the connect time-out.

Nothing is followed, decompressed or read beyond a limit: a redirect, a ``Content-Encoding`` (none
is ever asked for) and a body that is too large are faults, so neither loops nor gzip bombs exist.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from dspark_calib_client.errors import TransferError

__all__ = ["Answer", "BoundedHttp", "Token"]

Token = Callable[[], "str | None"]

_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 4.0  # shorter than common servers' 5 s, so that they do not hang up first


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        status: HTTP status.
        headers: by lower-case name.
        body: bytes as they were sent.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class BoundedHttp:
    """Exchanges of one thread over one kept-alive connection.

    It stands on httpx's transport rather than its client, which would log every request at the
    level that engines log at, and keep cookies.

    Args:
        token: gives the bearer token of each exchange, or None.
        user_agent: how the client calls itself.
        verify: as httpx: whether and how to check certificates.
        proxy: address of a proxy. Those of the environment are meant for the outer world.
    """

    def __init__(
        self, *, token: Token, user_agent: str, verify: Any = True, proxy: str | None = None
    ) -> None:
        self._token = token
        self._user_agent = user_agent
        self._verify = verify
        self._proxy = proxy
        self._lock = threading.Lock()
        self._transport: httpx.HTTPTransport | None = None
        self._socket: Any = None  # of the current connection
        self._running: object | None = None  # names the exchange under way
        self._ended: str | None = None  # why it was ended from outside
        self._aborted = False

    def exchange(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        largest_body: int,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """The whole answer, after at most ``seconds`` plus the time to connect.

        Raises:
            TransferError: ``timeout``, ``aborted``, ``interrupted``, ``connect``, ``protocol``,
                ``redirect``, ``encoded``, ``too_large`` or ``setup``.
        """
        name = object()
        timer = self._begin(name, seconds)
        try:
            request = self._request(method, url, seconds, params, headers, content)
            answer = self._answer(request, largest_body)
        except TransferError:
            self._drop_connection()
            raise
        except Exception as error:
            self._drop_connection()
            raise self._fault(error) from error
        finally:
            self._end(timer)
        return answer

    def abort(self) -> None:
        """End the exchange under way at once, and refuse all later ones; from any thread."""
        with self._lock:
            self._aborted = True
            self._shut_down("aborted")

    def interrupt(self) -> None:
        """End the exchange under way at once; the next may follow."""
        with self._lock:
            self._shut_down("interrupted")

    def close(self) -> None:
        """Close the connection; only by the thread that exchanges."""
        self._drop_connection()

    def reset_after_fork(self) -> None:
        """In a child process: let go of the parent's connection without a word to its server."""
        self._lock = threading.Lock()
        self._transport = None
        self._running = None
        if self._socket is not None:
            with suppress(Exception):
                socket.socket.close(self._socket)  # closes this process's descriptor only
        self._socket = None

    def _begin(self, name: object, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._expire, [name])
        timer.daemon = True
        with self._lock:
            if self._aborted:
                raise TransferError("aborted", "the client is stopping")
            self._running = name
            self._ended = None
        try:
            timer.start()
        except RuntimeError as error:  # no more threads, or the interpreter is leaving
            self._running = None
            raise TransferError("setup", str(error)) from error
        return timer

    def _end(self, timer: threading.Timer) -> None:
        timer.cancel()
        with self._lock:
            self._running = None

    def _expire(self, name: object) -> None:
        with self._lock:
            if self._running is name:
                self._shut_down("timeout")

    def _shut_down(self, reason: str) -> None:
        """End the exchange under way; the lock is held."""
        if self._running is None:
            return
        self._ended = reason
        if self._socket is not None:
            # Not the method of a TLS socket, which would first pull its state from under a reader.
            with suppress(OSError, TypeError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _request(
        self,
        method: str,
        url: str,
        seconds: float,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        content: bytes | None,
    ) -> httpx.Request:
        own = {"Accept-Encoding": "identity", "User-Agent": self._user_agent}
        token = self._token()
        if token:
            own["Authorization"] = f"Bearer {token}"
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        return httpx.Request(
            method,
            url,
            params=params,
            headers={**own, **(headers or {})},
            content=content,
            extensions={"timeout": timeout.as_dict(), "trace": self._trace},
        )

    def _connection(self, url: httpx.URL) -> httpx.HTTPTransport:
        """The transport, made at the first exchange and after every fault."""
        if self._transport is None:
            if url.scheme == "https" and self._verify is True:
                self._verify = httpx.create_ssl_context()  # once: it reads a large file
            self._transport = httpx.HTTPTransport(
                verify=self._verify if url.scheme == "https" else False,
                limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_ALIVE_SECONDS),
                proxy=None if self._proxy is None else httpx.Proxy(self._proxy),
            )
        return self._transport

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        """httpcore's events: the only public way to the socket before an answer begins."""
        extra = getattr(details.get("return_value"), "get_extra_info", None)
        if extra is None:
            return
        with self._lock:
            self._socket = extra("socket")
            if self._ended is not None:  # while the connection was being made
                socket.socket.close(self._socket)
                raise TransferError(self._ended, "ended while connecting")

    def _answer(self, request: httpx.Request, largest_body: int) -> Answer:
        response = self._connection(request.url).handle_request(request)
        try:
            if 300 <= response.status_code < 400 and response.status_code != 304:
                raise TransferError("redirect", f"status {response.status_code}")
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise TransferError("encoded", f"content encoding {encoding!r:.40}")
            body = bytearray()
            for piece in response.iter_raw():
                body += piece
                if len(body) > largest_body:
                    raise TransferError("too_large", f"more than {largest_body} bytes")
        finally:
            response.close()
        if self._ended is not None:  # to a body without length, shut down looks like the end
            raise TransferError(self._ended, "ended while reading")
        return Answer(response.status_code, dict(response.headers), bytes(body))

    def _fault(self, error: Exception) -> TransferError:
        """What went wrong, as one of few words."""
        detail = f"{type(error).__name__}: {error!s:.90}"
        if self._ended is not None:
            return TransferError(self._ended, detail)
        if isinstance(error, httpx.TimeoutException):
            return TransferError("timeout", detail)
        if isinstance(error, httpx.ConnectError):
            return TransferError("connect", detail)
        if isinstance(error, httpx.TransportError):
            return TransferError("protocol", detail)
        return TransferError("setup", detail)

    def _drop_connection(self) -> None:
        """Close the transport: after a fault nothing of its state is trusted."""
        transport, self._transport = self._transport, None
        with self._lock:
            self._socket = None
        if transport is not None:
            with suppress(Exception):
                transport.close()
