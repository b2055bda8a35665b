"""The scripted model by itself: what it answers, in both APIs, streamed and whole."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.model_server import ModelServer, decide, model_server

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"required": ["command", "description"]}}}


def post(server: ModelServer, path: str, body: dict[str, Any]) -> str:
    """The raw answer to a POST."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def asked(*texts: str, tools: list[Any] | None = None) -> dict[str, Any]:
    """A request with these user messages, each answered but the last."""
    messages: list[dict[str, Any]] = []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "so be it"}]
    return {"model": "scripted", "messages": messages[:-1], "tools": [BASH] if tools is None else tools}


def test_openai_streams_and_answers_whole() -> None:
    """Chunks that end by a finish reason, a usage and [DONE]; or one object. All requests are kept."""
    with model_server() as server:
        body = asked("MODEL say two words")
        events = post(server, "/v1/chat/completions", {**body, "stream": True}).split("\n\n")
        assert [event for event in events if "two " in event or "words" in event]
        assert '"finish_reason": "stop"' in events[-4]
        assert events[-2:] == ["data: [DONE]", ""]
        whole = json.loads(post(server, "/v1/chat/completions", body))
        assert whole["choices"][0]["message"]["content"] == "two words"
        assert len(server.steps()) == 2


def test_anthropic_streams_and_answers_whole() -> None:
    """Named events from message_start to message_stop; or one message."""
    with model_server() as server:
        body = asked("MODEL run ls", tools=[{"name": "Bash", "input_schema": {"required": ["command"]}}])
        stream = post(server, "/v1/messages?beta=true", {**body, "stream": True})
        names = [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]
        assert names[0] == "message_start"
        assert names[-1] == "message_stop"
        assert '"stop_reason": "tool_use"' in stream
        whole = json.loads(post(server, "/v1/messages", body))
        assert whole["content"][0]["input"] == {"command": "ls"}


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("hello\nthere", "echo: there"),
        ("<reminder>be kind</reminder>\nMODEL say yes", "yes"),
        ("MODEL stream 3 0", "c1 c2 c3 "),
        ("MODEL recall", "history: MODEL say one / two"),
    ],
)
def test_orders(text: str, reply: str) -> None:
    """An order in the newest user message, wherever the agent has put it."""
    said = decide(asked("MODEL say one", "two", text))
    assert "".join(getattr(said, "chunks", ())) == reply


def test_a_tool_is_called_with_all_that_it_requires_and_its_result_is_said() -> None:
    """Required arguments besides the command are filled; a request without tools gets a title."""
    body = asked("MODEL run echo hi")
    assert getattr(decide(body), "arguments", None) == {"command": "echo hi", "description": "as ordered"}
    body["messages"].append({"role": "tool", "tool_call_id": "c", "content": "hi\n"})
    assert getattr(decide(body), "chunks", None) == ("done: ", "hi\n")
    assert getattr(decide(asked("MODEL run echo hi", tools=[])), "chunks", None) == ("A title",)
