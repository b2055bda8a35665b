"""Step 9: the prompt, once, and the wait for the end of the turn.

The prompt is never sent again once it may have left (F-05, R-03). A prompt that was not answered may have reached the
agent all the same, so its stream is followed; only where the stream stays silent is the turn stopped and the manager
asked what it knows.
"""

from dataclasses import dataclass
from typing import Final

from turnkeeper.client.http import CallError, ClientError, ConnectionFailed
from turnkeeper.client.provisioner import Manager
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.runner.failure import Failure, LeaseLost, Stage, TurnFailed, failure_of, failure_of_agent
from turnkeeper.runner.flags import Flag
from turnkeeper.runner.heartbeat import note_control_failure
from turnkeeper.runner.pump import EventPump
from turnkeeper.runner.worker import Beside, Worker
from turnkeeper.wire.sandbox import Prompt
from turnkeeper.wire.turn import SettlementReceipt
from turnkeeper.wire.worker import ExecutionSpec

PROMPT_TIMEOUT_S: Final = 30.0
CANCEL_TIMEOUT_S: Final = 5.0
_CONNECT_PAUSES_S: Final = (0.2, 1.0)


@dataclass(frozen=True)
class Settled:
    """The supervisor has settled the turn. `asked`: why the agent had been asked to end it, if it was."""

    receipt: SettlementReceipt
    asked: Flag | None = None


@dataclass(frozen=True)
class Unsettled:
    """The turn did not end at a boundary: `failure` says why. The manager may know better once it was stopped.

    `asked` is set where the agent had been asked to end the turn: then that is why it ended.
    """

    failure: Failure
    asked: Flag | None = None


@dataclass(frozen=True)
class OutOfTime:
    """The agent did not end its turn within the grace after a cancel or a time-out."""

    flag: Flag


TurnEnd = Settled | Unsettled | OutOfTime


def send_prompt(worker: Worker, manager: Manager, spec: ExecutionSpec) -> bool:
    """Send the prompt. True: it was journalled and written. False: nobody knows. Raises `TurnFailed`, `LeaseLost`."""
    request = Prompt(run=spec.job, text=spec.prompt)
    pauses_s = iter(_CONNECT_PAUSES_S)
    while True:
        try:
            worker.undisturbed(lambda: manager.prompt(request, timeout_s=PROMPT_TIMEOUT_S), manager.interrupt)
            return True
        except ClientError as error:
            if error.status >= 500:
                return False
            delivered = "unknown" if error.code == "prompt_used" else "no"
            raise TurnFailed(failure_of(error, ErrorCode.SANDBOX_UNAVAILABLE, Stage.PROMPT, delivered)) from error
        except ConnectionFailed as error:
            note_control_failure(worker.log, "prompt", error)
            pause_s = next(pauses_s, None)
            if error.sent:
                return False
            if pause_s is None:  # no connection was ever made: it provably never left
                raise TurnFailed(failure_of(error, ErrorCode.SANDBOX_UNAVAILABLE, Stage.PROMPT)) from error
            worker.clock.wait(worker.flags.lost_event, pause_s)


class Follow:
    """Waits for the end of the turn in the main thread, and passes a cancel or time-out on to the agent."""

    def __init__(self, worker: Worker, manager: Manager, pump: EventPump, *, answered: bool) -> None:
        """`answered`: the prompt's answer came."""
        self._worker = worker
        self._manager = manager
        self._pump = pump
        self._answered = answered
        self._asked: Flag | None = None
        self._give_up_at: float | None = None
        # How long the stream of a prompt that was not answered may stay silent: 15 s with the defaults.
        self._silent_until = worker.clock.monotonic() + worker.timing.control_timeout_s / 2

    def to_the_end(self) -> TurnEnd:
        """Raises `LeaseLost`."""
        flags = self._worker.flags
        while True:
            flags.changed.clear()
            if flags.lost:
                raise LeaseLost
            end = self._end()
            if end is not None:
                return end
            self._pass_on()
            self._worker.clock.wait(flags.changed, self._wait_s())

    def _end(self) -> TurnEnd | None:
        last, gone = self._pump.last, self._pump.gone
        if last is not None and last.receipt is not None:
            return Settled(last.receipt, self._asked)
        if last is not None and last.failure is not None:
            return Unsettled(failure_of_agent(last.failure, "unknown"), self._asked)
        if last is not None or gone is not None:
            # The instance has ended or somebody else has taken over, or the last line does not say how.
            status = None if gone is None else gone.status
            exception = None if gone is None else gone.exception
            return Unsettled(
                Failure(
                    ErrorCode.OUTCOME_UNKNOWN, Stage.PROMPT.value, "unknown", exception=exception, http_status=status
                ),
                self._asked,
            )
        now = self._worker.clock.monotonic()
        if self._asked is not None and self._give_up_at is not None and now >= self._give_up_at:
            return OutOfTime(self._asked)
        if not self._answered and not self._pump.turn_seen and now >= self._silent_until:
            return Unsettled(Failure(ErrorCode.OUTCOME_UNKNOWN, Stage.PROMPT.value, "unknown"))
        return None

    def _pass_on(self) -> None:
        """Ask the agent to end, once per reason. In a thread: whether it answers or not, the grace runs."""
        flag = self._worker.flags.first()
        if flag is None or self._asked is not None:
            return
        self._asked = flag
        self._give_up_at = self._worker.clock.monotonic() + self._worker.timing.cancel_grace_s
        Beside(self._cancel)

    def _cancel(self) -> None:
        try:
            self._manager.cancel(timeout_s=CANCEL_TIMEOUT_S)
        except CallError as error:
            note_control_failure(self._worker.log, "cancel", error)

    def _wait_s(self) -> float:
        now = self._worker.clock.monotonic()
        moments = [now + 3600.0]
        if self._give_up_at is not None:
            moments.append(self._give_up_at)
        if not self._answered and not self._pump.turn_seen:
            moments.append(self._silent_until)
        return max(0.0, min(moments) - now)
