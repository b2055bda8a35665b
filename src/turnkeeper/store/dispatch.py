"""The facts that readiness depends on (D-01), and the column that says the result. Read and written under the scope lock."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.locks import Rank
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class WaitingRun:
    """A waiting run of the scope that heads its line, is ready or waits for room, with every fact of `domain.dispatch` but the owner's room."""

    id: str
    kind: str
    root_run_id: str
    is_ready: bool
    room_wanted_at: datetime | None
    queue_position: int
    cancel_requested: bool
    heads_line: bool
    conversation: str
    queue_paused: bool
    membership: str | None
    cleanup_pending: bool
    other_tree_live: bool
    provisioner: str | None


async def waiting_runs(tx: Tx, runtime_scope_id: str) -> list[WaitingRun]:
    """What may be, or may have to cease to be, ready in a scope; in the order of the lines."""
    tx.locks.require(Rank.SCOPE, runtime_scope_id)
    return await tx.fetch_all(
        "WITH waiting AS (SELECT id, thread_id, kind, root_run_id, ready_at, cancel_requested_at, queue_position, "
        "  room_wanted_at, row_number() OVER (PARTITION BY thread_id ORDER BY queue_position) AS place "
        "  FROM runs WHERE runtime_scope_id = %(scope)s AND status = 'pending'), "
        "live AS (SELECT thread_id, root_run_id FROM runs WHERE runtime_scope_id = %(scope)s "
        "  AND status IN ('running', 'cancel_requested', 'recovering')), "
        "fence AS (SELECT EXISTS (SELECT 1 FROM runs WHERE runtime_scope_id = %(scope)s AND runtime_cleanup_pending) AS up) "
        "SELECT w.id, w.kind, w.root_run_id, w.ready_at IS NOT NULL AS is_ready, w.room_wanted_at, w.queue_position, "
        "w.cancel_requested_at IS NOT NULL AS cancel_requested, "
        "w.place = 1 AND NOT EXISTS (SELECT 1 FROM live l WHERE l.thread_id = w.thread_id) AS heads_line, "
        "c.state AS conversation, c.queue_paused, m.state AS membership, f.up AS cleanup_pending, "
        "EXISTS (SELECT 1 FROM live l WHERE l.root_run_id <> w.root_run_id) AS other_tree_live, root.provisioner "
        "FROM waiting w JOIN conversations c ON c.thread_id = w.thread_id "
        "JOIN conversations root ON root.thread_id = c.runtime_scope_id "
        "LEFT JOIN memberships m ON m.thread_id = w.thread_id CROSS JOIN fence f "
        "WHERE w.place = 1 OR w.ready_at IS NOT NULL OR w.room_wanted_at IS NOT NULL ORDER BY w.queue_position",
        {"scope": runtime_scope_id},
        as_=WaitingRun,
    )


@dataclass(frozen=True)
class Tree:
    """A tree of an owner: one that holds room (`wanted_at` None), or one of another scope that has waited for it since then."""

    root_run_id: str
    wanted_at: datetime | None
    queue_position: int


async def trees_of_owner(tx: Tx, uid: str, *, but_scope: str, waiting_max: int) -> list[Tree]:
    """What the owner's room holds, the distinct roots with a ready, running, cancel_requested or recovering run; and the
    runs of scopes other than `but_scope` that wait for room, the first `waiting_max` of them, the longest waiting first.
    """
    tx.locks.require(Rank.OWNER, uid)
    return await tx.fetch_all(
        "(SELECT DISTINCT root_run_id, NULL::timestamptz AS wanted_at, 0::bigint AS queue_position FROM runs "
        "WHERE uid = %(uid)s AND (status IN ('running', 'cancel_requested', 'recovering') OR ready_at IS NOT NULL)) "
        "UNION ALL (SELECT root_run_id, room_wanted_at, queue_position FROM runs WHERE uid = %(uid)s "
        "AND room_wanted_at IS NOT NULL AND runtime_scope_id <> %(scope)s "
        "ORDER BY room_wanted_at, queue_position LIMIT %(max)s)",
        {"uid": uid, "scope": but_scope, "max": waiting_max},
        as_=Tree,
    )


async def set_ready(tx: Tx, run_id: str, provisioner: str | None) -> int:
    """Make a waiting run claimable, with its scope's provisioner copied to it."""
    return await tx.execute(
        "UPDATE runs SET ready_at = tk_now(), room_wanted_at = NULL, provisioner = coalesce(%s, provisioner) "
        "WHERE id = %s AND status = 'pending' AND ready_at IS NULL",
        (provisioner, run_id),
    )


async def set_room_wanted(tx: Tx, run_ids: list[str]) -> int:
    """Store since when waiting runs lack nothing but room. Those that wait for it already keep their moment."""
    return await tx.execute(
        "UPDATE runs SET room_wanted_at = tk_now() "
        "WHERE id = ANY(%s::uuid[]) AND status = 'pending' AND ready_at IS NULL AND room_wanted_at IS NULL",
        (run_ids,),
    )


async def clear_ready(tx: Tx, run_ids: list[str]) -> int:
    """Take waiting runs out of dispatch. A claim that came first has moved them on already: they are not touched."""
    return await tx.execute(
        "UPDATE runs SET ready_at = NULL, room_wanted_at = NULL WHERE id = ANY(%s::uuid[]) AND status = 'pending' "
        "AND (ready_at IS NOT NULL OR room_wanted_at IS NOT NULL)",
        (run_ids,),
    )


async def scopes_waiting_for_room(reader: Reader, uid: str, limit: int) -> list[str]:
    """An owner's scopes with a run that waits for room, the longest waiting first."""
    rows = await reader.fetch_all(
        "SELECT runtime_scope_id FROM runs WHERE uid = %s AND room_wanted_at IS NOT NULL "
        "ORDER BY room_wanted_at, queue_position LIMIT %s",
        (uid, limit),
    )
    return list(dict.fromkeys(row["runtime_scope_id"] for row in rows))


async def stuck_scopes(reader: Reader, *, after: str | None, limit: int) -> list[tuple[str, str]]:
    """Scopes (with their owners) that have a waiting run and none that is ready or live: candidates for a missed wake-up."""
    rows = await reader.fetch_all(
        "SELECT DISTINCT w.runtime_scope_id, w.uid FROM runs w WHERE w.status = 'pending' AND w.ready_at IS NULL "
        "AND (%s::uuid IS NULL OR w.runtime_scope_id > %s::uuid) "
        "AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.runtime_scope_id = w.runtime_scope_id "
        "AND o.status IN ('pending', 'running', 'cancel_requested', 'recovering') "
        "AND (o.status <> 'pending' OR o.ready_at IS NOT NULL)) ORDER BY w.runtime_scope_id LIMIT %s",
        (after, after, limit),
    )
    return [(row["runtime_scope_id"], row["uid"]) for row in rows]
