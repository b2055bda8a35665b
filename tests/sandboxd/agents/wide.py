"""A minimal agent for lines that the scripted one does not write: large and not ASCII, oversized requests and responses."""

import json
import os
import sys
import threading
from typing import Any

MIB = 1024 * 1024


def send(message: dict[str, Any], *, raw: bytes = b"") -> None:
    """One line; `raw` replaces the text RAW in it."""
    line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode()
    sys.stdout.buffer.write(line.replace(b"RAW", raw) + b"\n")
    sys.stdout.buffer.flush()


def update(**fields: Any) -> dict[str, Any]:
    """A session/update."""
    return {"method": "session/update", "params": {"sessionId": "w", "update": fields}}


def wide(size: int) -> bytes:
    """`size` bytes of text with characters of every width, an escape and a broken byte."""
    unit = "aé世😀\\u00e9\\n".encode() + b"\xff"
    return (unit * (size // len(unit)))[: size // len(unit) * len(unit)]


def chunk() -> dict[str, Any]:
    """A chunk with RAW as its text."""
    return update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "RAW"})


def perform(text: str, request_id: int) -> None:
    """Carry out one prompt."""
    result: dict[str, Any] = {"id": request_id, "result": {"stopReason": "end_turn"}}
    raw = b""
    if text == "chunk":
        send(chunk(), raw=wide(7 * MIB))
    elif text == "tool":
        block = {"type": "content", "content": {"type": "text", "text": "RAW"}}
        send(
            update(sessionUpdate="tool_call_update", toolCallId="t", status="completed", content=[block]),
            raw=wide(7 * MIB),
        )
    elif text == "close-stdin":
        os.close(0)
        send({"id": "q", "method": "session/request_permission", "params": {}})
        threading.Event().wait()
    elif text == "request":
        call = {"toolCallId": "t", "title": "RAW"}
        send({"id": "q", "method": "session/request_permission", "params": {"toolCall": call}}, raw=b"x" * 9 * MIB)
        answer = json.loads(sys.stdin.buffer.readline())
        send(chunk(), raw=str(answer["error"]["code"]).encode())
    elif text == "response":
        result["result"]["_meta"] = {"x": "RAW"}
        raw = b"x" * 9 * MIB
    send(result, raw=raw)


for line in sys.stdin.buffer:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        send({"id": message["id"], "result": {"protocolVersion": 1}})
    elif method == "session/new":
        send({"id": message["id"], "result": {"sessionId": "w"}})
    elif method == "session/prompt":
        perform(message["params"]["prompt"][0]["text"], message["id"])
