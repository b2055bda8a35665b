"""`turnkeeper chat` when the control plane goes away: what became of the message is said, and it is stored once at most."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Generator, Sequence

import pytest

from turnkeeper.cli.root import run
from turnkeeper.client import owner

THREAD, RUN = "01a229e7-064d-76e1-9839-0d6f7a1b2c3d", "01a229e7-0b11-7222-8f00-0d6f7a1b2c3d"
NOW = "2026-11-30T09:00:00Z"
CUT = b""
UNAVAILABLE = (503, {"code": "unavailable", "title": "x", "status": 503, "detail": "no database", "retryable": True})
CLOSED = (409, {"code": "conversation_closed", "title": "x", "status": 409, "detail": "it is closed"})

Answer = bytes | tuple[int, object]


def whole(status: int, value: object) -> bytes:
    """An answer of JSON."""
    body = json.dumps(value).encode()
    media = "application/problem+json" if status >= 400 else "application/json"
    return f"HTTP/1.1 {status} x\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stream(*events: tuple[int, str, dict[str, object]]) -> bytes:
    """The beginning of a stream; its connection ends after it."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = "".join(f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for seq, kind, data in events).encode()
    return head + f"{len(body):x}\r\n".encode() + body + b"\r\n"


STORED = {"id": RUN, "thread_id": THREAD, "agent": "scripted", "kind": "chat", "status": "pending", "created_at": NOW}
MESSAGE = {"id": RUN, "thread_id": THREAD, "run_id": RUN, "role": "owner", "text": "hello", "created_at": NOW}
ACCEPTED: Answer = (201, {"message": MESSAGE, "run": STORED})
BEGUN = stream((3, "session", {"mode": "new"}), (4, "text", {"text": "wor"}))
ENDED = stream((5, "text", {"text": "ked"}), (6, "end", {"status": "completed"}))


@contextlib.contextmanager
def control_plane(answers: Sequence[Answer]) -> Generator[tuple[str, list[str]]]:
    """One that gives each connection the next answer, and is gone after the last. Its URL, and the heads that it got."""
    heads: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve() -> None:
        with listener:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    heads.append(connection.recv(65536).decode())
                    connection.sendall(answer if isinstance(answer, bytes) else whole(*answer))

    thread = threading.Thread(target=serve)
    thread.start()
    if not answers:  # gone from the beginning: a connection made before that would be one over which something was sent
        thread.join(20)
    try:
        yield f"http://127.0.0.1:{port}", heads
    finally:
        thread.join(20)
        assert not thread.is_alive(), heads


Chat = Callable[[Sequence[Answer]], tuple[int, str, str, list[str]]]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """`turnkeeper chat hello` with a control plane of these answers: status, output, error, and the heads of its requests."""
    monkeypatch.setenv("TURNKEEPER_API_KEY", "tk_not-a-real-key")
    monkeypatch.setattr(owner, "RETRY_S", 0.001)

    def chatting(answers: Sequence[Answer]) -> tuple[int, str, str, list[str]]:
        with control_plane(answers) as (url, heads):
            status = run(["chat", "hello", "--thread", THREAD, "--url", url])
        out, err = capsys.readouterr()
        return status, out, err, heads

    return chatting


def keys(heads: list[str]) -> set[str]:
    """The idempotency keys of the requests that had one."""
    lines = [line for head in heads for line in head.splitlines()]
    return {line for line in lines if line.lower().startswith("idempotency-key:")}


@pytest.mark.parametrize("between", [CUT, UNAVAILABLE], ids=["cut", "no database"])
def test_a_short_outage_is_waited_out(between: Answer, chat: Chat) -> None:
    """The message is repeated under one key, and the stream goes on after what was shown."""
    status, out, err, heads = chat([between, ACCEPTED, BEGUN, between, ENDED])
    assert (status, err) == (0, "")
    assert out == "· session new\nworked\n· completed\n"
    assert [head.split()[1].rpartition("/")[2] for head in heads] == [
        "messages",
        "messages",
        "events",
        "events?after=4",
        "events?after=4",
    ]
    assert len(keys(heads)) == 1


@pytest.mark.parametrize(("shown", "after"), [((), ""), ((BEGUN,), " --after 4")], ids=["before", "within"])
def test_a_turn_that_is_lost_sight_of_is_named(shown: tuple[Answer, ...], after: str, chat: Chat) -> None:
    """Nobody is led to send again what was accepted."""
    status, _, err, _ = chat([ACCEPTED, *shown])
    assert status == 1
    assert len(err.splitlines()) == 1
    assert "no answer from the control plane at http://127.0.0.1:" in err
    assert f"the message was accepted as run {RUN}, which goes on without this command" in err
    assert f"`turnkeeper runs events {RUN}{after}` instead of sending it again" in err


def test_a_message_that_may_be_stored_is_not_called_lost(chat: Chat) -> None:
    """The request left, and no answer came to it or to its repetitions."""
    status, _, err, _ = chat([CUT])
    assert status == 1
    assert "it is not known whether the message was stored" in err
    assert f"`turnkeeper runs list --thread {THREAD}`" in err
    status, _, err, heads = chat([UNAVAILABLE] * (owner.RETRIES + 1))
    assert status == 1
    assert err.startswith("error: no database; it is not known whether the message was stored")
    assert len(keys(heads)) == 1


def test_a_message_that_was_not_sent_or_refused_is_not_called_unknown(chat: Chat) -> None:
    """Nothing left this machine; or the answer is plain."""
    status, _, err, _ = chat([])
    assert status == 1
    assert "the message was not sent; is `turnkeeper up` running?" in err
    assert chat([CLOSED])[2] == "error: it is closed\n"


def test_a_turn_that_ended_is_not_said_to_go_on(chat: Chat) -> None:
    """What is asked after the end, how the conversation stands, is another matter."""
    status, out, err, _ = chat([ACCEPTED, stream((3, "end", {"status": "failed"}))])
    assert status == 1
    assert out == "· failed\n"
    assert f"the turn has ended (failed); `turnkeeper conversations show {THREAD}` tells" in err
    assert "accepted" not in err
