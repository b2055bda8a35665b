"""What an agent wrote does nothing to the terminal that shows it: the real commands on a pseudo-terminal."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from api.server import control_server
from api.world import World
from cli.terminal import environment, turnkeeper
from turnkeeper.cli.output import visible

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
EVIL = f"before {CLIPBOARD}\x1b[2J\x9b2J\rover\x08\u202egnp.exe\u2066\x7f\nafter\tdone\r\n"
SHOWN = "before ␛]52;c;ZXZpbA==␇␛[2J<U+009B>2J␍over␈<U+202E>gnp.exe<U+2066>␡\nafter\tdone\n"
OBEYED = (
    *map(chr, range(0x20)),
    "\x7f",
    *map(chr, range(0x80, 0xA0)),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
)


def on_terminal(*arguments: str, home: Path, env: Mapping[str, str]) -> str:
    """What `turnkeeper ARGUMENTS` writes to a terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "turnkeeper", *arguments],
        env={**environment(home, env), "TERM": "dumb", "PYTHONUTF8": "1"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        parts: list[bytes] = []
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:
            pass  # the other end is closed
        finally:
            os.close(master)
    assert process.returncode == 0, b"".join(parts)
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_each_is_replaced_and_nothing_else() -> None:
    """Newline and tab stay, and so does whatever only looks unusual."""
    for one in OBEYED:
        assert (visible(one) == one) == (one in "\n\t"), repr(one)
    for harmless in ("", "Grüße", "日本語", "👩‍💻", "שלום\u200f!", "a\r\nb"):
        assert visible(harmless) == harmless.replace("\r\n", "\n")
    assert visible(EVIL) == SHOWN


@pytest.fixture
def told(dsn: str) -> Generator[tuple[str, dict[str, str]]]:
    """A run in which everything that an agent may name is evil, and how to ask for it."""
    with control_server(dsn) as server:
        world = World(server, dsn)
        run = evil_run(world)
        yield run, {"TURNKEEPER_URL": world.url, "TURNKEEPER_API_KEY": world.owner.key}
        world.close()


def evil_run(world: World) -> str:
    """Its id."""
    thread = world.owner.conversation()["thread_id"]
    run: str = world.owner.submit(thread, f"please {EVIL}")["run"]["id"]
    turn = world.claim()
    turn.prepare()
    turn.admit()
    content = [{"type": "content", "content": {"type": "text", "text": EVIL}}]
    turn.events(
        {"kind": "text", "data": {"text": EVIL}},
        {"kind": "tool_call", "data": {"id": "1", "title": EVIL, "kind": "read"}},
        {"kind": "tool_update", "data": {"id": "1", "status": "failed", "content": content}},
        {"kind": "notice", "data": {"text": EVIL}},
    )
    turn.settle(EVIL)
    turn.finish()
    return run


def test_a_terminal_gets_signs(told: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """Text, titles, outputs, tables: none of it is carried out. JSON is the same value as in a pipe."""
    run, env = told
    text = on_terminal("runs", "events", run, home=tmp_path, env=env)
    assert text.count("␛]52;c;ZXZpbA==␇") >= 4
    as_json = on_terminal("runs", "events", run, "--json", home=tmp_path, env=env)
    for shown in (
        text,
        as_json,
        on_terminal("runs", "show", run, home=tmp_path, env=env),
        on_terminal("runs", "list", home=tmp_path, env=env),
        on_terminal("conversations", "list", home=tmp_path, env=env),
    ):
        for one in OBEYED:
            if one not in "\n\t":
                plain = (
                    shown.replace("\x1b[0m", "").replace("\x1b[2m", "").replace("\x1b[31m", "").replace("\x1b[1m", "")
                )
                assert one not in plain, (repr(one), plain)
    first = next(event for event in map(json.loads, as_json.strip().split("\n")) if event["kind"] == "text")
    assert first["data"]["text"] == EVIL


def test_a_pipe_gets_the_json_as_it_is(told: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """For programs, nothing is changed; the text for people is the same as on a terminal."""
    run, env = told
    raw = turnkeeper("runs", "events", run, "--json", home=tmp_path, env=env)
    assert "\u202e" in raw.out
    assert "\x9b" in raw.out
    text = turnkeeper("runs", "events", run, home=tmp_path, env=env)
    assert SHOWN in text.out
