"""Conversations and their Workdir holds."""

import asyncio

import pytest

from services.driver import Driver, wanted
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services import cleanup, conversations
from turnkeeper.services.answers import Conflict, Invalid, Mismatch
from turnkeeper.services.context import NotDeleted
from turnkeeper.services.idempotency import request_key
from turnkeeper.wire.public import Conversation, NewConversation


async def try_create(driver: Driver, workdir: str | None = None, **more: str) -> object:
    return await conversations.create(
        driver.s, driver.owner, NewConversation(agent="scripted", workdir=workdir, **more)
    )


async def closed(driver: Driver, thread: str) -> Conversation:
    return wanted(await conversations.close(driver.s, driver.owner, thread), Conversation)


async def held(driver: Driver, thread: str) -> bool:
    return await driver.value("SELECT ended_at IS NULL FROM workdir_holds WHERE runtime_scope_id = %s", thread)


async def test_the_default_workdir_is_the_conversations_own(driver: Driver) -> None:
    one, two = await driver.conversation(), await driver.conversation()
    assert one.workdir == f"conversations/{one.thread_id}"
    assert one.workdir != two.workdir
    row = await driver.row("SELECT * FROM conversations WHERE thread_id = %s", one.thread_id)
    assert row["runtime_scope_id"] == one.thread_id
    assert await held(driver, one.thread_id)


@pytest.mark.parametrize(
    "name", ["..", "/etc", "a/../../b", "~", "%2e%2e", "a\x00b", "x" * 300, "", "a//b", "agents/homes", " a", "a\n"]
)
async def test_names_that_are_no_workdir(driver: Driver, name: str) -> None:
    """Case: F14. The refusal names the field."""
    answer = wanted(await try_create(driver, name), Invalid)
    assert (answer.code, answer.field) == (ProblemCode.INVALID_WORKDIR, "workdir")
    assert "\n" not in answer.detail
    assert await driver.value("SELECT count(*) FROM conversations") == 0


async def test_names_that_only_look_odd(driver: Driver) -> None:
    """Case: F14."""
    for name in ("v2..v3", "x;touch y", "src2", "ü/中文"):
        assert wanted(await try_create(driver, name), Conversation).workdir == name


@pytest.mark.parametrize(
    ("first", "second"), [("src", "src"), ("src", "src/app"), ("src/app/x", "src/app"), ("é", "é")]
)
async def test_overlapping_workdirs_are_refused(driver: Driver, first: str, second: str) -> None:
    """Proves: D-02. Equal names in another Unicode form are equal."""
    holder = wanted(await try_create(driver, first), Conversation)
    answer = wanted(await try_create(driver, second), Conflict)
    assert answer.code is ProblemCode.WORKDIR_HELD
    assert answer.extra["holder"] == holder.thread_id
    assert answer.extra["state"] == "open"
    other = await driver.new_owner("other")
    made = await conversations.create(driver.s, other, NewConversation(agent="scripted", workdir=second))
    assert isinstance(made, Conversation)


async def test_of_many_at_once_one_gets_the_workdir(driver: Driver) -> None:
    """Proves: D-02."""
    names = ["src", "src/app", "src/app/deep", "src"] * 4
    answers = await asyncio.gather(*(try_create(driver, name) for name in names))
    assert sum(isinstance(answer, Conversation) for answer in answers) == 1
    assert all(isinstance(answer, Conversation | Conflict) for answer in answers)


async def test_unknown_and_removed_agents(driver: Driver) -> None:
    for agent in ("nobody", "../x", "\x00"):
        answer = wanted(await conversations.create(driver.s, driver.owner, NewConversation(agent=agent)), Invalid)
        assert (answer.code, answer.field) == (ProblemCode.UNKNOWN_AGENT, "agent")


async def test_creating_is_idempotent(driver: Driver) -> None:
    """Case: F08, for conversations."""
    key = request_key("POST /v1/conversations", "k", {"agent": "scripted"})
    request = NewConversation(agent="scripted", workdir="w")
    answers = await asyncio.gather(*(conversations.create(driver.s, driver.owner, request, key) for _ in range(10)))
    assert len({wanted(answer, Conversation).thread_id for answer in answers}) == 1
    other = request_key("POST /v1/conversations", "k", {"agent": "scripted", "title": "x"})
    assert isinstance(await conversations.create(driver.s, driver.owner, request, other), Mismatch)


async def test_a_list_is_paged_newest_first(driver: Driver) -> None:
    made = [(await driver.conversation()).thread_id for _ in range(5)]
    page, after = await conversations.list_(driver.s, driver.owner, limit=3)
    rest, end = await conversations.list_(driver.s, driver.owner, limit=3, before=after)
    assert [one.thread_id for one in (*page, *rest)] == made[::-1]
    assert end is None


async def test_closing_without_a_run_gives_the_workdir_back_at_once(driver: Driver) -> None:
    """Proves: D-02: a scope that never had a sandbox counts as confirmed."""
    made = wanted(await try_create(driver, "src"), Conversation)
    assert (await closed(driver, made.thread_id)).state == "closed"
    assert not await held(driver, made.thread_id)
    assert isinstance(await try_create(driver, "src"), Conversation)
    assert driver.deletes.asked == []


async def test_closing_keeps_the_workdir_until_the_delete_is_confirmed(driver: Driver) -> None:
    """Proves: D-02."""
    made = wanted(await try_create(driver, "src"), Conversation)
    turn = await driver.whole_turn(made.thread_id)
    await closed(driver, made.thread_id)
    answer = wanted(await try_create(driver, "src"), Conflict)
    assert answer.extra["state"] == "closed"

    driver.deletes.answers = [NotDeleted("unknown")]
    assert not await cleanup.clean_scope(driver.s, made.thread_id, driver.owner.uid)
    assert await held(driver, made.thread_id)
    assert await cleanup.clean_scope(driver.s, made.thread_id, driver.owner.uid)
    sandbox_id = await driver.value("SELECT sandbox_id FROM shared_workspaces")
    assert driver.deletes.asked == [(sandbox_id, turn.lease)] * 2
    assert not await held(driver, made.thread_id)
    assert isinstance(await try_create(driver, "src"), Conversation)
    assert await driver.value("SELECT count(*) FROM runs WHERE runtime_cleanup_pending") == 0


async def test_closing_ends_what_waits_and_asks_what_runs_to_stop(driver: Driver) -> None:
    """Proves: D-01: a queue is neither burnt nor left hanging."""
    thread = (await driver.conversation()).thread_id
    running = await driver.up_to("admitted", thread)
    waiting = await driver.submit(thread, "two")
    await closed(driver, thread)
    ended = await driver.run(waiting.run.id)
    assert (ended["status"], ended["error_code"]) == ("failed", "session_unavailable")
    assert await driver.delivery(waiting.run.id) == "not_delivered"
    run = await driver.run(running.claim.job)
    assert run["status"] == "cancel_requested"
    assert (await driver.attempt(running))["ended_at"] is None
    before = len(await driver.events_of(thread))
    assert (await closed(driver, thread)).state == "closed"
    assert len(await driver.events_of(thread)) == before

    assert not await cleanup.clean_scope(driver.s, thread, driver.owner.uid), "a run of the scope is active"
    await driver.settle(running)
    assert await driver.finish(running, "cancelled") == "cancelled"
    assert await cleanup.clean_scope(driver.s, thread, driver.owner.uid)
    ends = [event["run_id"] for event in await driver.events_of(thread) if event["kind"] == "end"]
    assert sorted(ends) == sorted([running.claim.job, waiting.run.id])


async def test_a_lost_conversation_can_be_closed(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    await driver.rows("UPDATE conversations SET state = 'lost'")
    assert (await closed(driver, thread)).state == "closed"
