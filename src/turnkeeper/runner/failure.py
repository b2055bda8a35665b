"""What went wrong in a turn, as its report will say it.

Three exceptions leave a step: `TurnFailed` (the step cannot be done), `Halted` (a flag says that the turn must end now)
and `LeaseLost` (nothing more may be written). `turn` catches them in one place.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from turnkeeper.client.http import CallError, ClientError
from turnkeeper.domain.errors import ErrorCode, ProblemCode
from turnkeeper.runner.flags import Flag
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.wire.sandbox import AgentFailure
from turnkeeper.wire.worker import FailureReport

TEXT_CHARS_MAX: Final = 4000
Delivered = Literal["no", "yes", "unknown"]


class Stage(StrEnum):
    """Where a turn is: the steps of protocol.md section 4, in order."""

    PREPARE = "prepare"
    MANIFEST = "manifest"
    SANDBOX = "sandbox"
    CONTAINER = "container"
    ACTIVATE = "activate"
    TAKE = "take"
    SETUP = "setup"
    SESSION = "session"
    ADMIT = "admit"
    PROMPT = "prompt"
    SETTLE = "settle"
    FINISH = "finish"


@dataclass(frozen=True)
class Failure:
    """One failure. `stage` is one of `Stage`, or the manager's own word for where an agent failed (F07).

    `code` None: the turn was cancelled. No URL, token, body or exception text is in here (E-02); `text` and
    `stderr_tail` are the agent's, but where a `refusal` is named: then `text` is the line of that problem, which is ours.
    """

    code: ErrorCode
    stage: str
    delivered: Delivered = "no"
    exception: str | None = None
    http_status: int | None = None
    refusal: str | None = None
    exit: int | None = None
    stderr_tail: str | None = None
    text: str | None = None

    def at(self, delivered: Delivered) -> "Failure":
        """The same with what is known of the delivery by now."""
        return replace(self, delivered=delivered)

    def report(self) -> FailureReport:
        """As the control plane takes it."""
        return FailureReport(
            code=self.code.value,
            stage=self.stage[:100],
            delivered=self.delivered,
            exception=None if self.exception is None else self.exception[:200],
            http_status=self.http_status,
            refusal=self.refusal,
            exit_code=self.exit if self.exit is not None and self.exit >= 0 else None,
            exit_signal=-self.exit if self.exit is not None and self.exit < 0 else None,
            stderr_tail=None if self.stderr_tail is None else self.stderr_tail[-65536:],
            text=None if self.text is None else self.text[:TEXT_CHARS_MAX],
        )


# Steps that are asked of control plane and provisioner. The others go into the sandbox, whose words are not ours to repeat.
_ASKED_OURSELVES: Final = frozenset(
    {Stage.PREPARE, Stage.MANIFEST, Stage.SANDBOX, Stage.CONTAINER, Stage.ACTIVATE, Stage.ADMIT}
)
# What answers with none of these is something else, such as a proxy on the way.
_OUR_CODES: Final = frozenset({*ProblemCode, *ErrorCode})


class TurnFailed(Exception):  # noqa: N818 - one of three ways for a step to end
    """The step cannot be done, and the turn with it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.stage}: {failure.code}")
        self.failure = failure


class Halted(Exception):  # noqa: N818
    """The turn must end because of a time-out or a cancel."""

    def __init__(self, flag: Flag) -> None:
        super().__init__(flag.value)
        self.flag = flag


class LeaseLost(Exception):  # noqa: N818
    """Nothing may be written to the control plane any more."""


def failure_of(error: CallError, code: ErrorCode, stage: Stage, delivered: Delivered = "no") -> Failure:
    """The failure that a call ended with, and why, where a problem of our own said so.

    In whichever step it is noticed that the dead-man's switch has ended the activation: such an end has its own code
    (protocol.md, section 5).
    """
    if not isinstance(error, ClientError):
        return Failure(code, stage.value, delivered, exception=exception_name(error))
    refusal = error.code if error.code in _OUR_CODES else None
    if refusal == ErrorCode.LEASE_FEED_LOST.value:
        code = ErrorCode.LEASE_FEED_LOST
    return Failure(
        code,
        stage.value,
        delivered,
        exception=exception_name(error),
        http_status=error.status,
        refusal=refusal,
        text=(error.detail or None) if refusal is not None and stage in _ASKED_OURSELVES else None,
    )


def failure_of_agent(failure: AgentFailure, delivered: Delivered) -> Failure:
    """The failure of an agent as its manager tells it.

    Before the prompt an agent that leaves could not be started, or could not give its session back, whatever it left by.
    """
    code = _known_code(failure.code) or ErrorCode.AGENT_EXITED
    if failure.stage in ("load", "resume"):
        code = ErrorCode.SESSION_UNAVAILABLE
    elif failure.stage in ("start", "initialize", "new") and code is ErrorCode.AGENT_EXITED:
        code = ErrorCode.AGENT_START_FAILED
    return Failure(
        code,
        failure.stage,
        delivered,
        exit=failure.exit,
        stderr_tail=failure.stderr_tail or None,
        text=failure.text or None,
    )


def code_of(text: str | None, otherwise: ErrorCode) -> ErrorCode:
    """The error code called `text`, or `otherwise`."""
    return (None if text is None else _known_code(text)) or otherwise


def _known_code(text: str) -> ErrorCode | None:
    return ErrorCode(text) if text in set(ErrorCode) else None
