"""The worker's part of the dead-man's switch (L-12, protocol.md section 5).

A thread reads the manager's clock mark at short intervals. A renewal carries the newest mark that was read before it was
sent; once it is confirmed, that mark is fed. A delayed feed can only make the kill earlier, never later, and the
renewal never waits for the sandbox.
"""

import threading

from turnkeeper.client.http import CallError
from turnkeeper.client.provisioner import Manager
from turnkeeper.domain.lease import mark_interval
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.heartbeat import note_control_failure
from turnkeeper.runner.lease import Lease
from turnkeeper.wire.sandbox import Feed, Mark


class MarkFeed:
    """`manager` is for this thread alone. `mark_ms` is a mark from before the last confirmed renewal was sent."""

    def __init__(self, manager: Manager, lease: Lease, clock: Clock, log: Logger, *, mark_ms: int) -> None:
        self._manager = manager
        self._lease = lease
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._newest_ms = mark_ms
        self._pending: Feed | None = None
        self._news = threading.Event()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="mark-feed", daemon=True)

    def start(self) -> None:
        """Begin to read marks."""
        self._thread.start()

    def stop(self) -> None:
        """End it. A request in flight is cut."""
        self._stopping = True
        self._news.set()
        self._manager.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def newest_mark(self) -> int:
        """The newest mark that was read. Never blocks on the sandbox."""
        with self._lock:
            return self._newest_ms

    def confirmed(self, mark_ms: int, lease_ttl_s: float) -> None:
        """A renewal that carried `mark_ms` was confirmed: feed it as soon as possible."""
        with self._lock:
            self._pending = Feed(mark_ms=mark_ms, lease_ttl_ms=int(lease_ttl_s * 1000))
        self._news.set()

    def _run(self) -> None:
        read_at = self._clock.monotonic() + mark_interval(self._lease.timing)  # the one at hand is fresh
        while not self._stopping:
            self._news.clear()
            with self._lock:
                feed, self._pending = self._pending, None
            if feed is not None:
                self._attempt(feed)
                continue
            if self._clock.monotonic() >= read_at:
                self._attempt(None)
                read_at = self._clock.monotonic() + mark_interval(self._lease.timing)
            self._clock.wait(self._news, read_at - self._clock.monotonic())

    def _attempt(self, feed: Feed | None) -> None:
        timeout_s = mark_interval(self._lease.timing)
        try:
            answer = self._ask(feed, timeout_s)
        except CallError as error:
            self._note_failure("mark" if feed is None else "feed", error)
            if feed is not None and error.retryable and not self._stopping:
                self._repeat(feed)
            return
        self._failing = False
        with self._lock:
            self._newest_ms = max(self._newest_ms, answer.mark_ms)

    def _ask(self, feed: Feed | None, timeout_s: float) -> Mark:
        if feed is None:
            return self._manager.mark(timeout_s=timeout_s)
        return self._manager.feed(feed, timeout_s=timeout_s)

    def _repeat(self, feed: Feed) -> None:
        """An unanswered feed is repeated at the next chance, unless a newer one has come."""
        with self._lock:
            if self._pending is None:
                self._pending = feed
        self._clock.wait(self._news, min(1.0, mark_interval(self._lease.timing)))

    def _note_failure(self, operation: str, error: CallError) -> None:
        if not self._failing and not self._stopping:  # once per outage (E-03)
            self._failing = True
            note_control_failure(self._log, operation, error)
