"""What `up` tells somebody at a terminal who waits for it to start. A script is told nothing before everything is ready."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TextIO

from turnkeeper.kit.clock import system_clock

QUIET_S = 5.0


class Starting:
    """One line at once, and what is waited for whenever that took `quiet_s` and is something else than was said last."""

    def __init__(self, root: Path, out: TextIO | None = None, quiet_s: float = QUIET_S) -> None:
        """`out`: a terminal, or whatever else, which is told nothing; default: stderr."""
        self.waits_for = ""
        self._root = root
        self._out = out or sys.stderr
        self._quiet_s = quiet_s
        self._telling: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """In the event loop that starts things."""
        if self._out.isatty():
            self._say(f"starting in {self._root} …")
            self._telling = asyncio.create_task(self._tell(), name="starting")

    def end(self) -> None:
        """Nothing more is told. May be called twice."""
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        said = ""
        while True:
            await system_clock.sleep(self._quiet_s)
            if self.waits_for != said:
                said = self.waits_for
                self._say(f"still starting: waiting for {said}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # a terminal that is gone, or cannot show a character, stops nothing
            self._out.write(f"{line}\n")
            self._out.flush()
