"""Lines and messages by themselves: splitting, large ones, beginnings of cut ones, events that fit."""

import json
import os
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.kit import text as hygiene
from turnkeeper.sandboxd.eventlog import encode, fit, pieces
from turnkeeper.sandboxd.framing import Envelope, LineSplitter, Oversized, read_head
from turnkeeper.sandboxd.largeline import read_large
from turnkeeper.sandboxd.rpc import Answer, Answered, Connection


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(1, 30), min_size=1, max_size=10))
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], cuts: list[int]) -> None:
    """Case: F11. However a stream is cut into reads, its lines are the same; those above the limit are told with their size."""
    stream = b"".join(line.replace(b"\n", b"x") + b"\n" for line in lines)
    splitter = LineSplitter(20)
    found: list[bytearray | Oversized] = []
    position = index = 0
    while position < len(stream):
        size = cuts[index % len(cuts)]
        found += splitter.feed(stream[position : position + size])
        position, index = position + size, index + 1
    expected = [line.replace(b"\n", b"x") for line in lines]
    expected = [line for line in expected if len(line) > 20 or (line and not line.isspace())]
    assert [Oversized(line[:20], len(line)) if len(line) > 20 else line for line in expected] == found


ALPHABET = ["a", '"', "\\", "\n", "\x01", "é", "世", "😀", "/", "u", "\\u"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ascii_only", [True, False])
def test_large_chunk_is_read_piece_by_piece(seed: int, ascii_only: bool) -> None:
    """Case: F10, F11. A large chunk's text is exactly what it was, whatever lies at the edges of its pieces."""
    draw = random.Random(seed)
    text = "".join(draw.choices(ALPHABET, k=200_000))
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
    line = bytearray(json.dumps(message, ensure_ascii=ascii_only).encode())
    joiner = hygiene.TextJoiner()
    parts = [part["params"]["update"]["content"]["text"] for part in map(_copy, read_large(line))]
    assert len(parts) > 3
    assert max(map(len, parts)) <= 48 * 1024
    assert "".join(map(joiner.feed, parts)) + joiner.flush() == text


def _copy(message: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(message))


def test_large_strings_elsewhere_are_cut() -> None:
    """Case: F11. In a tool's content they keep their beginning, and everything else is as it was."""
    content = [{"type": "diff", "oldText": "ä" * 200_000, "newText": "short", "long-string-0-0": 1}]
    message = {"id": 3, "method": "session/update", "params": {"update": {"content": content}}}
    (read,) = read_large(bytearray(json.dumps(message, ensure_ascii=False).encode()))
    (diff,) = read["params"]["update"]["content"]
    assert diff["oldText"].startswith("ää")
    assert diff["oldText"].endswith("… [cut: 400000 bytes]")
    assert hygiene.REPLACEMENT not in diff["oldText"]
    assert (diff["newText"], diff["long-string-0-0"], read["id"]) == ("short", 1, 3)


@pytest.mark.parametrize("line", [b'["' + b"x" * 200_000 + b'"]', b'{"a":"' + b"x" * 200_000, b"[" * 200_000])
def test_large_garbage(line: bytes) -> None:
    """Case: F10. What is no object is refused like any other garbage."""
    with pytest.raises((ValueError, RecursionError)):
        list(read_large(bytearray(line)))


def test_head_of_a_cut_message() -> None:
    """Case: F11. The beginning tells whose message it was, in whatever order its names come, and never more than is there."""
    chunk = '{"method":"session/update","params":{"update":{"content":{"text":"abc\\ud83d","type":"text"},"sessionUpdate":"agent_message_chunk"'
    assert (read_head(chunk.encode()).chunk, read_head(chunk.encode()).text) == ("agent_message_chunk", "abc\ud83d")
    assert read_head(b'{"id":7,"result":{"id":8,"x":"aaa').id == 7
    assert read_head(b'{"id":7,"result":{"id":8,"x":"aaa').response
    assert not read_head(b'{"id":"q","method":"fs/read","params":{"a":').response
    assert read_head(b'{"jsonrpc":"2.0","params":{"id":5,"method":"x"').id is None
    for garbage in (b"", b"\xff\xfe", b'{"id', b"}}}}]]]]", b'{"id":tru'):
        assert read_head(garbage).method is None


@given(st.text(), st.integers(12, 60))
def test_pieces_lose_nothing(text: str, limit: int) -> None:
    """Case: F10, F11. Joined they are the text, and each is within the limit."""
    text = hygiene.clean(text)
    parts = pieces(text, limit)
    assert "".join(parts) == text
    assert all(len(encode(part)) <= limit for part in parts)


@given(
    st.recursive(
        st.text(max_size=300), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=60
    )
)
def test_fit_is_within_the_limit(value: object) -> None:
    """Case: F11. Whatever an event holds, it fits afterwards, and one that fitted is unchanged."""
    data = {"value": hygiene.clean_json(value)}
    fitted, original = fit(data, 400)
    assert len(encode(fitted)) <= 400
    assert (original is None) == (fitted == data)


class Heard:
    """A peer that writes down what it hears."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def heard(self) -> None:
        """Every line."""

    def update(self, params: dict[str, Any]) -> None:
        self.said.append(params)

    def request(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        self.said.append((request_id, method, params))

    def oversized(self, line: Envelope, size: int) -> None:
        self.said.append((line, size))

    def garbage(self, line: str) -> None:
        self.said.append(line)

    def ended(self) -> None:
        self.said.append("ended")


async def test_what_was_said_is_heard_before_the_next_word() -> None:
    """Proves: F-06. A late update that lies in the pipe is heard by `read_now`, before the prompt's first byte is written."""
    ours_in, ours_out = os.pipe()
    theirs_in, theirs_out = os.pipe()
    peer = Heard()
    connection = Connection(ours_out, theirs_in, peer, 1000)
    answers: list[Answer] = []
    try:
        line = b'{"jsonrpc":"2.0","method":"session/update","params":{"late":%d}}\n'
        os.write(theirs_out, line % 1 + line % 2)
        connection.read_now()  # the event loop has had no turn
        assert peer.said == [{"late": 1}, {"late": 2}]
        connection.call("session/prompt", {}, answers.append)
        assert b"session/prompt" in os.read(ours_in, 1000)
        # The response and what follows it in the same read: the answer is told before the update is heard.
        peer.update = lambda params: peer.said.append((len(answers), params))  # type: ignore[method-assign]
        os.write(theirs_out, line % 3 + b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}\n' + line % 4)
        connection.read_now()
        assert peer.said[2:] == [(0, {"late": 3}), (1, {"late": 4})]
        assert answers == [Answered({"stopReason": "end_turn"})]
        connection.call("session/prompt", {}, answers.append)
    finally:
        os.close(theirs_out)
        connection.read_now()
        os.close(ours_in)
    assert peer.said[-1] == "ended"
    assert type(answers[-1]).__name__ == "AgentGoneError"
