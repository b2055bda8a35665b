"""`POST jobs/<job>/activate`: raises the membership fence and gives this run the membership (protocol 4, step 6).

`admitted_job_id` becomes NULL; the earlier one stays in its activation. The lease is renewed with it. The same request
again gets the same answer, token included. Another instance from the same attempt (its sandbox had ended) is a new
activation with the next fence, and the earlier one is abandoned: nothing was admitted in it.
"""

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.domain.machine import Refused as MachineRefused
from turnkeeper.domain.membership import ActivationState, MembershipEvent, MembershipState, membership_transition
from turnkeeper.domain.run import RunKind, RunStatus
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.leased import LEASE_REFUSED, Leased, held, lock_leased, refuse, run_leased
from turnkeeper.store import activations, attempts, memberships
from turnkeeper.store.activations import ActivationRow
from turnkeeper.store.locks import lock_activation, lock_membership, lock_workspace
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.tx import Tx
from turnkeeper.store.workspaces import WorkspaceRow
from turnkeeper.wire.tokens import ActivationClaims
from turnkeeper.wire.worker import Activate, ActivateAnswer

_NOT_USABLE = Refused(RefusedWhy.MEMBERSHIP, "another turn has the membership, or it cannot be used")
_OTHER_INSTANCE = Refused(RefusedWhy.ACTIVATION, "generation and boot id are not those that `container` recorded")


async def activate(s: Services, worker: Worker, request: Activate) -> ActivateAnswer | Refused:
    """The activation with its signed token."""

    async def work(tx: Tx) -> ActivateAnswer | Refused:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        if leased.run.status != RunStatus.RUNNING:
            return await refuse(tx, leased, Refused(RefusedWhy.CANCELLED, "the run was asked to stop"))
        if leased.attempt.accepted_at is None:
            return await refuse(tx, leased, Refused(RefusedWhy.ACCEPTED, "the turn was not prepared yet"))
        workspace = await lock_workspace(tx, leased.run.runtime_scope_id, WorkspaceRow)
        membership = await lock_membership(tx, leased.run.thread_id, MembershipRow)
        if workspace is None or membership is None:
            return await refuse(tx, leased, _NOT_USABLE)
        if (workspace.generation, workspace.boot_id) != (request.generation, request.boot_id):
            return await refuse(tx, leased, _OTHER_INSTANCE)
        current = await _current(tx, membership)
        mine = current is not None and current.attempt_id == leased.attempt.id
        if mine and current is not None and _is_same(current, request):
            if not await attempts.extend(tx, leased.lease):
                return LEASE_REFUSED
            return _answer(s, leased, membership.id, current.id, current.fence, request)
        return await _new(tx, s, leased, membership, current if mine else None, request)

    return await run_leased(s, "activate", work)


async def _current(tx: Tx, membership: MembershipRow) -> ActivationRow | None:
    if membership.activation_id is None:
        return None
    return await lock_activation(tx, membership.activation_id, ActivationRow)


def _is_same(current: ActivationRow, request: Activate) -> bool:
    return current.state == ActivationState.PREPARING and (current.generation, current.boot_id) == (
        request.generation,
        request.boot_id,
    )


async def _new(
    tx: Tx, s: Services, leased: Leased, membership: MembershipRow, earlier: ActivationRow | None, request: Activate
) -> ActivateAnswer | Refused:
    event = MembershipEvent.ACTIVATED
    if earlier is not None:
        if earlier.state != ActivationState.PREPARING:
            return await refuse(tx, leased, Refused(RefusedWhy.ADMITTED, "this turn was admitted already"))
        event = MembershipEvent.REACTIVATED
    state = MembershipState(membership.state)
    if isinstance(membership_transition(state, event), MachineRefused):
        return await refuse(tx, leased, _NOT_USABLE)
    if (state is MembershipState.SUSPENDED) != (leased.run.kind == RunKind.RESUME) and earlier is None:
        return await refuse(tx, leased, _NOT_USABLE)
    if not await attempts.extend(tx, leased.lease):
        return LEASE_REFUSED
    if earlier is not None:
        await held(
            tx,
            leased.lease,
            await activations.abandon(tx, leased.lease, activation_id=earlier.id, fence=earlier.fence),
            "activation of an ended instance",
        )
    fence, activation_id = membership.fence + 1, new_id()
    answer = _answer(s, leased, membership.id, activation_id, fence, request)
    await held(
        tx,
        leased.lease,
        await activations.insert_activation(
            tx,
            leased.lease,
            activation_id=activation_id,
            membership_id=membership.id,
            fence=fence,
            generation=request.generation,
            boot_id=request.boot_id,
            token_hash=digest(answer.activation_token),
        ),
        "activation",
    )
    await held(
        tx,
        leased.lease,
        await memberships.activate(
            tx,
            leased.lease,
            membership_id=membership.id,
            fence=membership.fence,
            activation_id=activation_id,
            source=membership.state,
        ),
        "activated membership",
    )
    return answer


def _answer(
    s: Services, leased: Leased, membership_id: str, activation_id: str, fence: int, request: Activate
) -> ActivateAnswer:
    claims = ActivationClaims(
        sub=leased.run.id,
        attempt=leased.attempt.id,
        lease_generation=leased.attempt.lease_generation,
        membership=membership_id,
        activation=activation_id,
        fence=fence,
        generation=request.generation,
        boot_id=request.boot_id,
        exp=int(leased.attempt.execution_deadline.timestamp()) + 1,
    )
    if fence < 1:
        raise InvariantViolation(f"fence {fence} of membership {membership_id}")
    return ActivateAnswer(
        activation=activation_id,
        membership=membership_id,
        fence=fence,
        activation_token=s.signer.activation_token(claims),
        lease_ttl_s=leased.attempt.lease_ttl_s,
    )
