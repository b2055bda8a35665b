"""Starting, stopping and waiting.

A service starts synchronously (when `start` returns, it works) and stops idempotently and in bounded time. Signals set
a flag; whoever runs the process looks at the flag and acts.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Protocol

from turnkeeper.kit.clock import Clock, system_clock

_WAIT_SLICE_S = 0.5


class Deadline:
    """A moment on a suspend-proof clock that bounded waits are counted against."""

    def __init__(self, at: float, clock: Clock = system_clock) -> None:
        self.at = at
        self._clock = clock

    @classmethod
    def after(cls, s: float, clock: Clock = system_clock) -> "Deadline":
        """`s` seconds from now."""
        return cls(clock.monotonic() + s, clock)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self._clock.monotonic() >= self.at

    def sooner(self, s: float) -> "Deadline":
        """This deadline, or `s` seconds from now if that is earlier."""
        return Deadline(min(self.at, self._clock.monotonic() + s), self._clock)


class StopSignal:
    """A flag with a reason that threads and event loops can wait for. The first reason stays."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._impatient: list[Callable[[], None]] = []
        self._again = False

    @property
    def event(self) -> threading.Event:
        """The flag itself, for `Clock.wait`. Set it with `set` only."""
        return self._event

    @property
    def reason(self) -> str | None:
        """Why, or None while nobody has asked to stop."""
        return self._reason

    @property
    def is_set(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._event.is_set()

    def set(self, reason: str) -> bool:
        """Ask to stop. True for the first, False for everybody later. Not for use inside a signal handler."""
        with self._lock:
            first = not self._event.is_set()
            if first:
                self._reason = reason
                self._event.set()
                callbacks, self._callbacks = self._callbacks, []
            else:
                self._again = True
                callbacks = list(self._impatient)
        for callback in callbacks:
            callback()
        return first

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait in a thread. False if the time passed first."""
        if timeout_s is not None:
            return system_clock.wait(self._event, timeout_s)
        while not self._event.wait(_WAIT_SLICE_S):  # in slices, so that the main thread keeps handling signals
            pass
        return True

    async def wait_async(self) -> str:
        """Wait in an event loop; returns the reason."""
        import asyncio

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime: nobody waits any more
                loop.call_soon_threadsafe(finish)

        self.on_set(wake)
        try:
            await done
        finally:
            self._forget(wake)
        return self._reason or ""

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the flag is set, at once if it is already. It must not block."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def on_again(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time that somebody asks again: they want it to end now. At once if somebody already has.
        It must not block."""
        with self._lock:
            self._impatient.append(callback)
            again = self._again
        if again:
            callback()

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    @contextlib.contextmanager
    def on_signals(self, *signals: signal.Signals) -> Generator["StopSignal"]:
        """Within the block SIGTERM and SIGINT (or the given signals) set the flag. Main thread only.

        A handler runs between two byte codes of whatever the main thread does, perhaps while it holds the flag's own
        lock. So the handler only writes a byte into a pipe, and a thread of its own sets the flag.
        """
        wanted = signals or (signal.SIGTERM, signal.SIGINT)
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(read_fd, True)

        def handle(number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(BlockingIOError):  # a full pipe holds more than enough news
                os.write(write_fd, bytes([number]))

        def read() -> None:
            while data := os.read(read_fd, 1):
                self.set(signal.Signals(data[0]).name)

        reader = threading.Thread(target=read, name="signals", daemon=True)
        reader.start()
        before = {number: signal.signal(number, handle) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(write_fd)
            reader.join(timeout=5)
            os.close(read_fd)


class Service(Protocol):
    """Something that runs beside the main thread."""

    def start(self) -> None:
        """Returns when it works; raises when it cannot."""
        ...

    def stop(self) -> None:
        """Ends it in bounded time. May be called twice, and before `start`."""
        ...


class ThreadService:
    """A service that is one thread. Subclasses write `run`, which calls `ready()` and ends soon after `stopping` is set."""

    def __init__(self, name: str, *, start_timeout_s: float = 30.0, stop_timeout_s: float = 30.0) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        """The thread's work."""
        raise TypeError(f"{type(self).__name__} has no run()")

    def ready(self) -> None:
        """Called by `run` when the service works."""
        self._ready.set()

    @property
    def failure(self) -> BaseException | None:
        """What `run` raised, if it did."""
        return self._failure

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread and wait until it is ready. Raises what `run` raised before that."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
            self._thread.start()
        if not self._ready.wait(self._start_timeout_s):
            self.stopping.set()
            raise TimeoutError(f"{self.name} was not ready after {self._start_timeout_s:g} s")
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask the thread to end and wait for it, in bounded time."""
        self.stopping.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(self._stop_timeout_s)
        if thread.is_alive():
            raise TimeoutError(f"{self.name} did not end within {self._stop_timeout_s:g} s")

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # kept for whoever started the thread
            self._failure = failure
        finally:
            self._ready.set()


def run_until_stopped(services: Sequence[Service], stop: StopSignal) -> str:
    """Start `services` in order, wait for the flag, stop them in reverse order; returns the reason.

    What was started is stopped also when a later one cannot start. Every `stop` is tried; the first failure is raised.
    """
    started: list[Service] = []
    try:
        for service in services:
            started.append(service)
            service.start()
        stop.wait()
    finally:
        stop_all(started)
    return stop.reason or ""


def stop_all(services: Sequence[Service]) -> None:
    """Stop in reverse order, all of them, then raise the first failure."""
    failures: list[Exception] = []
    for service in reversed(services):
        try:
            service.stop()
        except Exception as failure:  # the others must be stopped too; raised below
            failures.append(failure)
    if failures:
        raise failures[0]
