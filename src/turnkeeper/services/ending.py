"""The one path by which a run ends, whoever ends it: worker, reaper, host, verdict, owner (protocol 4, after the table).

Terminal state, message and delivery status, terminal event: one transaction, and each exactly once (A-03, A-05). The
attempt is closed by the caller, whose statement says by what right; the membership likewise.
"""

from dataclasses import dataclass
from typing import Any

from turnkeeper.domain.errors import ErrorCode, InvariantViolation, sentence
from turnkeeper.domain.machine import Refused
from turnkeeper.domain.run import RunEvent, RunStatus, delivery_of, transition
from turnkeeper.kit.ids import new_id
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import OwnerRow, dispatch_others_after, lock_line
from turnkeeper.services.leased import must
from turnkeeper.services.publish import Outbox, end_event
from turnkeeper.store import activations, events, messages, runs
from turnkeeper.store.events import NewEvent
from turnkeeper.store.runs import RunRow
from turnkeeper.store.signals import run_signal
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind


@dataclass
class Closing:
    """A transaction that ends runs: the owner whose line it holds, its events, and the run that its fence flagged.

    `gives_out`: after the commit the room that it left is given to the owner's other scopes.
    """

    owner: OwnerRow
    outbox: Outbox
    flagged_run_id: str | None = None
    gives_out: bool = False


async def begin_closing(tx: Tx, s: Services, scope: str, uid: str) -> Closing:
    """Ranks 0 and 1."""
    return Closing(await lock_line(tx, scope, uid), Outbox(s.limits.event_bytes_max))


async def end_run(
    tx: Tx,
    s: Services,
    closing: Closing,
    run: RunRow,
    event: RunEvent,
    *,
    code: ErrorCode | None,
    detail: dict[str, Any] | None = None,
    output: str | None = None,
    written: bool | None = None,
) -> RunStatus:
    """End a locked run by `event`, and return its terminal status.

    `code` is used where the status is one that has a code; a cancelled run without another reason gets `cancelled`.
    `output` becomes the assistant's message, also of a run that was cancelled after its agent had answered. `written` is
    the evidence of a settlement: the prompt reached the agent.
    """
    status = transition(RunStatus(run.status), event, cancel_requested=run.cancel_requested_at is not None)
    if isinstance(status, Refused):
        raise InvariantViolation(f"run {run.id}: {status.reason}")
    error_code = _code_of(status, code)
    must(
        await runs.end_run(
            tx, run.id, source=run.status, status=status.value, error_code=error_code, error_detail=detail
        ),
        f"end of run {run.id}",
    )
    admitted = True if written else await activations.was_admitted(tx, run.id)
    await messages.set_delivery(tx, run.id, delivery_of(status, admitted, written=written))
    final_message_id = await _store_output(tx, closing, run, output)
    if status is RunStatus.FAILED:
        await _add_error(tx, closing, run, ErrorCode(error_code or ""), detail)
    if not (run.runtime_cleanup_pending or closing.flagged_run_id == run.id):
        # C-01: where a fence is up on this run, whoever clears it appends the terminal event.
        closing.outbox.add(
            run.thread_id,
            end_event(
                run.id,
                status=status.value,
                error_code=error_code,
                language=closing.owner.tongue,
                final_message_id=final_message_id,
            ),
        )
    tx.notify(run_signal(run.id))
    if not closing.gives_out:
        closing.gives_out = True
        dispatch_others_after(tx, s, run.uid)
    return status


def _code_of(status: RunStatus, code: ErrorCode | None) -> str | None:
    match status:
        case RunStatus.COMPLETED | RunStatus.INTERRUPTED:
            return None
        case RunStatus.CANCELLED:
            return code.value if code is ErrorCode.EXECUTION_TREE_CLOSED else ErrorCode.CANCELLED.value
        case RunStatus.FAILED:
            return (code or ErrorCode.OUTCOME_UNKNOWN).value
        case RunStatus.PENDING | RunStatus.RUNNING | RunStatus.CANCEL_REQUESTED | RunStatus.RECOVERING:
            raise InvariantViolation(f"{status.value} is no end of a run")


async def _store_output(tx: Tx, closing: Closing, run: RunRow, output: str | None) -> str | None:
    if not output:
        return None
    row = await messages.insert_message(
        tx, message_id=new_id(), thread_id=run.thread_id, run_id=run.id, role="assistant", text=output, delivery=None
    )
    closing.outbox.message(run.thread_id, run.id, message_id=row.id, role=row.role, text=row.text)
    return row.id


async def _add_error(tx: Tx, closing: Closing, run: RunRow, code: ErrorCode, detail: dict[str, Any] | None) -> None:
    # The worker reports the error by itself where it can (F-01); this is for a report that never came.
    if await events.has_kind(tx, run.id, EventKind.ERROR):
        return
    known = {key: detail[key] for key in ("stage", "delivered", "refusal") if detail and detail.get(key) is not None}
    data = {"code": code.value, "text": sentence(code, closing.owner.tongue), **known}
    if detail and detail.get("text"):
        data["detail"] = detail["text"]
    closing.outbox.add(run.thread_id, NewEvent(run.id, EventKind.ERROR, data))
