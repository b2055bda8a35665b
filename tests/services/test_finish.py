"""The end of a turn: what ended is decided by the stored facts, in one transaction."""

import asyncio
from typing import Any

import pytest

from harness.postgres import DatabaseClock, Sessions
from services.driver import Driver, Turn, wanted
from turnkeeper.services import cleanup, conversations, submit
from turnkeeper.services.answers import Conflict, Refused, RefusedWhy
from turnkeeper.services.cancel import cancel
from turnkeeper.services.finish import finish
from turnkeeper.services.verdict import give_verdicts
from turnkeeper.wire.public import NewMessage
from turnkeeper.wire.turn import Outcome
from turnkeeper.wire.worker import Finish, FinishAnswer


def failure(code: str, delivered: str = "no", **more: Any) -> dict[str, Any]:
    return {"code": code, "stage": "session", "delivered": delivered, **more}


async def ended(driver: Driver, turn: Turn) -> tuple[str, str | None, str]:
    run = await driver.run(turn.claim.job)
    return run["status"], run["error_code"], await driver.delivery(turn.claim.job)


async def usable(driver: Driver, thread: str) -> bool:
    """Whether a next turn gets to its end."""
    state = await driver.value("SELECT state FROM conversations WHERE thread_id = %s", thread)
    if state != "open":
        return False
    await driver.whole_turn(thread)
    return True


async def check_end_is_last(driver: Driver, turn: Turn) -> None:
    kinds = [
        event["kind"] for event in await driver.events_of(turn.claim.thread_id) if event["run_id"] == turn.claim.job
    ]
    assert kinds[-1] == "end"
    assert kinds.count("end") == 1


@pytest.mark.parametrize(
    ("stage", "code", "expected", "state", "goes_on"),
    [
        ("claimed", "preparation_failed", ("failed", "preparation_failed", "not_delivered"), None, True),
        ("prepared", "sandbox_unavailable", ("failed", "sandbox_unavailable", "not_delivered"), "idle", True),
        ("activated", "agent_start_failed", ("failed", "agent_start_failed", "not_delivered"), "idle", True),
        ("admitted", "agent_exited", ("failed", "agent_exited", "unknown"), "lost", False),
        ("admitted", "no such code", ("failed", "agent_protocol_error", "unknown"), "lost", False),
    ],
)
async def test_a_failed_turn(
    driver: Driver, stage: str, code: str, expected: tuple[str, str, str], state: str | None, goes_on: bool
) -> None:
    """Proves: R-01, R-02, A-03, A-05. An activation that was never admitted is *not delivered*, and the next message goes on."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to(stage, thread)
    assert await driver.finish(turn, "failed", failure=failure(code)) == "failed"
    assert await ended(driver, turn) == expected
    await check_end_is_last(driver, turn)
    assert await driver.value("SELECT state FROM memberships") == state
    assert await usable(driver, thread) == goes_on


async def test_nothing_unsettled_is_completed(driver: Driver) -> None:
    """Proves: A-04."""
    for stage in ("prepared", "activated", "admitted"):
        turn = await driver.up_to(stage)
        assert await driver.finish(turn, "completed") == "failed"
        assert (await driver.run(turn.claim.job))["error_code"] == "settlement_failed"


async def test_a_settled_turn_is_what_was_settled_whatever_the_worker_says(driver: Driver) -> None:
    """Proves: F-03."""
    turn = await driver.up_to("settled")
    assert await driver.finish(turn, "failed", failure=failure("agent_exited")) == "completed"
    assert await ended(driver, turn) == ("completed", None, "delivered")
    assert (await driver.run(turn.claim.job))["error_detail"] is not None


async def test_without_a_reply_there_is_no_output(driver: Driver) -> None:
    """Proves: A-04. The conversation goes on."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    await driver.settle(turn, final_message=" \n")
    assert await driver.finish(turn) == "failed"
    assert await ended(driver, turn) == ("failed", "no_output", "delivered")
    assert await usable(driver, thread)


async def test_an_agent_that_answered_with_an_error(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    await driver.settle(turn, outcome=Outcome.FAILED, stop_reason="error", final_message="partial")
    assert await driver.finish(turn) == "failed"
    assert await ended(driver, turn) == ("failed", "agent_protocol_error", "delivered")
    assert await driver.value("SELECT text FROM messages WHERE role = 'assistant'") == "partial"
    assert await usable(driver, thread)


async def test_a_cancelled_run_is_never_completed(driver: Driver) -> None:
    """Proves: A-03 and protocol 2: the output of a turn that was settled after the cancel is kept."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    await cancel(driver.s, driver.owner, turn.claim.job)
    await driver.settle(turn, final_message="it was done already")
    assert await driver.finish(turn) == "cancelled"
    assert await ended(driver, turn) == ("cancelled", "cancelled", "delivered")
    assert await driver.value("SELECT text FROM messages WHERE role = 'assistant'") == "it was done already"
    assert await usable(driver, thread)


async def test_a_timeout_that_the_agent_acknowledged_is_a_failure(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    await driver.settle(turn, outcome=Outcome.CANCELLED, stop_reason="cancelled")
    assert await driver.finish(turn, "failed", failure=failure("execution_timeout", "yes")) == "failed"
    assert await ended(driver, turn) == ("failed", "execution_timeout", "delivered")
    assert await usable(driver, thread)


async def test_a_session_that_is_not_available_loses_the_conversation(driver: Driver) -> None:
    """Proves: R-05, R-06, D-01: lost in the transaction that ends the run; the waiting runs end with a clear code."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    turn = await driver.up_to("activated", thread)
    waiting = await driver.submit(thread, "next")
    assert await driver.finish(turn, "failed", failure=failure("session_unavailable")) == "failed"
    assert await ended(driver, turn) == ("failed", "session_unavailable", "not_delivered")
    membership = await driver.membership(thread)
    assert (membership["state"], membership["lost_reason"]) == ("lost", "session_unavailable")
    assert (await driver.activation_row(turn))["state"] == "lost"
    row = await driver.run(waiting.run.id)
    assert (row["status"], row["error_code"]) == ("failed", "session_unavailable")
    assert await driver.value("SELECT ended_at IS NULL FROM workdir_holds")
    refused = await submit.submit(driver.s, driver.owner, thread, NewMessage(text="x"))
    assert isinstance(refused, Conflict)

    flagged = await driver.value("SELECT id FROM runs WHERE runtime_cleanup_pending")
    assert flagged == waiting.run.id, "the newest root run carries the fence"
    await check_end_is_last(driver, turn)
    assert await cleanup.clean_scope(driver.s, thread, driver.owner.uid)
    ends = [event["run_id"] for event in await driver.events_of(thread) if event["kind"] == "end"]
    assert ends[-1] == waiting.run.id
    assert not await driver.value("SELECT ended_at IS NULL FROM workdir_holds")


async def test_a_lost_session_that_was_cancelled_meanwhile(driver: Driver) -> None:
    turn = await driver.up_to("activated")
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert await driver.finish(turn, "failed", failure=failure("session_unavailable")) == "cancelled"
    assert await driver.value("SELECT state FROM memberships") == "lost"


async def test_an_admitted_turn_without_settlement_is_quarantined_first(driver: Driver) -> None:
    """Proves: R-02, R-04: the quarantine is durable before the verdict; a verdict that was lost with its process is given later."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    waiting = await driver.submit(thread, "next")
    await driver.rows(
        "CREATE FUNCTION no_verdict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER no_verdict BEFORE UPDATE ON memberships FOR EACH ROW WHEN (NEW.state = 'lost') "
        "EXECUTE FUNCTION no_verdict()"
    )
    assert await driver.finish(turn, "failed", failure=failure("agent_exited", "unknown")) == "failed"
    membership = await driver.membership(thread)
    assert (membership["state"], membership["fence"], membership["admitted_job_id"]) == (
        "quarantined",
        2,
        turn.claim.job,
    )
    assert (await driver.activation_row(turn))["state"] == "quarantined"
    assert not await driver.ready(waiting.run.id)
    await driver.rows("DROP TRIGGER no_verdict ON memberships")
    assert await give_verdicts(driver.s) == 1
    assert (await driver.membership(thread))["state"] == "lost"
    assert (await driver.activation_row(turn))["state"] == "lost"
    assert (await driver.run(waiting.run.id))["error_code"] == "session_unavailable"
    assert await give_verdicts(driver.s) == 0


async def test_verdicts_at_once_are_one(driver: Driver) -> None:
    turn = await driver.up_to("activated")
    await driver.rows("UPDATE memberships SET state = 'quarantined', fence = fence + 1")
    await driver.rows("UPDATE activations SET state = 'quarantined'")
    given = await asyncio.gather(*(give_verdicts(driver.s) for _ in range(5)))
    assert sum(given) == 1
    assert (await driver.membership(turn.claim.thread_id))["state"] == "idle"
    assert (await driver.activation_row(turn))["state"] == "not_delivered"


async def test_a_finish_whose_reply_was_lost(driver: Driver) -> None:
    """Proves: A-03: asking again changes nothing, and tells the same."""
    turn = await driver.up_to("settled")
    await driver.finish(turn)
    events = await driver.events_of(turn.claim.thread_id)
    assert await driver.finish(turn, "failed", failure=failure("agent_exited")) == "completed"
    assert await driver.events_of(turn.claim.thread_id) == events


async def test_stale_finishes_change_nothing(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11, E-04."""
    turn = await driver.up_to("admitted")
    for generation in (turn.lease + 1, 0):
        request = Finish(lease_generation=generation, status="failed")
        assert wanted(await finish(driver.s, turn.worker, request), Refused).why is RefusedWhy.LEASE
    database_clock.offset(121)
    request = Finish(lease_generation=turn.lease, status="failed")
    assert isinstance(await finish(driver.s, turn.worker, request), Refused)
    assert (await driver.run(turn.claim.job))["status"] == "running"
    assert (await driver.attempt(turn))["ended_at"] is None


async def test_failure_details_hold_no_url_and_no_secret(driver: Driver) -> None:
    """Proves: E-02."""
    turn = await driver.up_to("claimed")
    told = failure(
        "sandbox_unavailable",
        exception="ConnectError",
        http_status=503,
        text="GET https://10.0.0.1/x?token=y failed with tkw_abcdefghijklmnop",
        stderr_tail="see postgres://u:p@h/db\x00",
    )
    await driver.finish(turn, "failed", failure=told)
    detail = (await driver.run(turn.claim.job))["error_detail"]
    assert detail["exception"] == "ConnectError"
    assert detail["http_status"] == 503
    assert detail["stage"] == "session"
    for secret in ("https", "10.0.0.1", "tkw_a", "u:p"):
        assert secret not in str(detail)
    error = next(event for event in await driver.events_of(turn.claim.thread_id) if event["kind"] == "error")
    assert error["data"] == {
        "code": "sandbox_unavailable",
        "text": "The agent's workplace could not be made available.",
        "stage": "session",
        "delivered": "no",
        "detail": "GET [url] failed with [redacted]",
    }


async def test_the_sentence_is_in_the_owners_language(driver: Driver) -> None:
    await driver.rows("UPDATE users SET language = 'zh'")
    turn = await driver.up_to("claimed")
    await driver.finish(turn, "failed", failure=failure("execution_timeout"))
    assert "智能体" in (await driver.events_of(turn.claim.thread_id))[-1]["data"]["text"]


async def test_a_snapshot_never_fails_a_turn(driver: Driver) -> None:
    """Proves: D-08: none, a refused one, or one that makes no sense."""
    for snapshot in (None, {"unavailable_why": "too\x00large"}, {"tree_id": "not hex"}, {}):
        turn = await driver.up_to("settled")
        assert await driver.finish(turn, snapshot=snapshot) == "completed"
        row = await driver.row("SELECT * FROM snapshots WHERE run_id = %s", turn.claim.job)
        assert row["tree_id"] is None
        assert row["unavailable_why"]


async def test_an_ephemeral_root_run_raises_the_fence(driver: Driver) -> None:
    """Proves: C-01, C-09: the terminal state is visible at once, the end event comes when the delete is confirmed."""
    await driver.add_agent("brief", runtime_policy="ephemeral", can_load=True)
    thread = (await driver.conversation(agent="brief")).thread_id
    turn = await driver.up_to("settled", thread)
    assert await driver.finish(turn) == "completed"
    assert (await driver.run(turn.claim.job))["status"] == "completed"
    assert not [event for event in await driver.events_of(thread) if event["kind"] == "end"]
    waiting = await driver.submit(thread, "next")
    assert not await driver.ready(waiting.run.id)
    assert await cleanup.clean_scope(driver.s, thread, driver.owner.uid)
    await check_end_is_last(driver, turn)
    assert await driver.ready(waiting.run.id)
    assert await driver.value("SELECT ended_at IS NULL FROM workdir_holds"), "an open conversation keeps its Workdir"
    await driver.claim()


async def test_finish_against_close(driver: Driver, sessions: Sessions) -> None:
    """A close that waits for the finish finds an ended run; the other way round the run is cancelled."""
    for _ in range(4):
        thread = (await driver.conversation()).thread_id
        turn = await driver.up_to("settled", thread)
        request = Finish(lease_generation=turn.lease, status="completed")
        one, _ = await asyncio.gather(
            finish(driver.s, turn.worker, request), conversations.close(driver.s, driver.owner, thread)
        )
        assert wanted(one, FinishAnswer).status in ("completed", "cancelled")
        assert await driver.value("SELECT state FROM conversations WHERE thread_id = %s", thread) == "closed"
        assert await cleanup.clean_scope(driver.s, thread, driver.owner.uid)
        await check_end_is_last(driver, turn)
