"""Receipts of admission and settlement: how often they are asked for, how far apart, and after which answers (F-04)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.behaviours import Behaviour, Cuts, Hangs, Refuses, Trickles
from runner.driving import FAST, Driven, drive, run_turn
from runner.hosting import until
from runner.passing import THREADS, Notes
from runner.peers import Peers
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import ManualClock

Logged = Callable[[str], list[dict[str, Any]]]
STEPS = ["admit", "settle"]
AGAIN = [Cuts(), Cuts(done=True), *(Refuses(status, "not_ready") for status in (408, 502, 503, 504))]
FINAL = [Refuses(status, "conflict") for status in (400, 409, 422, 429, 500, 501)]
GONE = [Refuses(409, "lease_refused"), Refuses(410, "gone")]


def name_of(way: Behaviour) -> str:
    """For the test's name."""
    return str(way.status) + way.code[:1] if isinstance(way, Refuses) else str(way)


def let_pass(driven: Driven, clock: ManualClock, peers: Peers, step: str, tries: int) -> None:
    """Move the clock second by second, each time after everything has come to rest, until there were so many tries."""

    def over() -> bool:
        return len(peers.of(step)) >= tries or not driven.thread.is_alive()

    until(lambda: peers.of(step), "it is asked for the first time")
    while not over():
        until(lambda: over() or clock.waiting + peers.blocked >= THREADS, "all threads wait")
        if not over():
            clock.advance(1)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", AGAIN, ids=name_of)
def test_a_receipt_is_tried_three_times_five_seconds_apart(peers: Peers, step: str, way: Behaviour) -> None:
    """Proves: F-04. With the defaults, on the worker's own clock; then it is given up and reported."""
    clock = ManualClock()
    times: list[float] = []
    peers.always[step] = Notes(times, clock, way)
    driven = drive(peers, Timing(), clock)
    let_pass(driven, clock, peers, step, 3)
    assert driven.wait() == 0
    assert [at - times[0] for at in times] == [0, 5, 10]
    assert len(peers.of("prompt")) == (1 if step == "settle" else 0)
    code = "settlement_failed" if step == "settle" else "admission_refused"
    assert peers.of("finish")[0].body["failure"]["code"] == code


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", FINAL, ids=name_of)
def test_any_other_answer_is_final(peers: Peers, step: str, way: Behaviour) -> None:
    """Proves: F-04, F-05. One try; without a receipt of the admission nothing is prompted."""
    peers.always[step] = way
    assert run_turn(peers) == 0
    assert len(peers.of(step)) == 1
    assert len(peers.of("prompt")) == (1 if step == "settle" else 0)
    assert peers.of("finish")[0].body["status"] == "failed"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", GONE, ids=name_of)
def test_a_refused_lease_is_final_and_nothing_more_is_written(peers: Peers, step: str, way: Behaviour) -> None:
    """Proves: F-04, F-02, F-03, L-05. 409 for the lease, and 410."""
    peers.always[step] = way
    assert run_turn(peers) == 3
    assert len(peers.of(step)) == 1
    assert peers.of("finish") == peers.of("abandon") == []


@pytest.mark.parametrize("step", STEPS)
def test_each_try_has_its_own_time(peers: Peers, step: str) -> None:
    """Proves: F-04. The receipts' timeout and not that of other calls, which is ten times as long here."""
    peers.always[step] = Hangs(done=True)
    assert run_turn(peers, replace(FAST, receipt_timeout_s=0.4, receipt_delay_s=0.2, control_timeout_s=4)) == 0
    first, second, third = (call.at for call in peers.of(step))
    for earlier, later in ((first, second), (second, third)):
        # 0.6 s from the sending of one to the next; known is when each was read.
        assert 0.5 < later - earlier < 3.5


@pytest.mark.parametrize("step", STEPS)
def test_a_try_whose_answer_trickles_ends_with_its_time(peers: Peers, step: str) -> None:
    """Proves: F-04. A byte every 50 ms keeps every single read in time: the bound is on the whole, and three tries it is."""
    peers.always[step] = Trickles()
    assert run_turn(peers, replace(FAST, receipt_timeout_s=0.4, receipt_delay_s=0.2, control_timeout_s=30)) == 0
    first, second, third = (call.at for call in peers.of(step))
    for earlier, later in ((first, second), (second, third)):
        assert 0.5 < later - earlier < 3.5
    assert len(peers.of("prompt")) == (1 if step == "settle" else 0)
    assert peers.of("finish")[0].body["status"] == "failed"


@pytest.mark.parametrize("step", ["prepare", "manifest", "container", "activate", "events", "finish"])
def test_no_other_call_is_held_by_an_answer_that_trickles(peers: Peers, logged: Logged, step: str) -> None:
    """Proves: F-04, L-07. Each ends with its own time and is asked for again; the turn goes on as if nothing had been."""
    peers.on[step].append(Trickles())
    assert run_turn(peers, replace(FAST, control_timeout_s=0.5)) == 0
    assert len(peers.of(step)) >= 2
    assert "TotalTimeout" in [event["exception"] for event in logged("agent_control_failure")]
    assert peers.of("finish")[-1].body["status"] == "completed"


@pytest.mark.parametrize("step", STEPS)
def test_what_was_done_and_not_answered_is_asked_for_again_and_goes_on(peers: Peers, step: str) -> None:
    """Proves: F-04, R-03. The same request again, word for word; one prompt, one end."""
    peers.on[step].extend([Cuts(done=True), Refuses(504, "timeout")])
    assert run_turn(peers) == 0
    first, *others = peers.of(step)
    assert [one.body for one in others] == [first.body, first.body]
    assert len(peers.of("prompt")) == 1
    assert peers.of("finish")[0].body["status"] == "completed"
