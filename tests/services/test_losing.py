"""What an owner is told when a conversation is over, and in which language (R-06)."""

from typing import Any

import pytest

from harness.postgres import DatabaseClock
from services.driver import Driver, wanted
from turnkeeper.domain.errors import ErrorCode, Language, lost_sentence, sentence
from turnkeeper.services import events, reap, stream
from turnkeeper.services.conversations import close
from turnkeeper.services.finish import finish
from turnkeeper.wire.public import Conversation
from turnkeeper.wire.turn import EventKind
from turnkeeper.wire.worker import EventBatch, FailureReport, Finish, FinishAnswer, TurnEvent

LANGUAGES = list(Language)


async def speaking(driver: Driver, language: Language) -> Driver:
    """The owner reads `language`."""
    await driver.rows("UPDATE users SET language = %s", language.value)
    return driver


async def told(driver: Driver, thread: str) -> list[dict[str, Any]]:
    """The conversation's own events."""
    return [event for event in await driver.events_of(thread) if event["kind"] == "conversation"]


def failed(code: ErrorCode, lease: int) -> Finish:
    """A worker's word that its turn failed."""
    report = FailureReport(code=code.value, stage="prompt", delivered="yes")
    return Finish(lease_generation=lease, status="failed", failure=report)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_verdict_of_lost_is_told_after_the_end_of_its_run(driver: Driver, language: Language) -> None:
    """Proves: R-06, R-02, A-03. The run's end stays the last of its stream; the event belongs to no run."""
    await speaking(driver, language)
    turn = await driver.up_to("admitted")
    thread = turn.claim.thread_id
    wanted(await finish(driver.s, turn.worker, failed(ErrorCode.AGENT_EXITED, turn.lease)), FinishAnswer)
    (event,) = await told(driver, thread)
    assert event["data"] == {"state": "lost", "code": "outcome_unknown", "text": lost_sentence(language)}
    assert event["run_id"] is None
    of_run = [one["kind"] for one in await driver.events_of(thread) if one["run_id"] == turn.claim.job]
    assert of_run[-1] == "end"
    page = wanted(
        await stream.conversation_events(driver.s, driver.owner, thread, after=0, limit=100), stream.EventPage
    )
    assert [one.kind for one in page.events][-1] is EventKind.CONVERSATION
    run = await driver.run(turn.claim.job)
    assert (run["status"], run["error_code"]) == ("failed", "agent_exited")  # kept as it was


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_reaped_turn_is_told_in_the_owners_language(
    driver: Driver, database_clock: DatabaseClock, language: Language
) -> None:
    """Proves: R-06, E-06. Nothing came from a worker; error, end and loss are the control plane's own words."""
    await speaking(driver, language)
    turn = await driver.up_to("admitted")
    await driver.submit(turn.claim.thread_id, "next")
    database_clock.offset(123)
    assert await reap.reap(driver.s) == 1
    stored = await driver.events_of(turn.claim.thread_id)
    assert [one["data"]["text"] for one in stored if one["kind"] == "conversation"] == [lost_sentence(language)]
    texts = {one["data"]["text"] for one in stored if one["kind"] in ("error", "end")}
    assert texts == {sentence(ErrorCode.OUTCOME_UNKNOWN, language), sentence(ErrorCode.SESSION_UNAVAILABLE, language)}


async def test_a_session_that_cannot_be_had_again_is_told_with_the_end(driver: Driver) -> None:
    """Proves: R-06, R-07. Lost at once, by the transaction that ends the run."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    turn = await driver.up_to("activated", thread)
    await finish(driver.s, turn.worker, failed(ErrorCode.SESSION_UNAVAILABLE, turn.lease))
    (event,) = await told(driver, thread)
    assert event["data"]["code"] == "session_unavailable"


async def test_what_goes_on_or_is_closed_is_not_told_to_be_lost(driver: Driver, database_clock: DatabaseClock) -> None:
    """The stale twins: never admitted; closed by its owner before the verdict."""
    early = await driver.up_to("activated")
    await finish(driver.s, early.worker, failed(ErrorCode.PREPARATION_FAILED, early.lease))
    assert await told(driver, early.claim.thread_id) == []
    closed = await driver.up_to("admitted")
    wanted(await close(driver.s, driver.owner, closed.claim.thread_id), Conversation)
    database_clock.offset(123)
    await reap.reap(driver.s)
    assert await driver.value("SELECT state FROM memberships WHERE thread_id = %s", closed.claim.thread_id) == "lost"
    assert await told(driver, closed.claim.thread_id) == []


async def test_the_database_takes_no_other_event_without_a_run(driver: Driver) -> None:
    """A-03 rests on each run's events naming it."""
    thread = (await driver.conversation()).thread_id
    with pytest.raises(Exception, match="events_without_a_run"):
        await driver.rows(
            "INSERT INTO events (thread_id, seq, run_id, kind, data) VALUES (%s, 99, NULL, 'text', '{}')", thread
        )


async def report(driver: Driver, *data: dict[str, Any]) -> list[dict[str, Any]]:
    """Error events as a worker uploads them; as they are stored."""
    turn = await driver.up_to("admitted")
    batch = tuple(TurnEvent(n=n, kind=EventKind.ERROR, data=one) for n, one in enumerate(data, 1))
    await events.store_batch(driver.s, turn.worker, EventBatch(lease_generation=turn.lease, first=1, events=batch))
    return [one["data"] for one in await driver.events_of(turn.claim.thread_id) if one["kind"] == "error"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_workers_error_is_stored_in_the_owners_language(driver: Driver, language: Language) -> None:
    """Proves: R-06. The worker does not know the language; the rest of its report stays as it came."""
    await speaking(driver, language)
    came = {"code": "agent_exited", "stage": "prompt", "delivered": "yes", "text": "English", "detail": "of the agent"}
    assert await report(driver, came) == [{**came, "text": sentence(ErrorCode.AGENT_EXITED, language)}]


async def test_an_error_that_nobody_knows_stays_as_it_came(driver: Driver) -> None:
    """Also where its code is no text at all."""
    await speaking(driver, Language.ZH)
    came = [{"code": "of_a_later_release", "text": "as it is"}, {"code": {"deep": 1}, "text": "so"}, {"text": "none"}]
    assert await report(driver, *came) == came


async def test_the_mark_of_a_full_turn_is_in_the_owners_language(driver: Driver) -> None:
    """The sentence about events that are not stored is the control plane's own."""
    await speaking(driver, Language.ZH)
    driver.with_limits(turn_events_bytes_max=100)
    turn = await driver.up_to("admitted")
    await driver.send_events(turn, 1, "x" * 200)
    (mark,) = [one["data"] for one in await driver.events_of(turn.claim.thread_id) if one["kind"] == "notice"]
    assert mark["text"] == "本轮的事件已达到 100 字节的上限，之后的事件不再保存。"
