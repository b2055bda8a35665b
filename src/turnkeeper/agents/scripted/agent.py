"""The agent: reads requests in the main thread, runs each prompt in a thread of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from turnkeeper.agents.scripted import speech, tools
from turnkeeper.agents.scripted.faults import FaultError, Faults, note
from turnkeeper.agents.scripted.sessions import INTERNAL, INVALID_PARAMS, INVALID_REQUEST, Ledger, Session, SessionStore
from turnkeeper.agents.scripted.turn import CancelError, FailError, NoAnswerError, Turn, perform
from turnkeeper.agents.scripted.wire import STDERR, STDOUT, ProtocolError, Wire, encode, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs every cold start
    from collections.abc import Mapping
    from typing import Any

PROTOCOL_VERSION = 1
PARSE_ERROR, METHOD_NOT_FOUND = -32700, -32601
END_GRACE_S = 0.5
DIRECTIVES = {**speech.DIRECTIVES, **tools.DIRECTIVES}


class Agent:
    """One process's sessions, and the requests about them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read the environment; raises FaultError."""
        self._deaf = bool(environment.get("SCRIPTED_AGENT_DEAF"))
        self._wire = Wire(deaf=self._deaf)
        self._faults = Faults(environment.get("SCRIPTED_AGENT_FAULT", ""), deaf=self._deaf)
        self._ledger = Ledger(environment.get("SCRIPTED_AGENT_LEDGER", ""))
        self._sessions = SessionStore(environment.get("HOME") or "/")
        self._withheld = {
            name for name in ("load", "resume", "close") if environment.get(f"SCRIPTED_AGENT_NO_{name.upper()}")
        }
        self._running: dict[str, Turn] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Answer until stdin ends."""
        if self._deaf:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, ignore_signal)
        for line in self._wire.lines():
            self._receive(line)
        while self._faults.stays:
            signal.pause()
        with self._lock:
            turns = list(self._running.values())
        for turn in turns:
            turn.cancel(ends=True)  # so that commands end with the agent
        for thread in self._threads:
            thread.join(END_GRACE_S / len(self._threads))

    def _receive(self, line: bytes) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            self._wire.refuse(None, PARSE_ERROR, "not a line of JSON")
            return
        if not is_object(message):
            self._wire.refuse(None, INVALID_REQUEST, "not a JSON-RPC object")
            return
        self._dispatch(message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self._wire.answered(message)
            return
        params: dict[str, Any] = message.get("params") or {}
        request_id = message.get("id")
        try:
            answer = self._handle(method, params, request_id)
        except ProtocolError as error:
            if "id" in message:
                self._wire.refuse(request_id, error.code, error.message)
        except (KeyError, TypeError, AttributeError) as error:
            if "id" in message:
                self._wire.refuse(request_id, INVALID_PARAMS, f"{method}: malformed parameters ({error!r})")
        except OSError as error:
            if "id" in message:
                self._wire.refuse(request_id, INTERNAL, f"{method}: {error}")
        else:
            if "id" in message and answer is not None:
                self._wire.reply(request_id, answer)

    def _handle(self, method: str, params: dict[str, Any], request_id: object) -> dict[str, Any] | None:
        """The answer to one request or notification; None when there is none, now or ever."""
        stage = method.removeprefix("session/")
        if stage == "prompt":
            return self._prompt(params, request_id)
        handler = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/close": self._close,
            "session/cancel": self._cancel,
        }.get(method)
        if handler is None or stage in self._withheld:
            raise ProtocolError(METHOD_NOT_FOUND, f"method {method!r} is not supported")
        return None if self._faults.at(stage) else handler(params)

    def _initialize(self, _params: dict[str, Any]) -> dict[str, Any] | None:
        from turnkeeper import __version__

        offered: dict[str, dict[str, str]] = {name: {} for name in ("resume", "close") if name not in self._withheld}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "scripted", "title": "Scripted agent", "version": __version__},
            "agentCapabilities": {
                "loadSession": "load" not in self._withheld,
                "promptCapabilities": {"image": False, "audio": False, "embeddedContext": False},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": offered,
            },
            "authMethods": [],
        }

    def _new(self, params: dict[str, Any]) -> dict[str, Any] | None:
        return {"sessionId": self._sessions.new(params["cwd"]).id}

    def _load(self, params: dict[str, Any]) -> dict[str, Any] | None:
        session = self._reopen(params)
        for turn in session.turns:
            for kind, text in (("user_message_chunk", turn["text"]), ("agent_message_chunk", turn["reply"])):
                if text:
                    self._wire.update(session.id, {"sessionUpdate": kind, "content": {"type": "text", "text": text}})
        return {}

    def _resume(self, params: dict[str, Any]) -> dict[str, Any] | None:
        self._reopen(params)
        return {}

    def _reopen(self, params: dict[str, Any]) -> Session:
        session = self._sessions.reopen(params["sessionId"], params["cwd"])
        self._require_quiet(session.id)
        return session

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any] | None:
        with self._lock:
            turn = self._running.get(params["sessionId"])
        if turn is not None:
            turn.cancel()
        return None

    def _close(self, params: dict[str, Any]) -> dict[str, Any] | None:
        session = self._sessions.get(params["sessionId"])
        self._cancel(params)
        self._sessions.forget(session.id)
        return {}

    def _require_quiet(self, session_id: str) -> None:
        with self._lock:
            if session_id in self._running:
                raise ProtocolError(INVALID_REQUEST, f"a prompt is running in session {session_id}")

    def _prompt(self, params: dict[str, Any], request_id: object) -> dict[str, Any] | None:
        session_id, text = params["sessionId"], prompt_text(params["prompt"])
        known = self._sessions.find(session_id)
        self._ledger.record(session_id, len(known.turns) + 1 if known else None, text)  # before anything else
        if self._faults.at("prompt"):
            return None
        session = self._sessions.get(session_id)
        self._require_quiet(session_id)
        turn = Turn(self._wire, self._faults, session, text)
        with self._lock:
            self._running[session_id] = turn
        thread = threading.Thread(target=self._run, args=(turn, request_id), daemon=True)
        self._threads = [old for old in self._threads if old.is_alive()] + [thread]
        thread.start()
        return None

    def _run(self, turn: Turn, request_id: object) -> None:
        """The thread of one turn: carries it out, records its end, then answers."""
        stop, failure = "end_turn", None
        try:
            perform(turn, DIRECTIVES)
        except CancelError:
            stop = "cancelled"
        except NoAnswerError:
            return  # the session stays busy: whoever sent the prompt still waits
        except FailError as error:
            stop, failure = "error", error.message
        except (OSError, ValueError) as error:  # a command that cannot start, a text that no file system can hold
            stop, failure = "error", encode({"": str(error)})[5:-2]
        try:
            turn.session.end(turn.reply, stop)
        except OSError as error:
            failure = encode({"": f"session cannot be stored: {error}"})[5:-2]
        with self._lock:
            del self._running[turn.session.id]
        if failure is None:
            self._wire.reply(request_id, {"stopReason": stop})
        else:
            head = encode({"jsonrpc": "2.0", "id": request_id, "error": {"code": INTERNAL, "message": ""}})
            self._wire.send_raw(head[:-3] + failure + head[-3:] + b"\n")
        for chunk in turn.late:
            turn.update("agent_message_chunk", content={"type": "text", "text": chunk})


def is_object(value: object) -> bool:
    """Whether a line of JSON was an object."""
    return isinstance(value, dict)


def ignore_signal(_number: int, _frame: object) -> None:
    """A handler, not SIG_IGN, which the commands of ``/run`` would inherit."""


def prompt_text(blocks: list[dict[str, Any]]) -> str:
    """The text of a prompt: its text blocks, and the address of each resource, one a line."""
    lines: list[str] = []
    for block in blocks:
        if block["type"] == "text":
            lines.append(block["text"])
        elif block["type"] == "resource_link":
            lines.append(block["uri"])
        else:
            raise ProtocolError(INVALID_PARAMS, f"prompt block {block['type']!r} is not supported")
    return "\n".join(lines)


def command() -> int:
    """`turnkeeper-scripted-agent`: the name under which a sandbox finds it."""
    return main(sys.argv[1:])


def main(arguments: list[str]) -> int:
    """Run the agent; returns the exit status."""
    if arguments in (["-h"], ["--help"]):
        from turnkeeper.agents import scripted

        write_all(STDOUT, f"{scripted.__doc__}".encode())
        return 0
    if arguments:
        note(f"argument {arguments[0]!r} is not known; it takes none but --help")
        return 2
    try:
        agent = Agent(os.environ)
    except FaultError as error:
        note(f"SCRIPTED_AGENT_FAULT: {error}")
        return 2
    noise = os.environ.get("SCRIPTED_AGENT_STDERR", "")
    if noise:
        write_all(STDERR, f"{noise}\n".encode(errors="surrogateescape"))
    agent.serve()
    os._exit(0)  # threads may still hang in a turn
