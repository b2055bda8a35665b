"""The processes below `up`: started again when they end, ended in order, dead with their supervisor; their logs are bounded."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.terminal import environment
from harness.postgres import wait_until
from turnkeeper.kit.procs import ProcessId, identify, is_alive, kill, wait_gone
from turnkeeper.main import processes
from turnkeeper.main.processes import PARENT_ENV, ManagedProcess, last_said

# Stands for a process of the product: `python -m turnkeeper …` finds this package first.
STANDIN = """
import os, signal, sys, time
from pathlib import Path
if "die" in sys.argv:
    from turnkeeper_real import die_with_parent
    die_with_parent()
here = Path(os.environ["STANDIN_DIR"])
(here / f"started-{os.getpid()}").touch()
print("standin", *sys.argv[1:], flush=True)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / "deaf").touch()
if "fails" in sys.argv:
    sys.exit("error: no such luck")
while True:
    time.sleep(60)
"""


@pytest.fixture
def standin(tmp_path: Path) -> dict[str, str]:
    """The environment in which `python -m turnkeeper` is the stand-in."""
    package = tmp_path / "turnkeeper"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(STANDIN)
    return {**environment(tmp_path), "PYTHONPATH": str(tmp_path), "STANDIN_DIR": str(tmp_path)}


def started(directory: Path) -> set[int]:
    """The pids of all that were ever started."""
    return {int(file.name.removeprefix("started-")) for file in directory.glob("started-*")}


async def wait_started(directory: Path, count: int) -> set[int]:
    """Wait until so many were started."""
    await asyncio.to_thread(wait_until, lambda: len(started(directory)) >= count, f"{count} starts")
    return started(directory)


def managed(directory: Path, env: dict[str, str], *arguments: str, **more: float) -> ManagedProcess:
    """One process that logs to `directory`."""
    return ManagedProcess("standin", arguments, env, directory / "standin.log", **more)  # pyright: ignore[reportArgumentType]


async def test_what_ends_is_started_again_until_it_is_stopped(standin: dict[str, str], tmp_path: Path) -> None:
    """Killed twice, there again twice; stopped, it stays away."""
    process = managed(tmp_path, standin)
    task = asyncio.create_task(process.run())
    for count in (1, 2, 3):
        await wait_started(tmp_path, count)
        await asyncio.to_thread(wait_until, lambda: process.pid in started(tmp_path), "it runs")
        if count < 3:
            running = identify(process.pid or 0)
            assert running is not None
            kill(running, signal.SIGKILL)
            assert wait_gone(running, 10)
    assert process.ended == 2
    last = ProcessId(process.pid or 0, (identify(process.pid or 0) or ProcessId(0, 0)).start_ticks)
    await process.stop()
    await asyncio.wait_for(task, 10)
    assert not is_alive(last)
    assert process.pid is None
    assert len(started(tmp_path)) == 3


async def test_what_does_not_end_by_itself_is_killed(standin: dict[str, str], tmp_path: Path) -> None:
    """SIGTERM first, SIGKILL when its time is over; a second stop does not wait for it."""
    for hurry in (False, True):
        (tmp_path / "deaf").unlink(missing_ok=True)
        process = managed(tmp_path, standin, "deaf", stop_s=60.0 if hurry else 0.3)
        task = asyncio.create_task(process.run())
        await asyncio.to_thread(wait_until, (tmp_path / "deaf").exists, "it is deaf")
        running = identify(process.pid or 0)
        assert running is not None
        if hurry:
            first = asyncio.create_task(process.stop())
            await asyncio.sleep(0)
            await asyncio.wait_for(process.stop(), 10)
            await asyncio.wait_for(first, 10)
        else:
            await asyncio.wait_for(process.stop(), 10)
        await asyncio.wait_for(task, 10)
        assert not is_alive(running)


async def test_its_last_word_is_told_without_its_prefix(standin: dict[str, str], tmp_path: Path) -> None:
    """For `up`, which gives up and says why."""
    process = managed(tmp_path, standin, "fails")
    assert process.last_word == "it has said nothing"
    task = asyncio.create_task(process.run())
    await asyncio.to_thread(wait_until, lambda: process.ended >= 2, "it has ended twice")
    await process.stop()
    task.cancel()
    await asyncio.wait({task})
    assert process.last_word == "no such luck"
    assert (tmp_path / "standin.log").stat().st_mode & 0o777 == 0o600


def test_an_event_of_the_log_is_no_last_word() -> None:
    """It is for programs, and what went wrong is said beside it."""
    event = '{"event": "database_unavailable", "level": "warning"}\n'
    assert last_said(f"error: no such luck\n{event}{event}\n") == "no such luck"
    assert last_said(event) is None
    assert last_said("") is None


async def test_a_log_that_has_grown_is_put_aside(
    standin: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start: one old file is kept, and no more."""
    monkeypatch.setattr(processes, "LOG_BYTES_MAX", 100)
    log = tmp_path / "standin.log"
    log.write_text("old\n" * 100)
    process = managed(tmp_path, standin, "fresh")
    task = asyncio.create_task(process.run())
    await asyncio.to_thread(wait_until, lambda: log.exists() and "standin fresh" in log.read_text(), "it writes")
    assert (tmp_path / "standin.log.1").read_text().startswith("old")
    assert "old" not in log.read_text()
    await process.stop()
    await asyncio.wait_for(task, 10)


SUPERVISOR = """
import asyncio, json, os, sys
from pathlib import Path
from turnkeeper.main.processes import ManagedProcess
async def main():
    process = ManagedProcess("x", ("host",), json.loads(os.environ["CHILD_ENV"]), Path(sys.argv[1]) / "x.log")
    task = asyncio.create_task(process.run())
    while process.pid is None:
        await asyncio.sleep(0.01)
    print(process.pid, flush=True)
    await task
asyncio.run(main())
"""


def test_it_dies_with_its_supervisor(tmp_path: Path) -> None:
    """SIGKILL of the supervisor reaches a process of the product, which has set its parent-death signal first thing."""
    child = {
        **environment(tmp_path),
        "TURNKEEPER_HOST_TOKEN": "tkh_x",
        "TURNKEEPER_PROVISIONER_URL": "unix:/nowhere.sock",
    }
    child |= {"TURNKEEPER_CONTROL_URL": "http://127.0.0.1:1", "TURNKEEPER_DATA": str(tmp_path)}
    env = {**environment(tmp_path), "CHILD_ENV": json.dumps(child)}
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        host = identify(int(supervisor.stdout.readline()))
        assert host is not None
        wait_until((tmp_path / "host" / "local" / "lock").exists, "the host runs", 40)
        supervisor.kill()
    assert wait_gone(host, 10)


def test_one_whose_supervisor_is_gone_already_does_not_start(tmp_path: Path) -> None:
    """It was started by somebody who died before it could say that it wants to die too."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    env = {**environment(tmp_path), PARENT_ENV: str(gone.pid), "DATABASE_URL": "postgresql:///x"}
    command = [sys.executable, "-m", "turnkeeper", "control", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 1
    assert f"({gone.pid}) is gone" in done.stderr
    assert os.environ.get(PARENT_ENV) is None


async def test_a_fifo_in_the_place_of_its_log_is_not_waited_for(standin: dict[str, str], tmp_path: Path) -> None:
    """Opening one for writing waits for a reader, and whoever waits is the whole supervisor."""
    process = managed(tmp_path, standin)
    os.mkfifo(process.log_file)
    task = asyncio.create_task(process.run())
    await asyncio.to_thread(wait_until, lambda: process.ended >= 2, "it could not be started")
    assert process.last_word == "it has said nothing"
    process.log_file.unlink()
    await wait_started(tmp_path, 1)
    await process.stop()
    await asyncio.wait_for(task, 10)


async def test_a_start_that_fails_is_tried_again(standin: dict[str, str], tmp_path: Path) -> None:
    """Its log cannot be opened for now (a full disk, no descriptor): that may pass, and nobody else would start it."""
    process = managed(tmp_path, standin)
    process.log_file.mkdir()
    task = asyncio.create_task(process.run())
    await asyncio.to_thread(wait_until, lambda: process.ended >= 2, "it could not be started")
    assert not task.done()
    process.log_file.rmdir()
    await wait_started(tmp_path, 1)
    await asyncio.to_thread(wait_until, lambda: process.pid in started(tmp_path), "it runs")
    await process.stop()
    await asyncio.wait_for(task, 10)
