"""A language model on loopback that does what the prompt says, for driving real agents.

It speaks two APIs: OpenAI chat completions (`POST /v1/chat/completions`) and Anthropic messages (`POST /v1/messages`),
streamed or whole. What it answers depends on the request alone, so that it needs no script and serves any number of
agents at once. The newest user message may hold one order, alone on a line:

    MODEL say TEXT                streams TEXT word by word
    MODEL stream N SECONDS        streams N chunks `c1 c2 …`, with a pause between them
    MODEL run COMMAND             calls the agent's shell tool; when the result comes back, says `done: RESULT`
    MODEL recall                  says `history: A / B`, the orders and plain texts of all user messages before this one

Other text is answered by `echo: TEXT`. A request without tools (agents ask for titles and summaries) is answered by
`A title`. Every request is kept in `requests`, in the order of arrival.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

Json = dict[str, Any]

ORDER = re.compile(r"^\s*MODEL (say|stream|run|recall)\b ?(.*?)\s*$", re.MULTILINE)
SHELL_TOOLS = ("bash", "Bash", "shell", "run_command", "execute", "run_shell_command")
RESULT_CHARS_MAX = 400


@dataclass(frozen=True)
class Say:
    """An answer of text, in chunks with a pause between them."""

    chunks: tuple[str, ...]
    pause_s: float = 0.0


@dataclass(frozen=True)
class Call:
    """An answer that calls a tool."""

    tool: str
    arguments: Json


Reply = Say | Call


@dataclass
class Request:
    """One request: the API, its body, when it came, and whether the client left before the answer's end."""

    api: str
    body: Json
    at: float = field(default_factory=time.time)
    cut: bool = False

    @property
    def is_side(self) -> bool:
        """Whether it is an agent's own housekeeping (a title, a summary), not a step of a turn."""
        return not self.body.get("tools")


def text_of(content: Any) -> str:
    """The text of a message's content, a string or a list of parts; tool results are no text."""
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content or [])
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def order_of(text: str) -> str:
    """The order in a user message, or its last line: agents put reminders of their own before what a user wrote."""
    orders = list(ORDER.finditer(text))
    if orders:
        return orders[-1].group(0).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def is_result(message: Json) -> bool:
    """Whether a message brings a tool's result, in either API."""
    content = message.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return message.get("role") == "tool" or any(part.get("type") == "tool_result" for part in parts)


def result_of(message: Json) -> str:
    """The text of a tool's result, in either API."""
    if message.get("role") == "tool":
        return text_of(message.get("content"))
    results = [part for part in message["content"] if part.get("type") == "tool_result"]
    return "\n".join(text_of(part.get("content")) for part in results)


def decide(body: Json) -> Reply:
    """The answer to a request; both APIs agree on roles and on `tools`."""
    if not body.get("tools"):
        return Say(("A title",))
    messages: list[Json] = [message for message in body["messages"] if message["role"] != "system"]
    ordered = ORDER.search(text_of(messages[-1].get("content")))  # after a cancel, result and prompt may be one message
    if is_result(messages[-1]) and not ordered:
        return Say(("done: ", result_of(messages[-1])[:RESULT_CHARS_MAX]))
    users = [order_of(text_of(message.get("content"))) for message in messages if message["role"] == "user"]
    said = [text for text in users if text]
    newest = said[-1] if said else ""
    order = ORDER.match(newest)
    if order is None:
        return Say(("echo: ", newest))
    return obey(order.group(1), order.group(2), said[:-1], body["tools"])


def obey(verb: str, argument: str, earlier: list[str], tools: list[Json]) -> Reply:
    """The answer to an order."""
    if verb == "recall":
        return Say(("history: ", " / ".join(earlier)))
    if verb == "stream":
        count, _, pause = argument.partition(" ")
        return Say(tuple(f"c{index} " for index in range(1, int(count) + 1)), float(pause or 0))
    if verb == "run":
        return shell_call(argument, tools)
    return Say(tuple(re.findall(r"\S+\s*", argument)) or ("",))


def shell_call(command: str, tools: list[Json]) -> Reply:
    """A call of the shell tool among those that are offered, with every argument that it requires."""
    described = [tool.get("function", tool) for tool in tools]
    for tool in described:
        if tool["name"] in SHELL_TOOLS:
            schema: Json = tool.get("parameters") or tool.get("input_schema") or {}
            needed: list[str] = schema.get("required", [])
            arguments = {name: "as ordered" for name in needed if name != "command"}
            return Call(tool["name"], {**arguments, "command": command})
    return Say((f"no shell tool among {', '.join(tool['name'] for tool in described)}",))


# ---------------------------------------------------------------------------------------------- OpenAI chat completions


def openai_chunk(delta: Json, finish: str | None = None) -> Json:
    """One event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}


def openai_events(reply: Reply) -> Iterator[Json]:
    """The events of a streamed answer."""
    yield openai_chunk({"role": "assistant", "content": ""})
    if isinstance(reply, Say):
        for chunk in reply.chunks:
            yield openai_chunk({"content": chunk})
        yield openai_chunk({}, "stop")
    else:
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        call = {"index": 0, "id": f"call_{time.monotonic_ns()}", "type": "function", "function": function}
        yield openai_chunk({"tool_calls": [call]})
        yield openai_chunk({}, "tool_calls")
    yield openai_chunk({}) | {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


def openai_whole(reply: Reply) -> Json:
    """The same as one object."""
    message: Json = {"role": "assistant", "content": None}
    if isinstance(reply, Say):
        message["content"] = "".join(reply.chunks)
    else:
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        message["tool_calls"] = [{"id": f"call_{time.monotonic_ns()}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(reply, Say) else "tool_calls"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [choice],
        "usage": usage,
    }


# --------------------------------------------------------------------------------------------------- Anthropic messages


def anthropic_message(content: list[Json], stop: str | None) -> Json:
    """A message as one object."""
    return {
        "id": f"msg_{time.monotonic_ns()}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }


def anthropic_events(reply: Reply) -> Iterator[Json]:
    """The events of a streamed answer."""
    yield {"type": "message_start", "message": anthropic_message([], None)}
    if isinstance(reply, Say):
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for chunk in reply.chunks:
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": chunk}}
    else:
        block: Json = {"type": "tool_use", "id": f"toolu_{time.monotonic_ns()}", "name": reply.tool, "input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply.arguments)}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    stop = "end_turn" if isinstance(reply, Say) else "tool_use"
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 3},
    }
    yield {"type": "message_stop"}


def anthropic_whole(reply: Reply) -> Json:
    """The same as one object."""
    if isinstance(reply, Say):
        return anthropic_message([{"type": "text", "text": "".join(reply.chunks)}], "end_turn")
    call_id = f"toolu_{time.monotonic_ns()}"
    block: Json = {"type": "tool_use", "id": call_id, "name": reply.tool, "input": reply.arguments}
    return anthropic_message([block], "tool_use")


# ---------------------------------------------------------------------------------------------------------------- server


class Handler(BaseHTTPRequestHandler):
    """One connection of an agent."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it
        """Requests are kept, not printed."""

    def do_HEAD(self) -> None:
        """Claude Code looks whether somebody is there."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """A list of models, for agents that ask for one."""
        self._whole({"object": "list", "data": [{"id": "scripted", "object": "model", "type": "model"}]})

    def do_POST(self) -> None:
        """A step of a conversation."""
        body: Json = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("/chat/completions"):
            self._answer(Request("openai", body))
        elif path.endswith("/messages"):
            self._answer(Request("anthropic", body))
        elif path.endswith("/count_tokens"):
            self._whole({"input_tokens": 7})
        else:
            self._whole({"error": {"message": f"no such path: {path}"}}, 404)

    @property
    def _model(self) -> ModelServer:
        assert isinstance(self.server, ModelServer)
        return self.server

    def _answer(self, request: Request) -> None:
        self._model.requests.append(request)
        reply = decide(request.body)
        openai = request.api == "openai"
        if not request.body.get("stream"):
            self._whole(openai_whole(reply) if openai else anthropic_whole(reply))
            return
        try:
            self._stream(openai_events(reply) if openai else anthropic_events(reply), reply)
            self.wfile.write(b"data: [DONE]\n\n" if openai else b"")
        except OSError:
            request.cut = True
            self.close_connection = True

    def _whole(self, answer: Json, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Json], reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        pause_s = reply.pause_s if isinstance(reply, Say) else 0.0
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{named}data: {json.dumps(event)}\n\n".encode())
            if pause_s and self._model.stopping.wait(pause_s):
                return


class ModelServer(ThreadingHTTPServer):
    """The server; `url` is its root, `requests` all that it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """The root address, without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def steps(self) -> list[Request]:
        """The requests that are steps of turns."""
        return [request for request in self.requests if not request.is_side]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left while it was answered is no error."""


@contextmanager
def model_server() -> Generator[ModelServer]:
    """A running server on a port of its own."""
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
