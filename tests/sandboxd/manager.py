"""Drives one sandbox manager process as provisioner and worker would."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from turnkeeper.kit import ids, procs
from turnkeeper.kit.clock import system_clock
from turnkeeper.wire.provisioner import ACTIVATION_HEADER
from turnkeeper.wire.sandbox_start import SandboxLimits, SandboxStart
from turnkeeper.wire.tokens import ACTIVATION_AUDIENCE

KEY = Ed25519PrivateKey.generate()
PUBLIC_PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
SCRIPTED = (sys.executable, "-m", "turnkeeper.agents.scripted")


def sign(claims: Mapping[str, Any], key: Ed25519PrivateKey = KEY, kid: str = "k1") -> str:
    """A token over any claims."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return jwt.encode(dict(claims), pem, algorithm="EdDSA", headers={"kid": kid})


@dataclass(frozen=True)
class ManagerOptions:
    """What differs between tests."""

    limits: SandboxLimits = field(default_factory=SandboxLimits)
    generation: str = "gen-1"
    secret: str = "tks_" + "s" * 43
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    public_pem: str = PUBLIC_PEM
    bubblewrap: bool = False
    """Start it as pid 1 of a pid namespace of its own, as a launcher does."""


class Manager:
    """The process and a client of it. Leaving the block kills the process and proves that nothing of it is left."""

    def __init__(self, root: Path, options: ManagerOptions) -> None:
        self.options = options
        self.workspace = root / "workspace"
        self.workdir = self.workspace / "project"
        self.home = self.workspace / "agents" / "homes" / "t1"
        self.log_path = root / "sandboxd.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.boot_id = ""
        self.folder = tempfile.TemporaryDirectory(prefix="tk-sandboxd-")
        self.socket_path = Path(self.folder.name) / "manager.sock"
        self.http: httpx2.AsyncClient

    async def __aenter__(self) -> Self:
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.spawn()
        await self._connect()
        return self

    async def _connect(self) -> None:
        self.http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=str(self.socket_path)),
            base_url="http://manager",
            headers={"Authorization": f"Bearer {self.options.secret}"},
            timeout=30,
        )
        self.boot_id = (await self.state())["boot_id"]

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        try:
            self.end()
        finally:
            self.folder.cleanup()

    def spawn(self) -> None:
        """Start the process as a launcher does: a listening descriptor and a message on a pipe."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket_path.unlink(missing_ok=True)
        listener.bind(str(self.socket_path))
        listener.listen(64)
        config_read, config_write = os.pipe()
        start = SandboxStart(
            secret=self.options.secret,
            generation=self.options.generation,
            public_keys={"k1": self.options.public_pem},
            workspace=str(self.workspace),
            limits=self.options.limits,
        )
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self._bubblewrap() if self.options.bubblewrap else ()),
                    sys.executable,
                    "-I",
                    "-m",
                    "turnkeeper.sandboxd",
                    "--listen-fd",
                    str(listener.fileno()),
                    "--config-fd",
                    str(config_read),
                ],
                pass_fds=(listener.fileno(), config_read),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.environ["PATH"], **self.options.env},
                start_new_session=True,
            )
        os.write(config_write, start.to_json())
        for fd in (config_read, config_write):
            os.close(fd)
        listener.close()

    def _bubblewrap(self) -> list[str]:
        flags = ["--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        mounts = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])):
            mounts += ["--ro-bind", path, path]  # a checkout below /tmp is hidden by the line above
        workspace = str(self.workspace)
        return ["bwrap", *flags, *mounts, "--bind", workspace, workspace, "--"]

    @property
    def pid(self) -> int:
        """The manager's own process, as this test sees it."""
        assert self.process is not None
        return self.below()[0].pid if self.options.bubblewrap else self.process.pid

    async def restart(self) -> None:
        """Kill it as a crash would, and start another one over the same workspace."""
        await self.http.aclose()
        self.end()
        self.spawn()
        await self._connect()

    def end(self) -> None:
        """SIGKILL; outside of a sandbox its keepers then kill what is below them."""
        if self.process is None:
            return
        below = procs.descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.process = None
        left = [process for process in below if not procs.wait_gone(process, 10)]
        assert not left, f"{left} outlived their manager"

    def freeze(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def logs(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    def below(self) -> list[procs.ProcessId]:
        """Every live process of it."""
        assert self.process is not None
        return procs.descendants(self.process.pid)

    async def state(self) -> dict[str, Any]:
        """`GET /v1/state`."""
        response = await self.http.get("/v1/state")
        assert response.status_code == 200, response.text
        return response.json()

    def activation(self, **changes: Any) -> "Worker":
        """A worker with a fresh activation of the one membership of these tests."""
        claims: dict[str, Any] = {
            "aud": ACTIVATION_AUDIENCE,
            "sub": ids.new_id(),
            "attempt": ids.new_id(),
            "lease_generation": 1,
            "membership": "00000000-0000-7000-8000-000000000001",
            "activation": ids.new_id(),
            "fence": 1,
            "generation": self.options.generation,
            "boot_id": self.boot_id,
            "purpose": "turn",
            "exp": int(time.time()) + 3600,
        }
        return Worker(self, {**claims, **changes})


@dataclass
class Told:
    """An answer: status and JSON."""

    status: int
    json: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.json[name]

    def ok(self) -> dict[str, Any]:
        """The JSON of a success."""
        assert self.status == 200, (self.status, self.json)
        return self.json

    def refused(self, status: int, code: str) -> None:
        """Assert a refusal."""
        assert (self.status, self.json.get("code")) == (status, code), (self.status, self.json)


@dataclass
class Worker:
    """One activation's caller."""

    manager: Manager
    claims: dict[str, Any]
    token_override: str | None = None

    @property
    def run(self) -> str:
        """The run id."""
        return self.claims["sub"]

    @property
    def headers(self) -> dict[str, str]:
        """With the signed token."""
        return {ACTIVATION_HEADER: self.token_override or sign(self.claims)}

    def next(self, **changes: Any) -> "Worker":
        """The next activation of the same membership."""
        fresh = {"sub": ids.new_id(), "activation": ids.new_id(), "attempt": ids.new_id()}
        return replace(self, claims={**self.claims, **fresh, "fence": self.claims["fence"] + 1, **changes})

    async def call(self, method: str, path: str, body: object = None, **options: Any) -> Told:
        """Any request of this activation."""
        response = await self.manager.http.request(
            method, path, json=body if body is not None else {}, headers=self.headers, **options
        )
        return Told(response.status_code, response.json())

    async def take(self, **changes: Any) -> Told:
        """`POST /v1/take`, with two minutes of lease."""
        body = {
            "mark_ms": system_clock.boottime_ms(),
            "lease_ttl_ms": 120_000,
            "home": str(self.manager.home),
            **changes,
        }
        return await self.call("POST", "/v1/take", body)

    def session_body(self, **changes: Any) -> dict[str, Any]:
        """A body for `POST /v1/session` with the scripted agent."""
        return {
            "command": list(SCRIPTED),
            "cwd": str(self.manager.workdir),
            "home": str(self.manager.home),
            "env": {"SCRIPTED_AGENT_LEDGER": str(self.manager.home / "ledger")},
            "timeout_s": 30,
            **changes,
        }

    async def session(self, **changes: Any) -> Told:
        """`POST /v1/session`."""
        return await self.call("POST", "/v1/session", self.session_body(**changes))

    async def setup(self, *commands: Sequence[str], timeout_s: int = 20, **changes: Any) -> Told:
        """`POST /v1/setup`."""
        body = {
            "commands": [{"command": list(command), "timeout_s": timeout_s} for command in commands],
            "cwd": str(self.manager.workdir),
            "home": str(self.manager.home),
            **changes,
        }
        return await self.call("POST", "/v1/setup", body)

    async def prompt(self, text: str, **changes: Any) -> Told:
        """`POST /v1/prompt`."""
        return await self.call("POST", "/v1/prompt", {"run": self.run, "text": text, **changes})

    async def lines(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """`GET /v1/events`, line by line."""
        url = f"/v1/events?after={after}"
        async with self.manager.http.stream("GET", url, headers=self.headers) as response:
            if response.status_code != 200:
                raise AssertionError((response.status_code, await response.aread()))
            async for line in response.aiter_lines():
                yield json.loads(line)

    async def events(self, after: int = 0, timeout_s: float = 20) -> list[dict[str, Any]]:
        """All of them, to the last line."""
        async with asyncio.timeout(patience(timeout_s)):
            return [line async for line in self.lines(after)]

    async def turn(self, text: str, **session: Any) -> list[dict[str, Any]]:
        """Take, open, prompt and read to the end."""
        (await self.take()).ok()
        answer = (await self.session(**session)).ok()
        assert answer["failure"] is None, answer
        (await self.prompt(text)).ok()
        return await self.events()

    def recorded(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """What the control plane would record of a settlement."""
        return {
            "native_session": receipt["native_session"],
            "native_turn": receipt["native_turn"],
            "settled_generation": self.manager.options.generation,
            "settled_boot_id": receipt["boot_id"],
            "agent_pid": receipt["agent"]["pid"],
            "agent_start_ticks": receipt["agent"]["start_ticks"],
        }


def said(events: Sequence[Mapping[str, Any]]) -> str:
    """The text of the events."""
    return "".join(event["data"]["text"] for event in events if event.get("kind") == "text")


def patience(s: float) -> float:
    """A bound that holds on a machine with a core to spare; on one that is overloaded by other things, as much longer."""
    return s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def until(fact: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait for a fact, bounded."""
    async with asyncio.timeout(patience(timeout_s)):
        while not fact():  # noqa: ASYNC110 - facts about other processes have no event
            await asyncio.sleep(0.01)
