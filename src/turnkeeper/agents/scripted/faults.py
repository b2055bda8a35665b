"""Faults on order: by the environment at a stage of the protocol, or by a directive in mid-turn."""

from __future__ import annotations

import os
import signal
import threading

from turnkeeper.agents.scripted.wire import STDERR, STDOUT, write_all

STAGES = ("initialize", "new", "load", "resume", "prompt", "permission", "cancel", "close")


class FaultError(Exception):
    """A fault that does not exist; the text is one line for a person."""


def note(text: str) -> None:
    """One line on stderr; whoever reads it may be gone."""
    try:
        write_all(STDERR, f"scripted agent: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        return


def parse_seconds(text: str) -> float | None:
    """A bounded number of seconds (at most a day), or None when ``text`` is none."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 86400 else None


def crash() -> None:
    """Die by SIGSEGV, leaving no core file in somebody's Workdir."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)
    threading.Event().wait()  # the signal may take another thread; this one does nothing more


class Faults:
    """The faults of this process. ``stays`` says that the end of stdin does not end it."""

    def __init__(self, orders: str, *, deaf: bool) -> None:
        """Read ``STAGE:FAULT[:N],…``; raises FaultError."""
        self.stays = deaf
        self._orders: dict[str, tuple[str, int]] = {}
        self._seen: dict[str, int] = dict.fromkeys(STAGES, 0)
        for order in filter(None, (part.strip() for part in orders.split(","))):
            stage, _, rest = order.partition(":")
            fault, _, nth = rest.partition(":")
            if stage not in STAGES:
                raise FaultError(f"fault {order!r}: {stage!r} is not one of {', '.join(STAGES)}")
            if nth and not (nth.isdecimal() and int(nth)):
                raise FaultError(f"fault {order!r}: {nth!r} is not a number from 1")
            self.check(fault)
            self._orders[stage] = (fault, int(nth or 0))

    @staticmethod
    def check(fault: str) -> None:
        """Raise FaultError unless ``fault`` is one."""
        if fault in {"segv", "close-stdout", "hang"}:
            return
        if fault.startswith("exit") and fault[4:].isdecimal() and int(fault[4:]) <= 255:
            return
        if fault.startswith("delay=") and parse_seconds(fault[6:]) is not None:
            return
        raise FaultError(f"fault {fault!r} is not exit0 to exit255, segv, close-stdout, hang or delay=SECONDS")

    def at(self, stage: str) -> bool:
        """Carry out what is ordered for this stage; True when the stage must never be answered."""
        self._seen[stage] += 1
        fault, nth = self._orders.get(stage, ("", 0))
        if not fault or nth not in {0, self._seen[stage]}:
            return False
        return self.carry_out(fault, stage)

    def carry_out(self, fault: str, where: str) -> bool:
        """Carry out a fault that ``check`` accepts; True when nothing must be answered any more."""
        note(f"fault {fault} at {where}")
        if fault == "segv":
            crash()
        if fault.startswith("exit"):
            os._exit(int(fault[4:]))
        if fault.startswith("delay="):
            threading.Event().wait(parse_seconds(fault[6:]))
            return False
        if fault == "close-stdout":
            self.stays = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, STDOUT)  # not close(): the next file to be opened must not become stdout
            os.close(nowhere)
        return True
