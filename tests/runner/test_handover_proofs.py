"""What the host may conclude from its end of the descriptor, with children that behave as they like (H-02, H-03).

The children here are small programs of the test's own: they speak on the descriptor, or do not, and live or die.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable

import pytest

from runner.peers import Peers
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.procs import identify, is_alive, open_pidfd
from turnkeeper.runner.handover import HandedTurn
from turnkeeper.runner.hostend import new_descriptor
from turnkeeper.runner.launch import Accepted, Child, NotTaken, Unproven
from turnkeeper.wire.worker import Claim

BEGIN = "import os, socket, struct, sys, time\ns = socket.socket(fileno=int(sys.argv[1]))\n"
READ = "n = struct.unpack('>I', s.recv(4, socket.MSG_WAITALL))[0]\ns.recv(n, socket.MSG_WAITALL)\n"
LIVE_ON = "sys.stdin.read()\n"  # until the test closes its stdin
Start = Callable[[str], Child]


@pytest.fixture(name="start")
async def _start() -> AsyncGenerator[Start]:
    """Starts children that run a program; what is left of them at the end is killed."""
    started: list[tuple[Child, subprocess.Popen[bytes]]] = []

    def start(program: str) -> Child:
        end, theirs = new_descriptor()
        popen = subprocess.Popen(
            [sys.executable, "-c", BEGIN + program, str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        process = identify(popen.pid)
        assert process is not None
        pidfd = open_pidfd(process)
        assert pidfd is not None
        child = Child(popen, process, pidfd, end, system_clock.monotonic())
        started.append((child, popen))
        return child

    yield start
    for child, popen in started:
        child.dismiss()
        child.kill()
        await child.wait_exit()
        if popen.stdin is not None:
            popen.stdin.close()


def turn_of(peers: Peers) -> HandedTurn:
    """The peers' attempt."""
    claim = Claim.model_validate(peers.claim())
    return HandedTurn(claim=claim, claim_sent_at=system_clock.monotonic(), incarnation=peers.root)


async def said_ready(child: Child) -> Child:
    """Once it has said so."""
    assert await child.wait_ready(20)
    return child


async def test_a_byte_of_acceptance_wins_over_an_error_of_sending(peers: Peers, start: Start) -> None:
    """Proves: H-02. The turn cannot be sent, and yet it said that it has it: that is believed, and nothing is released."""
    child = await said_ready(start("s.shutdown(socket.SHUT_RD)\ns.sendall(b'RA')\ns.close()\n" + LIVE_ON))
    assert await child.hand_over(turn_of(peers)) == Accepted()


async def test_a_byte_of_acceptance_counts_although_its_child_died_at_once(peers: Peers, start: Start) -> None:
    """Proves: H-02, H-04. What it said before is still on its way when its end is seen."""
    child = await said_ready(start("s.sendall(b'R')\n" + READ + "s.sendall(b'A')\nos._exit(9)\n"))
    assert await child.hand_over(turn_of(peers)) == Accepted()
    assert await child.wait_exit() == 9


async def test_data_that_did_not_arrive_is_proof(peers: Peers, start: Start) -> None:
    """Proves: H-02. It closed without a word before the turn was sent; that it lives on changes nothing."""
    child = await said_ready(start("s.sendall(b'R')\ns.close()\n" + LIVE_ON))
    outcome = await child.hand_over(turn_of(peers))
    assert isinstance(outcome, NotTaken)
    assert is_alive(child.process)


async def test_a_descriptor_that_is_closed_without_acceptance_is_proof(peers: Peers, start: Start) -> None:
    """Proves: H-02 (the preflight). It has the turn, closes and lives on: it can never accept any more."""
    child = await said_ready(start("s.sendall(b'R')\n" + READ + "s.close()\n" + LIVE_ON))
    outcome = await child.hand_over(turn_of(peers))
    assert outcome == NotTaken(delivered=True, detail="closed")
    assert is_alive(child.process)


async def test_a_descriptor_that_somebody_else_holds_is_no_proof(peers: Peers, start: Start) -> None:
    """Proves: H-03. The child is dead, and its end is not seen: whoever has the copy might still accept."""
    program = f"s.sendall(b'R')\n{READ}if os.fork() == 0:\n    {LIVE_ON}    os._exit(0)\nos._exit(7)\n"
    child = await said_ready(start(program))
    assert await child.hand_over(turn_of(peers)) == Unproven()
    assert await child.wait_exit() == 7
