# ruff: noqa: ASYNC240 - /proc and the state directory do not block
"""Ending local sandboxes, with the proof that nothing is left: by delete, by a killed launcher at any moment, by a reboot."""

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.signals import NOHUP, blocked_by, ignored_by, starting_with
from provisioner.serving import Scope, Served, standin_settings
from turnkeeper.client.http import ClientError
from turnkeeper.domain.sandbox import Absent, ExitCause, Exited, Unknown
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.procs import ProcessId, boot_id, descendants, identify, is_alive, wait_gone
from turnkeeper.kit.sockets import bind_unix
from turnkeeper.provisioner.backends.base import (
    CreateFailedError,
    Ended,
    Instance,
    Lookup,
    Mounts,
    Order,
    OtherGeneration,
    Shape,
)
from turnkeeper.provisioner.backends.local import bubblewrap, seccomp
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.backends.local.ending import end_processes
from turnkeeper.provisioner.backends.local.records import Places, Record, read_processes, read_record
from turnkeeper.provisioner.backends.local.starting import SECCOMP_FD, memory_file, reap, spawn
from turnkeeper.provisioner.settings import ProvisionerSettings

SLEEPERS = "for i in 1 2 3; do (trap '' TERM HUP INT; setsid sleep 1000 & sleep 1000) & done; sleep 0.2"


def members(namespace: str) -> Iterator[int]:
    """Live processes of a pid namespace, as this machine numbers them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str((entry / "ns/pid").readlink()) == namespace and identify(int(entry.name)) is not None:
                    yield int(entry.name)


def places_of(settings: ProvisionerSettings, scope: Scope) -> Places:
    return Places(settings.directory.resolve() / "sandboxes" / scope.sandbox_id)


def identities(settings: ProvisionerSettings, scope: Scope) -> tuple[ProcessId, ProcessId, str]:
    """Launcher, pid 1 and pid namespace of a running sandbox."""
    places = places_of(settings, scope)
    record, processes = read_record(places), read_processes(places)
    assert record is not None
    assert processes is not None
    return record.launcher, processes.init, str(Path(f"/proc/{processes.init.pid}/ns/pid").readlink())


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def test_delete_proves_the_namespace_empty(served: Served) -> None:
    """Proves: K-03. Daemons that ignore signals and have left their session are dead when the delete answers."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    served.inside(sandbox, "/bin/sh", "-c", SLEEPERS)
    launcher, init, namespace = identities(served.settings, scope)
    assert len(list(members(namespace))) >= 4
    async with served.client() as http:
        answer = await http.request(
            "DELETE", f"/v1/sandboxes/{sandbox.sandbox_id}", params={"expected_generation": sandbox.generation}
        )
    assert b"deleted" in answer.content
    assert not is_alive(launcher)
    assert not is_alive(init)
    assert not places_of(served.settings, scope).directory.exists()


async def test_killed_launcher_leaves_nothing(settings: ProvisionerSettings) -> None:
    """Proves: K-08. 24 of 24: a launcher killed with SIGKILL leaves an empty pid namespace, and the lookup says exited."""
    backend = make_backend(settings, manager=("/bin/sh", "-c", f"{SLEEPERS}; sleep 1000"))
    for _ in range(24):
        scope = Scope()
        instance = await backend.create(order_for(settings, scope))
        wait_until(places_of(settings, scope).instance.exists)
        launcher, init, namespace = identities(settings, scope)
        wait_until(lambda namespace=namespace: len(list(members(namespace))) >= 8)
        alive = [found for pid in members(namespace) if (found := identify(pid)) is not None]
        os.kill(launcher.pid, signal.SIGKILL)
        assert wait_gone(init, 2)
        assert not [process for process in alive if is_alive(process)]
        assert await until_settled(backend, scope) == Exited(instance.generation, ExitCause.KILLED)


async def until_settled(backend: LocalBackend, scope: Scope) -> Lookup:
    """The first answer that is neither running nor unknown: a launcher and bubblewrap take a moment to be gone."""
    for _ in range(1000):
        found = await backend.lookup(scope.sandbox_id)
        if not isinstance(found, Instance | Unknown):
            return found
        await asyncio.sleep(0.002)
    raise AssertionError("it does not end")


async def test_exit_and_its_cause(served: Served) -> None:
    """Proves: K-05 (exited, with cause; the next ensure makes a new generation)."""
    scope = Scope()
    first = await served.ensure(scope)
    with served.blocking() as http, contextlib.suppress(ClientError):
        name = f"/v1/sandboxes/{first.sandbox_id}/{first.generation}/manager/v1/test/exit"
        http.request("POST", name, body=b'{"status": 3}')
    wait_until(places_of(served.settings, scope).exit.exists)
    await until_settled(LocalBackend(standin_settings(served.settings)), scope)
    with served.blocking() as http:
        record = http.request("GET", f"/v1/sandboxes/{first.sandbox_id}").content
    assert b'"state":"exited"' in record
    assert b'"why":"exited"' in record
    second = await served.ensure(scope)
    assert second.created
    assert second.generation != first.generation


def make_backend(settings: ProvisionerSettings, manager: tuple[str, ...] | None = None) -> LocalBackend:
    local = standin_settings(settings)
    backend = LocalBackend(local if manager is None else replace(local, manager_command=manager))
    backend.check()
    return backend


def order_for(settings: ProvisionerSettings, scope: Scope) -> Order:
    mounts = Mounts(settings.directory / "w", settings.directory / "s")
    for path in (mounts.workspace, mounts.skills):
        path.mkdir(exist_ok=True)
    return Order(scope.sandbox_id, new_id(), Shape(scope.uid, scope.scope, scope.workdir), mounts)


async def test_ends_name_their_generation(settings: ProvisionerSettings) -> None:
    """Proves: K-03 (another generation is not touched; absent is an answer of its own)."""
    backend, scope = make_backend(settings), Scope()
    assert isinstance(await backend.end(scope.sandbox_id, new_id()), Absent)
    instance = await backend.create(order_for(settings, scope))
    assert await backend.end(scope.sandbox_id, new_id()) == OtherGeneration(instance.generation)
    assert isinstance(await backend.end(scope.sandbox_id, instance.generation), Ended)
    assert isinstance(await backend.lookup(scope.sandbox_id), Absent)


async def test_a_second_instance_of_a_name_is_refused(settings: ProvisionerSettings) -> None:
    """At most one instance of a name: creating another fails, and the first is as it was."""
    backend, scope = make_backend(settings), Scope()
    first = await backend.create(order_for(settings, scope))
    with pytest.raises(CreateFailedError):
        await backend.create(order_for(settings, scope))
    assert await backend.lookup(scope.sandbox_id) == first


async def test_killed_at_each_moment_of_its_start(settings: ProvisionerSettings) -> None:
    """Case: F06. The launcher dies at some moment of its start, before or after pid 1 is on record: nothing runs on."""
    backend = make_backend(settings)
    for step in range(24):
        scope = Scope()
        order = order_for(settings, scope)
        instance = await backend.create(order)
        record = read_record(places_of(settings, scope))
        assert record is not None
        await asyncio.sleep(step * 0.002)
        below = descendants(record.launcher.pid)
        os.kill(record.launcher.pid, signal.SIGKILL)
        assert isinstance(await backend.end(scope.sandbox_id, instance.generation), Ended | Absent)
        assert not [process for process in below if is_alive(process)], step


async def test_launcher_without_orders_starts_nothing(settings: ProvisionerSettings, tmp_path: Path) -> None:
    """Case: F06 (c). A provisioner that dies between "spawned" and "recorded" leaves a launcher that ends by itself."""
    directory = tmp_path / "sandbox"
    directory.mkdir()
    with bind_unix(directory / "manager.sock") as listener:
        start = memory_file("start", b"{}")
        launcher = spawn(directory / "log", listener.fileno(), start, start)
        os.close(start)
        assert is_alive(launcher.process)
        os.write(launcher.orders_fd, b'{"directory": "/", "argv": ["/bin/true"], "en')
        launcher.dismiss()
        wait_until(lambda: not is_alive(launcher.process))
    reap({launcher.process.pid})
    assert sorted(path.name for path in directory.iterdir()) == ["log", "manager.sock"]


async def test_sandbox_without_a_recorded_pid_1_is_found(settings: ProvisionerSettings, tmp_path: Path) -> None:
    """Case: F06. A launcher that dies before it names pid 1: the sandbox never runs anything, and what there is of it is found
    by the generation on bubblewrap's command line and ended."""
    make_backend(settings)
    scope, generation = Scope(), new_id()
    order = order_for(settings, scope)
    places = Places(tmp_path / scope.sandbox_id)
    places.directory.mkdir()
    (places.directory / ".instance.json.new").mkdir()  # so that it cannot be written
    layout = bubblewrap.Layout(
        order.mounts.workspace, order.mounts.skills, settings.directory / "sandboxes" / "etc", (), False, generation
    )
    filter_fd = memory_file("seccomp", seccomp.program(platform.machine()))
    with bind_unix(places.socket) as listener:
        launcher = spawn(places.log, listener.fileno(), filter_fd, filter_fd)
    os.close(filter_fd)
    launcher.order(
        {
            "directory": str(places.directory),
            "argv": [
                bubblewrap.find_bubblewrap(),
                *bubblewrap.arguments(layout, SECCOMP_FD),
                "--",
                "/bin/sh",
                "-c",
                "touch /workspace/ran; sleep 1000",
            ],
            "env": {},
            "isolated": True,
            "keep_fds": [3, 4, 5],
            "look_interval_s": 30,
        }
    )
    assert wait_gone(launcher.process, 10)
    reap({launcher.process.pid})
    record = Record(
        scope.sandbox_id,
        generation,
        order.shape,
        system_clock.utcnow(),
        boot_id(),
        launcher.process,
        True,
        "/workspace",
    )
    assert end_processes(places, record, 10) is None
    marked = generation.encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if marked in read_quietly(path)]
    assert not (order.mounts.workspace / "ran").exists()


def read_quietly(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_records_of_another_boot_are_history(settings: ProvisionerSettings) -> None:
    """Pids of before a reboot mean nothing: the record says exited, and an end kills nobody who has the number now."""
    backend, scope = make_backend(settings), Scope()
    instance = await backend.create(order_for(settings, scope))
    places = places_of(settings, scope)
    record = read_record(places)
    assert record is not None
    text = places.record.read_text()
    places.record.write_text(text.replace(record.kernel_boot, new_id()))
    assert await backend.lookup(scope.sandbox_id) == Exited(instance.generation, ExitCause.UNKNOWN)
    assert is_alive(record.launcher)
    places.record.write_text(text)
    assert isinstance(await backend.end(scope.sandbox_id, instance.generation), Ended)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        '{"sandbox_id": "../../etc"}',
        "\x00",
        "{" + '"a":' * 1000 + "1" + "}" * 1000,
    ],
)
async def test_edited_records_are_unknown(settings: ProvisionerSettings, text: str) -> None:
    """Case: F14. Proves: K-05. A record that somebody broke is "unknown": nothing is deleted, made or concluded from it."""
    backend, scope = make_backend(settings), Scope()
    instance = await backend.create(order_for(settings, scope))
    places = places_of(settings, scope)
    kept = places.record.read_text()
    places.record.write_text(text)
    assert isinstance(await backend.lookup(scope.sandbox_id), Unknown)
    assert isinstance(await backend.end(scope.sandbox_id, instance.generation), Unknown)
    places.record.write_text(kept)
    assert await backend.lookup(scope.sandbox_id) == instance


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sandbox_id", '"tk-' + "0" * 40 + '"'),
        ("uid", '"../.."'),
        ("generation", '"../../x"'),
        ("workdir", '"../../etc"'),
        ("network", '"all"'),
        ("pid", '"1; touch /tmp/y"'),
    ],
)
async def test_records_with_hostile_values(settings: ProvisionerSettings, field: str, value: str) -> None:
    """Case: F14. A single edited value makes the record another's or nobody's; the sandbox is not touched by it."""
    backend, scope = make_backend(settings), Scope()
    instance = await backend.create(order_for(settings, scope))
    places = places_of(settings, scope)
    kept = places.record.read_text()
    edited = re.sub(rf'"{field}": ("[^"]*"|\d+)', lambda _: f'"{field}": {value}', kept)
    assert edited != kept
    places.record.write_text(edited)
    assert isinstance(await backend.lookup(scope.sandbox_id), Unknown)
    places.record.write_text(kept)
    assert await backend.lookup(scope.sandbox_id) == instance


async def test_sandbox_inherits_nothing(settings: ProvisionerSettings) -> None:
    """Case: F15. No ignored or blocked signal, no descriptor, working directory or umask of the provisioner reaches the sandbox."""
    backend, scope = make_backend(settings, manager=("/bin/sh", "-c", "exec sleep 1000")), Scope()
    previous = os.umask(0o077)
    try:
        with starting_with({*NOHUP, signal.SIGUSR1, signal.SIGRTMIN}, blocked={signal.SIGUSR2, signal.SIGTERM}):
            await backend.create(order_for(settings, scope))
    finally:
        os.umask(previous)
    wait_until(places_of(settings, scope).instance.exists)
    launcher, init, _ = identities(settings, scope)
    wait_until(lambda: Path(f"/proc/{init.pid}/cmdline").read_bytes().startswith(b"sleep"))
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{init.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert ignored_by(init.pid) == blocked_by(init.pid) == blocked_by(launcher.pid) == set()
    assert ignored_by(launcher.pid) == {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own
    assert fields["Umask"] == "0022"
    # while it loads its libraries it has one more open
    wait_until(lambda: {fd.name for fd in Path(f"/proc/{init.pid}/fd").iterdir()} == {"0", "1", "2", "3", "5"})
    assert str(Path(f"/proc/{launcher.pid}/cwd").readlink()) == "/"


async def test_launcher_whose_record_is_gone_ends(settings: ProvisionerSettings) -> None:
    """A data directory that was removed under a running sandbox: its launcher notices, and the sandbox ends with it."""
    command = ("/bin/sh", "-c", "sleep 1000")
    local = replace(standin_settings(settings), look_interval_s=0.1, manager_command=command)
    backend, scope = LocalBackend(local), Scope()
    backend.check()
    await backend.create(order_for(settings, scope))
    places = places_of(settings, scope)
    wait_until(places.instance.exists)
    launcher, init, _ = identities(settings, scope)
    assert not wait_gone(launcher, 0.5)
    shutil.rmtree(places.directory)
    assert wait_gone(launcher, 10)
    assert wait_gone(init, 10)
    await backend.lookup(scope.sandbox_id)


async def test_launcher_log_is_bounded(served: Served) -> None:
    """A manager that logs without end fills two files of one MiB and nothing more, and is never blocked."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    async with served.client() as http:
        name = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/manager/v1/test/log"
        await http.request("POST", name, params={"bytes": 5_000_000})
    directory = places_of(served.settings, scope).directory
    wait_until((directory / "launcher.log.1").exists)
    assert sum(path.stat().st_size for path in directory.glob("launcher.log*")) <= 2 << 20
