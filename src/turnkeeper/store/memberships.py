"""Memberships: a conversation's place in a shared workspace (protocol 2). Each move names state, fence and activation."""
# ruff: noqa: S608 - statements are LiteralString, which pyright proves; parameters are always bound

from dataclasses import dataclass

from turnkeeper.store.guards import HELD, HELD_RUNNING, Lease
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class MembershipRow:
    """A row of `memberships`."""

    id: str
    shared_workspace_id: str
    thread_id: str
    native_session: str | None
    native_turn: int
    state: str
    fence: int
    activation_id: str | None
    admitted_job_id: str | None
    lost_reason: str | None
    settled_generation: str | None
    settled_boot_id: str | None
    agent_pid: int | None
    agent_start_ticks: int | None


@dataclass(frozen=True)
class Quarantined:
    """A membership that waits for its verdict, and the scope that it belongs to."""

    thread_id: str
    fence: int
    runtime_scope_id: str
    uid: str


async def create_membership(tx: Tx, lease: Lease, *, membership_id: str, runtime_scope_id: str, thread_id: str) -> int:
    """Create a conversation's row at its first prepare. Zero: it is there, or the lease is not held."""
    return await tx.execute(
        "INSERT INTO memberships (id, shared_workspace_id, thread_id) "
        f"SELECT %(id)s, w.id, %(thread)s FROM shared_workspaces w WHERE w.runtime_scope_id = %(scope)s AND {HELD} "
        "ON CONFLICT (thread_id) DO NOTHING",
        lease.params(id=membership_id, scope=runtime_scope_id, thread=thread_id),
    )


async def activate(tx: Tx, lease: Lease, *, membership_id: str, fence: int, activation_id: str, source: str) -> int:
    """Raise the fence from `fence` by one and give the membership to an activation; nothing is admitted in it yet.

    `source` is the state that it comes from: `idle`, `suspended`, or `active` where the same attempt activates again.
    """
    return await tx.execute(
        "UPDATE memberships SET state = 'active', fence = fence + 1, activation_id = %(activation)s, "
        "admitted_job_id = NULL WHERE id = %(membership)s AND state = %(source)s AND fence = %(fence)s "
        f"AND {HELD_RUNNING}",
        lease.params(activation=activation_id, membership=membership_id, source=source, fence=fence),
    )


async def admit(tx: Tx, lease: Lease, *, membership_id: str, activation_id: str, fence: int) -> int:
    """Note that this run may have reached the agent, where nothing is noted yet (F-04)."""
    return await tx.execute(
        "UPDATE memberships SET admitted_job_id = %(run)s WHERE id = %(membership)s AND state = 'active' "
        "AND activation_id = %(activation)s AND fence = %(fence)s AND admitted_job_id IS NULL "
        f"AND {HELD_RUNNING}",
        lease.params(membership=membership_id, activation=activation_id, fence=fence),
    )


async def settle(
    tx: Tx, lease: Lease, *, membership_id: str, activation_id: str, fence: int, native_turn: int, native_session: str,
    generation: str, boot_id: str, agent_pid: int, agent_start_ticks: int,
) -> int:  # fmt: skip
    """Record the boundary and the evidence of R-07. `native_turn` is the recorded one plus one: part of the statement."""
    return await tx.execute(
        "UPDATE memberships SET native_turn = %(turn)s, native_session = %(session)s, settled_generation = %(instance)s, "
        "settled_boot_id = %(boot)s, agent_pid = %(pid)s, agent_start_ticks = %(ticks)s "
        "WHERE id = %(membership)s AND state = 'active' AND activation_id = %(activation)s AND fence = %(fence)s "
        f"AND admitted_job_id = %(run)s AND native_turn = %(turn)s - 1 AND {HELD}",
        lease.params(
            membership=membership_id, activation=activation_id, fence=fence, turn=native_turn, session=native_session,
            instance=generation, boot=boot_id, pid=agent_pid, ticks=agent_start_ticks,
        ),
    )  # fmt: skip


async def abandon(tx: Tx, lease: Lease, *, membership_id: str, activation_id: str, fence: int, state: str) -> int:
    """Free a membership whose activation admitted nothing (R-02): that is part of the statement. To `idle` or `suspended`."""
    return await tx.execute(
        "UPDATE memberships SET state = %(state)s, activation_id = NULL WHERE id = %(membership)s AND state = 'active' "
        "AND activation_id = %(activation)s AND fence = %(fence)s AND admitted_job_id IS NULL "
        f"AND {HELD}",
        lease.params(membership=membership_id, activation=activation_id, fence=fence, state=state),
    )


async def leave(tx: Tx, *, membership_id: str, activation_id: str, fence: int, source: str, state: str) -> int:
    """End an activation's use of a membership, at a run's end or by a verdict: `source` → `idle` or `suspended`."""
    return await tx.execute(
        "UPDATE memberships SET state = %s, activation_id = NULL WHERE id = %s AND state = %s AND activation_id = %s "
        "AND fence = %s",
        (state, membership_id, source, activation_id, fence),
    )


async def quarantine(tx: Tx, *, membership_id: str, activation_id: str, fence: int) -> int:
    """`active` → `quarantined`, with the fence raised: nothing that the old turn holds is good any more."""
    return await tx.execute(
        "UPDATE memberships SET state = 'quarantined', fence = fence + 1 WHERE id = %s AND state = 'active' "
        "AND activation_id = %s AND fence = %s",
        (membership_id, activation_id, fence),
    )


async def lose(tx: Tx, *, membership_id: str, fence: int, source: str, reason: str) -> int:
    """`lost`, for good. Names state and fence, so that of several who decide one wins."""
    return await tx.execute(
        "UPDATE memberships SET state = 'lost', activation_id = NULL, lost_reason = %s WHERE id = %s AND state = %s "
        "AND fence = %s",
        (reason, membership_id, source, fence),
    )


async def list_quarantined(reader: Reader, limit: int) -> list[Quarantined]:
    """Memberships that wait for their verdict."""
    return await reader.fetch_all(
        "SELECT m.thread_id, m.fence, c.runtime_scope_id, c.uid FROM memberships m "
        "JOIN conversations c ON c.thread_id = m.thread_id WHERE m.state = 'quarantined' ORDER BY m.id LIMIT %s",
        (limit,),
        as_=Quarantined,
    )
