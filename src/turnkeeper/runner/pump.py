"""Events from the sandbox manager to the control plane (step 10), without ever holding up the turn.

A reader follows the manager's stream to its last line, which says how the turn ended. An uploader takes what was read to
the control plane in batches: at once when it has been idle, else what gathered since the last batch. The buffer between
them is bounded. When it is full the reader lets events go and only looks for the last line; the uploader reads them
again from the manager by number.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turnkeeper.client.control import JobControl
from turnkeeper.client.http import CallError, ClientError
from turnkeeper.client.provisioner import Manager
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.runner.stream import StreamGone, TurnStream
from turnkeeper.wire.sandbox import TurnLine
from turnkeeper.wire.turn import EventKind
from turnkeeper.wire.worker import TurnEvent

BATCH_EVENTS_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1 << 20
BATCH_INTERVAL_S: Final = 0.02
BUFFER_BYTES_MAX: Final = 4 << 20
BUFFER_EVENTS_MAX: Final = 10_000
_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_JOIN_S: Final = 2.0
_LATE_S: Final = 2.0
_REFUSED_STATUSES: Final = frozenset({400, 401, 403, 404, 409, 410, 413, 422})


@dataclass(frozen=True)
class _Buffered:
    event: TurnEvent
    size_bytes: int


class EventPump:
    """`may_write` says whether the lease is held; `on_news` is called when the stream has ended; `on_refused` when the control plane
    refused events, which may mean that the lease is gone. Neither may block.

    `new_manager` gives a client for one reader.
    """

    def __init__(
        self,
        new_manager: Callable[[], Manager],
        control: JobControl,
        clock: Clock,
        log: Logger,
        *,
        timeout_s: float,
        may_write: Callable[[], bool],
        on_news: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._new_manager = new_manager
        self._control = control
        self._clock = clock
        self._log = log
        self._timeout_s = timeout_s
        self._may_write = may_write
        self._on_news = on_news
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._buffer: deque[_Buffered] = deque()
        self._buffer_bytes = 0
        self._seen = 0  # the last number that the reader has seen
        self._turn_seen = False  # something that only a turn says has been read
        self._kept = 0  # the last number that went into the buffer; below `_seen`: events were let go
        self._uploaded = 0
        self._last: TurnLine | None = None
        self._gone: StreamGone | None = None
        self._dead = False  # the control plane takes no events of this attempt any more
        self._stopped = threading.Event()
        self._ending = threading.Event()  # no batch waits for company any more
        self._news = threading.Event()
        self._progress = threading.Event()
        self._managers: list[Manager] = []
        self._started = False
        self._threads = (
            threading.Thread(target=self._read, name="events-reader", daemon=True),
            threading.Thread(target=self._upload, name="events-uploader", daemon=True),
        )

    def start(self) -> None:
        """Begin to read and to upload: not before the prompt is out, which must not wait for anything. May be called twice.

        Nothing is missed: the manager keeps what happened before, numbered.
        """
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """End both threads; open requests to the sandbox are cut, and a batch on its way is waited for briefly."""
        self._stopped.set()
        self._ending.set()
        self._news.set()
        with self._lock:
            managers = list(self._managers)
        for manager in managers:
            manager.interrupt()
        for thread in self._threads if self._started else ():
            thread.join(timeout=_JOIN_S)

    @property
    def last(self) -> TurnLine | None:
        """The last line of the turn, once it came."""
        with self._lock:
            return self._last

    @property
    def gone(self) -> StreamGone | None:
        """Why there will be no last line."""
        with self._lock:
            return self._gone

    @property
    def turn_seen(self) -> bool:
        """Whether an event has come that shows that the prompt has arrived."""
        with self._lock:
            return self._turn_seen

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was read is stored, at most `timeout_s`. False: it is not.

        A turn that ends before its prompt is only read now, to its last line: what its session said explains its end.
        """
        whole = not self._started
        self.start()
        end = self._clock.monotonic() + (min(timeout_s, _LATE_S) if whole else timeout_s)
        while True:
            self._progress.clear()
            with self._lock:
                over = self._last is not None or self._gone is not None
                if self._uploaded >= self._seen and (over or not whole):
                    return True
                if self._dead or self._stopped.is_set():
                    return False
            left = end - self._clock.monotonic()
            if left <= 0:
                return False
            self._clock.wait(self._progress, left)

    def add_own(self, kind: EventKind, data: dict[str, object]) -> None:
        """Store one event of the worker's own, after everything that was read. One try; raises `CallError`."""
        with self._lock:
            number = self._uploaded + 1
        self._control.events((TurnEvent(n=number, kind=kind, data=data),), timeout_s=self._timeout_s)
        with self._lock:
            self._uploaded = max(self._uploaded, number)

    def _manager(self) -> Manager:
        manager = self._new_manager()
        with self._lock:
            self._managers.append(manager)
        if self._stopped.is_set():
            manager.interrupt()
        return manager

    def _read(self) -> None:
        stream = TurnStream(self._manager(), self._clock, self._log, self._stopped)
        try:
            for line, size_bytes in stream.lines(0):
                self._take(line, size_bytes)
        finally:  # whatever ended the reading, the turn does not wait for it any more
            with self._lock:
                self._gone = stream.gone or StreamGone("ReaderEnded")
            self._progress.set()
            self._on_news()

    def _take(self, line: TurnLine, size_bytes: int) -> None:
        with self._lock:
            if line.kind is not None:
                contiguous = self._kept == self._seen
                self._seen = line.n
                # The session's own event precedes the prompt, and may be read before or after the prompt is sent.
                self._turn_seen = self._turn_seen or line.kind is not EventKind.SESSION
                if contiguous:
                    self._keep(line, size_bytes)
            if line.last:
                self._last = line
                self._ending.set()
        self._news.set()
        if line.last:
            self._on_news()

    def _keep(self, line: TurnLine, size_bytes: int) -> bool:
        """Called with the lock held. False: the buffer is full, and the event was let go."""
        if line.kind is None:
            return True
        event = TurnEvent(n=line.n, kind=line.kind, data=line.data, original_bytes=line.original_bytes)
        full = len(self._buffer) >= BUFFER_EVENTS_MAX or self._buffer_bytes + size_bytes > BUFFER_BYTES_MAX
        if full and self._buffer:
            return False
        self._buffer.append(_Buffered(event, size_bytes))
        self._buffer_bytes += size_bytes
        self._kept = line.n
        return True

    def _upload(self) -> None:
        failures = 0
        next_at = 0.0
        while not self._stopped.is_set():
            self._news.clear()
            batch = self._next_batch()
            if not batch:
                if self._is_behind():
                    self._read_again()
                else:
                    self._clock.wait(self._news, 3600)
                continue
            pause_s = next_at - self._clock.monotonic()
            if pause_s > 0 and self.last is None:
                self._clock.wait(self._ending, pause_s)
                batch = self._next_batch()
            next_at = self._clock.monotonic() + BATCH_INTERVAL_S
            if self._send(batch, failures):
                failures = 0
            elif self._dead:
                return
            else:
                self._clock.wait(self._stopped, _PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1

    def _next_batch(self) -> tuple[TurnEvent, ...]:
        with self._lock:
            batch: list[TurnEvent] = []
            size = 0
            for buffered in self._buffer:
                size += buffered.size_bytes
                if batch and (size > BATCH_BYTES_MAX or len(batch) >= BATCH_EVENTS_MAX):
                    break
                batch.append(buffered.event)
            return tuple(batch)

    def _send(self, batch: tuple[TurnEvent, ...], failures: int) -> bool:
        if not self._may_write():  # paused beyond the lease, this thread may be the first to go on: nothing is written
            self._dead = True
            self._on_refused()
            self._progress.set()
            return False
        try:
            wanted = self._control.events(batch, timeout_s=self._timeout_s)
        except CallError as error:
            status = error.status if isinstance(error, ClientError) else None
            if failures == 0 and not self._stopped.is_set():  # once per outage (E-03)
                self._log.warning(
                    "agent_control_failure",
                    operation="events_upload",
                    exception=exception_name(error),
                    http_status=status,
                )
            if status in _REFUSED_STATUSES:
                self._dead = True
                self._on_refused()
            elif exception_name(error) == "Interrupted":  # the lease is lost
                self._dead = True
            self._progress.set()
            return False
        with self._lock:
            # Never below what was sent: an answer that wants less would have us send the same batch for ever.
            self._uploaded = max(self._uploaded, wanted - 1, batch[-1].n)
            while self._buffer and self._buffer[0].event.n <= self._uploaded:
                self._buffer_bytes -= self._buffer.popleft().size_bytes
            self._kept = max(self._kept, self._uploaded)
        self._progress.set()
        return True

    def _is_behind(self) -> bool:
        with self._lock:
            return self._kept < self._seen and not self._buffer

    def _read_again(self) -> None:
        """Fill the buffer with events that the reader let go."""
        stream = TurnStream(self._manager(), self._clock, self._log, self._stopped)
        for line, size_bytes in stream.lines(self._kept):
            with self._lock:
                if not self._keep(line, size_bytes) or self._kept >= self._seen:
                    return
        if stream.gone is not None:
            self._log.warning("agent_events_lost", first=self._kept + 1, last=self._seen)
            self._dead = True
            self._progress.set()
