"""The barrier: fences, and the death of everything that is older."""

import asyncio
import sys
from pathlib import Path

import pytest

from sandboxd.manager import Manager, Worker, said, until
from turnkeeper.kit import ids, procs

IGNORING = "import signal,time;[signal.signal(s,signal.SIG_IGN) for s in (1,2,15)];time.sleep(1000)"
STORM = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
time.sleep(1000)
"""
COMET = """
import os, time
while True:
    time.sleep(0.002)
    if os.fork():
        os._exit(0)
    os.setsid()
"""


def command(program: str, *arguments: str) -> str:
    """A /run directive for a Python program, through a file: directives are single lines."""
    return f"/run {sys.executable} -S {program} {' '.join(arguments)}"


def program(manager: Manager, name: str, text: str) -> str:
    """A program in the Workdir."""
    path = manager.workdir / name
    path.write_text(text)
    return str(path)


async def busy(worker: Worker, prompt: str, **session: object) -> None:
    """A turn that runs."""
    (await worker.take()).ok()
    assert (await worker.session(**session)).ok()["failure"] is None
    (await worker.prompt(prompt)).ok()


async def test_take_kills_a_busy_turn(manager: Manager) -> None:
    """Proves: D-03. After the answer nothing of the older activation lives; its evidence is told."""
    old = manager.activation()
    await busy(old, "/say started\n/background sleep 1000\n/run sleep 1000")
    await until(lambda: len(manager.below()) >= 4)
    before = manager.below()
    answer = (await old.next().take()).ok()
    assert not [process for process in before if procs.is_alive(process)]
    previous = answer["previous"]
    assert previous["activation"] == old.claims["activation"]
    assert (previous["run"], previous["prompt_written"], previous["receipt"]) == (old.run, True, None)
    (await old.prompt("again")).refused(409, "fence")
    (await old.call("POST", "/v1/stop")).refused(409, "fence")


@pytest.mark.parametrize("signal_number", [19, 9])
async def test_agent_that_stops_or_kills_its_keeper(manager: Manager, signal_number: int) -> None:
    """Proves: D-03, K-08. A stopped keeper cannot reap and a killed one cannot keep; everything dies all the same."""
    old = manager.activation()
    script = program(manager, "a.py", IGNORING)
    await busy(
        old, f"/background {sys.executable} {script}\n/run kill -{signal_number} $(ps -o ppid= -p $PPID); sleep 100"
    )
    if signal_number == 9:
        events = await old.events()
        assert events[-1]["failure"]["code"] == "agent_exited"
    else:
        await until(lambda: any(_state(p) == "T" for p in manager.below()))
    answer = await old.next().take()
    answer.ok()
    assert manager.below() == []


def _state(process: procs.ProcessId) -> str:
    stat = procs.read_stat(process.pid)
    return stat.state if stat else ""


@pytest.mark.parametrize("ended_by", ["take", "stop"])
async def test_fork_storm(manager: Manager, ended_by: str) -> None:
    """Proves: D-03. Hundreds of processes in sessions of their own, all dead before the answer."""
    old = manager.activation()
    await busy(old, command(program(manager, "storm.py", STORM), "300"))
    await until(lambda: len(manager.below()) > 150)
    if ended_by == "take":
        (await old.next().take()).ok()
    else:
        (await old.call("POST", "/v1/stop")).ok()
    assert manager.below() == []


async def test_chain_of_processes_that_fork_and_exit(manager: Manager) -> None:
    """Proves: D-03. A process that is a new one each time somebody looks is caught too."""
    old = manager.activation()
    script = program(manager, "comet.py", COMET)
    await busy(old, f"/background {sys.executable} -S {script}\n/hang")
    await until(lambda: len(manager.below()) >= 3)
    (await old.next().take()).ok()
    assert manager.below() == []


async def test_settled_agent_stays(manager: Manager) -> None:
    """Proves: D-03, R-01. Its last prompt got its response: it is the session, through takes, stops and an abandoned turn."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    abandoned = first.next()
    (await abandoned.take()).ok()
    assert (await abandoned.session(recorded=first.recorded(receipt))).ok()["mode"] == "continued"
    assert (await abandoned.call("POST", "/v1/stop")).ok()["evidence"]["prompt_written"] is False
    second = abandoned.next()
    taken = (await second.take()).ok()
    assert taken["previous"]["activation"] == abandoned.claims["activation"]
    answer = (await second.session(recorded=first.recorded(receipt))).ok()
    assert (answer["mode"], answer["agent"]) == ("continued", receipt["agent"])
    (await second.prompt("two")).ok()
    assert said(await second.events()).startswith("turn 2, remembering 1")


async def test_what_left_the_agents_tree_dies_at_settlement(manager: Manager) -> None:
    """Proves: D-03. A daemon is killed when the turn settles; with `keep_background_processes` it stays."""
    first = manager.activation()
    events = await first.turn("/background sleep 1000")
    daemon = int(said(events).split()[-1])
    assert procs.identify(daemon) is None
    receipt = events[-1]["receipt"]
    second = first.next()
    (await second.take()).ok()
    (await second.session(recorded=first.recorded(receipt), keep_background_processes=True)).ok()
    (await second.prompt("/background sleep 1000")).ok()
    daemon = int(said(await second.events()).split()[-1])
    assert procs.identify(daemon) is not None
    (await second.next().take()).ok()
    assert procs.identify(daemon) is not None


async def test_take_while_a_setup_command_runs(manager: Manager) -> None:
    """Proves: D-03, R-04. Setup commands do not go through the turn channel and are dead all the same."""
    old = manager.activation()
    (await old.take()).ok()
    setup = asyncio.create_task(old.setup(["sh", "-c", "setsid sleep 1000 & sleep 1000"], ["touch", "second"]))
    await until(lambda: len(manager.below()) >= 3)
    (await old.next().take()).ok()
    assert manager.below() == []
    answer = (await setup).ok()
    assert answer["ok"] is False
    assert (answer["results"][0]["exit"], answer["results"][0]["timed_out"]) == (-9, False)
    assert not (manager.workdir / "second").exists()


async def test_stop_while_a_setup_command_runs(manager: Manager) -> None:
    """Proves: R-01. The live worker ends its own setup; nothing is started afterwards."""
    worker = manager.activation()
    (await worker.take()).ok()
    setup = asyncio.create_task(worker.setup(["sleep", "1000"]))
    await until(lambda: len(manager.below()) >= 2)
    (await worker.call("POST", "/v1/stop")).ok()
    assert manager.below() == []
    answer = (await setup).ok()
    assert (answer["ok"], answer["results"][0]["timed_out"]) == (False, False)
    (await worker.session()).refused(409, "stopped")


@pytest.mark.parametrize("stage", ["initialize", "new"])
async def test_take_while_a_session_opens(manager: Manager, stage: str) -> None:
    """Proves: D-03. An agent that is only starting is dead, and the open answers the older caller."""
    old = manager.activation()
    (await old.take()).ok()
    opening = asyncio.create_task(old.session(env={"SCRIPTED_AGENT_FAULT": f"{stage}:hang"}))
    await until(lambda: len(manager.below()) >= 2)
    (await old.next().take()).ok()
    assert manager.below() == []
    assert (await opening).ok()["failure"]["code"] == "outcome_unknown"  # nothing is said of a lease (E-05, E-06)


async def test_fences(manager: Manager) -> None:
    """Proves: D-03. Other boot id, other generation, older fence, same fence of another activation: each refused."""
    worker = manager.activation(fence=5)
    (await worker.call("GET", "/v1/receipt")).refused(409, "not_taken")
    first = (await worker.take()).ok()
    assert (await worker.take()).ok() == first  # the same token again: the same answer
    (await manager.activation(fence=4).take()).refused(409, "fence")
    (await manager.activation(fence=5).take()).refused(409, "fence")
    (await manager.activation(fence=6, boot_id=ids.new_id()).take()).refused(409, "boot_id")
    (await manager.activation(fence=6, generation="other").take()).refused(409, "generation")
    for call in ("feed", "setup", "session", "prompt", "cancel", "stop"):
        (await manager.activation(fence=6).call("POST", f"/v1/{call}")).refused(409, "not_taken")
        (await manager.activation(fence=4).call("POST", f"/v1/{call}")).refused(409, "fence")
        (await manager.activation(fence=5).call("POST", f"/v1/{call}")).refused(409, "fence")
    (await worker.call("POST", "/v1/cancel")).ok()


async def test_other_memberships_are_not_touched(manager: Manager) -> None:
    """Proves: D-03. A take ends the older activation of its own membership only."""
    other = manager.activation(membership="00000000-0000-7000-8000-000000000002")
    home = str(manager.workspace / "agents" / "homes" / "t2")
    (await other.take(home=home)).ok()
    assert (await other.session(home=home, env={})).ok()["failure"] is None
    (await other.prompt("/say begin\n/sleep 1\n/say end")).ok()
    worker = manager.activation()
    await busy(worker, "/run sleep 1000")
    (await worker.next().take()).ok()
    assert (await other.events())[-1]["receipt"]["outcome"] == "completed"


async def test_takes_at_once(manager: Manager) -> None:
    """Proves: D-03. Of many takes at once every answer comes after the death of what was older; the highest fence holds."""
    old = manager.activation()
    await busy(old, "/run sleep 1000")
    workers = [manager.activation(fence=fence) for fence in range(2, 8)]
    answers = await asyncio.gather(*(worker.take() for worker in workers))
    assert manager.below() == []
    assert answers[-1].status == 200
    for answer, worker in zip(answers[:-1], workers, strict=False):
        assert answer.status == 200 or answer["code"] == "fence", answer
        (await worker.call("GET", "/v1/receipt")).refused(409, "fence")
    (await workers[-1].call("GET", "/v1/receipt")).refused(404, "not_settled")


async def test_recovery_sees_through_recoveries(manager: Manager) -> None:
    """Proves: F-06, R-04. A recovery whose answer was lost is followed by another: it is told of the turn, not of the first one."""
    old = manager.activation()
    receipt = (await old.turn("hello"))[-1]["receipt"]
    one = old.next(purpose="recovery")
    assert (await one.take()).ok()["previous"]["receipt"] == receipt
    (await one.session()).refused(409, "recovery")
    (await one.setup(["true"])).refused(409, "recovery")
    two = one.next(purpose="recovery")
    previous = (await two.take()).ok()["previous"]
    assert (previous["activation"], previous["receipt"]) == (old.claims["activation"], receipt)
    three = two.next()
    assert (await three.take()).ok()["previous"]["receipt"] == receipt


async def test_barrier_that_cannot_be_passed_ends_the_manager(manager: Manager) -> None:
    """Proves: D-03. Where death cannot be shown in time, the manager's own end is the proof."""
    assert manager.process is not None
    old = manager.activation()
    await busy(old, "/run sleep 1000")
    below = manager.below()
    # Nothing can be killed that sleeps uninterruptibly. A traced process stands in for it here: its keeper is not told of
    # its death as long as the tracer has not waited for it.
    agent = below[1].pid
    tracer = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).parent / "agents" / "tracer.py"), str(agent)
    )
    await until(lambda: f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{agent}/status").read_text())
    taking = asyncio.create_task(old.next().take())
    try:
        await until(lambda: manager.process is not None and manager.process.poll() is not None)
    finally:
        tracer.kill()
        await tracer.wait()
        taking.cancel()
    assert manager.process.returncode == 70
    await asyncio.gather(taking, return_exceptions=True)
