"""What the calls of a worker have in common: lock the run and its attempt, then look at the lease (L-11).

The locked rows say whether attempt, generation and state are the right ones. Whether the lease has expired is said by the
database's clock, in the statement that writes; an answer without a write, or another refusal, asks it with `refuse` or
`is_held`.

None of them takes the scope lock or ends a run: they change facts of the run that heads its line alone. A refusal is
answered to the worker, which finishes.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.domain.run import LEASED, RunStatus
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.guards import Lease, is_held
from turnkeeper.store.locks import lock_attempt, lock_run
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx

R = TypeVar("R")

LEASE_REFUSED = Refused(RefusedWhy.LEASE, "attempt, lease generation or state differ, or the lease has expired")


@dataclass(frozen=True)
class Leased:
    """A run and its attempt, locked; the right ones. The lease may have expired: see the module."""

    run: RunRow
    attempt: AttemptRow
    lease: Lease


async def lock_leased(tx: Tx, worker: Worker, generation: int) -> Leased | Refused:
    """Ranks 2 and 3. Refused: another attempt or generation, or the run or the attempt has ended."""
    run = await lock_run(tx, worker.run_id, RunRow)
    attempt = await lock_attempt(tx, worker.attempt_id, AttemptRow)
    if run is None or attempt is None or attempt.run_id != run.id:
        return LEASE_REFUSED
    if attempt.lease_generation != generation or attempt.ended_at is not None or RunStatus(run.status) not in LEASED:
        return LEASE_REFUSED
    return Leased(run, attempt, Lease(attempt.id, run.id, generation))


async def refuse(tx: Tx, leased: Leased, refused: Refused) -> Refused:
    """`refused`, unless the lease has expired: then that is the answer, because it is final for every call."""
    return refused if await is_held(tx, leased.lease) else LEASE_REFUSED


def must(rows: int, what: str) -> None:
    """Under the locks that are held a guarded statement must have matched: zero rows here is a broken invariant."""
    if rows != 1:
        raise InvariantViolation(f"{what}: {rows} rows under locks that were held")


class LeaseEnded(Exception):  # noqa: N818 - rolls back and becomes an answer; never seen outside `run_leased`
    """The lease ended between two statements of one transaction."""


async def held(tx: Tx, lease: Lease, rows: int, what: str) -> None:
    """A write that names the lease must have matched, unless the lease ended since the look: then nothing is written."""
    if rows == 1:
        return
    if not await is_held(tx, lease):
        raise LeaseEnded
    raise InvariantViolation(f"{what}: {rows} rows under locks that were held")


async def run_leased(s: Services, name: str, work: Callable[[Tx], Awaitable[R]]) -> R | Refused:
    """Run a worker's transaction; a lease that ends within it is refused, and everything rolled back."""
    try:
        return await s.db.run(name, work)
    except LeaseEnded:
        return LEASE_REFUSED
