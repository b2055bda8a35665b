"""`POST jobs/<job>/settle` (F-04, F-06): the supervisor's receipt becomes the durable fact that the turn ended.

Native turn, epoch and outcome move together, once. The recorded boundary is given again only to the same attempt, while
its lease is held, and for the same activation; a repeated settlement changes nothing.
"""

from turnkeeper.domain.errors import ErrorCode, ProblemCode
from turnkeeper.domain.membership import ActivationState
from turnkeeper.kit.text import clean
from turnkeeper.services.answers import Invalid, Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.current import OTHER_ACTIVATION, Current, lock_current
from turnkeeper.services.leased import LEASE_REFUSED, Leased, LeaseEnded, held, lock_leased, refuse, run_leased
from turnkeeper.store import activations, memberships, workspaces
from turnkeeper.store.activations import ActivationRow
from turnkeeper.store.guards import is_held
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import Outcome, SettlementReceipt
from turnkeeper.wire.worker import Settle, SettleAnswer


async def settle(s: Services, worker: Worker, request: Settle) -> SettleAnswer | Refused | Invalid:
    """Native turn and epoch of the recorded boundary. `Invalid`: the receipt is not of this activation's next turn."""

    async def work(tx: Tx) -> SettleAnswer | Refused | Invalid:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        current = await lock_current(tx, leased, request, with_workspace=True)
        if isinstance(current, Refused):
            return current
        if current.activation.state == ActivationState.SETTLED:
            # F-06: given again only while the lease is held.
            return _recorded(current.activation) if await is_held(tx, leased.lease) else LEASE_REFUSED
        if current.activation.state != ActivationState.ADMITTED:
            return await refuse(tx, leased, OTHER_ACTIVATION)
        fault = _fault(request.receipt, current)
        if fault is not None:
            return fault if await is_held(tx, leased.lease) else LEASE_REFUSED
        return await _record(tx, leased, current, request.receipt)

    return await run_leased(s, "settle", work)


def _recorded(activation: ActivationRow) -> SettleAnswer | Refused:
    if activation.native_turn is None or activation.epoch is None or activation.settled_at is None:
        return OTHER_ACTIVATION
    return SettleAnswer(
        activation=activation.id,
        native_turn=activation.native_turn,
        epoch=activation.epoch,
        settled_at=activation.settled_at,
    )


def _fault(receipt: SettlementReceipt, current: Current) -> Invalid | None:
    activation, membership = current.activation, current.membership
    expected: tuple[tuple[str, object, object], ...] = (
        ("receipt.activation", receipt.activation, activation.id),
        ("receipt.run", receipt.run, activation.run_id),
        ("receipt.fence", receipt.fence, activation.fence),
        ("receipt.boot_id", receipt.boot_id, activation.boot_id),
        ("receipt.native_session", clean(receipt.native_session), activation.native_session),
        ("receipt.native_turn", receipt.native_turn, membership.native_turn + 1),
    )
    for name, got, wanted in expected:
        if got != wanted:
            return Invalid(ProblemCode.BAD_REQUEST, name, f"it is {got}; the recorded facts ask for {wanted}")
    if receipt.outcome is Outcome.SUSPENDED:
        return Invalid(ProblemCode.BAD_REQUEST, "receipt.outcome", "a turn is not suspended without an open input")
    return None


async def _record(tx: Tx, leased: Leased, current: Current, receipt: SettlementReceipt) -> SettleAnswer | Refused:
    activation, membership, lease = current.activation, current.membership, leased.lease
    epoch = await workspaces.next_epoch(tx, lease, runtime_scope_id=leased.run.runtime_scope_id)
    if epoch is None:
        return LEASE_REFUSED  # it ended between the look and the statement
    settled_at = await activations.settle(
        tx,
        lease,
        activation_id=activation.id,
        fence=activation.fence,
        outcome=receipt.outcome.value,
        stop_reason=clean(receipt.stop_reason)[:200],
        native_turn=receipt.native_turn,
        epoch=epoch,
        final_message=clean(receipt.final_message),
        error_code=_error_code(receipt),
    )
    if settled_at is None:
        raise LeaseEnded
    moved = await memberships.settle(
        tx,
        lease,
        membership_id=membership.id,
        activation_id=activation.id,
        fence=activation.fence,
        native_turn=receipt.native_turn,
        native_session=clean(receipt.native_session),
        generation=activation.generation,
        boot_id=activation.boot_id,
        agent_pid=receipt.agent.pid,
        agent_start_ticks=receipt.agent.start_ticks,
    )
    await held(tx, lease, moved, "settlement")
    return SettleAnswer(activation=activation.id, native_turn=receipt.native_turn, epoch=epoch, settled_at=settled_at)


def _error_code(receipt: SettlementReceipt) -> str | None:
    if receipt.outcome is not Outcome.FAILED:
        return None
    code = receipt.error_code
    return code if code is not None and code in set(ErrorCode) else ErrorCode.AGENT_PROTOCOL_ERROR.value
