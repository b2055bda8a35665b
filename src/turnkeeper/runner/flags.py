"""What the threads of a worker tell its main thread: that the lease is lost, the time is up, or a cancel was asked for.

Threads set flags; the main thread acts. A main thread that is blocked in a call cannot look, so it says beforehand
which flags may cut that call (`cutting`); raising one then shuts the call's socket down.
"""

import contextlib
import threading
from collections.abc import Callable, Generator
from enum import StrEnum


class Flag(StrEnum):
    """In the order in which they count: a lost lease overrules a time-out, which overrules a cancel."""

    LOST = "lost"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


ANY_FLAG = frozenset(Flag)
LOST_ONLY = frozenset({Flag.LOST})


class Flags:
    """Flags are only ever raised, never lowered."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set by every news: a flag, or `nudge`. The main thread clears it before it looks."""
        self.lost_event = threading.Event()
        """Set with `LOST`; what a pause between two tries waits for."""
        self._lock = threading.Lock()
        self._raised: set[Flag] = set()
        self._cuts: dict[object, tuple[frozenset[Flag], Callable[[], None]]] = {}

    def raise_(self, flag: Flag) -> None:
        """From any thread. Cuts what may be cut by it; the cuts must not block."""
        with self._lock:
            if flag in self._raised:
                return
            self._raised.add(flag)
            cuts = [cut for on, cut in self._cuts.values() if flag in on]
            if flag is Flag.LOST:
                self.lost_event.set()
        for cut in cuts:
            cut()
        self.changed.set()

    def nudge(self) -> None:
        """Something else to look at."""
        self.changed.set()

    def first(self, of: frozenset[Flag] = ANY_FLAG) -> Flag | None:
        """The raised flag that counts most, of those asked for."""
        with self._lock:
            return next((flag for flag in Flag if flag in self._raised and flag in of), None)

    @property
    def lost(self) -> bool:
        """Whether the lease is lost."""
        return self.first(LOST_ONLY) is not None

    @contextlib.contextmanager
    def cutting(self, on: frozenset[Flag], cut: Callable[[], None]) -> Generator[None]:
        """Within the block `cut` is called once when a flag of `on` is raised; at once if one is already."""
        key = object()
        with self._lock:
            self._cuts[key] = (on, cut)
            raised = not self._raised.isdisjoint(on)
        try:
            if raised:
                cut()
            yield
        finally:
            with self._lock:
                del self._cuts[key]
