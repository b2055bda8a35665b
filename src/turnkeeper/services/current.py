"""The activation that a worker's call names, locked with its membership, if it is the current one of this attempt."""

from dataclasses import dataclass

from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.leased import Leased, refuse
from turnkeeper.store.activations import ActivationRow
from turnkeeper.store.locks import lock_activation, lock_membership, lock_workspace
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import ActivationRequest

OTHER_ACTIVATION = Refused(RefusedWhy.ACTIVATION, "this activation or fence is not the current one of this attempt")


@dataclass(frozen=True)
class Current:
    """A membership and its current activation, both locked, both this attempt's."""

    membership: MembershipRow
    activation: ActivationRow


async def lock_current(
    tx: Tx, leased: Leased, request: ActivationRequest, *, with_workspace: bool = False
) -> Current | Refused:
    """Ranks (4,) 5 and 6. Refused: another activation, fence or attempt, or the membership is not active."""
    if with_workspace:
        await lock_workspace(tx, leased.run.runtime_scope_id)
    membership = await lock_membership(tx, leased.run.thread_id, MembershipRow)
    if membership is None or membership.state != "active" or membership.activation_id != request.activation:
        return await refuse(tx, leased, OTHER_ACTIVATION)
    activation = await lock_activation(tx, request.activation, ActivationRow)
    if (
        activation is None
        or activation.attempt_id != leased.attempt.id
        or activation.fence != request.fence
        or membership.fence != request.fence
    ):
        return await refuse(tx, leased, OTHER_ACTIVATION)
    return Current(membership, activation)
