"""Workdir holds (D-02). Overlap is decided by `domain` under the owner's row lock; equality is refused by an index too."""

from dataclasses import dataclass

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class HoldRow:
    """A hold that has not ended, and the state of the root conversation that holds it."""

    id: str
    workdir: str
    runtime_scope_id: str
    state: str
    title: str


async def live_holds(reader: Reader, uid: str) -> list[HoldRow]:
    """Every hold of an owner that has not ended."""
    return await reader.fetch_all(
        "SELECT h.id, h.workdir, h.runtime_scope_id, c.state, c.title FROM workdir_holds h "
        "JOIN conversations c ON c.thread_id = h.runtime_scope_id WHERE h.uid = %s AND h.ended_at IS NULL",
        (uid,),
        as_=HoldRow,
    )


async def insert_hold(tx: Tx, *, hold_id: str, uid: str, workdir: str, runtime_scope_id: str) -> int:
    """Take a Workdir for a scope."""
    return await tx.execute(
        "INSERT INTO workdir_holds (id, uid, workdir, runtime_scope_id) VALUES (%s, %s, %s, %s)",
        (hold_id, uid, workdir, runtime_scope_id),
    )


async def end_hold(tx: Tx, runtime_scope_id: str, why: str) -> int:
    """End the scope's hold, and only if its root conversation is closed or lost: that is part of the statement."""
    return await tx.execute(
        "UPDATE workdir_holds h SET ended_at = tk_now(), ended_why = %s WHERE h.runtime_scope_id = %s "
        "AND h.ended_at IS NULL AND EXISTS (SELECT 1 FROM conversations c WHERE c.thread_id = h.runtime_scope_id "
        "AND c.state IN ('closed', 'lost'))",
        (why, runtime_scope_id),
    )
