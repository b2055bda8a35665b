"""Snapshots: the recorded state of a Workdir at a settlement, or why there is none (D-08)."""

from dataclasses import dataclass
from typing import Any

from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class SnapshotRow:
    """A row of `snapshots`."""

    epoch: int
    tree_id: str | None
    unavailable_why: str | None
    changes: dict[str, Any] | None


async def insert_snapshot(
    tx: Tx, *, runtime_scope_id: str, epoch: int, run_id: str, tree_id: str | None, unavailable_why: str | None,
    changes: dict[str, Any] | None,
) -> int:  # fmt: skip
    """Store it once for each epoch; a second one changes nothing (F-06)."""
    return await tx.execute(
        "INSERT INTO snapshots (shared_workspace_id, epoch, run_id, tree_id, unavailable_why, changes) "
        "SELECT id, %s, %s, %s, %s, %s FROM shared_workspaces WHERE runtime_scope_id = %s ON CONFLICT DO NOTHING",
        (epoch, run_id, tree_id, unavailable_why, None if changes is None else jsonb(changes), runtime_scope_id),
    )


async def snapshot_of_run(reader: Reader, run_id: str) -> SnapshotRow | None:
    """The snapshot of the turn that a run settled."""
    return await reader.fetch_one(
        "SELECT epoch, tree_id, unavailable_why, changes FROM snapshots WHERE run_id = %s ORDER BY epoch DESC LIMIT 1",
        (run_id,),
        as_=SnapshotRow,
    )
