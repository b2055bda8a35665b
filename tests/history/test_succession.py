"""Two recordings of one database: what was final and is not any more, each seen by exactly its rule."""

import asyncio
import re

import pytest

from harness.postgres import DatabaseClock
from history.histories import GOOD, added, at, changed, run, without
from services.driver import Driver
from turnkeeper.domain.history import SUCCESSION, History, check_succession
from turnkeeper.services import conversations, reap
from turnkeeper.services.doctor import collect

BAD: dict[str, tuple[str, str, History]] = {
    "opened again": ("lost_never_leaves", "beta", changed(GOOD, "conversations", "beta", state="open")),
    "found again": ("lost_never_leaves", "m-beta", changed(GOOD, "memberships", "m-beta", state="idle")),
    "lost for another reason": ("lost_never_leaves", "m-eta", changed(GOOD, "memberships", "m-eta", lost_reason="x")),
    "completed after all": ("terminal_run_never_moves", "b2", changed(GOOD, "runs", "b2", status="completed")),
    "queued again": ("terminal_run_never_moves", "b2", changed(GOOD, "runs", "b2", status="pending", ended_at=None)),
    "ended at another time": ("terminal_run_never_moves", "b2", changed(GOOD, "runs", "b2", ended_at=at(300))),
    "renewed after its end": (
        "closed_attempt_is_never_rewritten",
        "a1.2",
        changed(GOOD, "attempts", "a1.2", last_heartbeat_at=at(19)),
    ),
    "not admitted": (
        "admission_is_never_taken_back",
        "in-d1.1",
        changed(GOOD, "activations", "in-d1.1", admitted_at=None, state="preparing"),
    ),
    "settled again": (
        "admission_is_never_taken_back",
        "in-a2.1",
        changed(GOOD, "activations", "in-a2.1", settled_at=at(39), epoch=3),
    ),
    "a fence": ("nothing_counts_backwards", "m-alpha", changed(GOOD, "memberships", "m-alpha", fence=1)),
    "a native turn": ("nothing_counts_backwards", "m-alpha", changed(GOOD, "memberships", "m-alpha", native_turn=1)),
    "an epoch": ("nothing_counts_backwards", "w-alpha", changed(GOOD, "workspaces", "w-alpha", epoch=1)),
    "a counter": ("nothing_counts_backwards", "alpha", changed(GOOD, "conversations", "alpha", last_seq=17)),
    "a run": ("nothing_disappears", "a3", without(GOOD, "runs", "a3")),
    "an attempt": ("nothing_disappears", "a1.1", without(GOOD, "attempts", "a1.1")),
    "a conversation": ("nothing_disappears", "child", without(GOOD, "conversations", "child")),
    "an end": ("nothing_disappears", "a2", changed(GOOD, "events", "alpha:16", is_end=False)),
}


@pytest.mark.parametrize("what", BAD)
def test_exactly_its_rule_rejects_what_was_taken_back(what: str) -> None:
    """One line that names it. Proves: R-05, A-03, E-04 as far as two recordings show it."""
    rule, subject, after = BAD[what]
    findings = check_succession(GOOD, after)
    assert {(finding.rule, finding.subject) for finding in findings} == {(rule, subject)}
    assert all("\n" not in str(finding) and subject in finding.text for finding in findings)


def test_every_rule_has_such_a_pair_and_says_what_must_hold() -> None:
    """A rule that was never seen to reject anything proves nothing."""
    assert {rule for rule, _, _ in BAD.values()} == set(SUCCESSION)
    for compare in SUCCESSION.values():
        assert re.search(r"\([A-Z]-\d\d(?:, [A-Z]-\d\d)*\)\.$", compare.__doc__ or ""), compare


def test_what_goes_on_is_no_finding() -> None:
    """The same again, and a lost conversation that is closed, a run that ends, another message, a fence that is cleared."""
    assert check_succession(GOOD, GOOD) == []
    after = changed(GOOD, "conversations", "beta", state="closed")
    after = changed(after, "runs", "d1", status="failed", ended_at=at(1001))
    after = changed(after, "runs", "b2", runtime_cleanup_pending=False)
    after = added(after, "runs", run("d2", "delta", "pending", 1002))
    assert check_succession(GOOD, after) == []


async def test_recordings_of_a_database_while_it_is_at_work(driver: Driver, database_clock: DatabaseClock) -> None:
    """Each is held against every earlier one: whole turns, a loss, a close."""
    thread = (await driver.conversation()).thread_id
    recordings = [await record(driver)]
    await driver.whole_turn(thread)
    recordings.append(await record(driver))
    for stage in ("prepared", "activated", "settled", "admitted"):
        turn = await driver.up_to(stage, thread)
        recordings.append(await record(driver))
        database_clock.offset(150 * len(recordings))
        await driver.heartbeat()
        await reap.reap(driver.s)
        recordings.append(await record(driver))
        assert turn.claim.thread_id == thread
    assert await driver.value("SELECT state FROM conversations") == "lost"
    await asyncio.gather(*(conversations.close(driver.s, driver.owner, thread) for _ in range(2)))
    recordings.append(await record(driver))
    for number, before in enumerate(recordings):
        for after in recordings[number:]:
            assert check_succession(before, after) == []


async def record(driver: Driver) -> History:
    """The whole database."""
    return await collect(driver.s.db, driver.s.timing)
