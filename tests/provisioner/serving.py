"""A real provisioner over a real socket for tests: in a thread of this process, or as a process that can be killed."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from turnkeeper.client.http import AsyncHttpClient, HttpClient
from turnkeeper.domain.sandbox import sandbox_id
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.main.http_protocol import HttpBounds, bounded_http
from turnkeeper.provisioner.app import app_of
from turnkeeper.provisioner.backends.base import Backend
from turnkeeper.provisioner.backends.local.backend import LocalBackend, LocalSettings
from turnkeeper.provisioner.process import Process, build, local_settings
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.wire.provisioner import EnsureRequest, Sandbox, SandboxSpec
from turnkeeper.wire.tokens import PROVISIONER_AUDIENCE

ADMIN = "tkp_" + "a" * 43
STANDIN = Path(__file__).parent / "standin_manager.py"


@dataclass(frozen=True)
class Signing:
    """The control plane's key in tests."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    kid: str = "k1"

    @property
    def public_keys(self) -> dict[str, str]:
        pem = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return {self.kid: pem.decode()}

    def token(self, uid: str, scope: str, lease_generation: int = 1, **claims: Any) -> str:
        """An attempt's token with every verb; `claims` replace or add."""
        payload: dict[str, Any] = {
            "aud": PROVISIONER_AUDIENCE,
            "sub": new_id(),
            "attempt": new_id(),
            "lease_generation": lease_generation,
            "uid": uid,
            "scope": scope,
            "verbs": ["ensure", "touch", "proxy", "snapshot"],
            "exp": int(time.time()) + 600,
            **claims,
        }
        return jwt.encode(payload, self.key, algorithm="EdDSA", headers={"kid": self.kid})


@dataclass(frozen=True)
class Scope:
    """One owner and conversation."""

    uid: str = field(default_factory=new_id)
    scope: str = field(default_factory=new_id)
    workdir: str = "project"

    @property
    def sandbox_id(self) -> str:
        return sandbox_id(self.uid, self.scope)

    def request(self, lease_generation: int = 1, **changes: Any) -> EnsureRequest:
        """What a worker of this scope sends."""
        values: dict[str, Any] = {
            "uid": self.uid,
            "scope": self.scope,
            "thread_id": self.scope,
            "workdir": self.workdir,
            "lease_generation": lease_generation,
            "spec": SandboxSpec(),
            **changes,
        }
        return EnsureRequest.model_construct(**values)


def standin_settings(settings: ProvisionerSettings, *arguments: str) -> LocalSettings:
    """The local backend with the stand-in as manager."""
    return replace(
        local_settings(settings),
        manager_command=(sys.executable, "-I", str(STANDIN), *arguments),
        manager_programs=(str(STANDIN),),
        end_timeout_s=10,
    )


@dataclass(frozen=True)
class Served:
    """A running provisioner."""

    url: str
    settings: ProvisionerSettings
    process: Process

    def client(self, token: str = ADMIN) -> AsyncHttpClient:
        return AsyncHttpClient(self.url, token=token)

    def blocking(self, token: str = ADMIN) -> HttpClient:
        return HttpClient(self.url, token=token)

    async def ensure(self, scope: Scope, lease_generation: int = 1, **changes: Any) -> Sandbox:
        """As the control plane."""
        async with self.client() as http:
            body = scope.request(lease_generation, **changes)
            return await http.call("POST", "/v1/sandboxes/ensure", Sandbox, body=body)

    def inside(self, sandbox: Sandbox, *argv: str, timeout_s: float = 10, **more: Any) -> dict[str, Any]:
        """What a command in the sandbox did (stand-in only)."""
        order = json.dumps({"argv": argv, "timeout_s": timeout_s, **more}).encode()
        with self.blocking() as http:
            name = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/manager/v1/test/run"
            answer: dict[str, Any] = json.loads(http.request("POST", name, body=order).content)
            return answer


@contextlib.contextmanager
def serve(
    settings: ProvisionerSettings, backend: Callable[[ProvisionerSettings], Backend] | None = None
) -> Generator[Served]:
    """Serve in a thread with a loop of its own. At the end everything that the local backend made is ended."""
    made: Backend = LocalBackend(standin_settings(settings)) if backend is None else backend(settings)
    process = build(settings, made)
    sock = socket.socket(socket.AF_UNIX)
    address = settings.directory / "p.sock"
    address.unlink(missing_ok=True)
    sock.bind(str(address))
    config = uvicorn.Config(
        app_of(process),
        loop="uvloop",
        http=bounded_http(HttpBounds()),
        lifespan="on",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[sock]), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the provisioner did not start")
            time.sleep(0.005)
        yield Served(f"unix:{address}", settings, process)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()


def end_everything(settings: ProvisionerSettings) -> None:
    """End each sandbox of a data directory, with the product's own proof."""

    async def run() -> None:
        backend = LocalBackend(standin_settings(settings), system_clock)
        for row in await backend.inventory():
            generation = getattr(row.state, "generation", "")
            await backend.end(row.sandbox_id, generation)
        await backend.close()

    if (settings.directory / "sandboxes").is_dir():
        asyncio.run(run())


@contextlib.contextmanager
def serve_process(
    settings: ProvisionerSettings, environ: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """The same as a process of its own, which a test may kill."""
    order = {
        "directory": str(settings.directory),
        "admin_token": settings.admin_token,
        "public_keys": dict(settings.public_keys),
    }
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environ or {})},
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipes")
    with process:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the provisioner did not start")
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    order = json.loads(sys.stdin.read())
    settings = ProvisionerSettings(
        directory=Path(order["directory"]), admin_token=order["admin_token"], public_keys=order["public_keys"]
    )
    with serve(settings):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
