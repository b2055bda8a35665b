"""Rows as owners read them."""

from typing import Any

from turnkeeper.domain.errors import ErrorCode, Language, lost_sentence, sentence
from turnkeeper.services.auth import Owner
from turnkeeper.store.conversations import ConversationView
from turnkeeper.store.events import EventRow
from turnkeeper.store.messages import MessageRow
from turnkeeper.store.run_views import AttemptView, RunTexts, RunView
from turnkeeper.store.runs import RunRow
from turnkeeper.store.snapshots import SnapshotRow
from turnkeeper.wire.public import AttemptRecord, Conversation, Message, Run, RunDetail, RunSnapshot
from turnkeeper.wire.turn import ChangeSummary, Event


def conversation_of(view: ConversationView, language: Language) -> Conversation:
    """A conversation; a lost one says so in plain words, also when it was closed afterwards (R-06)."""
    return Conversation(
        thread_id=view.thread_id,
        agent=view.agent,
        title=view.title,
        workdir=view.workdir,
        state=view.state,  # type: ignore[arg-type] - the column's CHECK names the same words
        queue_paused=view.queue_paused,
        kind=view.kind,  # type: ignore[arg-type]
        lost_text=lost_sentence(language) if view.was_lost else None,
        native_turn=view.native_turn,
        epoch=view.epoch,
        live_run_id=view.live_run_id,
        created_at=view.created_at,
        updated_at=view.updated_at,
    )


def message_of(row: MessageRow) -> Message:
    """A message."""
    return Message(
        id=row.id,
        thread_id=row.thread_id,
        run_id=row.run_id,
        role=row.role,  # type: ignore[arg-type]
        text=row.text,
        delivery=row.delivery,  # type: ignore[arg-type]
        created_at=row.created_at,
    )


def _run_fields(view: RunView, language: Language) -> dict[str, Any]:
    return {
        "id": view.id,
        "thread_id": view.thread_id,
        "agent": view.agent,
        "kind": view.kind,
        "status": view.status,
        "ready": view.ready,
        "error_code": view.error_code,
        "error_text": None if view.error_code is None else sentence(ErrorCode(view.error_code), language),
        "error_detail": view.error_detail,
        "native_turn": view.native_turn,
        "epoch": view.epoch,
        "cancel_requested_at": view.cancel_requested_at,
        "created_at": view.created_at,
        "started_at": view.started_at,
        "ended_at": view.ended_at,
    }


def run_of(view: RunView, owner: Owner) -> Run:
    """A run with its sentence in the owner's language."""
    return Run.model_validate(_run_fields(view, owner.tongue))


def new_run_of(row: RunRow, *, ready: bool) -> Run:
    """A run that was just created: nothing has happened to it yet."""
    return Run.model_validate({**vars(row), "ready": ready})


def run_detail_of(
    view: RunView, texts: RunTexts, attempts: list[AttemptView], snapshot: SnapshotRow | None, owner: Owner
) -> RunDetail:
    """A run with everything that is kept about it."""
    return RunDetail.model_validate(
        {
            **_run_fields(view, owner.tongue),
            "prompt": texts.prompt,
            "output": texts.output,
            "manifest_sha256": texts.manifest_sha256,
            "attempts": tuple(AttemptRecord.model_validate(vars(attempt)) for attempt in attempts),
            "snapshot": None if snapshot is None else snapshot_of(snapshot),
        }
    )


def snapshot_of(row: SnapshotRow) -> RunSnapshot:
    """The snapshot of a settled turn."""
    return RunSnapshot(
        epoch=row.epoch,
        tree_id=row.tree_id,
        unavailable_why=row.unavailable_why,
        changes=None if row.changes is None else ChangeSummary.model_validate(row.changes),
    )


def event_of(row: EventRow) -> Event:
    """A stored event."""
    return Event.model_validate(vars(row))
