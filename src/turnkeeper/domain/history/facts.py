"""What is recorded about conversations, as facts to be held against the rules: rows of the database, and what was seen outside.

States are the words of the columns. Times are aware and of the database's clock, those of processes of one clock of their
own. A `History` holds whole scopes: every conversation of a scope, and everything of each.
"""

from dataclasses import dataclass, field
from datetime import datetime

from turnkeeper.domain.settings import Timing

SLACK_S = 60.0
"""How much later than its bound something may be before it counts as stuck: loops look every few seconds."""


@dataclass(frozen=True, slots=True)
class OwnerFact:
    """An owner's room: `live_trees` are the distinct roots with a ready, running, cancel_requested or recovering run.

    `last_end_at`: when one of the owner's runs ended last, so when room may have become free; None where none did.
    """

    uid: str
    tree_room: int
    live_trees: int
    last_end_at: datetime | None


@dataclass(frozen=True, slots=True)
class ConversationFact:
    """A conversation. `last_seq` and `dropped_before` are of its event counter: nothing below the latter is stored."""

    thread_id: str
    uid: str
    kind: str
    runtime_scope_id: str
    state: str
    queue_paused: bool
    runtime_policy: str
    updated_at: datetime
    last_seq: int
    dropped_before: int


@dataclass(frozen=True, slots=True)
class RunFact:
    """A run. `prompt` is None where it was not read: only a ledger asks for it."""

    id: str
    thread_id: str
    uid: str
    kind: str
    runtime_scope_id: str
    root_run_id: str
    depth: int
    queue_position: int
    status: str
    cancel_requested_at: datetime | None
    runtime_cleanup_pending: bool
    ready_at: datetime | None
    created_at: datetime
    ended_at: datetime | None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptFact:
    """An attempt. `lease_expires_at` is None only where the record is broken (L-11)."""

    id: str
    run_id: str
    attempt_no: int
    lease_generation: int
    claimed_at: datetime
    lease_expires_at: datetime | None
    last_heartbeat_at: datetime | None
    accepted_at: datetime | None
    ended_at: datetime | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class WorkspaceFact:
    """A shared workspace and its epoch."""

    id: str
    runtime_scope_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MembershipFact:
    """A membership."""

    id: str
    shared_workspace_id: str
    thread_id: str
    native_turn: int
    state: str
    fence: int
    activation_id: str | None
    lost_reason: str | None


@dataclass(frozen=True, slots=True)
class ActivationFact:
    """An activation with what was admitted and settled in it."""

    id: str
    membership_id: str
    run_id: str
    attempt_id: str
    fence: int
    state: str
    created_at: datetime
    admitted_at: datetime | None
    settled_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    native_turn: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class SnapshotFact:
    """A snapshot: which run's settlement it was taken at."""

    shared_workspace_id: str
    epoch: int
    run_id: str


@dataclass(frozen=True, slots=True)
class EventsFact:
    """Consecutive events of one run, from one attempt (None: from the control plane), all of them `end` or none.

    `run_id` None: they are about the conversation. One event is the span from itself to itself. `first_at` and `last_at`
    are the least and the greatest time in it.
    """

    thread_id: str
    run_id: str | None
    attempt_id: str | None
    is_end: bool
    first_seq: int
    last_seq: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class MessageFact:
    """A message without its text."""

    id: str
    thread_id: str
    run_id: str
    role: str
    delivery: str | None


@dataclass(frozen=True, slots=True)
class HoldFact:
    """A Workdir hold; `ended_at` None: it is open."""

    id: str
    uid: str
    workdir: str
    runtime_scope_id: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A prompt that an agent itself received. Whoever wrote the ledger may not know the run: then the text names it."""

    text: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A process that was seen to work for an activation. All times are seconds of one clock.

    `process` is its identity (pid and start time within one instance): a session that stays for the next activation is
    seen again with it. `dead_at`: when it was confirmed dead; None: never. `take_at`: when the take of this activation
    was answered.
    """

    activation_id: str
    process: str
    started_at: float
    dead_at: float | None = None
    take_at: float | None = None


@dataclass(frozen=True)
class History:
    """Recorded facts at the moment `now`. What was not recorded is empty; `ledger` None: nobody wrote one."""

    now: datetime
    timing: Timing = field(default_factory=Timing)
    slack_s: float = SLACK_S
    owners: tuple[OwnerFact, ...] = ()
    conversations: tuple[ConversationFact, ...] = ()
    runs: tuple[RunFact, ...] = ()
    attempts: tuple[AttemptFact, ...] = ()
    workspaces: tuple[WorkspaceFact, ...] = ()
    memberships: tuple[MembershipFact, ...] = ()
    activations: tuple[ActivationFact, ...] = ()
    snapshots: tuple[SnapshotFact, ...] = ()
    events: tuple[EventsFact, ...] = ()
    messages: tuple[MessageFact, ...] = ()
    holds: tuple[HoldFact, ...] = ()
    ledger: tuple[LedgerEntry, ...] | None = None
    processes: tuple[ProcessSeen, ...] = ()
