"""A host beside the one of `up`, with an environment of its own, which reaches the control plane through a gate.

The gate holds back what host and workers send for as long as it is closed, and lets it through late, as a network may. It
notes how the control plane answers each call, also where nobody waits for the answer any more.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.harness import Product, wait_for
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.kit.procs import ProcessId, descendants, identify, is_alive, kill

_REQUEST = re.compile(rb"(?:GET|POST) (/v1/\S+) HTTP/1\.1\r\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_SPLIT_BYTES_MAX = 400  # a head may be cut by the end of a read
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Answered:
    """One call that went through the gate, without its query, and the status that came back."""

    path: str
    status: int

    @property
    def verb(self) -> str:
        """The route's last word."""
        return self.path.rsplit("/", 1)[-1]


class Gate:
    """Forwards connections to one local port. `answered` is in the order of the answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened = threading.Event()
        self.opened.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._answered: list[Answered] = []
        self._lost: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def answered(self) -> list[Answered]:
        """So far."""
        with self._lock:
            return list(self._answered)

    def close(self) -> None:
        """Hold back whatever is sent from now on."""
        self.opened.clear()

    def open(self) -> None:
        """Let it through, what was held back first."""
        self.opened.set()

    def lose_replies(self, **verbs: int) -> None:
        """Cut the connection instead of passing the next so many answers to these verbs on."""
        with self._lock:
            self._lost.update(verbs)

    def drop(self, **verbs: int) -> None:
        """Cut the connection instead of passing the next so many requests of these verbs on: they never arrive."""
        with self._lock:
            self._dropped.update(verbs)

    def drops(self, path: bytes) -> bool:
        """Whether this request is one of them."""
        verb = path.partition(b"?")[0].decode().rsplit("/", 1)[-1]
        with self._lock:
            left = self._dropped.get(verb, 0)
            self._dropped[verb] = max(0, left - 1)
            return left > 0

    def end(self) -> None:
        """Take no further connection."""
        self.opened.set()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                _Connection(self, client).start()

    def note(self, path: bytes, status: int) -> bool:
        """Note an answer; whether it is passed on."""
        answered = Answered(path.partition(b"?")[0].decode(), status)
        with self._lock:
            self._answered.append(answered)
            left = self._lost.get(answered.verb, 0)
            self._lost[answered.verb] = max(0, left - 1)
            return left == 0


class _Connection:
    """One client and its own connection to the control plane."""

    def __init__(self, gate: Gate, client: socket.socket) -> None:
        self._gate = gate
        self._client = client
        self._server = socket.create_connection(("127.0.0.1", gate.port))
        self._asked: deque[bytes] = deque()

    def start(self) -> None:
        for forward in (self._requests, self._answers):
            threading.Thread(target=forward, daemon=True).start()

    def _requests(self) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while data := _receive(self._client):
                self._gate.opened.wait()
                seen, drops = self._scan(seen + data)
                if drops:
                    self._client.shutdown(socket.SHUT_RDWR)
                    break
                self._server.sendall(data)
        # The server drops a request whose client leaves; this one stays until it has said what it thinks of it.
        with contextlib.suppress(AssertionError, OSError):
            wait_for(lambda: not self._asked, "all is answered", _ANSWER_S)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def _scan(self, seen: bytes) -> tuple[bytes, bool]:
        """What is to be looked at again, and whether the request is to be dropped."""
        end, drops = 0, False
        for found in _REQUEST.finditer(seen):
            drops = self._gate.drops(found[1])
            if not drops:
                self._asked.append(found[1])
            end = found.end()
        return seen[max(end, len(seen) - _SPLIT_BYTES_MAX) :], drops

    def _answers(self) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                seen += data
                end, passes = 0, True
                for found in _STATUS.finditer(seen):
                    if self._asked:
                        passes = self._gate.note(self._asked.popleft(), int(found[1]))
                    end = found.end()
                if not passes:
                    self._client.shutdown(socket.SHUT_RDWR)
                    break
                seen = seen[max(end, len(seen) - _SPLIT_BYTES_MAX) :]
                with contextlib.suppress(OSError):  # it may not wait for this answer any more
                    self._client.sendall(data)
        for one in (self._client, self._server):
            one.close()


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except OSError:
        return b""


@dataclass
class SecondHost:
    """A host process of the test's own."""

    product: Product
    name: str
    gate: Gate
    log_file: Path
    process: "subprocess.Popen[bytes]" = field(repr=False)

    @property
    def id(self) -> ProcessId:
        """The process."""
        found = identify(self.process.pid)
        assert found is not None
        return found

    def child(self, run_id: str) -> ProcessId:
        """The worker that has this run."""
        for file in (self.product.data.hosts / self.name / "children").glob("*.json"):
            record = json.loads(file.read_text())
            if record["job"] == run_id:
                return ProcessId(record["pid"], record["start_ticks"])
        raise AssertionError(f"no child of {self.name} has run {run_id}\n{self.product.tell()}")

    def family(self) -> list[ProcessId]:
        """The host and everything below it."""
        return [self.id, *descendants(self.process.pid)]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What host and children logged as `event`."""
        lines = self.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"event": "{event}"' in line]

    def to_jobs(self) -> list[Answered]:
        """The calls of its workers, as they were answered."""
        return [one for one in self.gate.answered if "/worker/jobs/" in one.path]


@contextlib.contextmanager
def second_host(product: Product, name: str, env: Mapping[str, str] | None = None) -> Generator[SecondHost]:
    """Run a host called `name` until the end of the block; what is left of it is killed."""
    token = new_secret("tkh_")
    product.rows(
        "INSERT INTO host_tokens (id, host, token_hash) VALUES (%s, %s, %s) RETURNING id", new_id(), name, digest(token)
    )
    gate = Gate(product.port)
    environment = {
        **product.environment(),
        "TURNKEEPER_DATA": str(product.data.root),
        "TURNKEEPER_CONTROL_URL": gate.url,
        "TURNKEEPER_PROVISIONER_URL": f"unix:{product.data.provisioner_socket}",
        "TURNKEEPER_HOST_NAME": name,
        "TURNKEEPER_HOST_TOKEN": token,
        **(env or {}),
    }
    log_file = product.data.logs / f"{name}.log"
    with log_file.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper", "host"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    host = SecondHost(product, name, gate, log_file, process)
    try:
        wait_for(lambda: product.rows("SELECT 1 FROM hosts WHERE name = %s", name), f"host {name} is heard")
        yield host
    finally:
        gate.open()
        if process.poll() is None:
            for one in reversed(host.family()):
                kill(one, signal.SIGKILL)
        process.wait()
        gate.end()


@contextlib.contextmanager
def stopped(*processes: ProcessId) -> Generator[None]:
    """Within the block these stand still (SIGSTOP)."""
    for process in processes:
        kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(processes):
            if is_alive(process):
                os.kill(process.pid, signal.SIGCONT)
