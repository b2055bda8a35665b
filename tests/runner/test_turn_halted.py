"""A turn that is cancelled or runs out of time, at every stage (L-10; columns 2 and 4 of protocol.md section 4)."""

import dataclasses
import time

import pytest

from runner.behaviours import Behaviour, Calls, Cuts, Hangs
from runner.driving import FAST, drive, run_turn
from runner.peers import Peers, stay_silent

BESIDE = ("heartbeat", "signals", "mark", "feed", "events", "events_stream")


def cancel(peers: Peers) -> None:
    """The owner cancels; the control plane tells by signal and by renewal."""
    peers.cancel_requested = True


@pytest.mark.parametrize(("stage", "stopped"), [("ensure", False), ("setup", True), ("session", True)])
def test_a_cancel_before_the_admission_ends_a_call_that_hangs(peers: Peers, stage: str, *, stopped: bool) -> None:
    """The call is cut; what was taken is stopped and abandoned; the run ends cancelled, its prompt never sent."""
    peers.spec["setup"] = [{"command": ["sleep", "100"], "timeout_s": 100}]
    peers.on[stage].append(Hangs())
    driven = drive(peers)
    peers.wait_for(stage)
    cancel(peers)
    assert driven.wait() == 0
    names = peers.names(without=(*BESIDE, "manifest"))
    assert names[names.index(stage) + 1 :] == (["stop", "abandon", "finish"] if stopped else ["finish"])
    finish = peers.of("finish")[0].body
    assert finish["status"] == "cancelled"
    assert (finish["failure"]["code"], finish["failure"]["delivered"]) == ("cancelled", "no")


@pytest.mark.parametrize("stage", ["prepare", "container", "activate", "take"])
def test_a_cancel_does_not_cut_what_must_be_answered(peers: Peers, stage: str) -> None:
    """A step whose effect is not undone by `stop` is carried through; the next one is not begun."""
    hang = Hangs()
    peers.on[stage].append(hang)
    driven = drive(peers)
    peers.wait_for(stage)
    cancel(peers)
    peers.wait_for("signals")
    assert not driven.thread.join(0.4)
    assert peers.names(without=BESIDE)[-1] == stage or stage == "prepare"
    hang.release.set()
    assert driven.wait() == 0
    assert peers.of("session") == []
    assert peers.of("finish")[0].body["status"] == "cancelled"


def test_a_cancel_does_not_cut_an_admission(peers: Peers) -> None:
    """Proves: R-02 (an admission without an answer may cost the conversation, so it is waited for)."""
    hang = Hangs()
    peers.on["admit"].append(hang)
    driven = drive(peers, dataclasses.replace(FAST, receipt_timeout_s=10))
    peers.wait_for("admit")
    cancel(peers)
    driven.thread.join(0.4)
    assert peers.names(without=BESIDE)[-1] == "admit"
    peers.on_prompt = lambda peers: peers.settle_turn("cancelled")
    hang.release.set()
    assert driven.wait() == 0
    assert len(peers.of("admit")) == 1


def test_a_cancel_in_the_turn_is_passed_on_and_the_agent_reaches_its_boundary(peers: Peers) -> None:
    """Proves: L-10. Settled as the agent ended it; nothing is killed, and the lease is held to the end."""
    peers.on_prompt = stay_silent
    peers.on["cancel"].append(Calls(lambda: peers.settle_turn("cancelled")))
    driven = drive(peers)
    peers.wait_for("prompt")
    cancel(peers)
    assert driven.wait() == 0
    names = peers.names(without=BESIDE)
    assert names[names.index("prompt") :] == ["prompt", "cancel", "settle", "snapshot", "finish"]
    assert peers.of("finish")[0].body["status"] == "cancelled"


def test_renewal_goes_on_through_a_cancel_to_the_end_of_the_turn(peers: Peers) -> None:
    """Proves: L-10. While the agent is asked to end, while it is stopped, and while the end is reported."""
    peers.on_prompt = stay_silent
    hangs = {step: Hangs() for step in ("stop", "finish")}
    for step, hang in hangs.items():
        peers.on[step].append(hang)
    timing = dataclasses.replace(
        FAST, heartbeat_interval_s=0.1, heartbeat_timeout_s=2, cancel_grace_s=1, control_timeout_s=20
    )
    driven = drive(peers, timing)
    peers.wait_for("prompt")
    cancel(peers)
    for step in ("cancel", *hangs):
        peers.wait_for(step)
        renewals = len(peers.of("heartbeat"))
        peers.wait_for("heartbeat", renewals + 3)
        if step in hangs:
            hangs[step].release.set()
    assert driven.wait() == 0
    assert driven.worker.lease.verdict is None


def test_a_turn_that_completed_although_it_was_cancelled_says_so(peers: Peers) -> None:
    """What the run is in the end, the control plane decides by what it has recorded."""
    peers.on_prompt = stay_silent
    peers.on["cancel"].append(Calls(lambda: peers.settle_turn("completed")))
    driven = drive(peers)
    peers.wait_for("prompt")
    cancel(peers)
    assert driven.wait() == 0
    assert peers.of("finish")[0].body["status"] == "completed"


@pytest.mark.parametrize("answer", [Behaviour(), Cuts(), Hangs()])
def test_an_agent_that_ignores_a_cancel_is_stopped_after_the_grace(peers: Peers, answer: Behaviour) -> None:
    """Whether the manager answers the cancel or not, the grace runs."""
    peers.on_prompt = stay_silent
    peers.on["cancel"].append(answer)
    driven = drive(peers)
    peers.wait_for("prompt")
    asked_at = time.monotonic()
    cancel(peers)
    assert driven.wait() == 0
    (stop,) = peers.of("stop")
    assert FAST.cancel_grace_s <= stop.at - asked_at < FAST.cancel_grace_s + 10
    names = peers.names(without=BESIDE)
    assert names[names.index("prompt") :] == ["prompt", "cancel", "stop", "finish"]
    finish = peers.of("finish")[0].body
    assert finish["status"] == "cancelled"
    assert (finish["failure"]["code"], finish["failure"]["delivered"]) == ("cancelled", "yes")


def test_an_agent_that_leaves_because_it_was_cancelled_ends_the_run_cancelled(peers: Peers) -> None:
    """Some agents answer a cancel by exiting: what counts is what they were asked for."""
    peers.on_prompt = stay_silent
    leaves = {"code": "agent_exited", "stage": "prompt", "exit": 0}
    peers.on["cancel"].append(Calls(lambda: peers.events.end(failure=leaves)))
    driven = drive(peers)
    peers.wait_for("prompt")
    cancel(peers)
    assert driven.wait() == 0
    finish = peers.of("finish")[0].body
    assert (finish["status"], finish["failure"]["code"]) == ("cancelled", "cancelled")


def test_a_renewal_tells_of_a_cancel_when_every_signal_is_lost(peers: Peers) -> None:
    """Proves: T-03 (the worker's side)."""
    peers.always["signals"] = Cuts()
    peers.on_prompt = stay_silent
    peers.on["cancel"].append(Calls(lambda: peers.settle_turn("cancelled")))
    driven = drive(peers, dataclasses.replace(FAST, heartbeat_interval_s=0.3, heartbeat_timeout_s=0.2))
    peers.wait_for("prompt")
    cancel(peers)
    assert driven.wait() == 0
    assert peers.of("finish")[0].body["status"] == "cancelled"


def test_a_turn_that_runs_out_of_time_is_cancelled_at_its_boundary(peers: Peers) -> None:
    """Proves: L-01 (the execution timeout is a limit of its own): code `execution_timeout`, the conversation goes on."""
    peers.execution_timeout_s = 1
    peers.on_prompt = stay_silent
    peers.on["cancel"].append(Calls(lambda: peers.settle_turn("cancelled")))
    assert run_turn(peers) == 0
    assert len(peers.of("settle")) == 1
    finish = peers.of("finish")[0].body
    assert (finish["status"], finish["failure"]["code"]) == ("failed", "execution_timeout")


def test_a_turn_that_runs_out_of_time_and_does_not_end_is_stopped(peers: Peers) -> None:
    """Cancel, grace, stop."""
    peers.execution_timeout_s = 1
    peers.on_prompt = stay_silent
    assert run_turn(peers) == 0
    names = peers.names(without=BESIDE)
    assert names[names.index("prompt") :] == ["prompt", "cancel", "stop", "finish"]
    failure = peers.of("finish")[0].body["failure"]
    assert (failure["code"], failure["delivered"]) == ("execution_timeout", "yes")


def test_a_setup_that_takes_all_the_time_is_stopped_and_abandoned(peers: Peers) -> None:
    """The same before the admission."""
    peers.execution_timeout_s = 1
    peers.spec["setup"] = [{"command": ["sleep", "100"], "timeout_s": 100}]
    peers.on["setup"].append(Hangs())
    assert run_turn(peers) == 0
    names = peers.names(without=BESIDE)
    assert names[names.index("setup") :] == ["setup", "stop", "abandon", "finish"]
    failure = peers.of("finish")[0].body["failure"]
    assert (failure["code"], failure["stage"], failure["delivered"]) == ("execution_timeout", "setup", "no")
