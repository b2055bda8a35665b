"""What a process in a sandbox is given: stdio, signals at their default, and nothing else."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from harness.signals import NOHUP, blocked_by, ignored_by, starting_with
from sandboxd.manager import Manager, ManagerOptions, until
from turnkeeper.kit import procs

SHOW = "import os;print(sorted(os.listdir('/proc/self/fd'))[:-1])"


def descriptors(pid: int) -> dict[str, str]:
    """Number and target of each descriptor of a process."""
    folder = Path(f"/proc/{pid}/fd")
    return {entry.name: str(entry.readlink()) for entry in folder.iterdir()}


async def test_agents_have_stdio_only(manager: Manager) -> None:
    """Case: F15. Many agents at once, with walks and streams open: each has its own three pipes; killing one disturbs nobody."""
    workers = [manager.activation(membership=f"00000000-0000-7000-8000-0000000001{n:02d}") for n in range(8)]
    for number, worker in enumerate(workers):
        home = str(manager.workspace / "agents" / "homes" / f"m{number}")
        (await worker.take(home=home)).ok()
    answers = await asyncio.gather(
        *(
            worker.session(home=str(manager.workspace / "agents" / "homes" / f"m{number}"), env={})
            for number, worker in enumerate(workers)
        )
    )
    streams = [asyncio.create_task(worker.events()) for worker in workers]
    pipes: set[str] = set()
    for answer in answers:
        found = descriptors(answer.ok()["agent"]["pid"])
        assert set(found) == {"0", "1", "2"}, found
        assert len(set(found.values())) == 3
        assert not pipes & set(found.values())
        pipes |= set(found.values())
    for process in manager.below():
        stat = procs.read_stat(process.pid)
        assert manager.process is not None
        if stat is not None and stat.parent_pid == manager.process.pid:  # a keeper: no copies of its agent's pipes
            targets = descriptors(process.pid)
            assert not pipes & set(targets.values())
            assert [target for number, target in targets.items() if number in "012"] == ["/dev/null"] * 3
            assert len(targets) == 4
    for worker in workers[1:]:
        (await worker.prompt("/sleep 1\n/say done")).ok()
    os.kill(answers[0].ok()["agent"]["pid"], 9)
    ended = await asyncio.gather(*streams[1:])
    assert [events[-1]["receipt"]["outcome"] for events in ended] == ["completed"] * 7
    (await workers[0].call("POST", "/v1/stop")).ok()
    await streams[0]


async def test_setup_commands_have_stdio_only(manager: Manager) -> None:
    """Case: F15. The same for setup commands and their children."""
    worker = manager.activation()
    (await worker.take()).ok()
    answer = (await worker.setup([sys.executable, "-I", "-S", "-c", SHOW])).ok()
    assert answer["results"][0]["output_tail"] == "['0', '1', '2']\n"


async def test_descriptors_do_not_grow(manager: Manager) -> None:
    """Case: F15. Turns, failures, setups and walks give back every descriptor that they took."""
    assert manager.process is not None
    pid = manager.process.pid

    async def round_of(worker: object) -> None:
        assert isinstance(worker, type(manager.activation()))
        (await worker.take()).ok()
        (await worker.setup(["true"], ["no-such-command"])).ok()
        (await worker.session(command=["no-such-agent"])).ok()
        (await worker.call("POST", "/v1/stop")).ok()
        (await manager.http.get("/v1/snapshot?workdir=project")).raise_for_status()

    worker = manager.activation()
    await round_of(worker)
    await until(lambda: manager.below() == [])
    before = len(descriptors(pid))
    for _ in range(5):
        worker = worker.next()
        await round_of(worker)
    worker = worker.next()
    (await worker.take()).ok()
    (await worker.session()).ok()
    (await worker.prompt("/exit 1")).ok()
    await worker.events()
    (await worker.call("POST", "/v1/stop")).ok()
    await until(lambda: len(descriptors(pid)) <= before)


async def test_signals_are_at_their_default_whatever_the_manager_was_started_with(tmp_path: Path) -> None:
    """Case: F15. Ignored and blocked signals end at the keeper, so that an agent and what it starts can be told to stop."""
    async with contextlib.AsyncExitStack() as held:
        with starting_with({*NOHUP, signal.SIGTERM, signal.SIGRTMIN}, blocked={signal.SIGTERM, signal.SIGUSR2}):
            manager = await held.enter_async_context(Manager(tmp_path, ManagerOptions()))
        worker = manager.activation()
        (await worker.take()).ok()
        answer = (await worker.setup(["/bin/sh", "-c", "grep -E '^Sig(Ign|Blk)' /proc/self/status"])).ok()
        said = dict(line.split(":\t") for line in answer["results"][0]["output_tail"].splitlines())
        assert int(said["SigBlk"], 16) == int(said["SigIgn"], 16) & ~(0b11 << 31) == 0
        agent = (await worker.session()).ok()["agent"]["pid"]
        python_s_own = {signal.SIGPIPE, signal.SIGXFSZ}
        assert ignored_by(agent) == python_s_own
        assert blocked_by(agent) == set()
        stat = procs.read_stat(agent)
        assert stat is not None
        assert ignored_by(stat.parent_pid) == python_s_own | {signal.SIGINT}  # the keeper
        assert blocked_by(stat.parent_pid) == set()
