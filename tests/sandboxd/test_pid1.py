"""The manager as pid 1 of a bubblewrap sandbox: what an agent of the same uid cannot do to it, and what its end does."""

import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd.manager import Manager, ManagerOptions, said, until
from turnkeeper.kit import procs

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

COMET = "import os,time\nwhile True:\n    time.sleep(0.002)\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
ATTACK = """
import ctypes, os, signal
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
seen = []
for name in ("environ", "fd/0", "fd/3", "mem", "maps", "cwd"):
    try:
        path = f"/proc/1/{name}"
        os.readlink(path) if name[0] in "fc" else open(path, "rb").read(1)
        seen.append(name)
    except OSError:
        pass
ctypes.CDLL(None).ptrace.restype = ctypes.c_long
traced = ctypes.CDLL(None).ptrace(0x4206, 1, None, None)
print("seen", seen, "traced", traced)
"""


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Manager]:
    """A manager in a sandbox."""
    async with Manager(tmp_path, ManagerOptions(bubblewrap=True)) as manager:
        yield manager


def program(manager: Manager, name: str, text: str) -> str:
    """A program in the Workdir."""
    path = manager.workdir / name
    path.write_text(text)
    return f"{sys.executable} -S {path}"


async def test_agent_cannot_end_or_read_it(inside: Manager) -> None:
    """Proves: K-08, K-11. Every signal is sent to it, it is traced and read: it goes on, and nothing was seen."""
    worker = inside.activation()
    command = program(inside, "attack.py", ATTACK)
    events = await worker.turn(f"/run {command}\n/run cat /proc/1/comm /proc/self/stat\n/say alive")
    assert "seen [] traced -1" in str(events)
    assert said(events).endswith("alive")
    assert (await inside.state())["boot_id"] == inside.boot_id


@pytest.mark.parametrize("victim", ["manager", "bwrap"])
async def test_its_end_ends_everything(inside: Manager, victim: str) -> None:
    """Proves: K-08, D-03. The manager or its launcher is killed: no process of the sandbox is left."""
    worker = inside.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    (await worker.prompt("/background sleep 1000\n/run setsid sleep 1000")).ok()
    await until(lambda: len(inside.below()) >= 5)
    below = inside.below()
    assert inside.process is not None
    victims = {"manager": below[0].pid, "bwrap": inside.process.pid}
    procs.kill(next(p for p in [*below, _identity(inside.process.pid)] if p.pid == victims[victim]), signal.SIGKILL)
    for process in below:
        assert procs.wait_gone(process, 2), process


def _identity(pid: int) -> procs.ProcessId:
    found = procs.identify(pid)
    assert found is not None
    return found


async def test_orphans_of_a_killed_keeper_die(inside: Manager) -> None:
    """Proves: D-03, K-08. What a killed keeper kept comes to pid 1, belongs to nobody and is killed, chains included."""
    worker = inside.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    comet, storm = program(inside, "comet.py", COMET), "for i in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; wait"
    (
        await worker.prompt(
            f"/background {comet}\n/background {storm}\n/run kill -9 $(ps -o ppid= -p $PPID); sleep 100"
        )
    ).ok()
    events = await worker.events()
    assert events[-1]["failure"]["code"] == "agent_exited"
    (await worker.next().take()).ok()
    await until(lambda: len(inside.below()) == 1)  # the manager itself; no zombie and no stray


async def test_continues_and_reloads_inside(inside: Manager) -> None:
    """Proves: R-07. The whole of a turn, its continuation and its reload in a real sandbox."""
    first = inside.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    second = first.next()
    (await second.take()).ok()
    assert (await second.session(recorded=first.recorded(receipt))).ok()["mode"] == "continued"
    (await second.prompt("two")).ok()
    receipt = (await second.events())[-1]["receipt"]
    await inside.restart()
    third = second.next(boot_id=inside.boot_id)
    (await third.take()).ok()
    assert (await third.session(recorded=second.recorded(receipt))).ok()["mode"] == "reloaded"
    (await third.prompt("three")).ok()
    assert said(await third.events()) == "turn 3, remembering 2 earlier turns: three"
