"""What a reader of events needs once, when its stream begins: where it stands, and how a run's stream ended."""

from dataclasses import dataclass

from turnkeeper.store.events import EventRow
from turnkeeper.store.tx import Reader


@dataclass(frozen=True)
class ThreadPlace:
    """`first_live`: the first stored number of the run that a worker or recovery has in hand; None without one."""

    last_seq: int
    dropped_before: int
    first_live: int | None


@dataclass(frozen=True)
class RunPlace:
    """`first`: the run's first stored number, and `first_kind` its kind; None where none is stored."""

    thread_id: str
    last_seq: int
    dropped_before: int
    first: int | None
    first_kind: str | None


async def place_of_thread(reader: Reader, uid: str, thread_id: str) -> ThreadPlace | None:
    """None: this owner has no such conversation."""
    return await reader.fetch_one(
        "SELECT coalesce(n.last_seq, 0) AS last_seq, coalesce(n.dropped_before, 0) AS dropped_before, "
        "(SELECT min(e.seq) FROM runs r JOIN events e ON e.run_id = r.id WHERE r.thread_id = c.thread_id "
        "AND r.status IN ('running', 'cancel_requested', 'recovering')) AS first_live "
        "FROM conversations c LEFT JOIN event_counters n ON n.thread_id = c.thread_id "
        "WHERE c.thread_id = %s AND c.uid = %s",
        (thread_id, uid),
        as_=ThreadPlace,
    )


async def place_of_run(reader: Reader, uid: str, run_id: str) -> RunPlace | None:
    """None: this owner has no such run."""
    return await reader.fetch_one(
        "SELECT r.thread_id, coalesce(n.last_seq, 0) AS last_seq, coalesce(n.dropped_before, 0) AS dropped_before, "
        "e.seq AS first, e.kind AS first_kind FROM runs r "
        "LEFT JOIN event_counters n ON n.thread_id = r.thread_id "
        "LEFT JOIN LATERAL (SELECT seq, kind FROM events WHERE run_id = r.id ORDER BY seq LIMIT 1) e ON true "
        "WHERE r.id = %s AND r.uid = %s",
        (run_id, uid),
        as_=RunPlace,
    )


async def end_of_run(reader: Reader, run_id: str) -> EventRow | None:
    """The run's terminal event, if it is stored."""
    return await reader.fetch_one(
        "SELECT seq, thread_id, run_id, kind, data, original_bytes, created_at FROM events "
        "WHERE run_id = %s AND kind = 'end'",
        (run_id,),
        as_=EventRow,
    )
