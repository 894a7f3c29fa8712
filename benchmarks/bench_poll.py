"""The poll beside a bare FastAPI route and nginx: CPU per 304, paced latency, waking, memory.

    python benchmarks/bench_poll.py [--requests 20000] [--rate 1000] [--seconds 20] [--waiting 2000]
                                    [--only cpu paced wake] [--out result.json]

All three serve the same bytes, one after the other in one run, each on one core with the load from
another process on the others:

* service: ``python -m api.server`` on SQLite, as it is started in production, without tokens;
* bare: a FastAPI route under uvicorn that compares one header and returns the same body;
* nginx: the same bytes as a static file, where nginx is installed.

cpu: CPU of the server's processes (user and system) per request, 16 connections without pause.
paced: latency of requests that are due at fixed times, counted from when they were due, so a slow
answer also counts for those that wait behind it.
wake: held requests that a change wakes: from the change's request, which includes its durable
transaction, and from the first answer, to the last. The bare route holds them on one event.
memory: resident memory after the start, while requests are held, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from tests.service_process import ServiceProcess
from tests.support.service import KEY

CONNECTIONS = 16
PACED_CONNECTIONS = 64
TEMPERATURES = [1.23457, 1.11111, 1.05, 1.0, 0.98, 0.95, 0.9]
POLL = (
    "/v1/drafters/drafter/temperatures?gamma=7&engine=decode-0&client=0.1.0"
    "&applied_publication=2&applied_revision=1&state=fresh"
)
PATIENCE = 120.0


# Load, in a process of its own --------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection with one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.answer: asyncio.Future[int] | None = None
        self.received = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionResetError("closed"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0 or self.answer is None:
            return
        status = int(self.received[9:12])
        head = self.received[:end].lower()
        length = 0
        if status != 304:
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self.received) >= end + 4 + length:
            self.received = b""
            answer, self.answer = self.answer, None
            if not answer.done():
                answer.set_result(status)

    def send(self, request: bytes) -> asyncio.Future[int]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer


async def connected(url: str, count: int) -> list[Connection]:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    found: list[Connection] = []
    for start in range(0, count, 100):  # not all at once: the test is not about accepting
        wave = [
            loop.create_connection(Connection, parts.hostname, parts.port)
            for _ in range(min(100, count - start))
        ]
        found += [protocol for _, protocol in await asyncio.gather(*wave)]
    return found


def request_bytes(path: str, tag: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: */*", f"If-None-Match: {tag}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def unpaced(url: str, request: bytes, count: int) -> dict[str, Any]:
    left = count

    async def ask(connection: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            status = await connection.send(request)
            if status != 304:
                raise RuntimeError(f"answered {status}")

    connections = await connected(url, CONNECTIONS)
    started = time.perf_counter()
    await asyncio.gather(*(ask(connection) for connection in connections))
    return {"requests": count, "seconds": time.perf_counter() - started}


async def paced(url: str, request: bytes, rate: float, seconds: float) -> dict[str, Any]:
    free = deque(await connected(url, PACED_CONNECTIONS))
    due: deque[float] = deque()
    latencies: list[float] = []
    clock = time.perf_counter

    def answered(connection: Connection, at: float, answer: asyncio.Future[int]) -> None:
        if answer.result() == 304:
            latencies.append(clock() - at)
        free.append(connection)
        dispatch()

    def dispatch() -> None:
        while due and free:
            connection, at = free.popleft(), due.popleft()
            answer = connection.send(request)
            answer.add_done_callback(partial(answered, connection, at))

    count = int(rate * seconds)
    started = clock() + 0.1
    sent = 0
    gc.disable()
    while sent < count:
        now = clock()
        while sent < count and started + sent / rate <= now:
            due.append(started + sent / rate)
            sent += 1
        dispatch()
        await asyncio.sleep(max(0.0, min(0.001, started + sent / rate - clock())))
    deadline = clock() + PATIENCE
    while len(latencies) < count and clock() < deadline:
        await asyncio.sleep(0.01)
    latencies.sort()
    shares = {**QUANTILES, "max": 1.0}
    found = {name: latencies[min(int(q * count), len(latencies) - 1)] for name, q in shares.items()}
    milliseconds = {name: round(seconds * 1000, 2) for name, seconds in found.items()}
    return {"requests": len(latencies), "rate": rate, "milliseconds": milliseconds}


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


async def held(url: str, request: bytes, count: int, change: list[str]) -> dict[str, Any]:
    connections = await connected(url, count)
    answers = [connection.send(request) for connection in connections]
    times: list[float] = []
    for answer in answers:
        answer.add_done_callback(lambda _: times.append(time.perf_counter()))
    await asyncio.sleep(2.0)  # until the last is held: nothing tells from outside
    if times:
        raise RuntimeError(f"{len(times)} polls were not held")
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    started = time.perf_counter()
    method, path, *headers = change
    named = dict(header.split(": ", 1) for header in headers)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        changed = await client.request(method, url + path, headers=named)
    changed.raise_for_status()
    statuses = set(await asyncio.wait_for(asyncio.gather(*answers), PATIENCE))
    return {
        "held": count,
        "statuses": sorted(statuses),
        "seconds_from_change": round(max(times) - started, 3),
        "seconds_from_first_answer": round(max(times) - min(times), 3),
    }


def load(arguments: list[str]) -> None:
    kind, url, path, tag, *rest = arguments
    request = request_bytes(path, tag)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    jobs: dict[str, Callable[[], Any]] = {
        "unpaced": lambda: unpaced(url, request, int(rest[0])),
        "paced": lambda: paced(url, request, float(rest[0]), float(rest[1])),
        "held": lambda: held(url, request, int(rest[0]), rest[1:]),
    }
    print(json.dumps(asyncio.run(jobs[kind]())), flush=True)


# What is measured ---------------------------------------------------------------------------------


class Target:
    """A server to measure: its address, its processes, and what is asked of it."""

    def __init__(self, name: str, url: str, pid: int, path: str) -> None:
        self.name = name
        self.url = url
        self.pid = pid
        self.path = path
        answer = httpx.get(url + path, timeout=PATIENCE)
        answer.raise_for_status()
        self.body = answer.content
        self.tag = answer.headers["ETag"]

    def pids(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            found += [int(child) for child in children.split()]
        return found

    def pin(self, core: int) -> None:
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})

    def cpu_seconds(self) -> float:
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
            total += sum(int(ticks) for ticks in fields.split()[11:13])
        return total / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        total = 0
        for pid in self.pids():
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            total += int(status.partition("VmRSS:")[2].split()[0])
        return round(total / 1024, 1)

    def start_load(self, kind: str, path: str, *rest: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "load", kind, self.url, path, self.tag, *rest]
        others = sorted(os.sched_getaffinity(0) - {CORE}) or [CORE]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(process.pid, others)
        return process

    def load(self, kind: str, *rest: str) -> dict[str, Any]:
        process = self.start_load(kind, self.path, *rest)
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the load on {self.name} failed")
        found: dict[str, Any] = json.loads(output)
        return found


CORE = min(os.sched_getaffinity(0))


def measure_cpu(target: Target, requests: int) -> dict[str, Any]:
    target.load("unpaced", str(max(100, requests // 10)))
    before = target.cpu_seconds()
    found = target.load("unpaced", str(requests))
    spent = target.cpu_seconds() - before
    return {
        "requests": requests,
        "cpu_microseconds_per_304": round(spent / requests * 1e6, 1),
        "requests_per_second": round(requests / found["seconds"]),
    }


def measure_wake(target: Target, waiting: int, path: str, change: list[str]) -> dict[str, Any]:
    process = target.start_load("held", path, str(waiting), *change)
    if process.stdout is None or process.stdin is None:
        raise RuntimeError("no pipes")
    if process.stdout.readline().strip() != "held":
        raise RuntimeError("the polls were not held")
    memory = target.memory_mib()
    before = target.cpu_seconds()
    process.stdin.write("go\n")
    process.stdin.flush()
    output, _ = process.communicate()
    spent = target.cpu_seconds() - before
    found: dict[str, Any] = json.loads(output)
    return {**found, "cpu_seconds": round(spent, 2), "memory_mib_while_held": memory}


# The servers --------------------------------------------------------------------------------------

BARE = """
import asyncio, os, sys
import uvicorn
from fastapi import FastAPI, Request, Response

BODY = open(sys.argv[1], "rb").read()
TAG = '"bare"'
app = FastAPI()
event = asyncio.Event()

@app.get("/v1/drafters/{drafter}/temperatures")
async def poll(request: Request, drafter: str, gamma: int, wait: int = 0,
               engine: str | None = None, client: str | None = None,
               applied_publication: int | None = None, applied_revision: int | None = None,
               state: str | None = None):
    headers = {"ETag": TAG, "Cache-Control": "no-cache", "Vary": "Accept"}
    if request.headers.get("if-none-match") == TAG:
        if not wait:
            return Response(status_code=304, headers=headers)
        await event.wait()
    return Response(BODY, media_type="application/json", headers=headers)

@app.post("/wake")
async def wake():
    event.set()

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False, log_level="error",
            timeout_keep_alive=75, backlog=4096)
"""

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; types {{ }} default_type application/json; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port}; root {folder}; location / {{ try_files /body.json =404; }} }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answering(url: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            httpx.get(url, timeout=PATIENCE)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def child(command: list[str], url: str) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        answering(url)
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def bare_server(body: bytes, folder: Path) -> Iterator[Target]:
    (folder / "body.json").write_bytes(body)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", BARE, str(folder / "body.json"), str(port)]
    with child(command, url + POLL) as pid:
        yield Target("bare", url, pid, POLL)


@contextlib.contextmanager
def nginx_server(body: bytes, folder: Path) -> Iterator[Target]:
    (folder / "body.json").write_bytes(body)
    folder.chmod(0o755)  # its worker may run as another user
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    url = f"http://127.0.0.1:{port}"
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with child(command, url + POLL) as pid:
        yield Target("nginx", url, pid, POLL)


def published(url: str) -> list[str]:
    """Registers a drafter and publishes; the request that publishes once more."""
    base = f"{url}/v1/drafters/drafter"
    with httpx.Client(timeout=PATIENCE) as client:
        client.put(base, json={"key": KEY}).raise_for_status()
        match = {"If-Match": client.get(base).headers["ETag"]}
        body = {"temperatures": TEMPERATURES}
        client.post(f"{base}/revisions", json=body, headers=match).raise_for_status()
        answer = client.post(f"{base}/revisions/1/promote", headers=match)
        answer.raise_for_status()
        tag = answer.headers["ETag"]
    return ["POST", "/v1/drafters/drafter/revisions/1/promote", f"If-Match: {tag}"]


def measured(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    target.pin(CORE)
    result: dict[str, Any] = {"memory_mib_at_start": target.memory_mib()}
    if "cpu" in options.only:
        result["cpu"] = measure_cpu(target, options.requests)
    if "paced" in options.only:
        result["paced"] = target.load("paced", str(options.rate), str(options.seconds))
    return result


def run(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ServiceProcess(f"sqlite:///{folder}/service.db") as service:
            change = published(service.url)
            target = Target("service", service.url, service.process.pid, POLL)
            results["service"] = measured(target, options)
            if "wake" in options.only:
                path = f"{POLL}&wait=60"
                results["service"]["wake"] = measure_wake(target, options.waiting, path, change)
            results["service"]["memory_mib_at_end"] = target.memory_mib()
        with bare_server(target.body, folder) as bare:
            results["bare"] = measured(bare, options)
            if "wake" in options.only:
                path = f"{POLL}&wait=60"
                results["bare"]["wake"] = measure_wake(
                    bare, options.waiting, path, ["POST", "/wake"]
                )
        if shutil.which("nginx"):
            with nginx_server(target.body, folder) as nginx:
                results["nginx"] = measured(nginx, options)
        else:
            results["nginx"] = "not installed"
    return results


def versions() -> dict[str, str]:
    names = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "sqlalchemy")
    found = {"python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in names}


def main() -> None:
    if sys.argv[1:2] == ["load"]:
        raise_limit()
        load(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ("cpu", "paced", "wake")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    raise_limit()
    load_before = os.getloadavg()[0]
    results = run(options)
    results = {
        "machine": {
            "platform": platform.platform(),
            "cpus": len(os.sched_getaffinity(0)),
            "load_average_before": round(load_before, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
        },
        "versions": versions(),
        **results,
    }
    text = json.dumps(results, indent=2, allow_nan=False)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def raise_limit() -> None:
    """Thousands of connections need as many file descriptors, in the children too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
