"""Histories that were recorded, and then something in them is wrong: the checkers find it, and never fall over it."""

import typing
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.postgres import DatabaseClock
from history.histories import GOOD
from services.driver import Driver
from turnkeeper.domain.history import Finding, History, check
from turnkeeper.domain.history.facts import LedgerEntry
from turnkeeper.services import reap
from turnkeeper.services.doctor import collect
from turnkeeper.services.release import release
from turnkeeper.wire.turn import SnapshotResult
from turnkeeper.wire.worker import Release

TABLES = (
    "owners", "conversations", "runs", "attempts", "workspaces", "memberships", "activations", "snapshots", "events",
    "messages", "holds", "ledger", "processes",
)  # fmt: skip
LATER = timedelta(hours=1)
Corrupt = Callable[[History, int], History | None]


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, int, str, Any]:
    """A table, a fact of it, a field, and a value that some other fact has there (or none, where none is possible)."""
    table = draw(st.sampled_from(TABLES))
    facts: tuple[object, ...] = getattr(GOOD, table)
    place = draw(st.integers(0, len(facts) - 1))
    hints = typing.get_type_hints(type(facts[0]))
    name = draw(st.sampled_from(sorted(hints)))
    others = [getattr(fact, name) for fact in facts]
    if type(None) in typing.get_args(hints[name]):
        others.append(None)
    return table, place, name, draw(st.sampled_from(others))


@settings(max_examples=200)
@given(st.lists(changes(), min_size=1, max_size=4))
def test_the_checkers_judge_whatever_a_database_may_hold(edits: list[tuple[str, int, str, Any]]) -> None:
    """A doctor is called when rows are wrong: no combination of values makes a rule fail instead of find."""
    history = GOOD
    for table, place, name, value in edits:
        facts = list(getattr(history, table))
        facts[place] = replace(facts[place], **{name: value})
        history = replace(history, **{table: tuple(facts)})
    for finding in check(history):
        assert isinstance(finding, Finding)
        assert finding.text


@settings(max_examples=100)
@given(st.sampled_from(TABLES), st.integers(0, 40))
def test_the_checkers_judge_what_is_incomplete(table: str, place: int) -> None:
    """A fact that is not there."""
    facts = getattr(GOOD, table)
    check(replace(GOOD, **{table: (*facts[: place % len(facts)], *facts[place % len(facts) + 1 :])}))


def _pick(history: History, table: str, which: int, wanted: Callable[[Any], bool], **values: Any) -> History | None:
    """Other values for one of the facts that are `wanted`; a callable value is given the fact. Without values: it is dropped."""
    facts = getattr(history, table)
    chosen = [place for place, fact in enumerate(facts) if wanted(fact)]
    if not chosen:
        return None
    place = chosen[which % len(chosen)]
    fact = facts[place]
    made = {name: value(fact) if callable(value) else value for name, value in values.items()}
    middle = (replace(fact, **made),) if values else ()
    return replace(history, **{table: (*facts[:place], *middle, *facts[place + 1 :])})


def _more(name: str, by: Any) -> Callable[[Any], Any]:
    """A value that is greater than the one in field `name`."""
    return lambda fact: getattr(fact, name) + by


def _of_an_ended_attempt(history: History) -> Callable[[Any], bool]:
    ended = {one.id for one in history.attempts if one.ended_at is not None}
    return lambda event: event.attempt_id in ended


def _of_a_completed_run(history: History) -> Callable[[Any], bool]:
    completed = {one.id for one in history.runs if one.status == "completed"}
    return lambda message: message.run_id in completed and message.role == "assistant"


def _never_admitted(history: History) -> Callable[[Any], bool]:
    admitted = {one.run_id for one in history.activations if one.admitted_at is not None}
    return lambda message: message.delivery == "not_delivered" and message.run_id not in admitted


CORRUPTIONS: dict[str, tuple[str, Corrupt]] = {
    "a lost event": ("event_numbers_have_no_gap", lambda h, i: _pick(h, "events", i, lambda _: True)),
    "a late event": (
        "superseded_attempt_writes_nothing",
        lambda h, i: _pick(h, "events", i, _of_an_ended_attempt(h), last_at=_more("last_at", LATER)),
    ),
    "a late renewal": (
        "superseded_attempt_writes_nothing",
        lambda h, i: _pick(
            h,
            "attempts",
            i,
            lambda one: one.ended_at is not None,
            last_heartbeat_at=_more("ended_at", timedelta(microseconds=1)),
        ),
    ),
    "a terminal event that is none": (
        "run_has_one_end",
        lambda h, i: _pick(h, "events", i, lambda one: one.is_end, is_end=False),
    ),
    "an output that is gone": (
        "completed_run_has_an_output",
        lambda h, i: _pick(h, "messages", i, _of_a_completed_run(h)),
    ),
    "a delivery that is guessed": (
        "delivery_follows_the_run",
        lambda h, i: _pick(h, "messages", i, _never_admitted(h), delivery="delivered"),
    ),
    "an epoch too many": (
        "settled_turn_moves_the_epoch_once",
        lambda h, i: _pick(h, "workspaces", i, lambda _: True, epoch=_more("epoch", 1)),
    ),
    "a native turn too many": (
        "settled_turn_moves_the_native_turn_once",
        lambda h, i: _pick(h, "memberships", i, lambda _: True, native_turn=_more("native_turn", 1)),
    ),
    "a settlement that is forgotten": (
        "settled_turn_moves_the_epoch_once",
        lambda h, i: _pick(h, "activations", i, lambda one: one.state == "settled", state="lost"),
    ),
    "an attempt that is gone": (
        "attempts_are_numbered",
        lambda h, i: _pick(h, "attempts", i, lambda one: one.outcome == "released"),
    ),
    "a failure that put a run back": (
        "only_a_release_puts_a_run_back",
        lambda h, i: _pick(h, "attempts", i, lambda one: one.outcome == "released", outcome="lease_expired"),
    ),
    "a loss that is taken back": (
        "lost_is_final",
        lambda h, i: _pick(h, "memberships", i, lambda one: one.state == "lost", state="idle"),
    ),
    "a hold that is gone": ("open_conversation_holds_its_workdir", lambda h, _: replace(h, holds=())),
    "a prompt that came twice": (
        "prompt_reaches_the_agent_once",
        lambda h, i: replace(h, ledger=(*(h.ledger or ()), (h.ledger or ())[i % len(h.ledger or ())])),
    ),
}


async def test_corruptions_of_a_recorded_history_are_found(driver: Driver, database_clock: DatabaseClock) -> None:
    """What the services wrote on a real PostgreSQL, and one wrong thing in it, wherever that is."""
    history = await _recorded(driver, database_clock)
    assert check(history) == []

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(sorted(CORRUPTIONS)), st.integers(0, 60))
    def corrupted(what: str, which: int) -> None:
        rule, corrupt = CORRUPTIONS[what]
        bad = corrupt(history, which)
        assert bad is not None, f"nothing in the history can be corrupted so: {what}"
        assert rule in {finding.rule for finding in check(bad)}

    corrupted()


async def _recorded(driver: Driver, clock: DatabaseClock) -> History:
    """Turns that went well, a release, a turn that was never admitted, a loss."""
    first, second = (await driver.conversation()).thread_id, (await driver.conversation()).thread_id
    for number in range(3):
        await driver.whole_turn(first, f"first {number}")
    await driver.submit(first, "released")
    turn = await driver.claim()
    await release(driver.s, turn.worker, Release(lease_generation=turn.lease, why="not_created"))
    turn = await driver.claim()
    for step in (driver.prepare, driver.record, driver.activate, driver.admit):
        await step(turn)
    await driver.send_events(turn, 1, "a", "b")
    await driver.settle(turn)
    await driver.finish(turn, snapshot=SnapshotResult(tree_id="b" * 40))
    turn = await driver.up_to("activated", first)
    await driver.finish(turn, "failed")
    await driver.whole_turn(second, "second")
    turn = await driver.up_to("admitted", second)
    await driver.send_events(turn, 1, "c")
    await driver.submit(second, "waits")
    clock.offset(150)
    await reap.reap(driver.s)
    received = ["first 0", "first 1", "first 2", "released", "second"]
    history = await collect(driver.s.db, driver.s.timing, ledger=())
    by_prompt = {one.prompt: one for one in history.runs}
    assert all(text in by_prompt for text in received)
    return replace(history, ledger=tuple(LedgerEntry(text) for text in received))


def test_every_table_is_among_those_that_are_corrupted() -> None:
    """A new kind of fact is not forgotten here."""
    assert {one.name for one in fields(History)} - {"now", "timing", "slack_s"} == set(TABLES)
