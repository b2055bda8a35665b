"""What a worker's log says of an outage, and what it never says (E-01 to E-03)."""

import io
import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from runner.behaviours import Cuts, Refuses
from runner.driving import FAST, drive, run_turn
from runner.hosting import until
from runner.peers import Peers, stay_silent
from turnkeeper.kit.log import configure

QUICK = replace(FAST, heartbeat_interval_s=0.2, heartbeat_timeout_s=0.5, heartbeat_retry_delay_s=0.1)


@pytest.fixture
def written() -> Generator[io.StringIO]:
    """The log of this process."""
    stream = io.StringIO()
    configure("worker", stream=stream)
    yield stream
    configure("turnkeeper")


def events(written: io.StringIO, name: str) -> list[dict[str, Any]]:
    """What was logged as `name`."""
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    return [line for line in lines if line["event"] == name]


def test_one_outage_is_told_once_and_its_retries_by_their_numbers(peers: Peers, written: io.StringIO) -> None:
    """Proves: E-01, E-03."""
    peers.on_prompt = stay_silent
    peers.on["heartbeat"].extend([Refuses(503, "not_ready"), Refuses(503, "not_ready"), Cuts()])
    driven = drive(peers, QUICK)
    until(lambda: events(written, "agent_heartbeat_recovered"), "it recovers")
    peers.settle_turn()
    assert driven.wait() == 0
    told = [event for event in events(written, "agent_control_failure") if event["operation"] == "heartbeat"]
    assert [(event["exception"], event["http_status"]) for event in told] == [("ClientError", 503)]
    retries = events(written, "agent_heartbeat_retry")
    assert [event["failures"] for event in retries] == [1, 2, 3]
    assert [event["since_confirmed_s"] for event in retries] == sorted(event["since_confirmed_s"] for event in retries)
    assert all(0 < event["retry_in_s"] <= 0.1 for event in retries)
    assert [event["failures"] for event in events(written, "agent_heartbeat_recovered")] == [3]


def test_the_class_is_logged_also_where_nothing_can_be_reported(peers: Peers, written: io.StringIO) -> None:
    """Proves: F-02."""
    peers.always["ensure"] = Refuses(409, "conflict")
    peers.always["events"] = Cuts()
    peers.always["finish"] = Cuts()
    assert run_turn(peers) == 3
    (failed,) = events(written, "agent_turn_failed")
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
