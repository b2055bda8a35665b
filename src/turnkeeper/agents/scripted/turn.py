"""One turn: what directives may do, and the order in which they are done."""

from __future__ import annotations

import threading

from turnkeeper.agents.scripted.sessions import REPLY_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs every cold start
    from collections.abc import Callable
    from typing import Any

    from turnkeeper.agents.scripted.faults import Faults
    from turnkeeper.agents.scripted.sessions import Session
    from turnkeeper.agents.scripted.wire import Answer, Wire


class CancelError(Exception):
    """The client cancelled this turn."""


class NoAnswerError(Exception):
    """This prompt gets no answer."""


class FailError(Exception):
    """This prompt is answered by an error whose message is these bytes, as they stand within a JSON string."""

    def __init__(self, message: bytes) -> None:
        super().__init__()
        self.message = message


class UsageError(Exception):
    """A directive was used wrongly; the text says how to use it."""


class Turn:
    """The state of one prompt. The reading thread calls ``cancel`` alone; the rest belongs to the turn's own thread."""

    def __init__(self, wire: Wire, faults: Faults, session: Session, text: str) -> None:
        self.wire = wire
        self.faults = faults
        self.session = session
        self.text = text
        self.number, self.remembered = session.begin(text)
        self.late: list[str] = []
        self._reply: list[str] = []
        self._tools = 0
        # From the begin: a cancel that overtakes the directive would end the turn after all.
        self._ignores_cancel = any(line.strip() == "/hang" for line in text.split("\n"))
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._on_cancel: Callable[[], None] | None = None

    # what has been said

    @property
    def reply(self) -> str:
        """What was said so far."""
        return "".join(self._reply)

    def remember(self, text: str) -> None:
        """Keep what was said for a later load, within its bound."""
        if sum(map(len, self._reply)) < REPLY_CHARS_MAX:
            self._reply.append(text)

    def say(self, text: str) -> None:
        """One chunk, on a new line unless it is the first of the turn."""
        self.chunk(f"\n{text}" if self._reply else text)

    def chunk(self, text: str) -> None:
        """One chunk as it is."""
        self.remember(text)
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def update(self, name: str, /, **fields: Any) -> None:
        """Any ``session/update``."""
        self.wire.update(self.session.id, {"sessionUpdate": name, **fields})

    # tool calls

    def tool(self, kind: str, title: str, status: str = "in_progress", **fields: Any) -> str:
        """Open a tool call; returns its id, unique within the session."""
        self._tools += 1
        call = f"call-{self.number}-{self._tools}"
        self.update("tool_call", toolCallId=call, kind=kind, title=title, status=status, **fields)
        return call

    def tool_done(self, call: str, status: str, **fields: Any) -> None:
        """End a tool call as ``completed`` or ``failed``."""
        self.update("tool_call_update", toolCallId=call, status=status, **fields)

    def ask_permission(self, tool_call: dict[str, Any], options: list[dict[str, str]]) -> Answer:
        """Send ``session/request_permission``."""
        params = {"sessionId": self.session.id, "toolCall": tool_call, "options": options}
        return self.wire.ask("session/request_permission", params)

    # cancel

    def cancel(self, *, ends: bool = False) -> None:
        """The client cancels, or the agent ``ends``: wakes what waits, and calls what was left to be called."""
        if self._ignores_cancel and not ends:
            return
        with self._lock:
            self._cancelled.set()
            if self._on_cancel is not None:
                self._on_cancel()

    def call_on_cancel(self, callback: Callable[[], None] | None) -> None:
        """Have ``callback`` called by a cancel from now on, at once if it has already come; None takes it back."""
        with self._lock:
            self._on_cancel = callback
            if callback is not None and self._cancelled.is_set():
                callback()

    def check(self) -> None:
        """Raise CancelError once the client has cancelled."""
        if self._cancelled.is_set():
            raise CancelError

    def wait(self, seconds: float) -> None:
        """Wait; raises CancelError as soon as the client cancels."""
        if self._cancelled.wait(seconds):
            raise CancelError


def perform(turn: Turn, directives: dict[str, Callable[[Turn, str], None]]) -> None:
    """Carry out a prompt line by line; raises CancelError, NoAnswerError or FailError."""
    for line in turn.text.split("\n"):
        order = line.strip(" \t\r")
        turn.check()
        if not order:
            continue
        if not order.startswith("/"):
            turn.say(f"turn {turn.number}, remembering {turn.remembered} earlier turns: {order}")
            continue
        name, _, argument = order.partition(" ")
        directive = directives.get(name)
        if directive is None:
            turn.say(f"unknown directive {name}")
            continue
        try:
            directive(turn, argument.strip())
        except UsageError as error:
            turn.say(f"usage: {name} {error}")
    turn.check()
