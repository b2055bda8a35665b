"""Events of a conversation: numbered under its counter's row lock, so gap-free and in order for every reader."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from turnkeeper.store.locks import Rank
from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class NewEvent:
    """An event to be stored. `stream_no` and `attempt_id` only with a worker's event. `run_id` None: it is about the
    conversation (`conversation`)."""

    run_id: str | None
    kind: str
    data: dict[str, Any]
    attempt_id: str | None = None
    stream_no: int | None = None
    original_bytes: int | None = None


@dataclass(frozen=True)
class EventRow:
    """A stored event."""

    seq: int
    thread_id: str
    run_id: str | None
    kind: str
    data: dict[str, Any]
    original_bytes: int | None
    created_at: datetime


@dataclass(frozen=True)
class StreamState:
    """The newest number of a conversation, and before which number nothing is stored any more."""

    last_seq: int
    dropped_before: int


async def append(tx: Tx, thread_id: str, last: int, events: Sequence[NewEvent]) -> int:
    """Store events after number `last`, which the counter's lock gave; the new last number."""
    tx.locks.require(Rank.EVENT_COUNTER, thread_id)
    if not events:
        return last
    rows = [
        {
            "n": n, "run_id": event.run_id, "attempt_id": event.attempt_id, "stream_no": event.stream_no,
            "kind": event.kind, "data": event.data, "original_bytes": event.original_bytes,
        }
        for n, event in enumerate(events, 1)
    ]  # fmt: skip
    stored = await tx.execute(
        "WITH counted AS (UPDATE event_counters SET last_seq = %(last)s::bigint + %(count)s "
        "WHERE thread_id = %(thread)s AND last_seq = %(last)s RETURNING thread_id) "
        "INSERT INTO events (thread_id, seq, run_id, attempt_id, stream_no, kind, data, original_bytes) "
        "SELECT c.thread_id, %(last)s::bigint + e.n, e.run_id, e.attempt_id, e.stream_no, e.kind, e.data, e.original_bytes "
        "FROM counted c, jsonb_to_recordset(%(events)s) AS e(n bigint, run_id uuid, attempt_id uuid, stream_no bigint, "
        "kind text, data jsonb, original_bytes bigint) ORDER BY e.n",
        {"last": last, "count": len(rows), "thread": thread_id, "events": jsonb(rows)},
    )
    if stored != len(rows):
        raise AssertionError(f"{stored} of {len(rows)} events of {thread_id} were stored")
    return last + stored


async def list_by_thread(reader: Reader, thread_id: str, *, after: int, limit: int) -> list[EventRow]:
    """A page of a conversation's events."""
    return await reader.fetch_all(
        "SELECT seq, thread_id, run_id, kind, data, original_bytes, created_at FROM events "
        "WHERE thread_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (thread_id, after, limit),
        as_=EventRow,
    )


async def list_by_run(reader: Reader, run_id: str, *, after: int, limit: int) -> list[EventRow]:
    """A page of one run's events; numbers are those of the conversation, so with gaps."""
    return await reader.fetch_all(
        "SELECT seq, thread_id, run_id, kind, data, original_bytes, created_at FROM events "
        "WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (run_id, after, limit),
        as_=EventRow,
    )


async def list_tools(reader: Reader, run_id: str, *, limit: int) -> list[EventRow]:
    """What a run's stream says of its tool calls, oldest first."""
    return await reader.fetch_all(
        "SELECT seq, thread_id, run_id, kind, data, original_bytes, created_at FROM events "
        "WHERE run_id = %s AND kind IN ('tool_call', 'tool_update') ORDER BY seq LIMIT %s",
        (run_id, limit),
        as_=EventRow,
    )


async def stream_state(reader: Reader, thread_id: str) -> StreamState:
    """Where a conversation's stream stands."""
    row = await reader.fetch_one(
        "SELECT last_seq, dropped_before FROM event_counters WHERE thread_id = %s", (thread_id,), as_=StreamState
    )
    return row or StreamState(0, 0)


async def end_of_run(reader: Reader, run_id: str) -> int | None:
    """The number of a run's terminal event, if it is stored."""
    return await reader.fetch_value("SELECT seq FROM events WHERE run_id = %s AND kind = 'end'", (run_id,))


async def has_kind(reader: Reader, run_id: str, kind: str) -> bool:
    """Whether an event of that kind is stored for a run."""
    return await reader.fetch_value(
        "SELECT EXISTS (SELECT 1 FROM events WHERE run_id = %s AND kind = %s)", (run_id, kind)
    )
