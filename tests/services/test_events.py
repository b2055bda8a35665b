"""Event batches: numbered, once each, bounded, clean, and never after the end."""

import asyncio
from typing import Any

import pytest

from harness.postgres import DatabaseClock, Sessions
from services.driver import Driver, Turn, wanted
from turnkeeper.services import events, stream
from turnkeeper.services.answers import Invalid, NotFound, Refused
from turnkeeper.services.cutting import fit, json_bytes
from turnkeeper.services.finish import finish
from turnkeeper.wire.turn import EventKind
from turnkeeper.wire.worker import EventBatch, EventBatchAnswer, Finish, FinishAnswer, TurnEvent


async def send(driver: Driver, turn: Turn, first: int, *data: dict[str, Any], kind: EventKind = EventKind.TEXT) -> Any:
    batch = tuple(TurnEvent(n=first + place, kind=kind, data=one) for place, one in enumerate(data))
    return await events.store_batch(
        driver.s, turn.worker, EventBatch(lease_generation=turn.lease, first=first, events=batch)
    )


async def texts(driver: Driver, turn: Turn) -> list[str]:
    return [event["data"]["text"] for event in await driver.events_of(turn.claim.thread_id) if event["kind"] == "text"]


async def test_repeated_and_overlapping_batches_are_stored_once(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    assert (await driver.send_events(turn, 1, "a", "b")).next == 3
    assert (await driver.send_events(turn, 1, "a", "b")).next == 3
    assert (await driver.send_events(turn, 2, "b", "c")).next == 4
    assert (await driver.send_events(turn, 4, "d")).next == 5
    assert await texts(driver, turn) == ["a", "b", "c", "d"]
    numbers = [event["stream_no"] for event in await driver.events_of(turn.claim.thread_id) if event["kind"] == "text"]
    assert numbers == [1, 2, 3, 4]


async def test_a_gap_is_refused_and_says_what_is_next(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    await driver.send_events(turn, 1, "a")
    answer = wanted(await driver.send_events(turn, 3, "c"), Invalid)
    assert answer.extra == {"next": 2}
    assert await texts(driver, turn) == ["a"]


async def test_the_same_batch_many_times_at_once(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    answers = await asyncio.gather(*(driver.send_events(turn, 1, "a", "b", "c") for _ in range(6)))
    assert answers == [EventBatchAnswer(next=4)] * 6
    assert await texts(driver, turn) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", sorted(events.OWN_KINDS))
async def test_a_worker_cannot_say_what_only_the_control_plane_knows(driver: Driver, kind: EventKind) -> None:
    """Proves: A-03: a run's end is never told by its worker."""
    turn = await driver.up_to("admitted")
    assert isinstance(await send(driver, turn, 1, {"status": "completed"}, kind=kind), Invalid)


async def test_numbers_in_a_batch_follow_each_other(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    batch = tuple(TurnEvent(n=n, kind=EventKind.TEXT, data={}) for n in (1, 3))
    request = EventBatch(lease_generation=turn.lease, first=1, events=batch)
    assert isinstance(await events.store_batch(driver.s, turn.worker, request), Invalid)


async def test_bytes_that_hurt(driver: Driver) -> None:
    """Case: F10."""
    turn = await driver.up_to("admitted")
    hurting = {"text": "a\x00b\ud83d", "k\x00": ["\udfff", {"deep": float("nan")}], "emoji": "😀", "n": 2**63}
    assert (await send(driver, turn, 1, hurting)).next == 2
    stored = (await driver.events_of(turn.claim.thread_id))[-1]["data"]
    assert stored == {"text": "a\ufffdb\ufffd", "k\ufffd": ["\ufffd", {"deep": "nan"}], "emoji": "😀", "n": 2**63}


@pytest.mark.parametrize("size", [65536 - 11, 65536 - 10, 1024 * 1024, 7 * 1024 * 1024])
async def test_a_large_event_is_cut_with_a_marker_and_its_size(driver: Driver, size: int) -> None:
    """Case: F11. `{"text":""}` is 11 bytes: the first of these just fits."""
    turn = await driver.up_to("admitted")
    await send(driver, turn, 1, {"text": "x" * size}, {"text": "next"})
    cut, following = (await driver.events_of(turn.claim.thread_id))[-2:]
    assert following["data"] == {"text": "next"}
    if size + 11 <= 65536:
        assert cut["data"] == {"text": "x" * size}
        assert cut["original_bytes"] is None
    else:
        assert json_bytes(cut["data"]) <= 65536
        assert cut["data"]["text"].endswith(f"… [cut: {size} bytes]")
        assert cut["original_bytes"] == size + 11


def test_cutting_keeps_what_is_small_and_never_splits_a_character() -> None:
    data = {"title": "short", "a": {"b": ["😀" * 30_000, "字" * 30_000]}, "quotes": '"\\\n' * 20_000}
    small, original, size = fit(data, 65536)
    assert original == json_bytes(data)
    assert size == json_bytes(small) <= 65536
    assert small["title"] == "short"
    assert small["a"]["b"][0].strip("😀").startswith("… [cut: 120000 bytes]")
    many, _, size = fit({"k": ["y" * 200] * 1000}, 65536)
    assert size <= 65536
    assert many["cut"] is True
    assert fit({"a": 1}, 65536) == ({"a": 1}, None, 7)


async def test_a_turns_events_end_at_their_limit_with_one_mark(driver: Driver) -> None:
    driver.with_limits(turn_events_bytes_max=1000)
    turn = await driver.up_to("admitted")
    for first in range(1, 40, 3):
        assert (await driver.send_events(turn, first, "x" * 100, "y" * 100, "z" * 100)).next == first + 3
    stored = [event for event in await driver.events_of(turn.claim.thread_id) if event["stream_no"] is not None]
    marks = [event for event in stored if event["kind"] == "notice"]
    assert len(marks) == 1
    assert marks[0] == stored[-1]
    assert marks[0]["data"]["code"] == "events_stopped"
    assert sum(json_bytes(event["data"]) for event in stored if event["kind"] == "text") <= 1000
    await driver.settle(turn)
    assert await driver.finish(turn) == "completed"
    kinds = [event["kind"] for event in await driver.events_of(turn.claim.thread_id)]
    assert kinds[-1] == "end"


async def test_stale_batches_store_nothing(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11, A-03. Case: F01, the events of a worker that lost its lease."""
    turn = await driver.up_to("admitted")
    wrong = turn.lease + 1
    request = EventBatch(lease_generation=wrong, first=1, events=(TurnEvent(n=1, kind=EventKind.TEXT, data={}),))
    assert isinstance(await events.store_batch(driver.s, turn.worker, request), Refused)
    database_clock.offset(121)
    assert isinstance(await driver.send_events(turn, 1, "late"), Refused)
    database_clock.real()
    await driver.settle(turn)
    await driver.finish(turn)
    assert isinstance(await driver.send_events(turn, 1, "after the end"), Refused)
    assert await texts(driver, turn) == []


async def test_events_against_finish(driver: Driver) -> None:
    """Proves: A-03: whatever the order, the end is the last."""
    for _ in range(4):
        turn = await driver.up_to("settled")
        request = Finish(lease_generation=turn.lease, status="completed")
        sent, done = await asyncio.gather(driver.send_events(turn, 1, "a", "b"), finish(driver.s, turn.worker, request))
        assert isinstance(done, FinishAnswer)
        assert isinstance(sent, EventBatchAnswer | Refused)
        kinds = [event["kind"] for event in await driver.events_of(turn.claim.thread_id)]
        assert kinds[-1] == "end"


async def test_a_batch_that_waits_for_the_end_is_refused(driver: Driver, sessions: Sessions) -> None:
    """Proves: A-03, L-11: the attempt is closed while the batch waits for its row."""
    turn = await driver.up_to("admitted")
    holder = await sessions.open()
    await holder.execute(
        "UPDATE attempts SET ended_at = tk_now(), outcome = 'failed' WHERE id = %s", (turn.claim.attempt,)
    )
    waiting = asyncio.create_task(driver.send_events(turn, 1, "late"))
    await sessions.wait_until_blocked_by(holder)
    await holder.commit()
    assert isinstance(await waiting, Refused)


async def test_conversations_are_numbered_without_gaps_by_many_writers(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("admitted", thread)
    await asyncio.gather(
        *(driver.submit(thread, f"m{number}") for number in range(10)), driver.send_events(turn, 1, *("e" * 50))
    )
    numbers = [event["seq"] for event in await driver.events_of(thread)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert await driver.value("SELECT last_seq FROM event_counters WHERE thread_id = %s", thread) == numbers[-1]


async def test_our_own_events_are_bounded_too(driver: Driver) -> None:
    """A long message is stored whole, and told in an event that is cut; so is a change summary."""
    thread = (await driver.conversation()).thread_id
    sent = await driver.submit(thread, "m" * 200_000)
    assert sent.message.text == "m" * 200_000
    event = (await driver.events_of(thread))[0]
    assert json_bytes(event["data"]) <= 65536
    assert event["original_bytes"] > 200_000
    assert event["data"]["message_id"] == sent.message.id


async def test_pages_of_a_stream(driver: Driver) -> None:
    """Proves: the owner reads what is stored, in order; somebody else finds nothing."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.whole_turn(thread)
    everything = wanted(
        await stream.conversation_events(driver.s, driver.owner, thread, after=0, limit=500), stream.EventPage
    )
    assert everything.last_seq == len(everything.events)
    pages: list[int] = []
    after, ended = 0, False
    while not ended:
        page = wanted(
            await stream.run_events(driver.s, driver.owner, turn.claim.job, after=after, limit=2), stream.EventPage
        )
        pages += [event.seq for event in page.events]
        after, ended = pages[-1], page.ended
    assert pages == [event.seq for event in everything.events]
    other = await driver.new_owner("other")
    for answer in (
        await stream.conversation_events(driver.s, other, thread, after=0, limit=1),
        await stream.run_events(driver.s, other, turn.claim.job, after=0, limit=1),
    ):
        assert isinstance(answer, NotFound)


async def test_a_reader_is_woken_by_new_events(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    assert await driver.s.bus.wait_listening(10)
    with events.subscribe(driver.s, thread) as woken:
        await driver.submit(thread)
        assert await woken.wait(10)
