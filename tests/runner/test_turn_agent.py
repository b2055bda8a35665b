"""What becomes of a turn whose agent leaves or fails, and what the report says (F07)."""

from typing import Any

import pytest

from runner.behaviours import Answers, Call, Cuts, Refuses
from runner.driving import run_turn
from runner.peers import Peers, stay_silent
from turnkeeper.kit.clock import system_clock

BESIDE = ("heartbeat", "signals", "mark", "feed", "events", "events_stream")
TAIL = "last words"


def agent_failure(code: str, stage: str, status: int | None = 1) -> dict[str, Any]:
    """As the manager tells it."""
    return {"code": code, "stage": stage, "exit": status, "stderr_tail": TAIL}


def finished(peers: Peers) -> dict[str, Any]:
    """The report of the one `finish`."""
    (call,) = peers.of("finish")
    failure: dict[str, Any] = call.body["failure"]
    return failure


@pytest.mark.parametrize(
    ("told", "stage", "code"),
    [
        ("agent_start_failed", "start", "agent_start_failed"),
        ("agent_exited", "initialize", "agent_start_failed"),
        ("agent_exited", "new", "agent_start_failed"),
        ("agent_protocol_error", "initialize", "agent_protocol_error"),
        ("agent_exited", "load", "session_unavailable"),
        ("session_unavailable", "load", "session_unavailable"),
        ("agent_exited", "resume", "session_unavailable"),
    ],
)
@pytest.mark.parametrize("status", [0, 1, -11, None])
def test_an_agent_that_leaves_before_the_prompt_was_never_told(
    peers: Peers, told: str, stage: str, code: str, status: int | None
) -> None:
    """Case: F07. The stage is named, the tail kept, the turn abandoned, and the prompt never sent."""
    peers.on["session"].append(Answers(200, {"failure": agent_failure(told, stage, status)}))
    began = system_clock.monotonic()
    assert run_turn(peers) == 0
    assert system_clock.monotonic() - began < 2
    names = peers.names(without=BESIDE)
    # A session that is gone stays gone: its membership is not given back, and `finish` ends the conversation.
    abandoned = [] if code == "session_unavailable" else ["abandon"]
    assert names[names.index("session") :] == ["session", "stop", *abandoned, "finish"]
    failure = finished(peers)
    assert failure["code"] == code
    assert failure["stage"] == stage
    assert failure["delivered"] == "no"
    assert failure["stderr_tail"] == TAIL
    assert failure["exit_code"] == (status if status is not None and status >= 0 else None)
    assert failure["exit_signal"] == (-status if status is not None and status < 0 else None)


@pytest.mark.parametrize("stage", ["prompt", "permission"])
@pytest.mark.parametrize("status", [0, 1, -11, None])
@pytest.mark.parametrize("written", [True, False])
def test_an_agent_that_leaves_in_the_turn_leaves_an_unknown_outcome(
    peers: Peers, stage: str, status: int | None, *, written: bool
) -> None:
    """Case: F07. The manager says whether the prompt was written; nothing that was admitted is abandoned."""

    def leave(peers: Peers) -> None:
        peers.events.add("text", text="par")
        peers.prompt_written = written
        peers.events.end(failure=agent_failure("agent_exited", stage, status))

    peers.on_prompt = leave
    began = system_clock.monotonic()
    assert run_turn(peers) == 0
    assert system_clock.monotonic() - began < 2
    names = peers.names(without=BESIDE)
    assert names[names.index("prompt") :] == ["prompt", "stop", "finish"]
    failure = finished(peers)
    assert (failure["code"], failure["stage"], failure["stderr_tail"]) == ("agent_exited", stage, TAIL)
    assert failure["delivered"] == ("yes" if written else "no")
    kinds = [event["kind"] for event in peers.stored]
    assert kinds == ["session", "text", "error"]


def test_a_turn_that_settled_while_it_was_being_stopped_is_settled(peers: Peers) -> None:
    """The evidence of `stop` counts for more than the failure that led to it."""

    def leave(peers: Peers) -> None:
        peers.receipt = peers.settled()
        peers.events.end(failure=agent_failure("agent_exited", "prompt"))

    peers.on_prompt = leave
    assert run_turn(peers) == 0
    assert len(peers.of("settle")) == 1
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_stop_without_an_answer_leaves_the_membership_to_the_verdict(peers: Peers) -> None:
    """Protocol section 5: unanswered = quarantined. Nothing is abandoned; the run is reported all the same."""
    peers.on["session"].append(Answers(200, {"failure": agent_failure("agent_exited", "new")}))
    peers.always["stop"] = Cuts()
    assert run_turn(peers) == 0
    assert len(peers.of("stop")) == 3
    assert peers.of("abandon") == []
    assert finished(peers)["code"] == "agent_start_failed"


@pytest.mark.parametrize("refusal", [Refuses(409, "not_taken"), Refuses(409, "generation"), Refuses(404, "not_found")])
def test_a_stop_that_finds_nothing_of_the_turn_is_an_answer(peers: Peers, refusal: Refuses) -> None:
    """The instance has ended, or nothing was taken: all is dead, and the turn is abandoned."""
    peers.on["session"].append(Answers(200, {"failure": agent_failure("agent_exited", "new")}))
    peers.always["stop"] = refusal
    assert run_turn(peers) == 0
    assert len(peers.of("abandon")) == 1


@pytest.mark.parametrize("refusal", [Refuses(409, "fence"), Refuses(409, "generation"), Refuses(404, "not_found")])
def test_a_sandbox_that_ends_in_the_turn_leaves_an_unknown_outcome(peers: Peers, refusal: Refuses) -> None:
    """The stream is refused: somebody else has taken over, or the instance is gone."""

    def vanish(peers: Peers) -> None:
        peers.always["events_stream"] = refusal
        peers.always["stop"] = refusal
        peers.events.add("text", text="par")

    peers.events.cut_after_lines = 2
    peers.on_prompt = vanish
    assert run_turn(peers) == 0
    failure = finished(peers)
    assert (failure["code"], failure["delivered"]) == ("outcome_unknown", "unknown")
    assert peers.of("abandon") == []


def test_a_failed_setup_command_is_named(peers: Peers) -> None:
    """Step 7: with its status and the end of its output."""
    peers.spec["setup"] = [{"command": ["make", "deps"], "timeout_s": 5}]
    result = {"command": ["make", "deps"], "exit": 2, "output_tail": TAIL}
    peers.on["setup"].append(Answers(200, {"ok": False, "results": [result]}))
    assert run_turn(peers) == 0
    failure = finished(peers)
    assert failure["code"] == "preparation_failed"
    assert (failure["stage"], failure["exit_code"], failure["stderr_tail"]) == ("setup", 2, TAIL)
    assert failure["text"] == "setup command 'make' ended with 2"


@pytest.mark.parametrize(
    ("outcome", "overrides", "status", "code"),
    [
        ("completed", {}, "completed", None),
        ("failed", {"stop_reason": "error", "error_code": "agent_protocol_error"}, "failed", "agent_protocol_error"),
        ("failed", {"stop_reason": "refusal"}, "failed", "agent_protocol_error"),
        ("cancelled", {}, "cancelled", "cancelled"),
        ("cancelled", {"error_code": "lease_feed_lost"}, "failed", "lease_feed_lost"),
        ("suspended", {}, "interrupted", None),
    ],
)
def test_the_outcome_is_that_of_the_receipt(
    peers: Peers, outcome: str, overrides: dict[str, str], status: str, code: str | None
) -> None:
    """Step 13."""
    peers.on_prompt = lambda peers: peers.settle_turn(outcome, **overrides)
    assert run_turn(peers) == 0
    optional = dict.fromkeys(("error_code", "error_text", "final_message_bytes"))
    assert peers.receipt is not None
    assert peers.of("settle")[0].body["receipt"] == {**optional, **peers.receipt}
    finish = peers.of("finish")[0].body
    assert finish["status"] == status
    failure: dict[str, Any] = finish["failure"] or {}
    assert failure.get("code") == code


@pytest.mark.parametrize("field", ["activation", "run", "fence"])
def test_a_receipt_of_another_turn_is_never_recorded(peers: Peers, field: str) -> None:
    """Proves: F-06 (the worker's side): a receipt names run, activation and fence."""
    foreign: Any = 999 if field == "fence" else peers.thread
    peers.on_prompt = lambda peers: peers.settle_turn(**{field: foreign})
    assert run_turn(peers) == 0
    assert peers.of("settle") == []
    assert finished(peers)["code"] == "settlement_failed"


def test_a_prompt_without_an_answer_is_followed_and_never_sent_again(peers: Peers) -> None:
    """Proves: F-05, R-03. The stream shows that it has arrived, and the turn goes on to its end."""
    peers.on["prompt"].append(Cuts(done=True))
    assert run_turn(peers) == 0
    assert len(peers.of("prompt")) == 1
    assert peers.of("finish")[0].body["status"] == "completed"


@pytest.mark.parametrize("arrived", [True, False])
def test_a_prompt_without_an_answer_whose_stream_stays_silent_is_stopped(peers: Peers, *, arrived: bool) -> None:
    """Proves: R-03. The manager knows whether it was written; it is not sent again to find out."""
    peers.on_prompt = stay_silent
    peers.on["prompt"].append(Cuts(done=arrived))
    assert run_turn(peers) == 0
    assert len(peers.of("prompt")) == 1
    failure = finished(peers)
    assert failure["code"] == "outcome_unknown"
    assert failure["delivered"] == ("yes" if arrived else "no")
    assert peers.of("abandon") == []


def test_a_failed_upload_never_prevents_the_finish(peers: Peers) -> None:
    """Proves: F-01, F-03. Events and notice are refused, the run ends as it would have."""
    peers.always["events"] = Refuses(422, "bad_request")
    assert run_turn(peers) == 0
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_failure_is_finished_although_its_error_event_cannot_be_stored(peers: Peers) -> None:
    """Proves: F-01, R-01."""
    peers.always["events"] = Cuts()
    peers.always["container"] = Refuses(409, "conflict")
    assert run_turn(peers) == 0
    assert finished(peers)["stage"] == "container"


def test_the_finish_is_repeated_until_it_is_answered(peers: Peers) -> None:
    """Proves: F-01 (the terminal write)."""
    peers.on["finish"].extend([Cuts(), Refuses(503, "not_ready"), Cuts()])
    assert run_turn(peers) == 0
    assert len(peers.of("finish")) == 4


def test_no_snapshot_fails_a_turn(peers: Peers) -> None:
    """Proves: D-08."""
    peers.always["snapshot"] = Cuts()
    assert run_turn(peers) == 0
    finish = peers.of("finish")[0].body
    assert finish["status"] == "completed"
    assert finish["snapshot"]["tree_id"] is None
    assert finish["snapshot"]["unavailable_why"]


def test_a_report_holds_no_url_token_or_body(peers: Peers) -> None:
    """Proves: E-02 (the report)."""
    peers.always["activate"] = Refuses(409, "conflict")
    run_turn(peers)
    text = str([call.body for call in failures(peers)])
    for secret in (peers.url, peers.worker_token, "signed-", "title"):
        assert secret not in text


def failures(peers: Peers) -> list[Call]:
    """Everything that told of the failure."""
    return [*peers.of("finish"), *peers.of("events")]
