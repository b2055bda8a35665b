"""The provisioner is killed at any moment; sandboxes live on, and the next process finds them or ends what was only half there."""

# ruff: noqa: ASYNC240 - /proc and the state directory do not block
import asyncio
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.serving import Scope, Served, serve, serve_process
from turnkeeper.client.http import AsyncHttpClient, CallError
from turnkeeper.kit.procs import identify, is_alive
from turnkeeper.provisioner.backends.base import Instance
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.backends.local.records import Places, read_record
from turnkeeper.provisioner.process import local_settings
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.wire.provisioner import Sandbox


def client_of(settings: ProvisionerSettings) -> AsyncHttpClient:
    return AsyncHttpClient(f"unix:{settings.directory / 'p.sock'}", token=settings.admin_token)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def launchers_of(settings: ProvisionerSettings) -> list[int]:
    """Processes whose working files lie in this data directory's `sandboxes/`."""
    needle = f"{settings.directory.resolve()}/sandboxes/".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and identify(int(entry.name)) is not None:
            try:
                fds = [os.readlink(fd).encode() for fd in (entry / "fd").iterdir()]  # noqa: PTH115 - hot
            except OSError:
                continue
            if any(fd.startswith(needle) for fd in fds):
                found.append(int(entry.name))
    return found


async def test_killed_and_started_again(settings: ProvisionerSettings) -> None:
    """Proves: K-02. SIGKILL of the provisioner: the sandbox lives on and the next process finds the same instance."""
    scope = Scope()
    with serve_process(settings) as process:
        async with client_of(settings) as http:
            first = await http.call("POST", "/v1/sandboxes/ensure", Sandbox, body=scope.request(1))
        kill(process)
    record = read_record(Places(settings.directory.resolve() / "sandboxes" / scope.sandbox_id))
    assert record is not None
    assert is_alive(record.launcher)
    with serve(settings) as served:
        again = await served.ensure(scope, lease_generation=2)
        assert not again.created
        assert (again.generation, again.boot_id) == (first.generation, first.boot_id)


@pytest.mark.parametrize("delay_ms", [0, 5, 15, 30, 60, 120, 250])
async def test_killed_in_the_middle_of_a_create(settings: ProvisionerSettings, delay_ms: int) -> None:
    """Case: F06 (c). Killed at some moment between "asked" and "answered": after the retry exactly one sandbox exists, and no
    process is left that is not of it."""
    scope = Scope()
    with serve_process(settings) as process:
        async with client_of(settings) as http:
            call = asyncio.create_task(http.call("POST", "/v1/sandboxes/ensure", Sandbox, body=scope.request(1)))
            await asyncio.sleep(delay_ms / 1000)
            kill(process)
            await asyncio.wait({call})
            assert isinstance(call.exception(), CallError) or call.result().created
    with serve(settings) as served:
        sandbox = await served.ensure(scope, lease_generation=2)
        rows = await served.process.service.backend.inventory()
        assert [row.state.generation for row in rows if isinstance(row.state, Instance)] == [sandbox.generation]
        record = read_record(Places(settings.directory.resolve() / "sandboxes" / scope.sandbox_id))
        assert record is not None
        deadline = time.monotonic() + 5
        while (left := launchers_of(settings)) != [record.launcher.pid]:
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


async def test_two_hundred_scopes_are_inventoried(served: Served) -> None:
    """An inventory reads every record and blocks nobody for long."""
    for _ in range(3):
        await served.ensure(Scope())
    rows = await served.process.service.backend.inventory()
    assert len(rows) == 3
    assert all(row.shape is not None and row.created_at is not None for row in rows)


async def test_real_manager_answers(settings: ProvisionerSettings) -> None:
    """The product's own manager in a sandbox: ensure, look through the proxy, snapshot, delete; created in well under a second."""
    scope = Scope()
    with serve(settings, lambda given: LocalBackend(local_settings(given))) as served:
        await served.ensure(Scope())  # whatever the disk had to read the first time
        begun = time.monotonic()
        sandbox = await served.ensure(scope, secrets=("GIVEN_SECRET",))
        took_s = time.monotonic() - begun
        again = await served.ensure(scope, lease_generation=2)
        assert (again.boot_id, again.created) == (sandbox.boot_id, False)
        (settings.directory / "owners" / scope.uid / "workspace/project/a").write_text("1\n")
        base = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}"
        async with served.client() as http:
            state = (await http.request("GET", f"{base}/manager/v1/state")).content
            shot = (await http.request("POST", f"{base}/snapshot", body=b'{"workdir": "project", "epoch": 1}')).content
            gone = await http.request("DELETE", f"/v1/sandboxes/{sandbox.sandbox_id}", params={"lease_generation": 2})
    assert sandbox.boot_id.encode() in state
    assert b'"path":"a"' in shot
    assert b"deleted" in gone.content
    assert took_s < 5


async def test_without_isolation(settings: ProvisionerSettings) -> None:
    """Proves: K-08. `--unsafe-no-isolation`: the manager is a plain process on the host's paths, and a delete ends its tree."""
    scope = Scope()
    plain = replace(settings, isolated=False)
    with serve(plain) as served:
        sandbox = await served.ensure(scope)
        root = str(settings.directory.resolve() / "owners" / scope.uid / "workspace")
        assert sandbox.cwd == f"{root}/project"
        served.inside(sandbox, "/bin/sh", "-c", f"sleep 1000 & echo $! > {root}/pid")
        sleeper = identify(int(Path(root, "pid").read_text()))
        assert sleeper is not None
        async with served.client() as http:
            await http.request("DELETE", f"/v1/sandboxes/{sandbox.sandbox_id}", params={"lease_generation": 1})
        assert not is_alive(sleeper)
        assert launchers_of(settings) == []


async def test_isolation_is_not_inherited(settings: ProvisionerSettings) -> None:
    """Proves: K-08. A start with isolation ends what an earlier start without it has left running; it never adopts it."""
    scope = Scope()
    with serve(replace(settings, isolated=False)) as served:
        plain = await served.ensure(scope)
    assert launchers_of(settings) != []
    with serve(settings) as served:
        assert launchers_of(settings) == []
        sandbox = await served.ensure(scope, lease_generation=2)
        assert sandbox.created
        assert sandbox.generation != plain.generation
        assert sandbox.cwd == "/workspace/project"
