"""Shared workspaces: one row for each runtime scope, with its sandbox's identity and its epoch."""
# ruff: noqa: S608 - statements are LiteralString, which pyright proves; parameters are always bound

from dataclasses import dataclass

from turnkeeper.store.guards import HELD, Lease
from turnkeeper.store.tx import Tx


@dataclass(frozen=True)
class WorkspaceRow:
    """A row of `shared_workspaces`."""

    id: str
    uid: str
    runtime_scope_id: str
    provisioner: str | None
    sandbox_id: str
    generation: str | None
    boot_id: str | None
    epoch: int


async def create_workspace(
    tx: Tx, lease: Lease, *, workspace_id: str, uid: str, runtime_scope_id: str, provisioner: str, sandbox_id: str
) -> int:
    """Create the scope's row at its first prepare. Zero: it is there, or the lease is not held."""
    return await tx.execute(
        "INSERT INTO shared_workspaces (id, uid, runtime_scope_id, provisioner, sandbox_id) "
        f"SELECT %(id)s, %(uid)s, %(scope)s, %(provisioner)s, %(sandbox)s WHERE {HELD} "
        "ON CONFLICT (runtime_scope_id) DO NOTHING",
        lease.params(id=workspace_id, uid=uid, scope=runtime_scope_id, provisioner=provisioner, sandbox=sandbox_id),
    )


async def record_container(
    tx: Tx, lease: Lease, *, runtime_scope_id: str, sandbox_id: str, generation: str, boot_id: str
) -> int:
    """Record the exact instance that was found or created. Zero: another sandbox id, or the lease is not held."""
    return await tx.execute(
        "UPDATE shared_workspaces SET generation = %(instance)s, boot_id = %(boot)s "
        f"WHERE runtime_scope_id = %(scope)s AND sandbox_id = %(sandbox)s AND {HELD}",
        lease.params(scope=runtime_scope_id, sandbox=sandbox_id, instance=generation, boot=boot_id),
    )


async def next_epoch(tx: Tx, lease: Lease, *, runtime_scope_id: str) -> int | None:
    """Count one more settled turn: the new epoch. None: the lease is not held."""
    return await tx.fetch_value(
        f"UPDATE shared_workspaces SET epoch = epoch + 1 WHERE runtime_scope_id = %(scope)s AND {HELD} RETURNING epoch",
        lease.params(scope=runtime_scope_id),
    )
