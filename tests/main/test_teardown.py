"""Workers and sandboxes that are ended with `up`: known by pid and start time, and never another process with that pid."""

import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnkeeper.domain.sandbox import sandbox_id
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.procs import ProcessId, boot_id, identify, is_alive
from turnkeeper.main.paths import DataDirectory
from turnkeeper.main.teardown import end_sandboxes, end_workers
from turnkeeper.provisioner.backends.base import Shape
from turnkeeper.provisioner.backends.local.records import Places, Record, write_record
from turnkeeper.runner.records import ChildRecord, ChildRecords

Start = Callable[[], ProcessId]


@pytest.fixture(name="start")
def _start() -> Generator[Start]:
    """Starts a process that waits; all are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> ProcessId:
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        process = identify(started[-1].pid)
        assert process is not None
        return process

    yield start
    for one in started:
        one.kill()
        one.communicate()


def child_record(process: ProcessId, boot: str) -> ChildRecord:
    return ChildRecord(
        pid=process.pid,
        start_ticks=process.start_ticks,
        machine_boot=boot,
        incarnation=new_id(),
        job=new_id(),
        attempt=new_id(),
        lease_generation=1,
        root_run_id=new_id(),
    )


def test_workers_with_a_turn_and_spares_are_ended_and_turns_are_counted(start: Start, tmp_path: Path) -> None:
    """The records stay, for the next start of the host."""
    records = ChildRecords(tmp_path)
    records.open().release()
    turns, spare = [start(), start()], start()
    for process in turns:
        records.write(child_record(process, boot_id()))
    ended = end_workers(tmp_path, [spare, turns[0]])
    assert (ended.turns, ended.complaints) == (2, ())
    assert not any(map(is_alive, [*turns, spare]))
    assert len(records.read_all()) == 2


def test_another_process_with_a_worker_s_pid_is_left_alone(start: Start, tmp_path: Path) -> None:
    """The stale twins: another start time, and another boot."""
    records = ChildRecords(tmp_path)
    records.open().release()
    later, booted = start(), start()
    records.write(child_record(replace(later, start_ticks=later.start_ticks - 1), boot_id()))
    records.write(child_record(booted, "another-boot"))
    ended = end_workers(tmp_path, [replace(later, start_ticks=later.start_ticks - 1)])
    assert (ended.turns, ended.complaints) == (0, ())
    assert is_alive(later)
    assert is_alive(booted)


def test_a_host_that_never_was_has_no_workers(tmp_path: Path) -> None:
    """`up` was stopped before it had started one."""
    assert end_workers(tmp_path / "nowhere").turns == 0


def sandbox(data: DataDirectory, launcher: ProcessId, boot: str) -> Places:
    """The directory of an instance with this launcher, which never got to start anything."""
    shape = Shape(uid=new_id(), scope=new_id(), workdir="w", network="none", programs=(), image=None)
    name = sandbox_id(shape.uid, shape.scope)
    places = Places(data.sandboxes / name)
    places.directory.mkdir(parents=True)
    write_record(places, Record(name, new_id(), shape, datetime.now(UTC), boot, launcher, True, "/workspace"))
    places.secret.write_text("x")
    return places


def test_sandboxes_are_ended_counted_and_removed(start: Start, tmp_path: Path) -> None:
    """One that lives, and one whose processes belong to an earlier boot: its pid is somebody else's now."""
    data, launcher, stranger = DataDirectory(tmp_path), start(), start()
    places = [sandbox(data, launcher, boot_id()), sandbox(data, stranger, "another-boot")]
    (data.sandboxes / "etc").mkdir()
    ended = end_sandboxes(data)
    assert (ended.count, ended.complaints) == (1, ())
    assert not is_alive(launcher)
    assert is_alive(stranger)
    assert not any(one.directory.exists() for one in places)
    assert (data.sandboxes / "etc").exists(), "what is no sandbox's stays"


def test_a_sandbox_whose_record_cannot_be_read_is_told_and_kept(start: Start, tmp_path: Path) -> None:
    """Its processes do not end by that, and nobody would know of them any more. Case: F14."""
    data, launcher = DataDirectory(tmp_path), start()
    places = sandbox(data, launcher, boot_id())
    places.record.write_text("{}")
    ended = end_sandboxes(data)
    assert ended.count == 0
    assert [line.startswith(f"sandbox {places.directory.name}: ") for line in ended.complaints] == [True]
    assert places.record.exists()
    assert is_alive(launcher)
