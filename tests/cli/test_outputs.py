"""Outputs that take nothing: full, gone, or not there at all. What is shown once must not be lost without a word."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from api.world import World
from cli.terminal import Ran, environment
from harness.postgres import private_directory

Tk = Callable[..., Ran]
GONE = "gone"
"""A pipe whose reader has left."""


@pytest.fixture
def tk(shared_world: World, tmp_path: Path) -> Tk:
    """The command line of an administrator, with a redirection of the shell's behind it."""
    env = {"TURNKEEPER_URL": shared_world.url, "TURNKEEPER_API_KEY": shared_world.owner.key}

    def run(*words: str, to: str = "", env_more: dict[str, str] | None = None, stdin: str = "") -> Ran:
        line = f"{shlex.join([sys.executable, '-m', 'turnkeeper', *words])} {'' if to == GONE else to}"
        reader, writer = os.pipe()
        if to == GONE:
            os.close(reader)
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                env=environment(tmp_path, {**env, **(env_more or {})}),
                input=stdin,
                stdout=writer if to == GONE else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=50,
                check=False,
            )
        finally:
            os.close(writer)
            if to != GONE:
                os.close(reader)
        return Ran(done.returncode, done.stdout or "", done.stderr)

    return run


def test_a_new_user_s_key_that_nobody_saw_can_be_replaced(tk: Tk, shared_world: World) -> None:
    """The line says that the user is there, and the two commands that it names give another key and another link."""
    lost = tk("users", "add", "lin", to="> /dev/full")
    assert lost.status == 1
    assert lost.one_line() == (
        "error: user lin was created with a key and a link, but could not be shown, as the output refuses it "
        "(No space left on device): `turnkeeper keys create NAME --user lin` makes another key, "
        "`turnkeeper login --user lin` another link"
    )
    uid = next(one["uid"] for one in json.loads(tk("users", "list", "--json").out) if one["name"] == "lin")
    key = tk("keys", "create", "second", "--user", "lin").out.strip()
    for given in (key, json.loads(tk("keys", "create", "third", "--user", uid, "--json").out)["key"]):
        mine = tk("keys", "list", "--json", env_more={"TURNKEEPER_API_KEY": given})
        assert "second" in {one["name"] for one in json.loads(mine.out)}
    link = tk("login", "--user", "lin").out.strip()
    assert link.startswith(f"{shared_world.url}/login?token=tk_")
    assert json.loads(tk("login", "--user", uid, "--json").out)["link"] != link
    for words in (("keys", "create", "x"), ("login",)):
        assert tk(*words, "--user", "nobody").one_line().startswith("error: there is no user nobody; ")
        refused = tk(*words, "--user", "lin", env_more={"TURNKEEPER_API_KEY": key})
        assert refused.status == 1
        assert "administrator" in refused.one_line()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("users", "add"), "was created with a key and a link, but could not be shown, as the output refuses it"),
        (("keys", "create"), "revoke it (turnkeeper keys revoke "),
        (("hosts", "token"), "revoke it (turnkeeper hosts revoke "),
        (("login",), "a link was made, but could not be shown"),
    ],
    ids=["users add", "keys create", "hosts token", "login"],
)
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_what_is_shown_once_is_never_lost_without_a_word(
    words: tuple[str, ...], told: str, more: tuple[str, ...], tk: Tk
) -> None:
    """A full disk, and a reader that left; where there is no output at all, nothing is made."""
    for number, to in enumerate(("> /dev/full", GONE)):
        name = () if words == ("login",) else (f"n{number}{len(more)}",)
        ran = tk(*words, *name, *more, to=to)
        assert ran.status == 1, (to, ran)
        assert told in ran.one_line(), (to, ran)
        assert "tk_" not in ran.err
        assert "tkh_" not in ran.err
    closed = tk(*words, *(() if words == ("login",) else ("closed",)), *more, to=">&-")
    assert closed.status == 1
    assert closed.one_line().startswith("error: there is no output (stdout is closed)")


def test_nothing_is_made_without_an_output(tk: Tk) -> None:
    """The user whose key would have gone nowhere is not there."""
    tk("users", "add", "unseen", to=">&-")
    assert "unseen" not in tk("users", "list").out


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("runs", "--help"),
        ("runs", "list"),
        ("agents", "list"),
        ("agents", "list", "--json"),
    ],
    ids=" ".join,
)
def test_an_output_that_is_full_is_one_line(words: tuple[str, ...], tk: Tk) -> None:
    """Not the interpreter's own complaint at its end, with a status that nobody knows."""
    ran = tk(*words, to="> /dev/full")
    assert ran.status == 1
    assert ran.one_line() == "error: the output cannot be written (No space left on device)"
    ran = tk(*words, to=GONE)
    assert "Traceback" not in ran.err
    assert "Exception" not in ran.err


def test_a_complaint_that_nobody_hears_keeps_its_status(tk: Tk) -> None:
    """Both outputs full."""
    assert tk("runs", "show", "0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d", to="> /dev/full 2> /dev/full").status == 1
    assert tk("runs", "show", "x", to="2> /dev/full").status == 2


def test_a_terminal_that_lacks_letters_gets_what_it_can_show(tk: Tk) -> None:
    """In Latin-1 or ASCII there is no `字`: it is written as an escape, and is no end of the command."""
    assert tk("conversations", "create", "--agent", "scripted", "--title", "字").status == 0
    for encoding in ("ascii", "latin-1"):
        ran = tk("conversations", "list", env_more={"PYTHONIOENCODING": encoding})
        assert (ran.status, ran.err) == (0, "")
        assert "\\u5b57" in ran.out


def test_json_is_not_mixed_with_a_prompt(tk: Tk) -> None:
    """`chat --json` with lines from a pipe, or from nowhere: no prompt where no person is."""
    for more in ((), ("--json",)):
        for to in ("", "<&-"):
            ran = tk("chat", *more, to=to)
            assert (ran.status, ran.err) == (0, "")
            assert ">" not in ran.out
            assert ran.out.count("\n") == (0 if more else 1)


def test_the_tokens_of_an_unknown_host(tk: Tk) -> None:
    """Neither listed nor revoked as if they had been; a host that was heard and has none is none of that."""
    for verb in ("tokens", "revoke"):
        for words in ((), ("--json",)):
            ran = tk("hosts", verb, "sec0nd", *words)
            assert (ran.status, ran.out) == (1, "")
            assert ran.one_line().startswith("error: host sec0nd has no token")
    token = json.loads(tk("hosts", "token", "second", "--json").out)
    assert token["id"] in tk("hosts", "tokens", "second").out
    assert (
        tk("hosts", "revoke", "second", token["id"][:30].upper()).out
        == "revoked; host second has 0 valid tokens left\n"
    )
    assert tk("hosts", "revoke", "second").status == 0


@pytest.mark.timeout(120)
def test_up_whose_output_is_full_ends_with_one_line(tmp_path: Path) -> None:
    """The link to the page is shown there alone; what was started is ended again."""
    with private_directory() as data:
        line = f"{shlex.join([sys.executable, '-m', 'turnkeeper', 'up', '--unsafe-no-isolation', '--port', '0'])} > /dev/full"
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env=environment(tmp_path, {"TURNKEEPER_DATA": str(data)}),
            stderr=subprocess.PIPE,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the link to the page was made, but could not be shown")
    assert "unexpected" not in done.stderr
