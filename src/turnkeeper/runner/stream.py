"""Following the manager's event stream by number (F09).

The stream is lines of `TurnLine`, numbered from 1 within the activation and held open until the turn has ended. A cut
connection, also one that was cut inside a line, is opened again after the last number that arrived whole, so that each
line is seen once and in order.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from turnkeeper.client.http import CallError, ClientError, ConnectionFailed
from turnkeeper.client.provisioner import Manager
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.wire.sandbox import TurnLine

_PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0)
_FRUITLESS_MAX: Final = 5
"""How often in a row the manager may answer and yet say nothing that can be used."""
_ENDED_STATUSES: Final = frozenset({401, 403, 404, 409, 410})
_LINE_BYTES_MAX: Final = 16 << 20
SILENCE_S: Final = 60.0
"""A stream that says nothing for this long is opened again: an agent may well be silent, and so is a dead connection."""


class UnusableError(Exception):
    """The manager speaks in a way that does not make sense."""


@dataclass(frozen=True)
class StreamGone:
    """The stream cannot be read any more: the instance has ended, or somebody else has taken over. `status` None: it
    makes no sense."""

    exception: str
    status: int | None = None


class TurnStream:
    """One reader of one activation's stream. `manager` is for this reader alone."""

    def __init__(self, manager: Manager, clock: Clock, log: Logger, stopped: threading.Event) -> None:
        self._manager = manager
        self._clock = clock
        self._log = log
        self._stopped = stopped
        self.gone: StreamGone | None = None

    def lines(self, after: int) -> Iterator[tuple[TurnLine, int]]:
        """Every line after number `after`, to the last, with its size in bytes. Ends early when it was stopped, or with
        `gone` set."""
        failures, fruitless = 0, 0
        while not self._stopped.is_set():
            before = after
            try:
                for line, size_bytes in self._read(after):
                    after = line.n
                    yield line, size_bytes
                    if line.last:
                        return
                fruitless += after == before
            except UnusableError as error:
                fruitless += 1
                self._note(failures, type(error).__name__, None)
            except ClientError as error:
                if error.status in _ENDED_STATUSES:
                    self.gone = StreamGone(exception_name(error), error.status)
                    return
                self._note(failures, exception_name(error), error.status)
            except ConnectionFailed as error:
                if error.kind == "ReadTimeout":
                    continue
                self._note(failures, exception_name(error), None)
            except CallError as error:
                fruitless += not error.retryable  # a line that is too long
                self._note(failures, exception_name(error), None)
            failures = 0 if after > before else failures + 1
            fruitless = 0 if after > before else fruitless
            if fruitless > _FRUITLESS_MAX:
                self.gone = StreamGone("UnusableStream")
                return
            self._clock.wait(self._stopped, _PAUSES_S[min(failures, len(_PAUSES_S) - 1)])

    def _read(self, after: int) -> Iterator[tuple[TurnLine, int]]:
        with self._manager.events(after, silence_s=SILENCE_S) as stream:
            for raw in stream.lines(_LINE_BYTES_MAX):
                try:
                    line = TurnLine.model_validate_json(raw)
                except ValidationError:
                    raise UnusableError from None
                if line.n <= after and not line.last:
                    continue
                if line.n > after + 1:
                    raise UnusableError
                after = max(after, line.n)
                yield line, len(raw)

    def _note(self, failures: int, exception: str, status: int | None) -> None:
        if failures == 0 and not self._stopped.is_set():  # once per outage (E-03)
            self._log.warning("agent_control_failure", operation="events", exception=exception, http_status=status)
