"""`turnkeeper runs`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import RUN_ID, SEQ_MAX, THREAD_ID
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.conversations import whole_thread
from turnkeeper.cli.ids import SEARCHED_MAX, whole_id
from turnkeeper.cli.output import json_option, moment, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient
    from turnkeeper.wire.public import Run, RunDetail

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper runs list")
def runs() -> None:
    """List and show runs, follow their events, cancel them."""


@runs.command("list", epilog="Example: turnkeeper runs list --thread 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d")
@click.option("--thread", type=THREAD_ID, default=None, help="Of this conversation only.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@json_option
@connection_options
def list_(connect: Connect, thread: str | None, limit: int, as_json: bool) -> None:
    """List runs, the newest first."""
    with connect() as client:
        if thread is not None:
            thread = whole_thread(client, thread)
        found = client.runs(limit, thread)
    if as_json:
        print_json(found)
    else:
        print_runs(found)


def print_runs(found: "list[Run]") -> None:
    """The run table."""
    rows = [
        (
            one.id,
            one.agent,
            one.status,
            one.error_code or "-",
            "-" if one.native_turn is None else str(one.native_turn),
            "-" if one.epoch is None else str(one.epoch),
            moment(one.created_at),
            _seconds(one),
        )
        for one in found
    ]
    print_table(
        ("run", "agent", "status", "error", "turn", "epoch", "created", "took"),
        rows,
        empty="no run yet",
        spare=("epoch", "turn", "created", "took", "agent", "error"),
    )


@runs.command(epilog="Example: turnkeeper runs show 0193e2a5-03a1-7d10-9a5e-5f1c0b7e8d21")
@click.argument("run", type=RUN_ID)
@json_option
@connection_options
def show(connect: Connect, run: str, as_json: bool) -> None:
    """Show one run: its state, attempts, and what it changed."""
    with connect() as client:
        one = client.run(_whole(client, run))
    if as_json:
        print_json(one)
    else:
        _print_detail(one)


@runs.command(epilog="Example: turnkeeper runs events 0193e2a5-03a1-7d10-9a5e-5f1c0b7e8d21 --after 17")
@click.argument("run", type=RUN_ID)
@click.option("--after", default=None, type=click.IntRange(0, SEQ_MAX), help="Only events after this sequence number.")
@json_option
@connection_options
def events(connect: Connect, run: str, after: int | None, as_json: bool) -> None:
    """Follow a run's events to its end."""
    from turnkeeper.cli.stream import show_stream

    with connect() as client:
        show_stream(client.run_events(_whole(client, run), after), as_json=as_json)


@runs.command(epilog="Example: turnkeeper runs cancel 0193e2a5-03a1-7d10-9a5e-5f1c0b7e8d21")
@click.argument("run", type=RUN_ID)
@json_option
@connection_options
def cancel(connect: Connect, run: str, as_json: bool) -> None:
    """Ask for a run's end; asking again changes nothing."""
    with connect() as client:
        one = client.cancel(_whole(client, run))
    if as_json:
        print_json(one)
    else:
        say(f"{one.id}  {one.status}")


def _whole(client: "OwnerClient", given: str) -> str:
    return whole_id(given, "run", lambda: (one.id for one in client.runs(SEARCHED_MAX)))


def _print_detail(one: "RunDetail") -> None:
    say(f"run           {one.id}")
    say(f"conversation  {one.thread_id} ({one.agent})")
    say(f"status        {one.status}{' (ready)' if one.ready else ''}")
    if one.error_code:
        say(f"error         {one.error_code}: {one.error_text or ''}")
    for name, value in (one.error_detail or {}).items():
        say(f"  {name}: {value}")
    say(f"created       {moment(one.created_at)}   started {moment(one.started_at)}   ended {moment(one.ended_at)}")
    if one.native_turn is not None:
        say(f"settled       native turn {one.native_turn}, workspace epoch {one.epoch}")
    for attempt in one.attempts:
        say(
            f"attempt {attempt.attempt_no}     lease generation {attempt.lease_generation}, {attempt.lease_owner}: "
            f"claimed {moment(attempt.claimed_at)}, lease until {moment(attempt.lease_expires_at)}, "
            f"{attempt.outcome or 'open'}"
        )
    if one.snapshot:
        print_changes(one.snapshot.unavailable_why, one.snapshot.changes)


def print_changes(unavailable_why: str | None, changes: object) -> None:
    """The change summary of a snapshot."""
    from turnkeeper.wire.turn import ChangeSummary

    if unavailable_why:
        say(f"changes       not recorded: {unavailable_why}")
        return
    if not isinstance(changes, ChangeSummary) or not changes.files:
        say("changes       none")
        return
    say(f"changes       +{changes.added_lines} -{changes.removed_lines}")
    for file in changes.files:
        counts = "binary" if file.binary else f"+{file.added_lines or 0} -{file.removed_lines or 0}"
        say(f"  {file.status:<12} {file.path}  {counts}")
    if changes.omitted_files:
        say(f"  and {changes.omitted_files} more")


def _seconds(one: "Run") -> str:
    if one.started_at is None or one.ended_at is None:
        return "-"
    return f"{(one.ended_at - one.started_at).total_seconds():.2f} s"
