"""Directives that say, wait, ask and leave, and those that control single bytes."""

from __future__ import annotations

import os
import time

from turnkeeper.agents.scripted.faults import FaultError, crash, parse_seconds
from turnkeeper.agents.scripted.turn import FailError, NoAnswerError, Turn, UsageError
from turnkeeper.agents.scripted.wire import STDERR, encode, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs every cold start
    from typing import Any

OPTION_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
PAUSE_BETWEEN_PARTS_S = 0.05
MARK = b"@@"


def number(text: str, usage: str, most: int = 1 << 30) -> int:
    """A whole number from 0 to ``most``."""
    if not text.isdecimal() or int(text) > most:
        raise UsageError(usage)
    return int(text)


def seconds(text: str, usage: str) -> float:
    """A number of seconds."""
    value = parse_seconds(text)
    if value is None:
        raise UsageError(usage)
    return value


def hex_bytes(text: str, usage: str) -> bytes:
    """Bytes in hexadecimal; blanks between them are allowed."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(usage) from None


def say(turn: Turn, argument: str) -> None:
    turn.say(argument)


def think(turn: Turn, argument: str) -> None:
    turn.update("agent_thought_chunk", content={"type": "text", "text": argument})


def tokens(turn: Turn, argument: str) -> None:
    usage = "N [SECONDS]"
    count, _, pause = argument.partition(" ")
    pause_s = seconds(pause.strip() or "0", usage)
    for index in range(1, number(count, usage) + 1):
        if index == 1:
            turn.say("t1 ")
            continue
        turn.wait(pause_s) if pause_s else turn.check()
        turn.chunk(f"t{index} ")


def ticks(turn: Turn, argument: str) -> None:
    usage = "N SECONDS"
    count, _, pause = argument.partition(" ")
    pause_s = seconds(pause.strip(), usage)
    for index in range(number(count, usage)):
        if index:
            turn.wait(pause_s)
        turn.say(str(time.time_ns()))


def sleep(turn: Turn, argument: str) -> None:
    turn.wait(seconds(argument, "SECONDS"))
    turn.say(f"slept {argument} s")


def ask(turn: Turn, argument: str) -> None:
    question, *names = [part.strip() for part in argument.split("|")]
    if not question:
        raise UsageError("QUESTION | OPTION | OPTION …")
    options: list[dict[str, str]] = []
    for index, option in enumerate(names or ["Allow", "Reject"]):
        name, _, kind = option.rpartition("=")
        if not name or kind not in OPTION_KINDS:
            name, kind = option, "reject_once" if index else "allow_once"
        options.append({"optionId": f"option-{index + 1}", "name": name, "kind": kind})
    call = turn.tool("other", question, status="pending")
    pending = turn.ask_permission(
        {"toolCallId": call, "title": question, "kind": "other", "status": "pending"}, options
    )
    if turn.faults.at("permission"):
        raise NoAnswerError
    pending.arrived.wait()  # also after a cancel: the client owes an answer, and real agents wait for it
    chosen, allowed = read_answer(pending.message, options)
    turn.tool_done(call, "completed" if allowed else "failed")
    turn.say(f"answered: {chosen}")


def read_answer(message: dict[str, Any], options: list[dict[str, str]]) -> tuple[str, bool]:
    """What was answered, and whether it allows."""
    if "error" in message:
        return f"error {message['error'].get('code')} {message['error'].get('message')}", False
    outcome = message.get("result", {}).get("outcome", {})
    if outcome.get("outcome") != "selected":
        return "cancelled", False
    for option in options:
        if option["optionId"] == outcome.get("optionId"):
            return option["name"], option["kind"].startswith("allow")
    return f"unknown option {outcome.get('optionId')}", False


def spawn(turn: Turn, _argument: str) -> None:
    turn.say("spawn is not available")


def late(turn: Turn, argument: str) -> None:
    turn.late.append(argument)


def fail(_turn: Turn, argument: str) -> None:
    raise FailError(encode({"": argument})[5:-2])


def fail_bytes(_turn: Turn, argument: str) -> None:
    raise FailError(hex_bytes(argument, "HEX"))


def leave(_turn: Turn, argument: str) -> None:
    os._exit(number(argument or "0", "CODE", 255))


def crash_now(_turn: Turn, _argument: str) -> None:
    crash()


def hang(_turn: Turn, _argument: str) -> None:
    raise NoAnswerError


def fault(turn: Turn, argument: str) -> None:
    try:
        turn.faults.check(argument)
    except FaultError as error:
        raise UsageError(f"FAULT ({error})") from None
    if turn.faults.carry_out(argument, f"turn {turn.number}"):
        raise NoAnswerError


def chunk_around(turn: Turn, text: bytes) -> tuple[bytes, bytes]:
    """The bytes of a chunk's message before and after its text, for a text that must not be escaped."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": MARK.decode()}}
    params = {"sessionId": turn.session.id, "update": update}
    before, _, after = encode({"jsonrpc": "2.0", "method": "session/update", "params": params}).partition(MARK)
    turn.remember(text.decode(errors="surrogateescape"))
    return before, after


def raw_text(turn: Turn, argument: str) -> None:
    parts = [hex_bytes(part, "HEX [| HEX]") for part in argument.split("|")]
    before, after = chunk_around(turn, b"".join(parts))
    parts[0] = before + parts[0]
    parts[-1] += after + b"\n"
    turn.wire.send_raw(*parts, pause_s=PAUSE_BETWEEN_PARTS_S)


def raw_line(turn: Turn, argument: str) -> None:
    turn.wire.send_raw(hex_bytes(argument, "HEX"))


def long_line(turn: Turn, argument: str) -> None:
    before, after = chunk_around(turn, b"")
    usage = f"SIZE (from {len(before) + len(after)} bytes)"
    size = number(argument, usage) - len(before) - len(after)
    if size < 0:
        raise UsageError(usage)
    text = (b"0123456789" * (size // 10 + 1))[:size]
    turn.remember(text[:1].decode())  # that something was said; not megabytes of it
    turn.wire.send_raw(before + text + after + b"\n")


def noise(_turn: Turn, argument: str) -> None:
    line = b"e" * 79 + b"\n"
    size = number(argument, "N")
    write_all(STDERR, (line * (size // 80 + 1))[:size])


DIRECTIVES = {
    "/say": say,
    "/think": think,
    "/tokens": tokens,
    "/ticks": ticks,
    "/sleep": sleep,
    "/ask": ask,
    "/spawn": spawn,
    "/late": late,
    "/fail": fail,
    "/fail-bytes": fail_bytes,
    "/exit": leave,
    "/crash": crash_now,
    "/hang": hang,
    "/fault": fault,
    "/bytes": raw_text,
    "/raw": raw_line,
    "/line": long_line,
    "/stderr": noise,
}
