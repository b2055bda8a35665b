"""A renewal that crosses the end of the run: refused because the worker itself has just ended it, and no loss of anything."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from runner.behaviours import Behaviour, Cuts, Hangs, Refuses, Reply
from runner.driving import FAST, drive
from runner.hosting import until
from runner.peer_server import Handler
from runner.peers import Peers
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import ManualClock
from turnkeeper.runner.lease import Lease, LeaseVerdict

QUICK = dataclasses.replace(
    FAST, heartbeat_interval_s=0.2, heartbeat_timeout_s=2, heartbeat_retry_delay_s=0.1, control_timeout_s=10
)
REFUSED = Refuses(409, "lease_refused")
Logged = Callable[[str], list[dict[str, Any]]]


class EndsTheAttempt(Behaviour):
    """The run ends with this request: renewals are refused from now on, and one is before `then` answers."""

    def __init__(self, then: Behaviour) -> None:
        self._then = then

    def respond(self, handler: Handler, usual: Callable[[], Reply]) -> None:
        peers = handler.peers
        usual()
        before = len(peers.of("heartbeat"))
        peers.always["heartbeat"] = REFUSED
        with peers.changing():
            peers.ended = True
        until(lambda: len(peers.of("heartbeat")) > before, "a renewal comes meanwhile")
        self._then.respond(handler, usual)


def test_a_renewal_that_is_refused_while_finish_is_on_its_way_is_no_loss(peers: Peers, logged: Logged) -> None:
    """Proves: L-10, E-01. The answer to `finish` counts: nothing is logged that would look like a lost lease."""
    peers.on["finish"].append(EndsTheAttempt(Behaviour()))
    driven = drive(peers, QUICK)
    assert driven.wait() == 0
    assert len(peers.of("finish")) == 1
    assert driven.worker.lease.verdict is None
    for name in ("agent_lease_lost", "agent_control_failure", "agent_heartbeat_retry"):
        assert logged(name) == [], name
    (ended,) = logged("agent_attempt_ended")
    assert (ended["exit_status"], ended["verdict"]) == (0, None)


@pytest.mark.parametrize("way", [Cuts(), Refuses(503, "not_ready")])
def test_a_refusal_counts_where_finish_gets_no_answer(peers: Peers, logged: Logged, way: Behaviour) -> None:
    """Proves: L-05, F-03. Nothing is sent again, and the log does not say that the lease was lost: nobody knows."""
    peers.on["finish"].append(EndsTheAttempt(way))
    driven = drive(peers, QUICK)
    assert driven.wait() == 3
    assert len(peers.of("finish")) == 1
    (unconfirmed,) = logged("agent_finish_unconfirmed")
    assert unconfirmed["verdict"] == "refused"
    assert logged("agent_lease_lost") == []


def test_a_finish_that_hangs_ends_with_the_lease(peers: Peers) -> None:
    """Proves: L-07, L-10. Renewals go on while it hangs; once they are refused nothing holds the deadline up."""
    timing = dataclasses.replace(QUICK, lease_ttl_s=4)
    peers.lease_ttl_s = 4
    hang = Hangs()
    peers.on["finish"].append(hang)
    driven = drive(peers, timing)
    call = peers.wait_for("finish")
    before = len(peers.of("heartbeat"))
    peers.wait_for("heartbeat", before + 3)
    assert not driven.worker.flags.lost
    peers.always["heartbeat"] = REFUSED
    assert driven.wait() == 3
    assert driven.worker.lease.verdict is LeaseVerdict.EXPIRED
    assert driven.worker.clock.monotonic() - call.at < 10


def test_a_lease_whose_run_has_ended_is_not_lost_any_more() -> None:
    """The stale twin of the two above: refusals after the answer, and one that nobody kept back."""
    lost: list[bool] = []
    clock = ManualClock()
    over = Lease(clock.monotonic(), Timing(), clock, lambda: lost.append(True))
    with over.finishing():
        assert over.is_ending
    assert over.keeps_back(LeaseVerdict.REFUSED)
    over.lose(LeaseVerdict.EXPIRED)
    assert (over.verdict, over.is_renewable, lost) == (None, False, [])
    open_ = Lease(clock.monotonic(), Timing(), clock, lambda: lost.append(True))
    assert not open_.keeps_back(LeaseVerdict.REFUSED)
    with pytest.raises(OSError, match="no answer"), open_.finishing():
        raise OSError("no answer")
    assert (open_.verdict, open_.is_renewable) == (None, True)
    assert not open_.keeps_back(LeaseVerdict.REFUSED)
    open_.lose(LeaseVerdict.REFUSED)
    assert lost == [True]
