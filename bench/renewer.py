"""A driver of renewals in a process of its own: `python -m bench.renewer`, the order as JSON on standard input.

The order: `urls`, `connections` (spread over the urls in turn), `seconds`, and `leases`, each `[job, token, generation]`.
Every request is made before the clock starts; each connection has one request on its way at a time, and the leases are
renewed in turn, one after the other, so that no attempt is asked for twice at once. `seconds` 0: each lease once.

The answer, as JSON on standard output: `renewals`, `took_s`, `cpu_s` and `latency_ms` (every one of them). Anything but a
200 ends it with status 1 and one line.
"""

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

_PATIENCE_S = 30.0
_ANSWER_BYTES = 64 * 1024


class DriverError(Exception):
    """An answer that is no renewal; the text is for a person."""


def request_bytes(host: str, job: str, token: str, generation: int) -> bytes:
    """One renewal as it goes over the wire."""
    body = json.dumps({"lease_generation": generation}).encode()
    head = (
        f"POST /v1/agent/worker/jobs/{job}/heartbeat HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class _Connection:
    """One kept connection: what came of the answer so far, and when its request was sent."""

    socket: socket.socket
    received: bytes = b""
    sent_ns: int = 0


@dataclass
class _Run:
    requests: Iterator[bytes]
    ends_ns: int
    latencies_ms: list[float] = field(default_factory=list[float])


def drive(urls: Sequence[str], leases: Sequence[Sequence[Any]], connections: int, seconds: float) -> dict[str, Any]:
    """Renew for so long; the answer of the module."""
    place = urlsplit(urls[0]).netloc
    made = [request_bytes(place, str(job), str(token), int(generation)) for job, token, generation in leases]
    with selectors.DefaultSelector() as selector:
        opened = [_open(urls[number % len(urls)]) for number in range(min(connections, len(made)))]
        for connection in opened:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began, cpu = time.perf_counter_ns(), time.process_time()
        once = seconds == 0
        ends_ns = began + int((seconds or _PATIENCE_S * 20) * 1e9)
        run = _Run(iter(made) if once else cycle(made), ends_ns)
        _go(selector, opened, run)
        took_s, cpu_s = (time.perf_counter_ns() - began) / 1e9, time.process_time() - cpu
        for connection in opened:
            connection.socket.close()
    return {"renewals": len(run.latencies_ms), "took_s": took_s, "cpu_s": cpu_s, "latency_ms": run.latencies_ms}


def _go(selector: selectors.BaseSelector, opened: Sequence[_Connection], run: _Run) -> None:
    under_way = sum(_send_next(connection, run) for connection in opened)
    while under_way:
        ready = selector.select(_PATIENCE_S)
        if not ready:
            raise DriverError(f"no answer within {_PATIENCE_S:g} s")
        for key, _ in ready:
            connection: _Connection = key.data
            if _is_answered(connection):
                run.latencies_ms.append((time.perf_counter_ns() - connection.sent_ns) / 1e6)
                under_way -= not _send_next(connection, run)


def _send_next(connection: _Connection, run: _Run) -> bool:
    request = next(run.requests, None) if time.perf_counter_ns() < run.ends_ns else None
    if request is None:
        return False
    connection.received = b""
    connection.sent_ns = time.perf_counter_ns()
    connection.socket.sendall(request)  # smaller than any socket's buffer
    return True


def _is_answered(connection: _Connection) -> bool:
    """Whether the whole answer is there, which must be a renewal's."""
    piece = connection.socket.recv(_ANSWER_BYTES)
    if not piece:
        raise DriverError("the control plane closed a connection")
    connection.received += piece
    head, found, body = connection.received.partition(b"\r\n\r\n")
    if not found:
        return False
    lowered = head.lower()
    size = int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])
    if len(body) < size:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        first = head.partition(b"\r\n")[0].decode()
        raise DriverError(f"a renewal was answered {first}: {body[:200].decode()}")
    return True


def _open(url: str) -> _Connection:
    parts = urlsplit(url)
    made = socket.create_connection((parts.hostname, parts.port), _PATIENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Connection(made)


def main() -> int:
    """The exit status."""
    order = json.load(sys.stdin)
    try:
        done = drive(order["urls"], order["leases"], order["connections"], order["seconds"])
    except (DriverError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
