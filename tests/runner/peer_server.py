"""The HTTP server of the simulated peers: records each request, then answers it by its behaviour."""

import contextlib
import json
import socket
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

from runner.behaviours import Behaviour, Call, Reply

if TYPE_CHECKING:
    from runner.peers import Peers


class PeerServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, peers: "Peers") -> None:
        self.peers = peers
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is the test's own doing."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def peers(self) -> "Peers":
        return cast("PeerServer", self.server).peers

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if len(raw) < length:  # the client left in the middle of its request
            self.close_connection = True
            return
        parts = urlsplit(self.path)
        segments = parts.path.strip("/").split("/")
        name = "hosts" if "hosts" in segments else segments[-1]
        call = Call(
            name=f"{name}_stream" if name == "events" and self.command == "GET" else name,
            method=self.command,
            path=parts.path,
            at=time.monotonic(),
            body=json.loads(raw) if raw else {},
            token=(self.headers.get("Authorization") or "").removeprefix("Bearer ") or None,
            activation_token=self.headers.get("X-Turnkeeper-Activation"),
            query={key: values[0] for key, values in parse_qs(parts.query).items()},
        )
        if call.name == "livez":
            self.send_reply(Reply(200, {}))
            return
        self.peers.record(call)
        behaviour = self.peers.behaviour(call.name)
        if call.name == "signals" and type(behaviour) is Behaviour:
            with self.blocking():
                reply = self.peers.usual(call)
            self.send_reply(reply)
        elif call.name == "events_stream" and type(behaviour) is Behaviour:
            self._stream(int(call.query["after"]))
        else:
            behaviour.respond(self, lambda: self.peers.usual(call))

    def _stream(self, after: int) -> None:
        events = self.peers.events
        sent = 0
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in events.after(after, self.peers.closing):
                data = json.dumps(line).encode() + b"\n"
                if events.cut_inside and sent == events.cut_after_lines:
                    self._chunk(data[: len(data) // 2])
                    self.cut()
                    return
                self._chunk(data)
                sent += 1
                if not events.cut_inside and sent == events.cut_after_lines:
                    self.cut()
                    return
            self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def send_reply(self, reply: Reply) -> None:
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        with contextlib.suppress(OSError):
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    @contextlib.contextmanager
    def blocking(self) -> Generator[None]:
        """Within the block the client waits for us, and nothing is on its way."""
        self.peers.blocked_handlers.add(self)
        try:
            yield
        finally:
            self.peers.blocked_handlers.discard(self)

    def cut(self) -> None:
        """End the connection without more."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def gone(self) -> bool:
        """Whether the client has left."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
