"""What every command owes to whoever types it: help with an example, one line when it is used wrongly, a quick start."""

from pathlib import Path

import click
import pytest

from cli.terminal import turnkeeper
from turnkeeper import __version__
from turnkeeper.cli.root import COMMANDS, root

# What makes a start slow; none of it is needed to say how a command is used.
HEAVY = {
    "acp",
    "alembic",
    "asyncio",
    "fastapi",
    "httpx2",
    "jinja2",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "uvicorn",
}

WRONG = (
    (("nope",), "No such command 'nope'"),
    (("--nope",), "No such option"),
    (("demo", "--port", "x"), "--port"),
    (("demo", "surplus"), "surplus"),
    (("up", "--port", "99999"), "99999"),
    (("up", "--capacity", "0"), "--capacity"),
    (("chat", "--agent"), "--agent"),
    (("chat", "a", "b"), "b"),
    (("conversations", "nope"), "nope"),
    (("conversations", "list", "--limit", "0"), "--limit"),
    (("conversations", "show"), "THREAD"),
    (("conversations", "create"), "--agent"),
    (("conversations", "close"), "THREAD"),
    (("runs", "list", "--limit", "many"), "many"),
    (("runs", "show"), "RUN"),
    (("runs", "events", "x", "--after", "-1"), "--after"),
    (("runs", "cancel"), "RUN"),
    (("agents", "show"), "NAME"),
    (("agents", "add", "/does/not/exist.toml"), "/does/not/exist.toml"),
    (("agents", "remove"), "NAME"),
    (("keys", "create"), "NAME"),
    (("keys", "revoke"), "KEY"),
    (("users", "add"), "NAME"),
    (("users", "add", "x", "--language", "fr"), "fr"),
    (("login", "surplus"), "surplus"),
    (("hosts", "token"), "HOST"),
    (("hosts", "revoke"), "HOST"),
    (("db", "check"), "DATABASE_URL"),
    (("db", "upgrade"), "DATABASE_URL"),
    (("doctor",), "DATABASE_URL"),
    (("control", "--listen", "8420"), "'8420'; it must be host:port"),
    (("control", "--lease-ttl", "40"), "--lease-ttl is 40; it must be greater than"),
    (("provisioner", "--listen", "unix:relative"), "absolute path"),
    (("host", "--capacity", "-1"), "--capacity"),
    (("host", "--lease-ttl", "soon"), "soon"),
    (("sandboxd",), "--listen-fd"),
)

# Its output belongs to somebody else, or it ends in another program.
NO_JSON = {("control",), ("provisioner",), ("host",), ("sandboxd",)}


def every_command() -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command and group below the root, by its words."""
    found: list[tuple[tuple[str, ...], click.Command]] = []

    def walk(words: tuple[str, ...], command: click.Command) -> None:
        if words:
            found.append((words, command))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                walk((*words, name), below)

    walk((), root)
    return found


EVERY = every_command()


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_every_command_has_help_with_an_example_that_it_understands(
    words: tuple[str, ...], command: click.Command
) -> None:
    """A description, and an example that names the command and parses."""
    assert command.help, words
    assert "Example" in (command.epilog or ""), words
    examples = [part for part in (command.epilog or "").split("turnkeeper ") if part.startswith(words[0])]
    assert examples, f"the example of {words} does not name it"


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_everything_that_prints_speaks_json(words: tuple[str, ...], command: click.Command) -> None:
    """`--json` on every command but those whose output is a log."""
    if isinstance(command, click.Group) or words in NO_JSON:
        return
    assert any("--json" in option.opts for option in command.params), words


def test_the_list_of_commands_is_the_commands(tmp_path: Path) -> None:
    """The root's help lists what can be called, with the help that was declared for it."""
    ran = turnkeeper("--help", home=tmp_path)
    assert (ran.status, ran.err) == (0, "")
    for name in COMMANDS:
        assert f"\n  {name} " in ran.out
    assert "Example: turnkeeper demo --once" in ran.out


def test_the_version_is_the_package_s(tmp_path: Path) -> None:
    """One line with the number."""
    ran = turnkeeper("--version", home=tmp_path)
    assert (ran.status, ran.out, ran.err) == (0, f"turnkeeper, version {__version__}\n", "")


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_use_is_one_line_and_status_2(arguments: tuple[str, ...], named: str, tmp_path: Path) -> None:
    """The line names what was wrong. Proves: L-09 (--lease-ttl)."""
    ran = turnkeeper(*arguments, home=tmp_path)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.one_line().startswith("error: ")
    assert named in ran.one_line()


QUICK = ("--version", "--help", "nope", "up --help", "demo --nope", "chat --help", "runs list --limit 0", "agents --help",
         "keys create", "db check", "doctor", "control --listen x", "control --lease-ttl 1", "host --lease-ttl 1", "sandboxd")  # fmt: skip


@pytest.mark.parametrize("line", QUICK)
def test_nothing_heavy_is_imported_to_say_how_a_command_is_used(line: str, tmp_path: Path) -> None:
    """Judged by the modules that were imported, not by a clock (which would measure the machine)."""
    ran = turnkeeper(*line.split(), home=tmp_path, python=("-X", "importtime"))
    imported = {row.rpartition("|")[2].strip() for row in ran.error_lines if row.startswith("import time:")}
    assert "click" in imported
    assert not imported & HEAVY


def test_the_look_at_imports_can_fail(tmp_path: Path) -> None:
    """The stale twin: a command that speaks to the control plane does import its client, and is seen doing so."""
    ran = turnkeeper(
        "runs", "list", "--url", "http://127.0.0.1:1", home=tmp_path, env={"TURNKEEPER_API_KEY": "tk_x"},
        python=("-X", "importtime"),
    )  # fmt: skip
    assert HEAVY & {row.rpartition("|")[2].strip() for row in ran.error_lines}


def test_a_command_line_without_a_command_shows_help(tmp_path: Path) -> None:
    """Nothing was asked: the help is the answer, and the status says that nothing was done."""
    ran = turnkeeper(home=tmp_path)
    assert ran.status == 2
    assert "Usage: turnkeeper" in ran.err
    assert "Traceback" not in ran.err
