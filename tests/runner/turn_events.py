"""The numbered event stream of a simulated sandbox manager, which a test fills and may have cut."""

import threading
from collections.abc import Iterator
from typing import Any

from runner.behaviours import JSON


class TurnEvents:
    """The manager's numbered stream of one activation."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.lines: list[JSON] = []
        self.ended = False
        self.cut_after_lines: int | None = None  # cut each connection after so many lines …
        self.cut_inside: bool = False  # … in the middle of the next one
        self.repeats: bool = False  # begin with the first line, whatever was asked for

    def add(self, kind: str, **data: Any) -> int:
        """One event; returns its number."""
        with self._changed:
            number = len(self.lines) + 1
            self.lines.append({"n": number, "kind": kind, "data": data})
            self._changed.notify_all()
            return number

    def end(self, **how: Any) -> None:
        """The last line: `receipt` or `failure`."""
        with self._changed:
            if not self.ended:
                self.ended = True
                self.lines.append({"n": len(self.lines) + 1, "last": True, **how})
                self._changed.notify_all()

    def after(self, number: int, closing: threading.Event) -> Iterator[JSON]:
        """Lines from `number` + 1 on, as they come."""
        number = 0 if self.repeats else number
        while not closing.is_set():
            with self._changed:
                line = next((line for line in self.lines if line["n"] > number), None)
                if line is None:
                    if self.ended:
                        if self.lines and self.lines[-1]["n"] <= number:
                            yield self.lines[-1]  # the last line, again
                        return
                    self._changed.wait(0.02)
                    continue
            yield line
            number = line["n"]
            if line.get("last"):
                return
