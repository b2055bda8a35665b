"""Each step refused, cut, or left without an answer: what follows, and what never does (column 4 of protocol.md section 4)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from runner.behaviours import Behaviour, Cuts, Hangs, Refuses, Reply, problem
from runner.driving import FAST, run_turn
from runner.peer_server import Handler
from runner.peers import Peers

BESIDE = ("heartbeat", "signals", "mark", "feed", "events", "events_stream")


@dataclass(frozen=True)
class Expected:
    """How a turn ends whose `step` fails: the report, and whether it was stopped and abandoned first."""

    code: str
    delivered: str = "no"
    stopped: bool = False
    abandoned: bool = False
    finished: bool = True


REFUSED = {
    "prepare": Expected("preparation_failed"),
    "manifest": Expected("manifest_persist_failed"),
    "ensure": Expected("sandbox_unavailable"),
    "container": Expected("preparation_failed"),
    "activate": Expected("preparation_failed"),
    "take": Expected("sandbox_unavailable", stopped=True, abandoned=True),
    "setup": Expected("preparation_failed", stopped=True, abandoned=True),
    "session": Expected("sandbox_unavailable", stopped=True, abandoned=True),
    "admit": Expected("admission_refused", stopped=True, abandoned=True),
    "prompt": Expected("sandbox_unavailable", stopped=True),
    "settle": Expected("settlement_failed", delivered="yes"),
}


def with_setup(peers: Peers) -> Peers:
    """A turn that takes every step."""
    peers.spec["setup"] = [{"command": ["true"], "timeout_s": 1}]
    return peers


def check_end(peers: Peers, expected: Expected) -> None:
    """The promises that hold on every path, and the end that this one should have."""
    names = peers.names(without=BESIDE)
    assert names.count("prompt") <= 1
    if "prompt" in names:
        assert names.index("admit") < names.index("prompt")
    assert ("stop" in names) == expected.stopped, names
    assert ("abandon" in names) == expected.abandoned, names
    if expected.abandoned:
        assert names.index("stop") < names.index("abandon")
    assert names[-1] == "finish"
    (finish,) = peers.of("finish")
    assert finish.body["status"] == "failed"
    failure = finish.body["failure"]
    assert (failure["code"], failure["delivered"]) == (expected.code, expected.delivered)


@pytest.mark.parametrize(("step", "expected"), REFUSED.items())
def test_a_refused_step_ends_the_turn(peers: Peers, step: str, expected: Expected) -> None:
    """Proves: R-01, F-02, F-05. A refusal is final: it is not tried again."""
    with_setup(peers).always[step] = Refuses(409, "conflict")
    assert run_turn(peers) == 0
    assert len(peers.of(step)) == 1
    check_end(peers, expected)
    assert peers.of("finish")[0].body["failure"]["http_status"] == 409


@pytest.mark.parametrize("step", ["setup", "session", "prompt"])
def test_a_step_after_the_switch_has_fired_says_so(peers: Peers, step: str) -> None:
    """Proves: L-12. The manager has ended the activation unfed: that end has its own code."""
    with_setup(peers).always[step] = Refuses(409, "lease_feed_lost")
    assert run_turn(peers) == 0
    assert peers.of("finish")[0].body["failure"]["code"] == "lease_feed_lost"


@pytest.mark.parametrize("step", ["prepare", "manifest", "ensure", "container", "activate", "admit"])
def test_the_reason_of_a_refusal_of_ours_is_told(peers: Peers, step: str) -> None:
    """Proves: E-04, R-06. Code and line of the product's own problem are in the report and in the event; the log has the code."""
    why = "no value for secret 'MY_KEY' in the secrets file"
    with_setup(peers).always[step] = Refuses(409, "conflict", why)
    assert run_turn(peers) == 0
    failure = peers.of("finish")[0].body["failure"]
    assert (failure["refusal"], failure["text"]) == ("conflict", why)
    errors = [e["data"] for sent in peers.of("events") for e in sent.body["events"] if e["kind"] == "error"]
    assert [(one["refusal"], one["detail"]) for one in errors] == [("conflict", why)]


@pytest.mark.parametrize(("step", "code"), [("session", "conflict"), ("take", "boot_id"), ("ensure", "proxy says no")])
def test_the_words_of_others_are_not_repeated(peers: Peers, step: str, code: str) -> None:
    """Proves: E-02. What a sandbox says, and what something on the way says, stays out of the record."""
    with_setup(peers).always[step] = Refuses(409, code, "anything at all")
    assert run_turn(peers) == 0
    failure = peers.of("finish")[0].body["failure"]
    assert failure["text"] is None
    assert failure["refusal"] == ("conflict" if code == "conflict" else None)


@pytest.mark.parametrize("step", ["prepare", "manifest", "ensure", "container", "activate", "take", "admit", "settle"])
@pytest.mark.parametrize("way", [Cuts(), Cuts(done=True), Refuses(503, "not_ready")])
def test_a_step_without_an_answer_is_asked_for_again(peers: Peers, step: str, way: Behaviour) -> None:
    """Proves: F-04. Every one of these may be repeated; the turn goes on as if nothing had been."""
    with_setup(peers).on[step].append(way)
    assert run_turn(peers) == 0
    assert peers.of("finish")[0].body["status"] == "completed"
    assert len(peers.of(step)) == 2
    assert len(peers.of("prompt")) == 1


@pytest.mark.parametrize("step", ["prepare", "manifest", "container", "activate", "admit", "settle"])
def test_a_control_plane_that_hangs_is_asked_again(peers: Peers, step: str) -> None:
    """Proves: F-04 (a timeout is a transport failure)."""
    with_setup(peers).on[step].append(Hangs(done=True))
    assert run_turn(peers, replace(FAST, control_timeout_s=0.7)) == 0
    assert peers.of("finish")[0].body["status"] == "completed"
    assert len(peers.of(step)) == 2


@pytest.mark.parametrize(
    ("step", "tries", "expected"),
    [
        ("prepare", 5, Expected("preparation_failed")),
        ("manifest", 5, Expected("manifest_persist_failed")),
        ("ensure", 4, Expected("sandbox_unavailable")),
        ("container", 5, Expected("preparation_failed")),
        ("activate", 5, Expected("preparation_failed")),
        ("take", 2, Expected("sandbox_unavailable", stopped=True, abandoned=True)),
        ("setup", 1, Expected("preparation_failed", stopped=True, abandoned=True)),
        ("session", 1, Expected("sandbox_unavailable", stopped=True, abandoned=True)),
        ("settle", 3, Expected("settlement_failed", delivered="yes")),
    ],
)
def test_a_step_that_never_answers_fails_after_bounded_tries(
    peers: Peers, step: str, tries: int, expected: Expected
) -> None:
    """Proves: R-01, F-04 (three tries for a receipt)."""
    with_setup(peers).always[step] = Cuts()
    assert run_turn(peers) == 0
    if step != "ensure":
        assert len(peers.of(step)) == tries
    check_end(peers, expected)


def test_an_admission_without_an_answer_never_prompts(peers: Peers) -> None:
    """Proves: F-05, R-02. Three tries; then the turn is stopped, and `abandon` decides by what was recorded."""
    peers.always["admit"] = Cuts(done=True)
    assert run_turn(peers) == 0
    names = peers.names(without=BESIDE)
    assert names.count("admit") == 3
    assert "prompt" not in names
    assert names[names.index("admit") + 3 :] == ["stop", "abandon", "finish"]
    assert peers.of("finish")[0].body["failure"]["code"] == "admission_refused"


def test_a_cancel_that_nobody_had_heard_of_is_asked_for_when_the_admission_is_refused(peers: Peers) -> None:
    """The run ends cancelled, not failed."""
    peers.on["admit"].append(CancelsAndRefuses(peers))
    assert run_turn(peers) == 0
    assert peers.of("finish")[0].body["status"] == "cancelled"
    assert peers.of("prompt") == []


@dataclass(frozen=True)
class CancelsAndRefuses(Behaviour):
    """The run is cancelled in the moment in which the admission is asked for."""

    peers: Peers

    def respond(self, handler: Handler, usual: Callable[[], Reply]) -> None:  # noqa: ARG002
        self.peers.cancel_requested = True
        handler.send_reply(problem(409, "conflict"))


@pytest.mark.parametrize("step", ["prepare", "manifest", "container", "activate", "admit", "settle", "finish"])
@pytest.mark.parametrize(("status", "code"), [(409, "lease_refused"), (410, "gone"), (401, "unauthorized")])
def test_a_lost_lease_ends_the_turn_without_another_word(peers: Peers, step: str, status: int, code: str) -> None:
    """Proves: L-05, L-06, F-02, F-03: stopped where something may run, and nothing more is written."""
    with_setup(peers).always[step] = Refuses(status, code)
    assert run_turn(peers) == 3
    names = peers.names(without=BESIDE)
    assert names.count(step) == 1
    assert "abandon" not in names
    assert ("finish" in names) == (step == "finish")
    taken = "take" in names
    assert ("stop" in names) == taken
    if taken:
        assert names[-1] == "stop"
    assert not any(event["kind"] in ("error", "end") for event in peers.stored)
