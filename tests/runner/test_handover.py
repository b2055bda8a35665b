"""The hand-over descriptor and a real child at its end (H-01 to H-03)."""

import asyncio
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path

import pytest

from runner.driving import FAST
from runner.hosting import open_descriptors, until
from runner.peers import Peers
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.procs import ProcessId, is_alive
from turnkeeper.runner.handover import HandedTurn
from turnkeeper.runner.launch import Accepted, Child, NotTaken, child_environment, start_child
from turnkeeper.runner.settings import ChildSettings
from turnkeeper.wire.worker import Claim


def settings_for(peers: Peers, **overrides: str) -> ChildSettings:
    """What a spare child is told."""
    told = {"host": "host-1", "control_url": peers.url, "provisioner_url": peers.url, "log_level": "info", **overrides}
    return ChildSettings(**told, timing=dataclasses.asdict(FAST))


def turn_for(peers: Peers, *, age_s: float = 0) -> HandedTurn:
    """The peers' attempt, claimed `age_s` ago."""
    claim = Claim.model_validate(peers.claim())
    return HandedTurn(claim=claim, claim_sent_at=system_clock.monotonic() - age_s, incarnation=peers.root)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where children write."""
    return tmp_path / "child.log"


Launch = Callable[..., Awaitable[Child]]


@pytest.fixture(name="launch")
async def _launch(peers: Peers, log: Path) -> AsyncGenerator[Launch]:
    """Starts spares that wait for their turn; whatever is left of them at the end is ended."""
    children: list[Child] = []

    async def launch(**overrides: str) -> Child:
        child = start_child(system_clock, log)
        children.append(child)
        await child.greet(settings_for(peers, **overrides))
        return child

    yield launch
    for child in children:
        child.dismiss()
        child.kill()
        await child.wait_exit()


async def ready(launch: Launch, **overrides: str) -> Child:
    """One that says that it is ready."""
    child = await launch(**overrides)
    assert await child.wait_ready(30)
    return child


async def test_a_child_accepts_with_one_byte_and_carries_the_turn_out(peers: Peers, launch: Launch) -> None:
    """Proves: H-01."""
    child = await ready(launch)
    assert await child.hand_over(turn_for(peers)) == Accepted()
    assert await child.wait_exit() == 0
    assert peers.of("finish")[0].body["status"] == "completed"
    worker = peers.of("prepare")[0].body["worker"]
    assert worker == f"host-1/{child.process.pid}/{child.process.start_ticks}"


async def test_the_claim_is_logged_with_its_ids(peers: Peers, log: Path, launch: Launch) -> None:
    """Proves: E-01 (`agent_attempt_claimed`: ids of run, attempt, worker, host)."""
    child = await ready(launch)
    await child.hand_over(turn_for(peers))
    await child.wait_exit()
    written = log.read_text()  # noqa: ASYNC240 - a small file of the test's own
    events = [json.loads(line) for line in written.splitlines()]
    (claimed,) = [event for event in events if event["event"] == "agent_attempt_claimed"]
    assert (claimed["run"], claimed["attempt"], claimed["host"]) == (peers.job, peers.attempt, "host-1")
    assert claimed["worker"].startswith(f"host-1/{child.process.pid}/")
    assert peers.worker_token not in written


async def test_a_child_does_not_take_a_turn_whose_lease_is_almost_over(peers: Peers, launch: Launch) -> None:
    """Proves: H-02 (the preflight): not enough lease for one heartbeat. Nothing was asked of anybody."""
    child = await ready(launch)
    outcome = await child.hand_over(turn_for(peers, age_s=111))
    assert isinstance(outcome, NotTaken)
    assert outcome.delivered
    assert peers.calls == []


async def test_a_child_does_not_take_a_turn_with_an_address_that_is_none(
    peers: Peers, log: Path, launch: Launch
) -> None:
    """Proves: H-02 (the preflight), E-02. Its log names the setting, and not what it was set to."""
    child = await ready(launch, control_url="http://user:password@nowhere.example/")
    outcome = await child.hand_over(turn_for(peers))
    assert isinstance(outcome, NotTaken)
    await child.wait_exit()
    written = log.read_text()  # noqa: ASYNC240 - a small file of the test's own
    assert "control_url is no address" in written
    assert "nowhere" not in written
    assert "password" not in written


async def test_a_child_that_was_killed_before_never_took_the_turn(peers: Peers, launch: Launch) -> None:
    """Proves: H-02. The hand-over fails or is not read; the end of the descriptor is the proof."""
    child = await ready(launch)
    os.kill(child.process.pid, signal.SIGKILL)
    until(lambda: not is_alive(child.process), "it is dead")
    outcome = await child.hand_over(turn_for(peers))
    assert isinstance(outcome, NotTaken)


async def test_a_silent_child_is_no_proof(peers: Peers, launch: Launch) -> None:
    """Proves: H-03. As long as it lives nothing is decided; when it goes on, it takes the turn."""
    child = await ready(launch)
    os.kill(child.process.pid, signal.SIGSTOP)
    handing = asyncio.ensure_future(child.hand_over(turn_for(peers)))
    done, _ = await asyncio.wait({handing}, timeout=1.0)
    assert not done
    os.kill(child.process.pid, signal.SIGCONT)
    assert await handing == Accepted()
    assert await child.wait_exit() == 0


async def test_a_spare_that_is_not_needed_ends_by_itself(peers: Peers, launch: Launch) -> None:
    """Also when the host dies: the descriptor ends."""
    child = await ready(launch)
    child.dismiss()
    assert await child.wait_exit() == 0
    assert peers.calls == []


async def test_a_child_has_stdio_and_its_own_descriptor(log: Path, launch: Launch) -> None:
    """Case: F15."""
    child = await ready(launch)
    open_here = open_descriptors(child.process.pid)
    assert open_here.pop(0) == "/dev/null"
    assert open_here.pop(1) == open_here.pop(2) == str(log)
    assert len(open_here) == 1
    assert next(iter(open_here.values())).startswith("socket:")
    assert os.getsid(child.process.pid) == child.process.pid


async def test_fifty_children_hold_nothing_of_each_other_or_of_the_host(
    peers: Peers, log: Path, launch: Launch
) -> None:
    """Case: F15. With listeners, pools and logs open in the host; killing one disturbs nobody."""
    with socket.create_server(("127.0.0.1", 0)), log.open("ab"):
        children = [await launch() for _ in range(50)]
        for child in children:
            assert await child.wait_ready(50)
        descriptors = [open_descriptors(child.process.pid) for child in children]
        assert {len(one) for one in descriptors} == {4}, descriptors
        own = [name for one in descriptors for name in one.values() if name.startswith("socket:")]
        assert len(set(own)) == 50
        victim = children.pop()
        os.kill(victim.process.pid, signal.SIGKILL)
        assert await victim.wait_exit() == -signal.SIGKILL
        assert all(child.ready for child in children)
        assert await children[0].hand_over(turn_for(peers)) == Accepted()
        assert await children[0].wait_exit() == 0


@pytest.fixture
def raw() -> Generator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    """A child and the host's end of its descriptor, to be spoken to byte by byte."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-m", "turnkeeper.runner.child", "--fd", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    theirs.close()
    ours.settimeout(20)
    with ours:
        yield ours, process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "said",
    [b"\xff\xff\xff\xff", struct.pack(">I", 2) + b"{}", struct.pack(">I", 4) + b"\xff\xfe\x00{"],
    ids=["a length beyond all bounds", "not the settings", "not JSON"],
)
def test_a_child_that_is_told_nonsense_closes(
    raw: tuple[socket.socket, "subprocess.Popen[bytes]"], said: bytes
) -> None:
    """It accepts nothing, says nothing, and ends with its own status."""
    ours, process = raw
    ours.sendall(said)
    assert ours.recv(1) == b""
    assert process.wait(20) == 4


def test_a_child_whose_host_left_before_a_word_ends_quietly(
    raw: tuple[socket.socket, "subprocess.Popen[bytes]"],
) -> None:
    """End of file before the first frame, and inside it."""
    ours, process = raw
    ours.sendall(b"\x00\x00")
    ours.shutdown(socket.SHUT_WR)
    assert process.wait(20) == 0


@pytest.mark.parametrize("arguments", [[], ["--fd"], ["--fd", "x"], ["--fd", "99"]])
def test_a_child_that_is_started_by_hand_says_so(arguments: list[str]) -> None:
    """Exit status 2 and one line."""
    command = [sys.executable, "-I", "-m", "turnkeeper.runner.child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_child_imports_neither_database_nor_agent_protocol() -> None:
    """Architecture section 2, and the measured cost of `import acp`."""
    program = (
        "import sys, turnkeeper.runner.child; print([m for m in ('psycopg', 'acp', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_child_inherits_no_secret_and_nothing_that_changes_python() -> None:
    """Proves: K-11 (environment of children)."""
    kept = child_environment(
        {
            "PATH": "/bin",
            "LC_ALL": "C",
            "TURNKEEPER_HOST_TOKEN": "tkh_x",
            "DATABASE_URL": "postgresql:///x",
            "PYTHONPATH": "/evil",
            "LD_PRELOAD": "/evil.so",
            "HTTP_PROXY": "http://elsewhere",
        }
    )
    assert kept == {"PATH": "/bin", "LC_ALL": "C"}


def test_process_identity_is_more_than_a_pid() -> None:
    """The same pid with another start is somebody else."""
    assert not is_alive(ProcessId(os.getpid(), 1))
