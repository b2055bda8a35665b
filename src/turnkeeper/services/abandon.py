"""`POST jobs/<job>/abandon`: the turn ended before its admission, and everything of it is dead (R-01, R-02).

`admitted_job_id IS NULL` is part of the statement: an admission whose reply was lost is never abandoned.
"""

from turnkeeper.domain.membership import ActivationState
from turnkeeper.domain.run import RunKind
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.current import lock_current
from turnkeeper.services.leased import LEASE_REFUSED, held, lock_leased, refuse, run_leased
from turnkeeper.store import activations, memberships
from turnkeeper.store.guards import is_held
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import Abandon


async def abandon(s: Services, worker: Worker, request: Abandon) -> Refused | None:
    """None: the membership is free again. Asking again changes nothing."""

    async def work(tx: Tx) -> Refused | None:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        named = await activations.get_activation(tx, request.activation)
        if (
            named is not None
            and named.attempt_id == leased.attempt.id
            and named.fence == request.fence
            and named.state == ActivationState.ABANDONED
        ):
            return None if await is_held(tx, leased.lease) else LEASE_REFUSED
        current = await lock_current(tx, leased, request)
        if isinstance(current, Refused):
            return current
        freed = await memberships.abandon(
            tx,
            leased.lease,
            membership_id=current.membership.id,
            activation_id=current.activation.id,
            fence=current.activation.fence,
            state="suspended" if leased.run.kind == RunKind.RESUME else "idle",
        )
        if not freed:
            return await refuse(tx, leased, Refused(RefusedWhy.ADMITTED, "this turn was admitted"))
        await held(
            tx,
            leased.lease,
            await activations.abandon(
                tx, leased.lease, activation_id=current.activation.id, fence=current.activation.fence
            ),
            "abandoned activation",
        )
        return None

    return await run_leased(s, "abandon", work)
