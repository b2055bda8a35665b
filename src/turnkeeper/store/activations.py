"""Activations: one run's use of a membership (protocol 2). Each move names the state and the fence that it comes from."""
# ruff: noqa: S608 - statements are LiteralString, which pyright proves; parameters are always bound

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from turnkeeper.store.guards import HELD, HELD_RUNNING, Lease
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class ActivationRow:
    """A row of `activations` without its token's hash."""

    id: str
    membership_id: str
    run_id: str
    attempt_id: str
    fence: int
    generation: str
    boot_id: str
    state: str
    native_session: str | None
    admitted_at: datetime | None
    settled_at: datetime | None
    outcome: str | None
    stop_reason: str | None
    native_turn: int | None
    epoch: int | None
    final_message: str | None
    error_code: str | None


COLUMNS: Final[LiteralString] = (
    "id, membership_id, run_id, attempt_id, fence, generation, boot_id, state, native_session, admitted_at, settled_at, "
    "outcome, stop_reason, native_turn, epoch, final_message, error_code"
)


async def insert_activation(
    tx: Tx, lease: Lease, *, activation_id: str, membership_id: str, fence: int, generation: str, boot_id: str,
    token_hash: bytes,
) -> int:  # fmt: skip
    """A new one, preparing. Zero: the lease is not held."""
    return await tx.execute(
        "INSERT INTO activations (id, membership_id, run_id, attempt_id, fence, generation, boot_id, token_hash) "
        f"SELECT %(id)s, %(membership)s, %(run)s, %(attempt)s, %(fence)s, %(instance)s, %(boot)s, %(hash)s WHERE {HELD_RUNNING}",
        lease.params(
            id=activation_id, membership=membership_id, fence=fence, instance=generation, boot=boot_id, hash=token_hash
        ),
    )


async def get_activation(reader: Reader, activation_id: str) -> ActivationRow | None:
    """The row."""
    return await reader.fetch_one(
        f"SELECT {COLUMNS} FROM activations WHERE id = %s", (activation_id,), as_=ActivationRow
    )


async def admit(tx: Tx, lease: Lease, *, activation_id: str, fence: int, native_session: str) -> datetime | None:
    """`preparing` → `admitted`; the time of it. None: not this run's, not preparing, another fence, or no lease."""
    return await tx.fetch_value(
        "UPDATE activations SET state = 'admitted', admitted_at = tk_now(), native_session = %(session)s "
        "WHERE id = %(activation)s AND attempt_id = %(attempt)s AND fence = %(fence)s AND state = 'preparing' "
        f"AND {HELD_RUNNING} RETURNING admitted_at",
        lease.params(activation=activation_id, fence=fence, session=native_session),
    )


async def settle(
    tx: Tx, lease: Lease, *, activation_id: str, fence: int, outcome: str, stop_reason: str, native_turn: int,
    epoch: int, final_message: str, error_code: str | None,
) -> datetime | None:  # fmt: skip
    """`admitted` → `settled`, with what the supervisor's receipt says; the time of it. None: refused."""
    return await tx.fetch_value(
        "UPDATE activations SET state = 'settled', settled_at = tk_now(), ended_at = tk_now(), outcome = %(outcome)s, "
        "stop_reason = %(reason)s, native_turn = %(turn)s, epoch = %(epoch)s, final_message = %(message)s, "
        "error_code = %(error)s WHERE id = %(activation)s AND attempt_id = %(attempt)s AND fence = %(fence)s "
        f"AND state = 'admitted' AND {HELD} RETURNING settled_at",
        lease.params(
            activation=activation_id, fence=fence, outcome=outcome, reason=stop_reason, turn=native_turn, epoch=epoch,
            message=final_message, error=error_code,
        ),
    )  # fmt: skip


async def abandon(tx: Tx, lease: Lease, *, activation_id: str, fence: int) -> int:
    """`preparing` → `abandoned`."""
    return await tx.execute(
        "UPDATE activations SET state = 'abandoned', ended_at = tk_now() WHERE id = %(activation)s "
        f"AND attempt_id = %(attempt)s AND fence = %(fence)s AND state = 'preparing' AND {HELD}",
        lease.params(activation=activation_id, fence=fence),
    )


async def end_activation(tx: Tx, activation_id: str, *, source: str, state: str) -> int:
    """By a run's end or a verdict: `source` → `quarantined`, `not_delivered` or `lost`."""
    return await tx.execute(
        "UPDATE activations SET state = %(state)s, "
        "ended_at = CASE WHEN %(state)s::text = 'quarantined' THEN NULL ELSE tk_now() END "
        "WHERE id = %(id)s AND state = %(source)s",
        {"state": state, "id": activation_id, "source": source},
    )


async def was_admitted(reader: Reader, run_id: str) -> bool:
    """Whether any activation of this run was ever admitted."""
    return await reader.fetch_value(
        "SELECT EXISTS (SELECT 1 FROM activations WHERE run_id = %s AND admitted_at IS NOT NULL)", (run_id,)
    )
