"""The cleanup fence of a scope (protocol 3, C-01 to C-09): raising it, working behind it, clearing it."""

from dataclasses import dataclass

from turnkeeper.store.locks import Rank
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class PendingCleanup:
    """A scope whose fence is up."""

    runtime_scope_id: str
    uid: str


@dataclass(frozen=True)
class CleanupFacts:
    """Stage 1: what the delete needs. `lease_generation` is the newest of the scope, 0 if nothing was ever claimed.

    `sandbox_id` None: no prepare ever came so far, so there never was a sandbox. `workdir` is what the hold names.
    """

    fence_up: bool
    active: bool
    lease_generation: int
    sandbox_id: str | None
    workdir: str


async def raise_fence(tx: Tx, runtime_scope_id: str) -> str | None:
    """Flag the scope's newest root run, unless one is flagged; the flagged run. None: the scope has no run at all."""
    tx.locks.require(Rank.SCOPE, runtime_scope_id)
    return await tx.fetch_value(
        "WITH up AS (SELECT id FROM runs WHERE runtime_scope_id = %(scope)s AND runtime_cleanup_pending LIMIT 1), "
        "newest AS (SELECT id FROM runs WHERE thread_id = %(scope)s AND depth = 0 ORDER BY id DESC LIMIT 1), "
        "flagged AS (UPDATE runs SET runtime_cleanup_pending = true, "
        "  ready_at = NULL WHERE id = (SELECT id FROM newest) AND NOT EXISTS (SELECT 1 FROM up) RETURNING id) "
        "SELECT coalesce((SELECT id FROM flagged), (SELECT id FROM up))",
        {"scope": runtime_scope_id},
    )


async def pending(reader: Reader, limit: int) -> list[PendingCleanup]:
    """Scopes whose fence is up."""
    return await reader.fetch_all(
        "SELECT DISTINCT runtime_scope_id, uid FROM runs WHERE runtime_cleanup_pending ORDER BY runtime_scope_id LIMIT %s",
        (limit,),
        as_=PendingCleanup,
    )


async def facts(tx: Tx, runtime_scope_id: str) -> CleanupFacts | None:
    """What stages 1 and 3 look at. A queued run waits behind the fence and is not active; one that is ready is."""
    tx.locks.require(Rank.SCOPE, runtime_scope_id)
    return await tx.fetch_one(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE runtime_scope_id = %(scope)s AND runtime_cleanup_pending) AS fence_up, "
        "EXISTS (SELECT 1 FROM runs WHERE runtime_scope_id = %(scope)s AND (status IN ('running', 'cancel_requested', "
        "'recovering') OR (status = 'pending' AND ready_at IS NOT NULL))) AS active, "
        "coalesce((SELECT max(a.lease_generation) FROM attempts a JOIN runs r ON r.id = a.run_id "
        "WHERE r.runtime_scope_id = %(scope)s), 0)::bigint AS lease_generation, "
        "w.sandbox_id, c.workdir FROM conversations c "
        "LEFT JOIN shared_workspaces w ON w.runtime_scope_id = c.runtime_scope_id WHERE c.thread_id = %(scope)s",
        {"scope": runtime_scope_id},
        as_=CleanupFacts,
    )


async def clear_fence(tx: Tx, runtime_scope_id: str) -> list[str]:
    """Take the flag away; the runs that carried it."""
    tx.locks.require(Rank.SCOPE, runtime_scope_id)
    rows = await tx.fetch_all(
        "UPDATE runs SET runtime_cleanup_pending = false WHERE runtime_scope_id = %s AND runtime_cleanup_pending "
        "RETURNING id",
        (runtime_scope_id,),
    )
    return [row["id"] for row in rows]


async def unended_closed_scopes(reader: Reader, limit: int) -> list[PendingCleanup]:
    """Closed or lost scopes that still hold their Workdir although no fence is up and nothing of them is live.

    Only a scope that never had a run can be here: there is no run to carry a fence.
    """
    return await reader.fetch_all(
        "SELECT h.runtime_scope_id, h.uid FROM workdir_holds h JOIN conversations c ON c.thread_id = h.runtime_scope_id "
        "WHERE h.ended_at IS NULL AND c.state IN ('closed', 'lost') "
        "AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.runtime_scope_id = h.runtime_scope_id) LIMIT %s",
        (limit,),
        as_=PendingCleanup,
    )


async def flagged_run(reader: Reader, runtime_scope_id: str) -> str | None:
    """The run that carries the scope's fence. None: it is down."""
    return await reader.fetch_value(
        "SELECT id FROM runs WHERE runtime_scope_id = %s AND runtime_cleanup_pending ORDER BY id LIMIT 1",
        (runtime_scope_id,),
    )
