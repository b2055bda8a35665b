"""Runs as their owners read them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString

from turnkeeper.store.tx import Reader


@dataclass(frozen=True)
class RunView:
    """A run with the boundary that it settled, if it did."""

    id: str
    thread_id: str
    uid: str
    agent: str
    kind: str
    status: str
    ready: bool
    error_code: str | None
    error_detail: dict[str, Any] | None
    native_turn: int | None
    epoch: int | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class RunTexts:
    """The large or rare parts of one run."""

    prompt: str
    output: str | None
    manifest_sha256: str | None
    final_message: str | None


@dataclass(frozen=True)
class AttemptView:
    """An attempt as operators and owners read it (E-04). `left_events`: its worker has stored events of its own (E-05)."""

    attempt_no: int
    lease_generation: int
    lease_owner: str
    host: str
    claimed_at: datetime
    accepted_at: datetime | None
    last_heartbeat_at: datetime | None
    lease_expires_at: datetime
    ended_at: datetime | None
    outcome: str | None
    left_events: bool


_VIEW: Final[LiteralString] = (
    "SELECT r.id, r.thread_id, r.uid, r.agent, r.kind, r.status, r.ready_at IS NOT NULL AS ready, r.error_code, "
    "r.error_detail, x.native_turn, x.epoch, r.cancel_requested_at, r.created_at, r.started_at, r.ended_at "
    "FROM runs r LEFT JOIN LATERAL (SELECT native_turn, epoch FROM activations "
    "WHERE run_id = r.id AND state = 'settled' ORDER BY fence DESC LIMIT 1) x ON true "
)


async def get_view(reader: Reader, uid: str, run_id: str) -> RunView | None:
    """One run of an owner. None: this owner has no such run."""
    return await reader.fetch_one(_VIEW + "WHERE r.id = %s AND r.uid = %s", (run_id, uid), as_=RunView)


async def list_by_owner(reader: Reader, uid: str, *, before: str | None, limit: int) -> list[RunView]:
    """An owner's runs, newest first."""
    return await reader.fetch_all(
        _VIEW + "WHERE r.uid = %s AND (%s::uuid IS NULL OR r.id < %s::uuid) ORDER BY r.id DESC LIMIT %s",
        (uid, before, before, limit),
        as_=RunView,
    )


async def list_by_thread(reader: Reader, thread_id: str, *, before: str | None, limit: int) -> list[RunView]:
    """A conversation's runs, newest first."""
    return await reader.fetch_all(
        _VIEW + "WHERE r.thread_id = %s AND (%s::uuid IS NULL OR r.id < %s::uuid) ORDER BY r.id DESC LIMIT %s",
        (thread_id, before, before, limit),
        as_=RunView,
    )


async def get_texts(reader: Reader, run_id: str) -> RunTexts | None:
    """Prompt, output and manifest digest."""
    return await reader.fetch_one(
        "SELECT r.prompt, m.text AS output, r.manifest_sha256, x.final_message FROM runs r "
        "LEFT JOIN messages m ON m.run_id = r.id AND m.role = 'assistant' "
        "LEFT JOIN LATERAL (SELECT final_message FROM activations WHERE run_id = r.id AND state = 'settled' "
        "ORDER BY fence DESC LIMIT 1) x ON true WHERE r.id = %s",
        (run_id,),
        as_=RunTexts,
    )


async def list_attempts(reader: Reader, run_id: str) -> list[AttemptView]:
    """The attempts of a run, in order."""
    return await reader.fetch_all(
        "SELECT attempt_no, lease_generation, lease_owner, host, claimed_at, accepted_at, last_heartbeat_at, "
        "lease_expires_at, ended_at, outcome, EXISTS (SELECT 1 FROM events e WHERE e.attempt_id = attempts.id "
        "AND e.stream_no IS NOT NULL) AS left_events FROM attempts WHERE run_id = %s ORDER BY attempt_no",
        (run_id,),
        as_=AttemptView,
    )
