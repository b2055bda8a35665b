"""The thread that waits for a cancel (T-03): a hint that makes it fast. Without it the next renewal tells."""

import threading
from collections.abc import Callable
from typing import Final

from turnkeeper.client.control import JobControl
from turnkeeper.client.http import CallError
from turnkeeper.kit.clock import Clock

_PAUSE_S: Final = 5.0
_START_S: Final = 0.25
"""The first wait begins a little later: the first steps of the turn want the processor."""


class SignalWait:
    """`on_cancel` and `on_ended` must not block. `on_ended` is a hint that the lease is gone."""

    def __init__(
        self,
        control: JobControl,
        clock: Clock,
        wait_s: float,
        *,
        on_cancel: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._control = control
        self._clock = clock
        self._wait_s = wait_s
        self._on_cancel = on_cancel
        self._on_ended = on_ended
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self) -> None:
        """End it; the open request is cut."""
        self._stopped.set()
        self._control.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        cancelled = False
        self._clock.wait(self._stopped, _START_S)
        while not self._stopped.is_set():
            asked_at = self._clock.monotonic()
            try:
                signals = self._control.signals(self._wait_s)
            except CallError as error:
                if not self._stopped.is_set() and not error.retryable:
                    self._on_ended()  # refused: a renewal says for sure
                self._clock.wait(self._stopped, _PAUSE_S)
                continue
            if signals.cancel_requested and not cancelled:
                cancelled = True
                self._on_cancel()
            if signals.ended:
                self._on_ended()
            if cancelled or self._clock.monotonic() - asked_at < 1.0:
                # the server answers at once from now on: do not go round in circles
                self._clock.wait(self._stopped, _PAUSE_S if cancelled or signals.ended else 1.0)
