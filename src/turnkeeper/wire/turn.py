"""What a turn is made of, in the words that the sandbox manager, the worker, the control plane and the owner share."""

from enum import StrEnum
from typing import Any, Literal

from turnkeeper.wire.base import Answer, Id, Moment


class EventKind(StrEnum):
    """Kinds of events in a conversation's stream; SSE says them as `event:`.

    From the sandbox manager (numbered by it, stored with that number): session, text, thought, tool_call, tool_update, plan,
    permission, notice. From the control plane: message, run, shared_workspace_settled, changes, error, end, conversation.
    Made for one reader and never stored: snapshot, gap.
    """

    SESSION = "session"  # {native_session, mode: new|continued|reloaded, agent: {name, version}}
    TEXT = "text"  # {text}
    THOUGHT = "thought"  # {text}
    TOOL_CALL = "tool_call"  # {id, title, kind, status, input?, locations?}
    TOOL_UPDATE = "tool_update"  # {id, status?, title?, content: [{type, ...}]}
    PLAN = "plan"  # {entries: [{content, status, priority}]}
    PERMISSION = "permission"  # {id, tool, title, kind, options, answer: {outcome, option?}, rule}
    NOTICE = "notice"  # {code, text}: something that the manager did, such as a cut line
    MESSAGE = "message"  # {message_id, role, text}
    RUN = "run"  # {status, ...}: the run moved
    SHARED_WORKSPACE_SETTLED = "shared_workspace_settled"  # {epoch, native_turn, native_session}
    CHANGES = "changes"  # ChangeSummary
    ERROR = "error"  # {code, text, stage?, delivered?}
    END = "end"  # {status, error_code, text, final_message_id}: the last of its run
    CONVERSATION = "conversation"  # {state: lost, code, text}: about the conversation, so its run_id is null
    SNAPSHOT = "snapshot"  # first event of a stream: the state that the events continue from
    GAP = "gap"  # {from, to}: events that are no longer stored


class Outcome(StrEnum):
    """How a settled turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"


class AgentProcess(Answer):
    """The identity of an agent's process, by pid *and* start time, within one sandbox."""

    pid: int
    start_ticks: int


class SettlementReceipt(Answer):
    """What the supervisor keeps when the prompt's response arrived; asking again gives the same (F-04, F-06).

    `native_turn` is the turn that this receipt settles: the recorded one plus one. `stop_reason` is the agent's own word
    (`end_turn`, `cancelled`, `refusal`, …) or `error` where it answered with an error; then `error_code` and `error_text` are set.
    `last_event` is the number of the last event of the turn.
    """

    activation: Id
    run: Id
    fence: int
    boot_id: str
    native_session: str
    native_turn: int
    outcome: Outcome
    stop_reason: str
    error_code: str | None = None
    error_text: str | None = None
    final_message: str = ""
    final_message_bytes: int | None = None
    last_event: int
    agent: AgentProcess


class ChangedFile(Answer):
    """One path that differs between two snapshots. `diff` is a unified diff, absent for binary or large files."""

    path: str
    status: Literal["added", "modified", "deleted", "type_changed"]
    added_lines: int | None = None
    removed_lines: int | None = None
    size_bytes: int | None = None
    binary: bool = False
    diff: str | None = None


class ChangeSummary(Answer):
    """What changed in the Workdir since the last snapshot, whoever changed it. Bounded: `omitted_files` says how many are not listed."""

    files: tuple[ChangedFile, ...] = ()
    omitted_files: int = 0
    added_lines: int = 0
    removed_lines: int = 0
    base_tree_id: str | None = None


class SnapshotResult(Answer):
    """The recorded state of the Workdir at a settlement, or why there is none (D-08)."""

    tree_id: str | None = None
    unavailable_why: str | None = None
    changes: ChangeSummary | None = None
    files: int = 0
    size_bytes: int = 0
    took_ms: int = 0


class Event(Answer):
    """One stored event as owners read it. `run_id` None: it is about the conversation and belongs to none of its runs."""

    seq: int
    thread_id: Id
    run_id: Id | None
    kind: EventKind
    data: dict[str, Any]
    original_bytes: int | None = None
    created_at: Moment
