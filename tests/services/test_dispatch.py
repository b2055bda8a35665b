"""Dispatch (D-01): each fact of readiness by itself, and what moves when it changes."""

import pytest

from services.driver import Driver
from services.trees import add_child
from turnkeeper.kit.ids import new_id
from turnkeeper.services.dispatch import dispatch_scope


async def recomputed(driver: Driver, thread: str, run: str) -> bool:
    await dispatch_scope(driver.s, thread, driver.owner.uid)
    return await driver.ready(run)


@pytest.mark.parametrize(
    ("spoil", "mend"),
    [
        ("UPDATE conversations SET queue_paused = true", "UPDATE conversations SET queue_paused = false"),
        ("UPDATE runs SET runtime_cleanup_pending = true", "UPDATE runs SET runtime_cleanup_pending = false"),
        ("UPDATE runs SET cancel_requested_at = tk_now()", "UPDATE runs SET cancel_requested_at = NULL"),
        ("UPDATE conversations SET state = 'closed'", "UPDATE conversations SET state = 'open'"),
        ("UPDATE conversations SET state = 'lost'", "UPDATE conversations SET state = 'open'"),
    ],
)
async def test_each_fact_takes_a_run_out_and_puts_it_back(driver: Driver, spoil: str, mend: str) -> None:
    """Proves: D-01."""
    thread = (await driver.conversation()).thread_id
    run = (await driver.submit(thread)).run.id
    assert await driver.ready(run)
    await driver.rows(spoil)  # type: ignore[arg-type]
    assert not await recomputed(driver, thread, run)
    await driver.rows(mend)  # type: ignore[arg-type]
    assert await recomputed(driver, thread, run)


@pytest.mark.parametrize("state", ["active", "quarantined", "suspended", "lost"])
async def test_the_membership_must_be_idle(driver: Driver, state: str) -> None:
    """Proves: D-01, D-07: an open question is answered by its resume alone."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    run = (await driver.submit(thread)).run.id
    for constraint in ("memberships_live_has_activation", "memberships_lost_has_reason"):
        await driver.rows(f"ALTER TABLE memberships DROP CONSTRAINT {constraint}")  # type: ignore[arg-type]
    await driver.rows("UPDATE memberships SET state = %s", state)
    assert not await recomputed(driver, thread, run)


async def test_a_line_has_one_head(driver: Driver) -> None:
    """Proves: D-01: also in the conversation of a subagent, whose runs are of one tree."""
    root = await driver.up_to("admitted")
    thread = root.claim.thread_id
    first = await add_child(driver, root.claim.job)
    second = new_id()
    await driver.rows(
        "INSERT INTO runs (id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, depth, created_by_run_id, "
        "relation_id, request_id, prompt) SELECT %s, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, depth, "
        "created_by_run_id, relation_id, %s, prompt FROM runs WHERE id = %s",
        second,
        new_id(),
        first,
    )
    await driver.rows(
        "INSERT INTO messages (id, thread_id, run_id, role, text, delivery) "
        "SELECT %s, thread_id, id, 'owner', 'x', 'queued' FROM runs WHERE id = %s",
        new_id(),
        second,
    )
    assert not await recomputed(driver, thread, second)
    turn = await driver.claim()
    assert turn.claim.job == first
    assert not await recomputed(driver, thread, second), "the first run of its conversation is running"
    await driver.finish(turn, "failed")
    assert await driver.ready(second)


async def test_a_leftover_of_another_tree_holds_up_the_next_root(driver: Driver) -> None:
    """Proves: D-01, T-06: a child that still stops keeps the scope's next tree waiting."""
    root = await driver.up_to("settled")
    thread = root.claim.thread_id
    await add_child(driver, root.claim.job)
    child = await driver.claim()
    waiting = (await driver.submit(thread, "next")).run.id
    await driver.finish(root)
    assert (await driver.run(child.claim.job))["status"] == "cancel_requested"
    assert not await driver.ready(waiting)
    await driver.finish(child, "cancelled")
    assert await driver.ready(waiting)


async def test_a_ready_run_that_leaves_gives_its_room_away(driver: Driver) -> None:
    """Proves: D-01, D-06."""
    await driver.rows("UPDATE users SET tree_room = 1")
    first = (await driver.conversation()).thread_id
    one = (await driver.submit(first)).run.id
    two = (await driver.submit((await driver.conversation()).thread_id)).run.id
    assert (await driver.ready(one), await driver.ready(two)) == (True, False)
    await driver.rows("UPDATE conversations SET queue_paused = true WHERE thread_id = %s", first)
    assert not await recomputed(driver, first, one)
    assert await recomputed(driver, (await driver.run(two))["thread_id"], two)
    await driver.rows("UPDATE conversations SET queue_paused = false")
    assert not await recomputed(driver, first, one)


async def test_an_owner_has_the_room_of_the_setting_or_one_of_its_own(driver: Driver) -> None:
    """Proves: D-06. The setting is the only default; a row that says otherwise is about one owner."""
    assert await driver.value("SELECT tree_room FROM users") is None
    driver.with_limits(trees_per_owner=2)
    runs = [(await driver.submit((await driver.conversation()).thread_id)).run.id for _ in range(4)]
    assert [await driver.ready(run) for run in runs] == [True, True, False, False]
    await driver.rows("UPDATE users SET tree_room = 3")
    for run in runs[2:]:
        await recomputed(driver, (await driver.run(run))["thread_id"], run)
    assert [await driver.ready(run) for run in runs] == [True, True, True, False]


async def test_a_tree_that_is_counted_has_room_for_its_children(driver: Driver) -> None:
    """Proves: D-06: a parent that waits for its child cannot deadlock with it."""
    await driver.rows("UPDATE users SET tree_room = 1")
    root = await driver.up_to("admitted")
    child = await add_child(driver, root.claim.job)
    await driver.rows("UPDATE runs SET ready_at = NULL WHERE id = %s", child)
    assert await recomputed(driver, root.claim.thread_id, child)
