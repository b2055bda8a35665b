"""`POST jobs/<job>/admit` (F-04): the durable fact, before the prompt is sent, that this run may have reached the agent.

Set where it is NULL, while the run is still `running`. Asking again gives the same receipt. Only then is the prompt sent
(F-05); from here on only a settlement or a verdict says what became of it.
"""

from turnkeeper.domain.membership import ActivationState
from turnkeeper.domain.run import RunStatus
from turnkeeper.kit.text import clean
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.current import OTHER_ACTIVATION, lock_current
from turnkeeper.services.leased import LEASE_REFUSED, Leased, held, lock_leased, refuse, run_leased
from turnkeeper.store import activations, agents, memberships
from turnkeeper.store.guards import is_held
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import AdmissionReceipt, Admit


async def admit(s: Services, worker: Worker, request: Admit) -> AdmissionReceipt | Refused:
    """The receipt. Refused: the worker abandons."""

    async def work(tx: Tx) -> AdmissionReceipt | Refused:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        current = await lock_current(tx, leased, request)
        if isinstance(current, Refused):
            return current
        membership, activation = current.membership, current.activation
        if activation.state == ActivationState.ADMITTED and activation.admitted_at is not None:
            if not await is_held(tx, leased.lease):
                return LEASE_REFUSED
            return AdmissionReceipt(
                activation=activation.id, job=leased.run.id, fence=activation.fence, admitted_at=activation.admitted_at
            )
        if leased.run.status != RunStatus.RUNNING:
            stopped = Refused(RefusedWhy.CANCELLED, "the run was asked to stop before its prompt was sent")
            return await refuse(tx, leased, stopped)
        if activation.state != ActivationState.PREPARING or membership.admitted_job_id is not None:
            return await refuse(tx, leased, OTHER_ACTIVATION)
        if not await _is_recorded_session(tx, leased, membership, clean(request.native_session)):
            return await refuse(
                tx, leased, Refused(RefusedWhy.MEMBERSHIP, "the native session is not the recorded one")
            )
        admitted_at = await activations.admit(
            tx,
            leased.lease,
            activation_id=activation.id,
            fence=activation.fence,
            native_session=clean(request.native_session),
        )
        if admitted_at is None:
            return LEASE_REFUSED  # it ended between the look and the statement
        await held(
            tx,
            leased.lease,
            await memberships.admit(
                tx, leased.lease, membership_id=membership.id, activation_id=activation.id, fence=activation.fence
            ),
            "admitted membership",
        )
        return AdmissionReceipt(
            activation=activation.id, job=leased.run.id, fence=activation.fence, admitted_at=admitted_at
        )

    return await run_leased(s, "admit", work)


async def _is_recorded_session(tx: Tx, leased: Leased, membership: MembershipRow, native_session: str) -> bool:
    """R-07: a turn is delivered to the recorded session or to none, but where each turn has a session of its own."""
    if membership.native_turn == 0 or native_session == membership.native_session:
        return True
    return await agents.new_session_per_turn(tx, leased.run.agent)
