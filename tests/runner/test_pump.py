"""Events from the manager to the control plane: once each, in order, whatever is cut, and never holding up the turn (F09)."""

import dataclasses
import threading

import pytest

from runner.behaviours import Behaviour, Cuts, Hangs, Refuses
from runner.driving import FAST, drive, run_turn
from runner.hosting import until
from runner.peers import Peers
from turnkeeper.runner import pump

MANY = 1000


def speak(peers: Peers, count: int = MANY, text: str = "x") -> None:
    """An agent that says much and then ends its turn."""
    for number in range(count):
        peers.events.add("text", text=f"{text}{number}")
    peers.settle_turn()


def texts(peers: Peers) -> list[str]:
    """What was stored of it, in order."""
    return [event["data"]["text"] for event in peers.stored if event["kind"] == "text"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_stream_that_is_cut_every_seven_lines_arrives_once_and_in_order(peers: Peers, *, inside: bool) -> None:
    """Case: F09 (the worker's part), also cut in the middle of a line."""
    peers.events.cut_after_lines = 7
    peers.events.cut_inside = inside
    peers.on_prompt = lambda peers: speak(peers, 150)
    assert run_turn(peers) == 0
    assert texts(peers) == [f"x{number}" for number in range(150)]
    afters = [int(call.query["after"]) for call in peers.of("events_stream")]
    assert afters == sorted(set(afters))  # each time from where it was cut
    assert peers.of("finish")[0].body["status"] == "completed"


def test_lines_that_were_seen_before_are_not_seen_again(peers: Peers) -> None:
    """Case: F09. A manager that begins anew with every connection."""
    peers.events.repeats = True
    peers.on["events_stream"].append(Cuts())
    peers.on_prompt = lambda peers: speak(peers, 30)
    peers.events.cut_after_lines = 1
    driven = drive(peers)
    until(lambda: len(peers.of("events_stream")) > 3, "it was cut a few times")
    peers.events.cut_after_lines = None
    assert driven.wait() == 0
    assert texts(peers) == [f"x{number}" for number in range(30)]


def test_a_thousand_events_go_in_few_batches_of_at_most_a_thousand(peers: Peers) -> None:
    """Step 10."""
    peers.on_prompt = lambda peers: speak(peers, 2500)
    assert run_turn(peers) == 0
    assert texts(peers) == [f"x{number}" for number in range(2500)]
    batches = [len(call.body["events"]) for call in peers.of("events")]
    assert max(batches) <= 1000
    assert len(batches) < 100


def test_the_first_event_is_not_kept_waiting_for_company(peers: Peers) -> None:
    """An idle uploader sends at once; the time allowed is what gathers under load (20 ms)."""
    said = threading.Event()
    peers.on_prompt = lambda peers: (said.wait(5), peers.events.add("text", text="one"))  # type: ignore[assignment]
    driven = drive(peers)
    until(lambda: peers.stored, "the session event is stored")
    said.set()
    until(lambda: texts(peers) == ["one"], "it is stored before anything else comes")
    peers.settle_turn()
    assert driven.wait() == 0


@pytest.mark.parametrize("way", [Cuts(), Cuts(done=True), Refuses(503, "not_ready"), Hangs(done=True)])
def test_a_batch_without_an_answer_is_sent_again(peers: Peers, way: Behaviour) -> None:
    """A batch may be stored and not answered: its numbers keep it from being stored twice."""
    peers.on["events"].extend([way, way])
    peers.on_prompt = lambda peers: speak(peers, 20)
    assert run_turn(peers) == 0
    assert texts(peers) == [f"x{number}" for number in range(20)]


def test_uploads_that_hang_do_not_hold_up_the_settlement(peers: Peers) -> None:
    """Proves: F-01. The turn is settled while its events still wait; then they are given their time."""
    hang = Hangs()
    peers.always["events"] = hang
    peers.on_prompt = lambda peers: speak(peers, 20)
    driven = drive(peers, dataclasses.replace(FAST, receipt_timeout_s=5))
    peers.wait_for("snapshot", timeout_s=3)
    assert peers.stored == []
    peers.always.pop("events")
    hang.release.set()
    assert driven.wait() == 0
    assert texts(peers) == [f"x{number}" for number in range(20)]


def test_what_does_not_fit_the_buffer_is_read_again(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader lets events go and still sees the end; the uploader fetches them by number."""
    monkeypatch.setattr(pump, "BUFFER_EVENTS_MAX", 50)
    first = Hangs()
    peers.on["events"].append(first)
    peers.on_prompt = lambda peers: speak(peers, 400)
    driven = drive(peers, dataclasses.replace(FAST, receipt_timeout_s=5))
    peers.wait_for("settle", timeout_s=5)  # the end was seen although nothing was stored
    assert peers.stored == []
    first.release.set()
    assert driven.wait() == 0
    assert texts(peers) == [f"x{number}" for number in range(400)]
    assert [event["n"] for event in peers.stored] == list(range(1, len(peers.stored) + 1))
    assert len(peers.of("events_stream")) > 1


def test_refused_events_make_the_worker_ask_for_its_lease(peers: Peers) -> None:
    """Proves: L-05. A refusal of events alone says nothing for sure; the renewal does."""
    peers.always["heartbeat"] = Refuses(409, "lease_refused")
    peers.on["events"].append(Refuses(409, "lease_refused"))
    peers.on_prompt = lambda peers: peers.events.add("text", text="one")  # type: ignore[assignment]
    assert run_turn(peers) == 3
    assert len(peers.of("events")) == 1
    assert peers.of("finish") == []


def test_a_stream_that_makes_no_sense_is_given_up(peers: Peers) -> None:
    """Numbers that jump: nothing is credited, and the turn ends with an unknown outcome."""

    def jump(peers: Peers) -> None:
        with peers.changing():
            peers.events.lines.append({"n": 99, "kind": "text", "data": {"text": "from nowhere"}})

    peers.on_prompt = jump
    assert run_turn(peers) == 0
    assert texts(peers) == []
    assert peers.of("finish")[0].body["failure"]["code"] == "outcome_unknown"


def test_a_manager_that_is_away_for_a_moment_is_found_again(peers: Peers) -> None:
    """The provisioner restarts in the middle of a turn."""
    peers.events.cut_after_lines = 1
    peers.on["events_stream"].extend([Behaviour(), Refuses(503, "upstream_unavailable"), Cuts()])
    peers.on_prompt = lambda peers: speak(peers, 3)
    assert run_turn(peers) == 0
    assert texts(peers) == ["x0", "x1", "x2"]
