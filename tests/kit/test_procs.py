"""Process identity and death, with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.signals import NOHUP, blocked_by, ignored_by, starting_with
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.procs import (
    ProcessId,
    boot_id,
    descendants,
    identify,
    is_alive,
    kill,
    open_pidfd,
    own_identity,
    parse_stat,
    processes,
    read_stat,
    wait_gone,
)


def names(directory: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(directory).iterdir())


def until(fact: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    end = system_clock.monotonic() + timeout_s
    while not fact():
        assert system_clock.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.002)


@contextmanager
def python(code: str, *, wait_for_line: bool = True) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A Python child that runs `code`; yields it and its first line. It is dead and reaped afterwards."""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline().strip() if wait_for_line else ""
    finally:
        child.kill()
        child.communicate()


SLEEPER = "import time; print('up', flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    "name",
    [b"python", b"a b", b"a) R 1 1 1", b"((", b"))", b"", b"a\nb", b") Z 1 (", b"\xff\xfe"],
)
def test_parse_stat_of_any_command_name(name: bytes) -> None:
    """The name may hold spaces, parentheses and newlines; the fields after the last `)` are the right ones."""
    fields = b" ".join([b"S", b"77", *[str(n).encode() for n in range(5, 22)], b"987654", b"23"])
    stat = parse_stat(b"4242 (" + name + b") " + fields + b"\n")
    assert (stat.pid, stat.state, stat.parent_pid, stat.start_ticks) == (4242, "S", 77, 987654)
    assert not stat.dead


def test_a_real_process_with_a_hurtful_name() -> None:
    """The kernel's own line, not only ours."""
    code = "import ctypes,time; ctypes.CDLL(None).prctl(15, b') Z 1 (x', 0, 0, 0); print('up', flush=True); time.sleep(600)"
    with python(code) as (child, _):
        assert b") Z 1 (x" in Path(f"/proc/{child.pid}/stat").read_bytes()
        stat = read_stat(child.pid)
        assert stat is not None
        assert (stat.pid, stat.parent_pid) == (child.pid, os.getpid())
        identity = identify(child.pid)
        assert identity is not None
        assert is_alive(identity)


def test_start_ticks_are_field_22() -> None:
    """The start lies between boot and now, and is the same at every look."""
    me = own_identity()
    assert me == own_identity() == identify(os.getpid())
    per_second = os.sysconf("SC_CLK_TCK")
    age_s = system_clock.monotonic() - me.start_ticks / per_second
    assert 0 <= age_s < 7 * 86_400
    with python(SLEEPER) as (child, _):
        other = identify(child.pid)
        assert other is not None
        assert 0 <= system_clock.monotonic() - other.start_ticks / per_second < 60


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_no_such_process(pid: int) -> None:
    """Neither an error nor somebody else."""
    assert identify(pid) is None
    assert not is_alive(ProcessId(pid, 1))
    assert not kill(ProcessId(pid, 1), signal.SIGKILL)
    assert wait_gone(ProcessId(pid, 1), 0)


def test_a_zombie_is_dead() -> None:
    """Nothing of it can act: unreaped, it counts as gone at once."""
    with python(SLEEPER) as (child, _):
        identity = identify(child.pid)
        assert identity is not None
        assert kill(identity, signal.SIGKILL)
        assert wait_gone(identity, 20)
        stat = read_stat(child.pid)
        assert stat is not None
        assert stat.state == "Z"
        assert stat.dead
        assert identify(child.pid) is None
        assert not is_alive(identity)
        assert not kill(identity, signal.SIGKILL)
        assert wait_gone(identity, 0)


def test_a_reused_pid_is_never_hit() -> None:
    """The same pid with another start time is somebody else: not alive, not killed, gone."""
    with python(SLEEPER) as (child, _):
        identity = identify(child.pid)
        assert identity is not None
        stale = ProcessId(identity.pid, identity.start_ticks - 1)
        assert not is_alive(stale)
        assert not kill(stale, signal.SIGKILL)
        assert open_pidfd(stale) is None
        assert wait_gone(stale, 0)
        assert is_alive(identity)
        assert child.poll() is None


def test_a_thread_id_is_no_process() -> None:
    """A pid that now names a thread of another process is not opened (EINVAL)."""
    code = (
        "import threading,time\n"
        "t = threading.Thread(target=time.sleep, args=(600,), daemon=True); t.start()\n"
        "print(t.native_id, flush=True); time.sleep(600)"
    )
    with python(code) as (child, line):
        thread = int(line)
        assert thread != child.pid
        assert open_pidfd(ProcessId(thread, 1)) is None
        assert not kill(ProcessId(thread, 1), signal.SIGKILL)
        assert child.poll() is None


def test_wait_gone_is_bounded() -> None:
    """A process that ignores everything but SIGKILL: False after the time, True after the kill."""
    with python(f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEPER}") as (child, _):
        identity = identify(child.pid)
        assert identity is not None
        assert kill(identity, signal.SIGTERM)
        assert not wait_gone(identity, 0.05)
        assert not wait_gone(identity, 0)
        assert kill(identity, signal.SIGKILL)
        assert wait_gone(identity, 20)


def test_a_stopped_process_is_alive() -> None:
    """SIGSTOP is no death (H-03: silent is not gone)."""
    with python(SLEEPER) as (child, _):
        identity = identify(child.pid)
        assert identity is not None
        assert kill(identity, signal.SIGSTOP)
        until(lambda: (stat := read_stat(child.pid)) is not None and stat.state == "T", "stopped")
        assert is_alive(identity)
        assert not wait_gone(identity, 0.02)


def test_no_descriptor_is_left() -> None:
    """Case: F15. Every pidfd is closed again, on every path."""
    with python(SLEEPER) as (child, _):
        identity = identify(child.pid)
        assert identity is not None
        before = names("/proc/self/fd")
        for _ in range(20):
            kill(identity, signal.SIGCONT)
            kill(ProcessId(identity.pid, 1), signal.SIGKILL)
            wait_gone(identity, 0)
            wait_gone(ProcessId(identity.pid, 1), 0)
        assert names("/proc/self/fd") == before


TREE = """
import subprocess, sys, time
leaf = "import time; print('up', flush=True); time.sleep(600)"
inner = f"import subprocess,sys; c = subprocess.Popen([sys.executable, '-c', {leaf!r}]); c.wait()"
subprocess.Popen([sys.executable, '-c', inner])
subprocess.Popen([sys.executable, '-c', leaf])
time.sleep(600)
"""


def test_descendants_parents_before_children() -> None:
    """Two children, one of them with a child: three below, none of them us, each by pid and start."""
    with python(TREE) as (child, _):
        until(lambda: len(descendants(child.pid)) == 3, "three descendants")
        below = descendants(child.pid)
        parents = {stat.pid: stat.parent_pid for stat in processes()}
        seen = {child.pid}
        for process in below:
            assert parents[process.pid] in seen
            seen.add(process.pid)
        assert child.pid in {process.pid for process in descendants(os.getpid())}
        for process in below:
            assert kill(process, signal.SIGKILL)
        for process in below:
            assert wait_gone(process, 20)
        assert descendants(child.pid) == []


PDEATH = """
import os, signal, subprocess, sys, time
child = '''
import os, signal, sys, time
from turnkeeper.kit.procs import set_parent_death_signal
ok = set_parent_death_signal(signal.SIGKILL, int(sys.argv[1]))
print(os.getpid(), ok, flush=True)
time.sleep(600)
'''
subprocess.Popen([sys.executable, '-c', child, str(os.getpid())])
time.sleep(600)
"""


def test_parent_death_signal() -> None:
    """The child dies with its parent; told another parent, it learns that its own is already gone."""
    with python(PDEATH) as (parent, line):
        pid, ok = line.split()
        assert ok == "True"
        identity = identify(int(pid))
        assert identity is not None
        parent.kill()
        assert wait_gone(identity, 20)
    code = (
        "import signal; from turnkeeper.kit.procs import set_parent_death_signal\n"
        "print(set_parent_death_signal(signal.SIGKILL, 1 << 22), flush=True); import time; time.sleep(600)"
    )
    with python(code) as (_, line):
        assert line == "False"


SUBREAPER = """
import os, subprocess, sys, time
from turnkeeper.kit.procs import set_child_subreaper
set_child_subreaper()
leaf = "import os,time; print(os.getpid(), flush=True); time.sleep(600)"
middle = f"import subprocess,sys; subprocess.Popen([sys.executable, '-c', {leaf!r}])"
subprocess.Popen([sys.executable, '-c', middle]).wait()
time.sleep(600)
"""


def test_child_subreaper_keeps_orphans_below_itself() -> None:
    """An orphan of a double fork becomes the reaper's child, and is found below it."""
    with python(SUBREAPER) as (reaper, line):
        orphan = int(line)
        until(
            lambda: (stat := read_stat(orphan)) is not None and stat.parent_pid == reaper.pid, "the orphan's new parent"
        )
        (found,) = descendants(reaper.pid)
        assert found.pid == orphan
        assert kill(found, signal.SIGKILL)
        assert wait_gone(found, 20)


def test_non_dumpable() -> None:
    """The kernel says 0 for PR_GET_DUMPABLE (3) afterwards, and 1 before."""
    code = (
        "import ctypes; from turnkeeper.kit.procs import set_non_dumpable\n"
        "get = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"
        "before = get(); set_non_dumpable(); print(before, get(), flush=True)"
    )
    with python(code) as (_, line):
        assert line == "1 0"


def test_boot_id() -> None:
    """The same for everybody within one boot."""
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36


STARTER = """
import signal, subprocess, sys
from turnkeeper.kit.procs import keep_signals_to_oneself
keep_signals_to_oneself()
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2):
    signal.raise_signal(number)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


def test_what_a_starter_ignored_and_blocked_stays_with_the_process_that_it_started() -> None:
    """Case: F15. It still does not hear these signals, and its own children are started with none of that."""
    with starting_with({*NOHUP, signal.SIGUSR2, signal.SIGTTOU}, blocked={signal.SIGTERM}):
        process = subprocess.Popen(
            [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a signal that was to be ignored has ended it"
        until(lambda: names(f"/proc/{int(line)}/fd") == ["0", "1", "2"], "the child has begun its program")
        assert ignored_by(int(line)) == {signal.SIGTTOU}
        assert blocked_by(int(line)) == set()
    assert process.returncode == 0
