"""The facts that readiness depends on (D-01), and the column that says the result. Read and written under the scope lock."""

from dataclasses import dataclass

from turnkeeper.store.locks import Rank
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class WaitingRun:
    """A waiting run of the scope that heads its line or is ready, with every fact of `domain.dispatch` but the owner's room."""

    id: str
    kind: str
    root_run_id: str
    is_ready: bool
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
        "  row_number() OVER (PARTITION BY thread_id ORDER BY queue_position) AS place "
        "  FROM runs WHERE runtime_scope_id = %(scope)s AND status = 'pending'), "
        "live AS (SELECT thread_id, root_run_id FROM runs WHERE runtime_scope_id = %(scope)s "
        "  AND status IN ('running', 'cancel_requested', 'recovering')), "
        "fence AS (SELECT EXISTS (SELECT 1 FROM runs WHERE runtime_scope_id = %(scope)s AND runtime_cleanup_pending) AS up) "
        "SELECT w.id, w.kind, w.root_run_id, w.ready_at IS NOT NULL AS is_ready, "
        "w.cancel_requested_at IS NOT NULL AS cancel_requested, "
        "w.place = 1 AND NOT EXISTS (SELECT 1 FROM live l WHERE l.thread_id = w.thread_id) AS heads_line, "
        "c.state AS conversation, c.queue_paused, m.state AS membership, f.up AS cleanup_pending, "
        "EXISTS (SELECT 1 FROM live l WHERE l.root_run_id <> w.root_run_id) AS other_tree_live, root.provisioner "
        "FROM waiting w JOIN conversations c ON c.thread_id = w.thread_id "
        "JOIN conversations root ON root.thread_id = c.runtime_scope_id "
        "LEFT JOIN memberships m ON m.thread_id = w.thread_id CROSS JOIN fence f "
        "WHERE w.place = 1 OR w.ready_at IS NOT NULL ORDER BY w.queue_position",
        {"scope": runtime_scope_id},
        as_=WaitingRun,
    )


async def trees_of_owner(tx: Tx, uid: str) -> set[str]:
    """The distinct roots with a ready, running, cancel_requested or recovering run: what the owner's room holds."""
    tx.locks.require(Rank.OWNER, uid)
    rows = await tx.fetch_all(
        "SELECT DISTINCT root_run_id FROM runs WHERE uid = %s "
        "AND (status IN ('running', 'cancel_requested', 'recovering') OR ready_at IS NOT NULL)",
        (uid,),
    )
    return {row["root_run_id"] for row in rows}


async def set_ready(tx: Tx, run_id: str, provisioner: str | None) -> int:
    """Make a waiting run claimable, with its scope's provisioner copied to it."""
    return await tx.execute(
        "UPDATE runs SET ready_at = tk_now(), provisioner = coalesce(%s, provisioner) "
        "WHERE id = %s AND status = 'pending' AND ready_at IS NULL",
        (provisioner, run_id),
    )


async def clear_ready(tx: Tx, run_ids: list[str]) -> int:
    """Take waiting runs out of dispatch. A claim that came first has moved them on already: they are not touched."""
    return await tx.execute(
        "UPDATE runs SET ready_at = NULL WHERE id = ANY(%s::uuid[]) AND status = 'pending' AND ready_at IS NOT NULL",
        (run_ids,),
    )


async def scopes_waiting_for_room(reader: Reader, uid: str, limit: int) -> list[str]:
    """An owner's scopes with a waiting run and none that is ready or live, the longest waiting first."""
    rows = await reader.fetch_all(
        "SELECT w.runtime_scope_id FROM runs w WHERE w.uid = %s AND w.status = 'pending' AND w.ready_at IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.runtime_scope_id = w.runtime_scope_id "
        "AND o.status IN ('pending', 'running', 'cancel_requested', 'recovering') "
        "AND (o.status <> 'pending' OR o.ready_at IS NOT NULL)) "
        "GROUP BY w.runtime_scope_id ORDER BY min(w.queue_position) LIMIT %s",
        (uid, limit),
    )
    return [row["runtime_scope_id"] for row in rows]


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
