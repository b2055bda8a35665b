"""Starting, stopping, signals and deadlines."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from turnkeeper.kit.clock import ManualClock, system_clock
from turnkeeper.kit.stop import Deadline, StopSignal, ThreadService, run_until_stopped, stop_all


def test_deadline() -> None:
    """Counted on the clock that it was given; never negative."""
    clock = ManualClock(start=0)
    deadline = Deadline.after(10, clock)
    clock.advance(4)
    assert (deadline.remaining(), deadline.passed) == (6, False)
    assert deadline.sooner(2).remaining() == 2
    assert deadline.sooner(20).remaining() == 6
    clock.advance(6)
    assert (deadline.remaining(), deadline.passed) == (0, True)
    clock.advance(6)
    assert deadline.remaining() == 0


def test_the_first_reason_stays() -> None:
    """Idempotent, and whoever was first is told so."""
    stop = StopSignal()
    assert (stop.is_set, stop.reason) == (False, None)
    assert not stop.wait(0.01)
    assert stop.set("SIGTERM")
    assert not stop.set("later")
    assert (stop.is_set, stop.reason) == (True, "SIGTERM")
    assert stop.wait(0)
    assert stop.wait()


def test_whoever_asks_again_is_heard() -> None:
    """The first asking is the flag's; each later one reaches those who want to know of impatience."""
    stop, heard = StopSignal(), list[str]()
    stop.on_again(lambda: heard.append("again"))
    stop.set("first")
    assert heard == []
    stop.set("second")
    stop.set("third")
    assert heard == ["again", "again"]
    assert stop.reason == "first"


def test_whoever_wants_to_know_of_impatience_too_late_is_told_at_once() -> None:
    """A second Ctrl-C right after the first comes before anybody has had the time to ask for it."""
    stop, heard = StopSignal(), list[str]()
    stop.set("first")
    stop.on_again(lambda: heard.append("early"))
    assert heard == []
    stop.set("second")
    stop.on_again(lambda: heard.append("late"))
    assert heard == ["early", "late"]


def test_of_many_setters_one_is_first() -> None:
    """Callbacks run once, whoever sets."""
    stop, called, firsts = StopSignal(), list[int](), list[bool]()
    stop.on_set(lambda: called.append(1))
    barrier = threading.Barrier(8)

    def ask(number: int) -> None:
        barrier.wait(10)
        firsts.append(stop.set(str(number)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert firsts.count(True) == 1
    assert called == [1]
    stop.on_set(lambda: called.append(2))
    assert called == [1, 2], "at once when it is already set"


async def test_a_loop_waits_for_a_thread() -> None:
    """Set in a thread, seen in the loop, also by one that comes later; a cancelled waiter is forgotten."""
    stop = StopSignal()
    cancelled = asyncio.create_task(stop.wait_async())
    waiter = asyncio.create_task(stop.wait_async())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    threading.Thread(target=stop.set, args=("drain",)).start()
    assert await asyncio.wait_for(waiter, 10) == "drain"
    assert await asyncio.wait_for(stop.wait_async(), 10) == "drain"


def test_signals_set_the_flag_and_handlers_are_put_back() -> None:
    """In the main thread, while it waits; the handlers of before are there again afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    stop = StopSignal()
    with stop.on_signals(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        assert stop.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_storm_of_signals_neither_deadlocks_nor_is_lost() -> None:
    """The handler takes no lock: it may run while the main thread holds any."""
    code = (
        "import os, signal, threading\n"
        "from turnkeeper.kit.stop import StopSignal\n"
        "stop = StopSignal()\n"
        "def storm():\n"
        "    for _ in range(2000): os.kill(os.getpid(), signal.SIGTERM)\n"
        "with stop.on_signals(signal.SIGTERM, signal.SIGINT):\n"
        "    thread = threading.Thread(target=storm); thread.start()\n"
        "    while thread.is_alive():\n"
        "        stop.on_set(lambda: None); stop.set('mine'); stop.wait(0)\n"
        "    assert stop.wait(10)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_signal_that_arrives_under_the_flags_own_lock() -> None:
    """The handler runs in the thread that holds the lock: one that took it would never come back."""
    code = (
        "import os, signal\n"
        "from turnkeeper.kit.stop import StopSignal\n"
        "stop = StopSignal()\n"
        "with stop.on_signals(signal.SIGTERM):\n"
        "    with stop._lock:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert stop.wait(10)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_signal_ends_a_process_that_waits_in_a_loop(loop: str) -> None:
    """With asyncio's own loop and with uvloop: the handler runs although the loop sleeps."""
    code = (
        f"import asyncio, {loop}\n"
        "from turnkeeper.kit.stop import StopSignal\n"
        "async def main():\n"
        "    stop = StopSignal()\n"
        "    with stop.on_signals():\n"
        "        print('up', flush=True)\n"
        "        print(await stop.wait_async(), flush=True)\n"
        f"{loop}.run(main())\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.terminate()
        assert child.communicate(timeout=30)[0] == "SIGTERM\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.communicate()


class Beat(ThreadService):
    """A well-behaved service, or one that fails in a chosen way."""

    def __init__(self, log: list[str], name: str, fault: str = "") -> None:
        super().__init__(
            name, start_timeout_s=0.2 if fault == "never ready" else 30, stop_timeout_s=0.2 if fault == "stuck" else 30
        )
        self.log, self.fault, self.release = log, fault, threading.Event()

    def run(self) -> None:
        if self.fault == "start":
            raise RuntimeError(f"{self.name} cannot start")
        if self.fault != "never ready":
            self.log.append(f"{self.name} up")
            self.ready()
        self.stopping.wait()
        if self.fault == "stuck":
            self.release.wait(30)
        self.log.append(f"{self.name} down")
        if self.fault == "end":
            raise RuntimeError(f"{self.name} ended badly")


def test_a_service_starts_synchronously_and_stops_idempotently() -> None:
    """When `start` returns it works; `stop` before, once and twice is the same."""
    log: list[str] = []
    service = Beat(log, "a")
    assert not service.alive
    service.start()
    assert log == ["a up"]
    service.start()
    assert service.alive
    service.stop()
    assert log == ["a up", "a down"]
    service.stop()
    assert not service.alive
    Beat(log, "b").stop()


def test_faults_of_a_service() -> None:
    """Not started, never ready, stuck at the end, ended badly: each is an error that names the service or its cause."""
    log: list[str] = []
    failing = Beat(log, "a", "start")
    with pytest.raises(RuntimeError, match="a cannot start"):
        failing.start()
    failing.stop()
    silent = Beat(log, "b", "never ready")
    with pytest.raises(TimeoutError, match=r"b was not ready after 0\.2 s"):
        silent.start()
    silent.stop()
    stuck = Beat(log, "c", "stuck")
    stuck.start()
    with pytest.raises(TimeoutError, match=r"c did not end within 0\.2 s"):
        stuck.stop()
    stuck.release.set()
    ended = Beat(log, "d", "end")
    ended.start()
    ended.stop()
    assert str(ended.failure) == "d ended badly"
    with pytest.raises(TypeError, match="has no run"):
        ThreadService("e").start()


def test_run_until_stopped() -> None:
    """Started in order, stopped in reverse, the reason told."""
    log: list[str] = []
    stop = StopSignal()
    services = [Beat(log, "a"), Beat(log, "b")]
    thread = threading.Thread(target=lambda: (system_clock.wait(threading.Event(), 0.02), stop.set("done")))
    thread.start()
    assert run_until_stopped(services, stop) == "done"
    thread.join(10)
    assert log == ["a up", "b up", "b down", "a down"]


def test_what_was_started_is_stopped_when_a_later_one_cannot_start() -> None:
    """No half-started process stays."""
    log: list[str] = []
    with pytest.raises(RuntimeError, match="b cannot start"):
        run_until_stopped([Beat(log, "a"), Beat(log, "b", "start"), Beat(log, "c")], StopSignal())
    assert log == ["a up", "a down"]


def test_all_are_stopped_although_one_cannot_be() -> None:
    """The first failure is raised after all were tried."""
    log: list[str] = []
    services = [Beat(log, "a"), Beat(log, "b", "stuck")]
    for service in services:
        service.start()
    with pytest.raises(TimeoutError, match="b did not end"):
        stop_all(services)
    services[1].release.set()
    assert "a down" in log
