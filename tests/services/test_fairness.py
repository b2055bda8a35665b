"""An owner's conversations share its room by turns: of those that wait for it, the one that has waited longest is next."""

import asyncio

import pytest

from services.driver import Driver
from turnkeeper.services import reconcile
from turnkeeper.services.dispatch import dispatch_scope
from turnkeeper.services.release import release
from turnkeeper.wire.worker import Release


async def conversations(driver: Driver, count: int, messages: int, room: int) -> list[list[str]]:
    """The runs of `count` conversations, each with its queue submitted at once."""
    await driver.rows("UPDATE users SET tree_room = %s", room)
    threads = [(await driver.conversation()).thread_id for _ in range(count)]
    return [[(await driver.submit(thread)).run.id for _ in range(messages)] for thread in threads]


async def ready(driver: Driver) -> set[str]:
    return {row["id"] for row in await driver.rows("SELECT id FROM runs WHERE ready_at IS NOT NULL")}


async def next_turn(driver: Driver, *, status: str = "failed") -> str:
    turn = await driver.claim()
    await driver.finish(turn, status)
    return turn.claim.job


async def test_two_conversations_with_queues_take_turns(driver: Driver) -> None:
    """Proves: D-01, D-06. The second one's first message does not wait for the whole queue of the first."""
    first, second = await conversations(driver, 2, 3, room=1)
    order = [await next_turn(driver) for _ in range(6)]
    assert order == [first[0], second[0], first[1], second[1], first[2], second[2]]
    assert await driver.value("SELECT count(*) FROM runs WHERE room_wanted_at IS NOT NULL") == 0


async def test_with_more_room_as_many_as_fit_are_next(driver: Driver) -> None:
    """Proves: D-06. Two of four run; what ends makes room for the one that has waited longest."""
    lines = await conversations(driver, 4, 2, room=2)
    order = [await next_turn(driver) for _ in range(8)]
    assert order == [line[number] for number in range(2) for line in lines]


async def test_nobody_is_kept_waiting_by_one_that_needs_no_room_any_more(driver: Driver) -> None:
    """Proves: D-01: no wake-up is lost. A mark that is no longer true is found and removed when the room is given out."""
    first, second = await conversations(driver, 2, 2, room=1)
    thread = (await driver.run(second[0]))["thread_id"]
    await driver.rows("UPDATE conversations SET queue_paused = true WHERE thread_id = %s", thread)
    assert await next_turn(driver) == first[0]
    assert await ready(driver) == {first[1]}
    assert (await driver.run(second[0]))["room_wanted_at"] is None


async def test_what_was_not_given_out_is_repaired_in_the_same_order(driver: Driver) -> None:
    """Proves: D-01. A process that dies after its commit gives nothing out: the reconciler does, to the one who waits longest."""
    first, second = await conversations(driver, 2, 2, room=1)
    assert await next_turn(driver) == first[0]
    assert await ready(driver) == {second[0]}
    await driver.rows("UPDATE runs SET ready_at = NULL, room_wanted_at = tk_now() - interval '1 hour' WHERE id = %s", second[0])  # fmt: skip
    scope = (await driver.run(first[1]))["runtime_scope_id"]
    left = await dispatch_scope(driver.s, scope, driver.owner.uid)
    assert (left.ready, left.leaves_room) == (frozenset(), True)
    await reconcile.dispatch_stuck(driver.s)
    assert await ready(driver) == {second[0]}


async def test_a_message_that_comes_when_room_is_left_to_others_wakes_them(driver: Driver) -> None:
    """Proves: D-01. It does not overtake them, and does not wait for the reconciler either."""
    first, second = await conversations(driver, 2, 1, room=1)
    for run, waits_s in ((second[0], 2), (first[0], 1)):
        since = "UPDATE runs SET ready_at = NULL, room_wanted_at = tk_now() - make_interval(secs => %s) WHERE id = %s"
        await driver.rows(since, waits_s, run)
    third = (await driver.submit((await driver.conversation()).thread_id)).run.id
    assert [await next_turn(driver) for _ in range(3)] == [second[0], first[0], third]


async def test_a_released_run_lets_the_others_go_first_and_is_next(driver: Driver) -> None:
    """Proves: H-05, D-01: neither is starved by a conversation whose child does not start."""
    first, second = await conversations(driver, 2, 1, room=1)
    turn = await driver.claim()
    await release(driver.s, turn.worker, Release(lease_generation=turn.lease, why="not_accepted"))
    assert await ready(driver) == {second[0]}
    assert [await next_turn(driver) for _ in range(2)] == [second[0], first[0]]


async def test_what_a_released_run_leaves_is_given_away_also_where_its_own_line_has_to_wait(driver: Driver) -> None:
    """Proves: H-05, D-01. Its queue is paused meanwhile: the room is free, and nothing but the release could wake the others."""
    first, second = await conversations(driver, 2, 1, room=1)
    turn = await driver.claim()
    await driver.rows("UPDATE conversations SET queue_paused = true WHERE thread_id = %s", turn.claim.thread_id)
    await release(driver.s, turn.worker, Release(lease_generation=turn.lease, why="not_accepted"))
    assert await ready(driver) == {second[0]}
    assert (await driver.run(first[0]))["room_wanted_at"] is None


@pytest.mark.timeout(120)
async def test_nobody_starves_when_turns_end_at_the_same_time(driver: Driver) -> None:
    """Proves: D-01, D-06. Whatever the order of the transactions: everything runs, never more than there is room for, and no
    conversation is two turns ahead of another one that waits.
    """
    lines = await conversations(driver, 5, 4, room=2)
    line_of = {run: number for number, line in enumerate(lines) for run in line}
    begun: list[int] = []

    async def host() -> None:
        while len(begun) < len(line_of):
            answer = await driver.try_claim()
            if answer.claim is None:
                await asyncio.sleep(0.01)
                continue
            begun.append(line_of[answer.claim.job])
            live = "SELECT count(DISTINCT root_run_id) FROM runs WHERE status = 'running' OR ready_at IS NOT NULL"
            assert await driver.value(live) <= 2
            counts = [begun.count(number) for number in range(len(lines))]
            assert max(counts) - min(counts) <= 2, counts
            await driver.finish(driver.turn_of(answer.claim), "failed")

    await asyncio.gather(*(host() for _ in range(3)))
    assert sorted(begun) == sorted(line_of.values())
