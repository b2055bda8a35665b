"""What a worker's log says of an outage, and what it never says (E-01 to E-03)."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.behaviours import Cuts, Refuses, Trickles
from runner.driving import FAST, drive, run_turn
from runner.hosting import until
from runner.peers import Peers, stay_silent
from turnkeeper.runner.lease import LeaseVerdict

Logged = Callable[[str], list[dict[str, Any]]]
QUICK = replace(FAST, heartbeat_interval_s=0.2, heartbeat_timeout_s=0.5, heartbeat_retry_delay_s=0.1)


def test_one_outage_is_told_once_and_its_retries_by_their_numbers(peers: Peers, logged: Logged) -> None:
    """Proves: E-01, E-03."""
    peers.on_prompt = stay_silent
    peers.on["heartbeat"].extend([Refuses(503, "not_ready"), Refuses(503, "not_ready"), Cuts()])
    driven = drive(peers, QUICK)
    until(lambda: logged("agent_heartbeat_recovered"), "it recovers")
    peers.settle_turn()
    assert driven.wait() == 0
    told = [event for event in logged("agent_control_failure") if event["operation"] == "heartbeat"]
    assert [(event["exception"], event["http_status"]) for event in told] == [("ClientError", 503)]
    retries = logged("agent_heartbeat_retry")
    assert [event["failures"] for event in retries] == [1, 2, 3]
    assert [event["since_confirmed_s"] for event in retries] == sorted(event["since_confirmed_s"] for event in retries)
    assert all(0 < event["retry_in_s"] <= 0.1 for event in retries)
    assert [event["failures"] for event in logged("agent_heartbeat_recovered")] == [3]


def test_a_renewal_whose_time_is_over_is_told_as_that(peers: Peers, logged: Logged) -> None:
    """Proves: E-01, L-07. A peer that trickles keeps every single read in time; what ends the request is its total time."""
    peers.on_prompt = stay_silent
    peers.on["heartbeat"].append(Trickles())
    driven = drive(peers, QUICK)
    until(lambda: logged("agent_heartbeat_recovered"), "it recovers")
    peers.settle_turn()
    assert driven.wait() == 0
    (told,) = logged("agent_control_failure")
    assert (told["operation"], told["exception"], told["http_status"]) == ("heartbeat", "TotalTimeout", None)


def test_a_renewal_that_the_end_of_the_lease_cuts_is_no_failure_of_its_own(peers: Peers, logged: Logged) -> None:
    """Proves: E-01, E-03. It is on its way when another call finds the lease gone, as after a pause of the machine."""
    peers.on_prompt = stay_silent
    peers.always["heartbeat"] = Trickles()
    driven = drive(peers, replace(QUICK, heartbeat_timeout_s=20))
    peers.wait_for("heartbeat")
    driven.worker.lease.lose(LeaseVerdict.EXPIRED)
    assert driven.wait() == 3
    assert logged("agent_control_failure") == logged("agent_heartbeat_retry") == []
    assert [event["verdict"] for event in logged("agent_lease_lost")] == ["expired"]


@pytest.mark.parametrize(
    ("step", "operation"),
    [
        ("prepare", "prepare"),
        ("ensure", "ensure"),
        ("mark", "mark"),
        ("feed", "feed"),
        ("events", "events_upload"),
        ("events_stream", "events"),
        ("cancel", "cancel"),
        ("stop", "stop"),
        ("snapshot", "snapshot"),
        ("finish", "finish"),
    ],
)
def test_every_failed_call_is_told_with_its_status(peers: Peers, logged: Logged, step: str, operation: str) -> None:
    """Proves: E-01. Operation, class and HTTP status, whichever thread made the call."""
    peers.on[step].append(Refuses(503, "not_ready"))
    peers.on_prompt = stay_silent
    driven = drive(peers, replace(QUICK, mark_interval_max_s=0.1))
    peers.wait_for("prompt")
    peers.wait_for("feed")
    if step in ("cancel", "stop"):
        peers.cancel_requested = True
    else:
        peers.settle_turn()
    assert driven.wait() == 0
    told = [event for event in logged("agent_control_failure") if event["operation"] == operation]
    assert [(event["exception"], event["http_status"]) for event in told] == [("ClientError", 503)]


def test_the_class_is_logged_also_where_nothing_can_be_reported(peers: Peers, logged: Logged) -> None:
    """Proves: F-02."""
    peers.always["ensure"] = Refuses(409, "conflict")
    peers.always["events"] = Cuts()
    peers.always["finish"] = Cuts()
    assert run_turn(peers) == 3
    (failed,) = logged("agent_turn_failed")
    assert (failed["stage"], failed["exception_class"], failed["http_status"]) == ("sandbox", "ClientError", 409)


@pytest.mark.parametrize("step", ["prepare", "ensure", "take", "admit", "events_stream", "events", "settle", "finish"])
@pytest.mark.parametrize("way", [Refuses(409, "conflict"), Refuses(409, "lease_refused"), Cuts()])
def test_no_log_line_holds_an_address_a_token_or_a_body(
    peers: Peers, written: io.StringIO, step: str, way: Refuses | Cuts
) -> None:
    """Proves: E-02."""
    peers.on[step].extend([way] * 6)
    run_turn(peers, replace(FAST, control_timeout_s=1))
    text = written.getvalue()
    assert text
    for secret in (peers.url, "127.0.0.1", peers.worker_token, "signed-", "retryable", "no answer"):
        assert secret not in text
