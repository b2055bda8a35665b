"""Messages become runs: limits, refusals, and one run for one idempotency key."""

import asyncio

import pytest

from services.driver import Driver, wanted
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services import cancel, conversations, messages, runs, submit
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound
from turnkeeper.services.idempotency import IdempotencyKey, request_key
from turnkeeper.wire.public import NewMessage, Run, Submitted

ROUTE = "POST /v1/conversations/{thread_id}/messages"


def idem(key: str, text: str, thread: str) -> IdempotencyKey:
    return request_key(ROUTE, key, {"path": {"thread_id": thread}, "body": {"text": text}})


@pytest.mark.parametrize("text", ["", " \n\t "])
async def test_an_empty_message_is_refused(driver: Driver, text: str) -> None:
    thread = (await driver.conversation()).thread_id
    answer = wanted(await submit.submit(driver.s, driver.owner, thread, NewMessage(text=text)), Invalid)
    assert answer.code is ProblemCode.EMPTY_PROMPT
    assert await driver.value("SELECT count(*) FROM runs") == 0


async def test_the_limit_of_a_prompt_counts_bytes(driver: Driver) -> None:
    """One byte more than the limit is refused; the limit itself is not, also in characters of three bytes."""
    driver.with_limits(prompt_bytes_max=3000)
    thread = (await driver.conversation()).thread_id
    answer = wanted(await submit.submit(driver.s, driver.owner, thread, NewMessage(text="字" * 1000 + "x")), Invalid)
    assert answer.code is ProblemCode.PROMPT_TOO_LARGE
    await driver.submit(thread, "字" * 1000)


async def test_what_cannot_be_stored_is_replaced_and_marked(driver: Driver) -> None:
    """Case: F10."""
    thread = (await driver.conversation()).thread_id
    sent = await driver.submit(thread, "a\x00b\ud800c😀")
    assert sent.message.text == "a\ufffdb\ufffdc😀"
    turn = await driver.claim()
    assert (await driver.prepare(turn)).prompt == "a\ufffdb\ufffdc😀"


async def test_a_full_queue_refuses(driver: Driver) -> None:
    driver.with_limits(queue_max=3)
    thread = (await driver.conversation()).thread_id
    for _ in range(3):
        await driver.submit(thread)
    answer = wanted(await submit.submit(driver.s, driver.owner, thread, NewMessage(text="x")), Conflict)
    assert answer.code is ProblemCode.QUEUE_FULL
    await driver.claim()
    await driver.submit(thread)


async def test_other_peoples_ids_are_not_found(driver: Driver) -> None:
    """An id that exists and one that does not are the same to somebody else."""
    thread = (await driver.conversation()).thread_id
    sent = await driver.submit(thread)
    other = await driver.new_owner("other")
    s = driver.s
    for name in (thread, "0" * 36, "../..", "x;touch y", "\x00", "é" * 300):
        assert isinstance(await submit.submit(s, other, name, NewMessage(text="x")), NotFound)
        assert isinstance(await conversations.get(s, other, name), NotFound)
        assert isinstance(await conversations.close(s, other, name), NotFound)
        assert isinstance(await messages.list_messages(s, other, name, limit=1), NotFound)
        assert isinstance(await runs.list_runs(s, other, thread_id=name, limit=1), NotFound)
    for name in (sent.run.id, thread, "nothing"):
        assert isinstance(await runs.get_run(s, other, name), NotFound)
        assert isinstance(await cancel.cancel(s, other, name), NotFound)
    assert await conversations.list_(s, other, limit=10) == ([], None)
    assert await runs.list_runs(s, other, limit=10) == ([], None)
    assert (await driver.run(sent.run.id))["status"] == "pending"


async def test_closed_and_lost_conversations_take_no_message(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    await conversations.close(driver.s, driver.owner, thread)
    answer = wanted(await submit.submit(driver.s, driver.owner, thread, NewMessage(text="x")), Conflict)
    assert answer.code is ProblemCode.CONVERSATION_CLOSED
    lost = (await driver.conversation()).thread_id
    await driver.rows("UPDATE conversations SET state = 'lost' WHERE thread_id = %s", lost)
    answer = wanted(await submit.submit(driver.s, driver.owner, lost, NewMessage(text="x")), Conflict)
    assert answer.code is ProblemCode.CONVERSATION_LOST
    shown = wanted(await conversations.get(driver.s, driver.owner, lost), conversations.Conversation)
    assert shown.lost_text is not None
    assert "can no longer be used" in shown.lost_text


async def test_one_key_is_one_run(driver: Driver) -> None:
    """Case: F08. Twenty requests at once, again after the end, and again with another text."""
    thread = (await driver.conversation()).thread_id
    key = idem("k1", "hello", thread)
    answers = await asyncio.gather(*(driver.submit(thread, "hello", idem=key) for _ in range(20)))
    assert len({answer.run.id for answer in answers}) == 1
    assert len({answer.message.id for answer in answers}) == 1
    assert await driver.value("SELECT count(*) FROM runs") == 1
    turn = await driver.claim()
    for step in (driver.prepare, driver.record, driver.activate, driver.admit, driver.settle):
        await step(turn)
    await driver.finish(turn)
    again = await driver.submit(thread, "hello", idem=key)
    assert again == answers[0]
    other = await submit.submit(driver.s, driver.owner, thread, NewMessage(text="other"), idem("k1", "other", thread))
    assert isinstance(other, Mismatch)
    assert await driver.value("SELECT count(*) FROM runs") == 1


async def test_a_key_belongs_to_its_owner_and_route(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    mine = await driver.submit(thread, "hello", idem=idem("k1", "hello", thread))
    second = (await driver.conversation()).thread_id
    elsewhere = await submit.submit(
        driver.s, driver.owner, second, NewMessage(text="hello"), idem("k1", "hello", second)
    )
    assert isinstance(elsewhere, Mismatch)
    other = await driver.new_owner("other")
    theirs = (await driver.conversation(owner=other)).thread_id
    sent = await driver.submit(theirs, "hello", owner=other, idem=idem("k1", "hello", theirs))
    assert sent.run.id != mine.run.id


async def test_a_refusal_is_not_remembered(driver: Driver) -> None:
    """A full queue now does not decide what the same request gets later."""
    driver.with_limits(queue_max=1)
    thread = (await driver.conversation()).thread_id
    first = await driver.submit(thread)
    key = idem("k2", "again", thread)
    refused = await submit.submit(driver.s, driver.owner, thread, NewMessage(text="again"), key)
    assert isinstance(refused, Conflict)
    assert await driver.value("SELECT count(*) FROM idempotency_keys") == 0
    wanted(await cancel.cancel(driver.s, driver.owner, first.run.id), Run)
    wanted(await submit.submit(driver.s, driver.owner, thread, NewMessage(text="again"), key), Submitted)


async def test_pages_of_messages_and_runs(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    sent = [await driver.submit(thread, f"m{number}") for number in range(5)]
    page = await messages.list_messages(driver.s, driver.owner, thread, limit=2)
    assert not isinstance(page, NotFound)
    texts = [message.text for message in page[0]]
    while page[1] is not None:
        page = await messages.list_messages(driver.s, driver.owner, thread, limit=2, after=page[1])
        assert not isinstance(page, NotFound)
        texts += [message.text for message in page[0]]
    assert texts == ["m0", "m1", "m2", "m3", "m4"]
    newest = await runs.list_runs(driver.s, driver.owner, thread_id=thread, limit=3)
    assert not isinstance(newest, NotFound)
    rest = await runs.list_runs(driver.s, driver.owner, limit=3, before=newest[1])
    assert not isinstance(rest, NotFound)
    assert [run.id for run in (*newest[0], *rest[0])] == [one.run.id for one in reversed(sent)]
    assert rest[1] is None
