"""Servers that do what servers should not, each on a real socket of the loopback."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Behaviour = Callable[[socket.socket, threading.Event], None]
"""What a server does with one connection, until the event is set."""


@contextmanager
def misbehaving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server that treats every connection like this."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.settimeout(0.1)

    def serve_one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30.0)
            behaviour(connection, over)

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=serve_one, args=[connection], daemon=True)
            threads.append(thread)
            thread.start()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        for thread in (server, *threads):
            thread.join(31.0)
        listener.close()


@contextmanager
def dead_port() -> Iterator[str]:
    """The address of a port where nobody listens."""
    with socket.socket() as taken:
        # Bound and not listening: connections are refused, and nobody else can take it.
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def read_message(connection: socket.socket) -> bytes:
    """One whole request or answer, however many pieces it comes in; empty when the peer has left.

    A kernel may hand over the headers alone, so one ``recv`` is never a message.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
        body += piece
    return data


def read_request(connection: socket.socket) -> bytes:
    """The head of one request, its body read too; empty when the client has left."""
    return read_message(connection).partition(b"\r\n\r\n")[0]


def answer(status: str, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """A whole answer; ``length`` lies about the body's."""
    lines = [f"HTTP/1.1 {status}", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def always(response: bytes) -> Behaviour:
    """Answer every request with these bytes, then hang up."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        if read_request(connection):
            connection.sendall(response)
            linger(connection)

    return behave


def linger(connection: socket.socket) -> None:
    """Say that no more will come, and let the client close first."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.5)
        connection.recv(1)


def black_hole(connection: socket.socket, over: threading.Event) -> None:
    """Accept, and never say a word."""
    over.wait(30.0)


def drip(connection: socket.socket, over: threading.Event) -> None:
    """One byte of a header at a time, each well within any read time-out."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    while not over.wait(0.02):
        connection.sendall(b"x")


def drip_body(connection: socket.socket, over: threading.Event) -> None:
    """Good headers, then one byte of the body at a time."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.02):
        connection.sendall(b" ")


def hang_up(connection: socket.socket, over: threading.Event) -> None:
    """Read the request and close."""
    read_request(connection)


def half_close(connection: socket.socket, over: threading.Event) -> None:
    """Close the sending side at once, and go on reading."""
    connection.shutdown(socket.SHUT_WR)
    read_request(connection)
    over.wait(5.0)


def reset_in_body(connection: socket.socket, over: threading.Event) -> None:
    """Reset the connection in the middle of the body."""
    read_request(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"drafter"')
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def endless_headers(connection: socket.socket, over: threading.Event) -> None:
    """Headers without end, as fast as they are read."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"X-More: and more\r\n" * 100)


def endless_body(connection: socket.socket, over: threading.Event) -> None:
    """A body without end or length, as fast as it is read."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        connection.sendall(b" " * 65536)


def garbage(connection: socket.socket, over: threading.Event) -> None:
    """Bytes that are no HTTP."""
    with suppress(OSError):
        connection.recv(65536)
    connection.sendall(bytes(range(256)) * 4)
    linger(connection)
