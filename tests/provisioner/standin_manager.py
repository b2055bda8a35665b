"""A stand-in for the sandbox manager, pid 1 of a sandbox in tests of the provisioner: real HTTP on the passed descriptor,
the routes that the provisioner itself uses, and a few that let a test look around inside.

    POST /v1/test/run     {"argv": [...], "timeout_s": 5}   -> {"exit", "out", "err"}: a command in the sandbox
    GET  /v1/test/fds                                        descriptors of this process and of a child
    GET  /v1/test/secrets                                    the names and digests of what PUT /v1/secrets brought
    GET  /v1/test/stream?n=3&pause_ms=50                     NDJSON lines
    GET  /v1/test/slow?s=30                                  an answer that takes its time; notes when its client leaves
    POST /v1/test/echo                                       the body, and the headers that arrived
    GET  /v1/test/flood, /v1/test/flooded                    an endless answer, and how much of it was taken
    GET  /v1/test/connection                                 which connection this is
    POST /v1/test/log?bytes=N                                writes to stderr
    POST /v1/test/exit    {"status": 3}
"""

# ruff: noqa: A002, ARG002, C901, N815, PTH113, PTH114, PTH115, PTH116, PTH118, PTH123, PTH208 - names are http.server's, paths are bytes
import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BOOT_ID = str(uuid.uuid4())
START: dict[str, Any] = {}
SECRETS: dict[str, str] = {}
LEFT: list[str] = []
FLOODED: list[int] = []
puts: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def setup(self) -> None:
        self.client_address = ("unix", 0)
        super().setup()

    def answer(self, value: object, status: int = 200, media: str = "application/json") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        self.handle_any()

    do_POST = do_PUT = do_DELETE = do_GET

    def handle_any(self) -> None:
        body = self.body()
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if self.headers.get("Authorization") != f"Bearer {START['secret']}":
            self.answer({"title": "no", "status": 401, "code": "unauthorized"}, 401, "application/problem+json")
            return
        match parts.path:
            case "/v1/state":
                self.answer(
                    {
                        "boot_id": BOOT_ID,
                        "generation": START["generation"],
                        "mark_ms": time.monotonic_ns() // 1_000_000,
                        "version": "standin",
                        "import_ready": True,
                    }
                )
            case "/v1/mark":
                self.answer({"boot_id": BOOT_ID, "mark_ms": time.monotonic_ns() // 1_000_000})
            case "/v1/secrets":
                puts.append(body.decode())
                SECRETS.clear()
                SECRETS.update(json.loads(body)["values"])
                self.send_response(204)
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "/v1/snapshot":
                self.walk(query["workdir"])
            case "/v1/test/run":
                self.answer(run(json.loads(body)))
            case "/v1/test/fds":
                self.answer({"own": descriptors(), "child": json.loads(run({"argv": LIST_FDS})["out"])})
            case "/v1/test/secrets":
                values = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in SECRETS.items()}
                self.answer({"values": values, "puts": len(puts)})
            case "/v1/test/stream":
                self.stream(int(query.get("n", "3")), int(query.get("pause_ms", "50")))
            case "/v1/test/slow":
                self.slow(float(query["s"]))
            case "/v1/test/left":
                self.answer(LEFT)
            case "/v1/test/echo":
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.answer({"headers": headers, "method": self.command, "path": self.path, "body": len(body)})
            case "/v1/test/flood":
                self.flood()
            case "/v1/test/flooded":
                self.answer(str(sum(FLOODED)).encode())
            case "/v1/test/connection":
                self.answer(str(id(self.connection)).encode())
            case "/v1/test/log":
                for _ in range(int(query["bytes"]) // 10_000):
                    os.write(2, b"y" * 9_999 + b"\n")
                self.answer({})
            case "/v1/test/exit":
                os._exit(json.loads(body)["status"])
            case _:
                self.answer({"title": "no", "status": 404, "code": "not_found"}, 404, "application/problem+json")

    def walk(self, workdir: str) -> None:
        """Frames of regular files and links; what tests of the provisioner need, without the real walk's bounds."""
        if workdir == "die":
            os._exit(1)
        if workdir == "stall":
            self.slow(30)
            return
        root = os.fsencode(os.path.join(START["workspace"], workdir))
        frames: list[bytes] = []
        files = size = 0
        for directory, names, leaves in os.walk(root):
            names[:] = sorted(name for name in names if name != b".git")
            links = [name for name in names if os.path.islink(os.path.join(directory, name))]
            for name in sorted(leaves) + links:
                path = os.path.join(directory, name)
                if os.path.islink(path):
                    data, mode = os.readlink(path), "120000"
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        data = file.read()
                    mode = "100755" if os.stat(path).st_mode & 0o100 else "100644"
                else:
                    continue
                shown = os.path.relpath(path, root).decode("latin-1")
                frames.append(
                    json.dumps({"t": "file", "path": shown, "mode": mode, "size": len(data)}).encode() + b"\n" + data
                )
                files, size = files + 1, size + len(data)
        end = {"t": "end", "files": files, "size_bytes": size, "skipped": 0, "why": None}
        self.answer(b"".join(frames) + json.dumps(end).encode() + b"\n", media="application/x-turnkeeper-walk")

    def stream(self, n: int, pause_ms: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number in range(n):
                line = json.dumps({"n": number, "at": time.monotonic()}).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
                time.sleep(pause_ms / 1000)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            LEFT.append("stream")

    def flood(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b"10000\r\n" + b"z" * 0x10000 + b"\r\n"
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(piece)
                FLOODED.append(len(piece))

    def slow(self, s: float) -> None:
        ready, _, _ = select.select([self.connection], [], [], s)
        if ready and not self.connection.recv(1, socket.MSG_PEEK):
            LEFT.append("slow")
            self.close_connection = True
            return
        self.answer({"slept": s})


LIST_FDS = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    (
        "import os,json\nfound={}\nfor n in range(256):\n try: found[n]=os.readlink(f'/proc/self/fd/{n}')\n except OSError: pass\n"
        "print(json.dumps(found))"
    ),
]


def descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def run(order: dict[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            order["argv"],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=order.get("timeout_s", 10),
            env=order.get("env"),
            cwd=order.get("cwd"),
        )
    except subprocess.TimeoutExpired:
        return {"exit": None, "out": "", "err": "timed out"}
    except OSError as error:
        return {"exit": 127, "out": "", "err": str(error)}
    return {
        "exit": done.returncode,
        "out": done.stdout.decode("utf-8", "replace"),
        "err": done.stderr.decode("utf-8", "replace"),
    }


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        return connection, ("unix", 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--config-fd", type=int, required=True)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--exit-at-once", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    with open(arguments.config_fd, "rb") as config:
        START.update(json.loads(config.read()))
    if arguments.exit_at_once:
        print("standin: leaving at once", file=sys.stderr)
        sys.exit(3)
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    if arguments.never_ready:
        threading.Event().wait()
    Server(listener).serve_forever()


if __name__ == "__main__":
    main()
