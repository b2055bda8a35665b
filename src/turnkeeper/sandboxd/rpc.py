"""JSON-RPC over an agent's stdio (Agent Client Protocol v1), between two pipes and the event loop.

Own lines and not the protocol package's connection, for reasons that decide promises: an update is handled in the very
call that read it, so that events keep the order of the wire and what comes after a response is never credited to it; a
frame is bounded (F11); broken bytes are replaced and not fatal (F10); the end of the agent fails every open request at
once (F07); and the package's import alone takes a second and 20 MB in every sandbox.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from turnkeeper.kit import text as hygiene
from turnkeeper.sandboxd.framing import Envelope, LineSplitter, Oversized, read_head
from turnkeeper.sandboxd.largeline import LARGE_LINE_BYTES, read_large
from turnkeeper.sandboxd.updates import as_object, word

READ_BYTES: Final = 256 * 1024
_READS_AT_ONCE_MAX: Final = 64
_UNWRITTEN_BYTES_MAX: Final = 16 * 1024 * 1024

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601


class AgentGoneError(Exception):
    """The agent ended, closed its stdout, or cannot be spoken to any more."""


class AgentRefusedError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Answered:
    """The answer to a request of ours."""

    result: dict[str, Any]


Answer = Answered | AgentRefusedError | AgentGoneError


class Peer(Protocol):
    """Who hears what the agent sends. Every call is made in wire order and must not wait."""

    def heard(self) -> None:
        """A line came, whatever it says."""
        ...

    def update(self, params: dict[str, Any]) -> None:
        """A `session/update`."""
        ...

    def request(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        """A request of the agent; answered by `respond` or `refuse`."""
        ...

    def oversized(self, line: Envelope, size: int) -> None:
        """A line above the limit, which is otherwise lost."""
        ...

    def garbage(self, line: str) -> None:
        """A line that is no message."""
        ...

    def ended(self) -> None:
        """Nothing will come any more."""
        ...


class Connection:
    """Owns the two descriptors, which it closes. Belongs to the event loop."""

    def __init__(self, stdin_fd: int, stdout_fd: int, peer: Peer, frame_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._stdin, self._stdout = stdin_fd, stdout_fd
        self._peer = peer
        self._splitter = LineSplitter(frame_bytes_max)
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._last_id = 0
        self._unwritten = bytearray()
        self.ended = False
        os.set_blocking(stdin_fd, False)
        os.set_blocking(stdout_fd, False)
        self._loop.add_reader(stdout_fd, self._readable)

    # what we send

    def call(self, method: str, params: dict[str, Any], on_answer: Callable[[Answer], None]) -> None:
        """Send a request; `on_answer` is called once, in wire order with everything else, or at once where nobody listens."""
        if self.ended:
            on_answer(AgentGoneError())
            return
        self._last_id += 1
        self._waiting[self._last_id] = on_answer
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait; raises AgentRefusedError or AgentGoneError."""
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def on_answer(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self.call(method, params, on_answer)
        answer = await answered
        if isinstance(answer, Answered):
            return answer.result
        raise answer

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def respond(self, request_id: int | str, result: dict[str, Any]) -> None:
        """Answer a request of the agent."""
        self._send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def refuse(self, request_id: int | str, code: int, message: str) -> None:
        """Answer a request of the agent by an error."""
        self._send({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})

    def _send(self, message: dict[str, Any]) -> None:
        if self.ended:
            return
        self._unwritten += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._unwritten) > _UNWRITTEN_BYTES_MAX:  # an agent that asks and never reads
            self.close()
            return
        self._write()

    def _write(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._stdin, self._unwritten)]
        except BlockingIOError:
            self._loop.add_writer(self._stdin, self._write)
            return
        except OSError:
            self._unwritten.clear()
            self._loop.call_soon(self._deaf)  # not in this step: who sends does not expect to hear
        self._loop.remove_writer(self._stdin)

    def _deaf(self) -> None:
        """The agent closed its stdin: what it has said is heard, then it is as good as gone."""
        self.read_now()
        self.close()

    # what we hear

    def _readable(self) -> None:
        self._read_once()

    def read_now(self) -> None:
        """Hear what has already been said: it must not be taken for something that was said later."""
        for _ in range(_READS_AT_ONCE_MAX):
            if not self._read_once():
                return

    def _read_once(self) -> bool:
        if self.ended:
            return False
        try:
            data = os.read(self._stdout, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        lines = self._splitter.feed(data)
        lines.reverse()
        while lines and not self.ended:
            self._hear(lines.pop())
        return True

    def _hear(self, line: bytearray | Oversized) -> None:
        self._peer.heard()
        if isinstance(line, Oversized):
            self._hear_oversized(line)
            return
        try:
            messages = read_line(line)
        except (ValueError, RecursionError):
            self._peer.garbage(hygiene.cut_bytes(bytes(line[:2048]), 512)[0])
            return
        for message in messages:
            self._dispatch(message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, message_id = message.get("method"), message.get("id")
        known_id = message_id if isinstance(message_id, int | str) else None
        if not isinstance(method, str):
            self._answered(known_id, message)
        elif known_id is not None:
            self._peer.request(known_id, method, as_object(message.get("params")))
        elif method == "session/update":
            self._peer.update(as_object(message.get("params")))

    def _answered(self, message_id: int | str | None, message: dict[str, Any]) -> None:
        on_answer = self._waiting.pop(message_id, None) if isinstance(message_id, int) else None
        if on_answer is None:
            return
        if "error" in message:
            error = as_object(message["error"])
            code = error.get("code")
            on_answer(AgentRefusedError(code if isinstance(code, int) else 0, error_text(error)))
        else:
            on_answer(Answered(as_object(message.get("result"))))

    def _hear_oversized(self, line: Oversized) -> None:
        envelope = read_head(line.head)
        self._peer.oversized(envelope, line.size)
        if envelope.method is not None and envelope.id is not None:
            self.refuse(envelope.id, INVALID_REQUEST, "the message is longer than the frame limit")
        elif envelope.response:
            text = f"its answer of {line.size} bytes is longer than the frame limit"
            self._answered(envelope.id, {"error": {"code": INVALID_REQUEST, "message": text}})

    def close(self) -> None:
        """End it; open requests fail at once."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._stdout)
        self._loop.remove_writer(self._stdin)
        os.close(self._stdout)
        os.close(self._stdin)
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(AgentGoneError())
        self._peer.ended()


def read_line(line: bytearray) -> Iterator[dict[str, Any]]:
    """The message on a line, or the several that a large one stands for; ValueError or RecursionError where it is none."""
    if len(line) > LARGE_LINE_BYTES:
        return read_large(line)
    message: object = json.loads(hygiene.decode(line), strict=False)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - to the caller it is as bad as no JSON
    return iter([cast("dict[str, Any]", message)])


def error_text(error: dict[str, Any]) -> str:
    """An agent's error as clean text of at most 4 KiB; `data` often says more than `message`."""
    message = word(error.get("message")) or "error without a message"
    data = error.get("data")
    if isinstance(data, dict):
        details = as_object(cast("object", data))
        data = details.get("details") or details.get("message")
    if isinstance(data, str) and data and data not in message:
        message = f"{message}: {data}"
    return hygiene.cut(hygiene.join_surrogates(message), 4096)[0]
