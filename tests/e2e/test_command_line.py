"""The command line against a running product: what a person types, sees and gets as JSON."""

import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.terminal import Ran, environment, turnkeeper
from e2e.harness import Product, wait_for
from harness.signals import starting_with
from turnkeeper.kit.ids import new_id

# An id that belongs to nothing; the same in every process, so that the tests can be spread over several.
NOBODYS = "01a229e7-064d-76e1-9839-0d6f7a1b2c3d"

pytestmark = pytest.mark.timeout(180)

Tk = Callable[..., Ran]


@pytest.fixture
def tk(product: Product) -> Tk:
    """The command line of the first owner on this machine."""

    def run(*arguments: str, env: dict[str, str] | None = None, stdin: str = "") -> Ran:
        where = {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root)}
        return turnkeeper(*arguments, home=product.root, env={**where, **(env or {})}, stdin=stdin, timeout_s=90)

    return run


def parsed(ran: Ran) -> Any:
    """The one JSON value that a command printed."""
    assert (ran.status, ran.err) == (0, ""), ran
    (line,) = ran.out.splitlines()
    return json.loads(line)


def test_an_agent_that_cannot_run_says_why_and_how(tk: Tk, product: Product) -> None:
    """Proves: R-06, E-04. Refused by name with its install command; a run that begins all the same says what was missing."""
    definition = product.root / "agent.toml"
    definition.write_text(
        'name = "gone"\ncommand = ["/opt/no-such/agent"]\ninstall_hint = "install-agent --prefix /opt"\n'
    )
    assert "/opt/no-such/agent is no program on this machine" in tk("agents", "add", str(definition)).out
    refused = tk("chat", "--agent", "gone", "hello")
    assert refused.status == 1
    assert "agent gone cannot run here: /opt/no-such/agent" in refused.one_line()
    assert "install it with: install-agent --prefix /opt" in refused.one_line()
    definition.write_text('name = "keyless"\ncommand = ["python", "-m", "turnkeeper.agents.scripted"]\n')
    assert tk("agents", "add", str(definition)).out.startswith("added keyless")
    thread = parsed(tk("conversations", "create", "--agent", "keyless", "--json"))["thread_id"]
    definition.write_text(definition.read_text() + 'secrets = ["TK_NO_SUCH_KEY"]\n')
    assert "no value for secret 'TK_NO_SUCH_KEY'" in tk("agents", "add", str(definition)).out
    said = tk("chat", "hello", "--thread", thread)
    assert said.status == 1
    why = "no value for secret 'TK_NO_SUCH_KEY' in the provisioner's environment"
    assert f"! The agent's workplace could not be made available.\n  {why}\n" in said.out
    run = parsed(tk("runs", "list", "--thread", thread, "--json"))[0]["id"]
    detail = parsed(tk("runs", "show", run, "--json"))["error_detail"]
    assert (detail["refusal"], detail["text"]) == ("conflict", why)
    assert why in tk("runs", "show", run).out
    assert parsed(tk("agents", "remove", "keyless", "--json"))
    removed = tk("chat", "hello", "--thread", thread)
    assert "the agent keyless was removed" in removed.out
    log = (product.data.logs / "host.log").read_text()
    assert '"refusal": "conflict"' in log or '"refusal":"conflict"' in log
    assert "TK_NO_SUCH_KEY" not in log


def test_a_further_user_and_a_fresh_link(tk: Tk, product: Product) -> None:
    """The key works at once; a link opens the page as whoever asked for it; the key in use is not revoked by mistake."""
    name = f"lin-{new_id()[-6:]}"
    lin = parsed(tk("users", "add", name, "--language", "zh", "--json"))
    assert name in tk("users", "list").out
    key = {"TURNKEEPER_API_KEY": lin["key"]}
    assert parsed(tk("conversations", "list", "--json", env=key)) == []
    for link in (lin["link"], parsed(tk("login", "--json", env=key))["link"], tk("login").out.strip()):
        assert link.startswith(f"{product.url}/login?token=tk_")
    used = parsed(tk("keys", "list", "--json", env=key))[0]["id"]
    refused = tk("keys", "revoke", used, env=key)
    assert refused.status == 1
    assert "is the key that this command uses" in refused.one_line()
    assert tk("keys", "revoke", used, "--yes", env=key).status == 0
    dead = tk("runs", "list", env=key)
    assert dead.status == 1
    assert "revoked" in dead.one_line()
    assert "TURNKEEPER_API_KEY" in dead.one_line()
    for shown in (lin["key"], lin["link"].partition("=")[2]):
        assert shown not in "".join(file.read_text(errors="replace") for file in product.data.logs.iterdir())


def test_an_empty_message_makes_no_conversation(tk: Tk) -> None:
    """Refused before anything is made."""
    before = parsed(tk("conversations", "list", "--json"))
    ran = tk("chat", " ")
    assert ran.status == 2
    assert "the message is empty" in ran.one_line()
    assert parsed(tk("conversations", "list", "--json")) == before


def test_what_an_agent_says_of_its_failure_is_its_own_word(tk: Tk) -> None:
    """`/fail` is the scripted agent's."""
    said = tk("chat", "/fail the printer is on fire")
    assert said.status == 1
    assert "the agent said: " in said.out
    assert "the printer is on fire" in said.out


def test_a_talk_from_the_first_word_to_the_list_of_runs(tk: Tk) -> None:
    """Create, chat, show, list, events: for people and as JSON."""
    conversation = parsed(tk("conversations", "create", "--agent", "scripted", "--workdir", "talk", "--json"))
    thread = conversation["thread_id"]
    said = tk("chat", "/write a.txt hello\n/say all done", "--thread", thread)
    assert said.status == 0, said
    assert "all done" in said.out
    assert "a.txt" in said.out
    lines = tk("chat", "--thread", thread, stdin="first\n\nsecond\n")
    assert lines.status == 0
    assert "turn 2, remembering 1 earlier turns: first" in lines.out
    assert "turn 3, remembering 2 earlier turns: second" in lines.out
    runs = parsed(tk("runs", "list", "--thread", thread, "--json"))
    assert [one["status"] for one in runs] == ["completed"] * 3
    first = runs[-1]["id"]
    detail = parsed(tk("runs", "show", first, "--json"))
    assert detail["output"] == "wrote a.txt\nall done"
    assert [file["path"] for file in detail["snapshot"]["changes"]["files"]] == ["a.txt"]
    shown = tk("runs", "show", first)
    assert "completed" in shown.out
    assert "added" in shown.out
    events = [json.loads(line) for line in tk("runs", "events", first, "--json").out.splitlines()]
    assert events[-1]["kind"] == "end"
    after = [
        json.loads(line)
        for line in tk("runs", "events", first, "--json", "--after", str(events[-2]["seq"])).out.splitlines()
    ]
    assert [one["kind"] for one in after if one["seq"] is not None] == ["end"]
    assert parsed(tk("runs", "show", first[:-1], "--json"))["id"] == first
    assert "no run begins with 0000" in tk("runs", "show", "0000").one_line()
    assert "is the beginning of" in tk("runs", "show", first[:4]).one_line()
    assert parsed(tk("conversations", "show", thread[:-2], "--json"))["title"] == "/write a.txt hello"
    table = tk("runs", "list")
    assert first in table.out
    assert thread in tk("conversations", "list").out
    assert parsed(tk("conversations", "show", thread, "--json"))["native_turn"] == 3
    assert parsed(tk("conversations", "close", thread, "--json"))["state"] == "closed"
    closed = tk("chat", "more", "--thread", thread)
    assert closed.status == 1
    assert "closed" in closed.one_line()


def test_a_turn_that_does_not_complete_is_status_1(tk: Tk) -> None:
    """What the agent said about it is shown."""
    ran = tk("chat", "/fail the model is away")
    assert ran.status == 1
    assert "Traceback" not in ran.err
    as_json = tk("chat", "/fail the model is away", "--json")
    assert as_json.status == 1
    end = json.loads(as_json.out.splitlines()[-1])
    assert (end["kind"], end["data"]["status"]) == ("end", "failed")


def test_agents_are_listed_shown_added_and_removed(tk: Tk, tmp_path: Path) -> None:
    """The ready-made ones are there; a missing one is shown with the command that installs it."""
    listed = {one["name"]: one for one in parsed(tk("agents", "list", "--json"))}
    assert {"scripted", "vibe", "opencode", "claude", "codex", "gemini"} <= set(listed)
    assert listed["scripted"]["available"]
    assert listed["gemini"]["install"].startswith("npm install")
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\ncommand = ["python", "-m", "turnkeeper.agents.scripted"]\ntitle = "My own"\n')
    assert parsed(tk("agents", "add", str(file), "--json"))["title"] == "My own"
    shown = tk("agents", "show", "mine").out
    assert tomllib.loads(shown) == {**tomllib.loads(file.read_text()), "network": "none", "runtime_policy": "retained",
                                    "session_timeout_s": 120, "setup_timeout_s": 600}  # fmt: skip
    assert tk("agents", "add", str(file)).out == "replaced mine\n"
    assert tk("chat", "hello", "--agent", "mine").status == 0
    file.write_text('name = "mine"\ncommand = "python"\nnetwork = "wide"\n')
    refused = tk("agents", "add", str(file))
    assert refused.status == 1
    assert "command is 'python'" in refused.err
    assert "network is 'wide'" in refused.err
    assert len(refused.error_lines) == 3, "one a line"
    assert "no definition of 'mine' comes with this version" in tk("agents", "reset", "mine").one_line()
    file.write_text('name = "vibe"\ncommand = ["sh"]\n')
    assert tk("agents", "add", str(file)).out == "replaced vibe\n"
    assert tk("agents", "reset", "vibe").out.startswith("reset vibe (unavailable here: ")
    assert "To install what is missing" in tk("agents", "list").out
    assert parsed(tk("agents", "remove", "mine", "--json")) == {"removed": "mine"}
    gone = tk("chat", "hello", "--agent", "mine")
    assert gone.status == 1
    assert "mine" in gone.one_line()
    assert "`turnkeeper agents list`" in gone.one_line()


def test_a_key_opens_until_it_is_revoked(tk: Tk) -> None:
    """It is shown once; afterwards every command says the same one line."""
    made = parsed(tk("keys", "create", "laptop", "--json"))
    env = {"TURNKEEPER_API_KEY": made["key"]}
    assert tk("runs", "list", env=env).status == 0
    listed = next(one for one in parsed(tk("keys", "list", "--json")) if one["id"] == made["id"])
    assert "key" not in listed
    assert made["key"] not in tk("keys", "list").out
    assert parsed(tk("keys", "revoke", made["id"], "--json")) == {"revoked": made["id"]}
    for key in (made["key"], "tk_never-was", made["key"][:-1]):
        ran = tk("runs", "list", env={"TURNKEEPER_API_KEY": key})
        assert ran.status == 1
        assert "key" in ran.one_line().lower()
        assert key not in ran.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("chat", "hello", "--agent", "nobody"), "nobody"),
        (("chat", "x" * (1 << 20) + "y"), ""),
        (("chat", "hello", "--thread", NOBODYS), ""),
        (("runs", "show", NOBODYS), ""),
        (("runs", "events", NOBODYS), ""),
        (("conversations", "show", NOBODYS), ""),
        (("agents", "show", "no-such"), ""),
        (("keys", "revoke", NOBODYS), ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_one_line_and_status_1(arguments: tuple[str, ...], named: str, tk: Tk) -> None:
    """Unknown agent, oversized prompt, ids of nothing: the line names what it is about. Case: F14."""
    if len(arguments) > 1 and len(arguments[1]) > 1 << 17:
        ran = tk("chat", stdin=f"{arguments[1]}\n")  # more than one word of a command line can hold
        ran = Ran(ran.status, ran.out, ran.err)
    else:
        ran = tk(*arguments)
    assert ran.status == 1, ran.out[:500] + ran.err[:500]
    line = ran.one_line()
    assert line.startswith("error: ")
    assert "unexpected" not in line
    assert named in line.lower()


def test_what_belongs_to_somebody_else_is_not_there(product: Product, tk: Tk) -> None:
    """Another owner gets the answer that nobody's id gets; nothing is told about what exists."""
    thread = product.conversation("scripted", "mine-alone")
    run_id = product.completed(thread, "/say mine").run.id
    key, theirs_too = product.other_owner()
    theirs_too.close()
    env = {"TURNKEEPER_API_KEY": key}
    for arguments in (
        ("conversations", "show", thread),
        ("conversations", "close", thread),
        ("chat", "hello", "--thread", thread),
        ("runs", "show", run_id),
        ("runs", "events", run_id),
        ("runs", "cancel", run_id),
        ("runs", "list", "--thread", thread),
    ):
        theirs = tk(*arguments, env=env)
        nobody = tk(*(new_id() if one in (thread, run_id) else one for one in arguments), env=env)
        assert theirs.status == 1, arguments
        assert theirs.one_line() == nobody.one_line()
    assert json.loads(tk("runs", "list", "--json", env=env).out) == []
    assert product.client.conversation(thread).state == "open"
    # an owner is no administrator
    refused = tk("agents", "remove", "scripted", env=env)
    assert refused.status == 1
    assert next(one for one in product.client.agents() if one.name == "scripted")


def test_a_host_gets_a_token_and_loses_it(tk: Tk) -> None:
    """Shown once, listed by its id, revoked one by one and all at once."""
    assert "local" in tk("hosts", "list").out
    assert {one["name"] for one in parsed(tk("hosts", "list", "--json"))} == {"local"}
    name = f"host-{new_id()}"
    assert "has no token" in tk("hosts", "tokens", name).one_line()
    plain = tk("hosts", "token", name)
    assert plain.out.startswith("tkh_")
    made = parsed(tk("hosts", "token", name, "--json"))
    assert made["host"] == name
    listed = tk("hosts", "tokens", name)
    assert made["id"] in listed.out
    assert made["token"] not in listed.out
    assert tk("hosts", "revoke", name, made["id"]).out == f"revoked; host {name} has 1 valid token left\n"
    assert all(one["revoked_at"] for one in parsed(tk("hosts", "revoke", name, "--json")))
    assert "a host's name is 1 to 63 letters" in tk("hosts", "token", "a b").one_line()
    assert "no such host token" in tk("hosts", "revoke", name, NOBODYS).one_line()


def test_ctrl_c_during_a_turn_cancels_it(product: Product) -> None:
    """The turn ends as cancelled, which the command shows and tells by its status; what was shown is not shown again."""
    env = {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root)}
    command = [sys.executable, "-m", "turnkeeper", "chat", "/run touch begun-here; sleep 60", "--workdir", "ctrl-c"]
    with starting_with():  # a shell that runs these tests in the background would have it ignore Ctrl-C
        process = subprocess.Popen(
            command, env=environment(product.root, env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    with process:
        wait_for((product.workspace / "ctrl-c" / "begun-here").exists, "the tool runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "cancelled" in out
    assert out.count("· session") == 1
    assert "cancelling run " in err
    assert "Traceback" not in err
