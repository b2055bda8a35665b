"""Whatever stands in an argument, the answer is one line that names the argument, and never a fault of ours."""

from pathlib import Path

import click
import pytest

from api.world import World
from cli.terminal import turnkeeper
from turnkeeper.cli import arguments
from turnkeeper.cli.arguments import (
    ADDRESS,
    DIRECTORY,
    GIVEN,
    HOST_NAME,
    KEY_ID,
    KEY_NAME,
    TITLE,
    USER_NAME,
    WORKDIR,
    shown,
)
from turnkeeper.cli.output import visible
from turnkeeper.cli.root import run

LONG = "x" * 300
ODD = (
    "",
    " ",
    LONG,
    "\x1b[2J",
    "\x9b",
    "\u202e",
    "a\nb",
    "..",
    "../x",
    "a/b",
    "?",
    "#",
    "%00",
    "-1",
    "é" * 200,
    "x" * 5001,
)
AGENT = arguments.AGENT_NAME
CREATE = ("conversations", "create", "--agent=scripted")

# Each argument that takes a text: how its line names it, its kind, and a command in which `{}` stands for the value.
ASKED = {
    "hosts token": ("HOST", HOST_NAME, ("hosts", "token", "--", "{}")),
    "hosts tokens": ("HOST", HOST_NAME, ("hosts", "tokens", "--", "{}")),
    "hosts revoke": ("HOST", HOST_NAME, ("hosts", "revoke", "--", "{}")),
    "hosts revoke one": ("TOKEN", KEY_ID, ("hosts", "revoke", "--", "h", "{}")),
    "users add": ("NAME", USER_NAME, ("users", "add", "--", "{}")),
    "keys create": ("NAME", KEY_NAME, ("keys", "create", "--", "{}")),
    "keys create of": ("--user", USER_NAME, ("keys", "create", "--user={}", "--", "x")),
    "keys revoke": ("KEY", KEY_ID, ("keys", "revoke", "--", "{}")),
    "login": ("--user", USER_NAME, ("login", "--user={}")),
    "agents show": ("NAME", AGENT, ("agents", "show", "--", "{}")),
    "agents reset": ("NAME", AGENT, ("agents", "reset", "--", "{}")),
    "agents remove": ("NAME", AGENT, ("agents", "remove", "--", "{}")),
    "agents add": ("FILE", None, ("agents", "add", "--", "{}")),
    "runs list": ("--thread", KEY_ID, ("runs", "list", "--thread={}")),
    "runs show": ("RUN", KEY_ID, ("runs", "show", "--", "{}")),
    "runs events": ("RUN", KEY_ID, ("runs", "events", "--", "{}")),
    "runs cancel": ("RUN", KEY_ID, ("runs", "cancel", "--", "{}")),
    "conversations show": ("THREAD", KEY_ID, ("conversations", "show", "--", "{}")),
    "conversations close": ("THREAD", KEY_ID, ("conversations", "close", "--", "{}")),
    "conversations agent": ("--agent", AGENT, ("conversations", "create", "--agent={}")),
    "conversations workdir": ("--workdir", WORKDIR, (*CREATE, "--workdir={}")),
    "conversations title": ("--title", TITLE, (*CREATE, "--title={}")),
    "chat agent": ("--agent", AGENT, ("chat", "x", "--agent={}")),
    "chat thread": ("--thread", KEY_ID, ("chat", "x", "--thread={}")),
    "data": ("--data", DIRECTORY, ("runs", "list", "--data={}")),
    "url": ("--url", None, ("runs", "list", "--url={}")),
    "doctor data": ("--data", DIRECTORY, ("doctor", "--data={}")),
}
# Those of commands that would start something, or go on for long, with a value that is right.
STARTING = {
    "chat workdir": ("--workdir", WORKDIR, ("chat", "x", "--workdir={}")),
    "doctor database": ("--database", GIVEN, ("doctor", "--database={}")),
    "db check": ("--database", GIVEN, ("db", "check", "--database={}")),
    "db upgrade": ("--database", GIVEN, ("db", "upgrade", "--database={}")),
    "up data": ("--data", DIRECTORY, ("up", "--data={}")),
    "up host": ("--host", ADDRESS, ("up", "--host={}")),
    "up allowed host": ("--allowed-host", ADDRESS, ("up", "--allowed-host={}")),
    "demo data": ("--data", DIRECTORY, ("demo", "--once", "--data={}")),
}


def wrongly(where: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the command with a value; one that its kind refuses is named, and nothing else is worse than a refusal."""
    named, kind, command = {**ASKED, **STARTING}[where]
    status = run([word.replace("{}", value) for word in command])
    told = capsys.readouterr()
    assert "unexpected" not in told.err, (where, value, told.err)
    assert visible(told.err) == told.err, (where, value, told.err)
    assert visible(told.out) == told.out, (where, value, told.out)
    if status != 0:
        assert len(told.err.splitlines()) == 1, (where, value, told.err)
        assert len(told.err) < 700, (where, value, told.err)
    if kind is not None and kind.fault(value) is not None:
        assert status == 2, (where, value, told.err)
        assert told.out == ""
        assert named in told.err
        assert shown(value)[:20].lower() in told.err.lower(), (where, value, told.err)


@pytest.mark.parametrize("where", ASKED)
def test_an_odd_argument_is_one_line(
    where: str, shared_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty, far too long, of control characters, of a path. Case: F14."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("TURNKEEPER_URL", shared_world.url)
    monkeypatch.setenv("TURNKEEPER_API_KEY", shared_world.owner.key)
    for value in ODD:
        wrongly(where, value, capsys)


@pytest.mark.parametrize("where", STARTING)
def test_an_odd_argument_starts_nothing(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As far as its kind refuses it."""
    kind = STARTING[where][1]
    refused = [value for value in ODD if kind.fault(value) is not None]
    assert refused
    for value in refused:
        wrongly(where, value, capsys)


def test_every_argument_of_text_has_a_kind() -> None:
    """A new argument without one is noticed here. Free text and addresses are looked at by the command itself."""
    from cli.test_usage import EVERY

    plain = {
        (" ".join(words), one.name) for words, command in EVERY for one in command.params if one.type is click.STRING
    }
    assert plain == {
        ("chat", "text"),
        ("control", "listen"),
        ("provisioner", "listen"),
        *((" ".join(words), "url") for words, command in EVERY if any(one.name == "url" for one in command.params)),
    }


def test_an_id_may_be_typed_in_upper_case(
    shared_world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and as a beginning."""
    monkeypatch.setenv("TURNKEEPER_URL", shared_world.url)
    monkeypatch.setenv("TURNKEEPER_API_KEY", shared_world.owner.key)
    thread = shared_world.owner.conversation()["thread_id"]
    for given in (thread.upper(), thread[:30].upper()):
        assert run(["conversations", "show", given]) == 0
        assert thread in capsys.readouterr().out


def test_the_name_that_an_address_was_given_by_is_told(tmp_path: Path) -> None:
    """The variable where it was that."""
    key = {"TURNKEEPER_API_KEY": "tk_x"}
    assert (
        "TURNKEEPER_URL: 'x' is no"
        in turnkeeper("keys", "list", home=tmp_path, env={**key, "TURNKEEPER_URL": "x"}).one_line()
    )
    assert "--url: 'x' is no" in turnkeeper("keys", "list", "--url", "x", home=tmp_path, env=key).one_line()
    ran = turnkeeper("keys", "list", home=tmp_path, env={"TURNKEEPER_DATA": LONG})
    assert ran.status == 2
    assert "too long" in ran.one_line()


def test_values_are_cut() -> None:
    """And what a terminal would obey is escaped."""
    assert shown("a") == "'a'"
    assert shown("\x9b") == "'\\x9b'"
    assert shown(LONG) == f"'{'x' * 40}'… (300 characters)"
