"""The bytes of the scripted agent, read without a client library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Raw:
    """The agent on plain pipes, one prompt at a time."""

    def __init__(self, process: subprocess.Popen[bytes], cwd: str) -> None:
        self.process = process
        self.last_id = 0
        self.call("initialize", protocolVersion=1)
        self.session: str = self.call("session/new", cwd=cwd, mcpServers=[])[-1]["result"]["sessionId"]

    def send(self, line: bytes) -> None:
        """One line to the agent."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> bytes:
        """One line from the agent, without its newline."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().removesuffix(b"\n")

    def call(self, method: str, **params: Any) -> list[Any]:
        """A request; returns every message up to its response."""
        return [json.loads(line) for line in self.lines(method, **params)]

    def lines(self, method: str, **params: Any) -> list[bytes]:
        """A request; returns every line up to its response."""
        self.last_id += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}).encode())
        lines = [self.read()]
        while f'"id":{self.last_id},'.encode() not in lines[-1]:
            assert lines[-1], "the agent has left"
            lines.append(self.read())
        return lines

    def send_prompt(self, text: str) -> None:
        """A prompt whose answer is not awaited."""
        params = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        self.send(json.dumps({"jsonrpc": "2.0", "id": "sent", "method": "session/prompt", "params": params}).encode())

    def prompt(self, text: str) -> list[bytes]:
        """A prompt; returns every line up to its response."""
        return self.lines("session/prompt", sessionId=self.session, prompt=[{"type": "text", "text": text}])


@contextmanager
def raw_agent(folder: Path, **env: str) -> Generator[Raw]:
    """The agent with HOME and cwd in ``folder`` and stderr in ``folder/stderr.log``."""
    with (folder / "stderr.log").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper.agents.scripted"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={"HOME": str(folder), "PATH": os.environ["PATH"], **env},
        )
        with process:
            try:
                yield Raw(process, str(folder))
            finally:
                process.kill()


@pytest.mark.parametrize(
    "text",
    [b"\\u0000", b"\\ud800", b"\xff\xfe", "\N{GRINNING FACE}".encode(), b"\x00", b'", "broken', b"ok"],
)
def test_bytes_are_sent_as_they_are(tmp_path: Path, text: bytes) -> None:
    """The text of the chunk is exactly the bytes ordered, valid JSON or not; the response follows."""
    with raw_agent(tmp_path) as agent:
        before, middle, after = agent.prompt(f"/say MARK\n/bytes {text.hex()}\n/say MARK")[:3]
        head, _, tail = before.partition(b"MARK")
        assert middle == head + text + tail
        assert after == before.replace(b"MARK", b"\\nMARK")


def test_an_emoji_can_be_split_over_two_writes(tmp_path: Path) -> None:
    """A reader sees the first half alone for a while."""
    with raw_agent(tmp_path) as agent:
        assert agent.process.stdout is not None
        agent.send_prompt("/bytes 61f09f | 988062")
        first = os.read(agent.process.stdout.fileno(), 65536)
        second = os.read(agent.process.stdout.fileno(), 65536)
        assert first.endswith(b"a\xf0\x9f")
        assert second.startswith(b"\x98\x80b")


def test_a_raw_line_is_outside_of_any_message(tmp_path: Path) -> None:
    """Garbage on stdout, then the protocol goes on."""
    with raw_agent(tmp_path) as agent:
        garbage, response = agent.prompt(f"/raw {b'warning: no json here'.hex()} 0a")
        assert garbage == b"warning: no json here"
        assert json.loads(response)["result"] == {"stopReason": "end_turn"}


@pytest.mark.parametrize("size", [65535, 65536, 65537, 1 << 20, 7 << 20, (8 << 20) + 1])
def test_a_line_has_exactly_the_size_ordered(tmp_path: Path, size: int) -> None:
    """The newline is not counted; the text is predictable; the next message follows."""
    with raw_agent(tmp_path) as agent:
        line, after, _ = agent.prompt(f"/line {size}\n/say after")
        assert len(line) == size
        text: str = json.loads(line)["params"]["update"]["content"]["text"]
        assert text == ("0123456789" * (len(text) // 10 + 1))[: len(text)]
        assert json.loads(after)["params"]["update"]["content"]["text"] == "\nafter"


def test_an_error_message_of_raw_bytes(tmp_path: Path) -> None:
    """/fail-bytes: the error's message is exactly these bytes; /fail escapes its own."""
    with raw_agent(tmp_path) as agent:
        assert agent.prompt("/fail-bytes ff5c7530303030")[-1].endswith(b'"message":"\xff\\u0000"}}')
        assert json.loads(agent.prompt('/fail a "b" \\')[-1])["error"]["message"] == 'a "b" \\'


def test_stderr_takes_exactly_the_bytes_ordered(tmp_path: Path) -> None:
    """SCRIPTED_AGENT_STDERR at start, then /stderr."""
    with raw_agent(tmp_path, SCRIPTED_AGENT_STDERR="hello \N{SNOWMAN}") as agent:
        agent.prompt("/stderr 100001")
        written = (tmp_path / "stderr.log").read_text()
        assert written.startswith("hello \N{SNOWMAN}\neeee")
        assert len(written) == len("hello .\n") + 100001


def test_lone_surrogates_and_emoji_come_back(tmp_path: Path) -> None:
    """What came in as an escape goes out as one; valid text goes out as UTF-8; both survive the session's file."""
    with raw_agent(tmp_path) as agent:
        assert b"x \\ud800 y" in agent.prompt("/say x \ud800 y")[0]
        assert "\N{GRINNING FACE}".encode() in agent.prompt("/say \N{GRINNING FACE}")[0]
        replayed = agent.call("session/load", sessionId=agent.session, cwd=str(tmp_path), mcpServers=[])
        texts = [message["params"]["update"]["content"]["text"] for message in replayed[:-1]]
        assert texts == ["/say x \ud800 y", "x \ud800 y", "/say \N{GRINNING FACE}", "\N{GRINNING FACE}"]


def test_malformed_requests_get_errors(tmp_path: Path) -> None:
    """Not JSON, not an object, no parameters, an unknown method; a notification gets none."""
    with raw_agent(tmp_path) as agent:
        agent.send(b"not json \xff")
        assert json.loads(agent.read())["error"]["code"] == -32700
        agent.send(b"[]")
        assert json.loads(agent.read())["error"]["code"] == -32600
        agent.send(b'{"jsonrpc":"2.0","method":"session/cancel","params":{}}')
        agent.send(b'{"jsonrpc":"2.0","id":"x","method":"session/prompt"}')
        assert json.loads(agent.read()) | {"error": None} == {"jsonrpc": "2.0", "id": "x", "error": None}
        assert agent.call("session/set_mode", sessionId="s", modeId="m")[-1]["error"]["code"] == -32601


def test_it_imports_little() -> None:
    """A cold sandbox pays for every import: none of the dear modules is loaded before it answers."""
    command = [sys.executable, "-X", "importtime", "-m", "turnkeeper.agents.scripted"]
    hello = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    run = subprocess.run(command, input=hello, capture_output=True, text=True, check=True)
    assert '"protocolVersion":1' in run.stdout
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "turnkeeper.agents.scripted.agent" in imported
    assert not imported & {"acp", "asyncio", "dataclasses", "pathlib", "pydantic", "subprocess", "typing"}


def test_it_ends_with_stdin(tmp_path: Path) -> None:
    """Exit 0 when stdin ends, also in the middle of a command, which ends too."""
    with raw_agent(tmp_path) as agent:
        assert agent.process.stdin is not None
        agent.send_prompt("/run mkfifo pipe; exec cat pipe")
        assert b"tool_call" in agent.read()
        pipe = tmp_path / "pipe"
        while not pipe.exists():  # the test's time limit is the bound
            time.sleep(0.01)
        reader = os.open(pipe, os.O_WRONLY)  # opens as soon as the command reads
        agent.process.stdin.close()
        assert agent.process.wait(5) == 0
        with pytest.raises(BrokenPipeError):
            fill(reader)
        os.close(reader)


def fill(fd: int) -> None:
    """Write until the reader is gone."""
    while True:
        os.write(fd, b"anybody there?")


def test_usage(tmp_path: Path) -> None:
    """--help prints the directives; anything else, and a fault that does not exist, is refused with one line."""
    command = [sys.executable, "-m", "turnkeeper.agents.scripted"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "/background COMMAND" in shown
    wrong = subprocess.run([*command, "--what"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for fault in ("prompt:explode", "lunch:exit1", "new:exit1:0", "new:exit256", "load:delay=x"):
        run = subprocess.run(command, env={**env, "SCRIPTED_AGENT_FAULT": fault}, capture_output=True, check=False)
        assert (run.returncode, run.stderr.count(b"\n")) == (2, 1)
        assert fault.encode() in run.stderr or b"is not exit0" in run.stderr
