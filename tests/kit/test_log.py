"""Process logs: events with fields, and nothing secret in them."""

import ast
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import turnkeeper
from turnkeeper.kit import log
from turnkeeper.kit.ids import new_secret
from turnkeeper.kit.log import REDACTED, SECRET_PREFIXES, configure, get_logger, redact_text

SECRET = "canary-" + "x" * 30
EMITTING = ("debug", "info", "warning", "error", "exception", "bind", "bind_context")


@pytest.fixture
def out() -> Generator[io.StringIO]:
    stream = io.StringIO()
    configure("test", "debug", stream=stream)
    yield stream
    log.clear_context()
    configure("test", "error")


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line(out: io.StringIO) -> None:
    """Event name and fields, level, process, logger, and a UTC time with its offset (F12)."""
    logger = get_logger("runner.heartbeat").bind(run_id="r")
    logger.info(
        "agent_heartbeat_recovered", failures=3, text="a\nb\0\ud800😀", path=Path("/x"), nested={"a": [1, None]}
    )
    (event,) = events(out)
    moment = datetime.fromisoformat(event.pop("time"))
    assert moment.utcoffset() == timedelta(0)
    assert event == {
        "event": "agent_heartbeat_recovered",
        "level": "info",
        "process": "test",
        "logger": "runner.heartbeat",
        "run_id": "r",
        "failures": 3,
        "text": "a\nb\0\ud800😀",
        "path": "/x",
        "nested": {"a": [1, None]},
    }


def test_levels_and_context(out: io.StringIO) -> None:
    """What is below the level is not written; context fields are on every event until cleared."""
    configure("test", "warning", stream=out)
    log.bind_context(request="q")
    logger = get_logger("x")
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    log.clear_context()
    logger.error("d")
    assert [(e["event"], e["level"], e.get("request")) for e in events(out)] == [
        ("c", "warning", "q"),
        ("d", "error", None),
    ]


def test_no_event_passes_a_field_that_is_the_logger_s_own() -> None:
    """It would be lost, and the line would say something else in its place: `process` says who writes."""
    lost: list[str] = []
    root = Path(turnkeeper.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in EMITTING or "log" not in ast.unparse(node.func.value).lower():
                continue
            own = [word.arg for word in node.keywords if word.arg in log.OWN_FIELDS]
            lost += [f"{file.relative_to(root)}:{node.lineno} {name}" for name in own]
    assert not lost


@pytest.mark.parametrize(
    "key",
    [
        "token", "Token", "worker_token", "token_value", "secret", "client_secret", "Authorization", "authorization", "password",
        "db_password", "cookie", "Set-Cookie", "cookies", "tokens", "secrets", "api_key", "apikey", "API_KEY", "credential", "dsn",
        "private_key", "x-token",
    ],
)  # fmt: skip
def test_values_of_secret_keys_are_redacted(out: io.StringIO, key: str) -> None:
    """Proves: K-11, E-02 (logs). By the key's name, at any depth."""
    get_logger("x").info("event_seen", **{key: SECRET}, deep=[{"a": {key: SECRET}}])
    assert SECRET not in out.getvalue()
    (event,) = events(out)
    assert event[key] == REDACTED
    assert event["deep"] == [{"a": {key: REDACTED}}]


@pytest.mark.parametrize(
    "key",
    ["token_hash", "secret_names", "token_count", "token_id", "tokenizer", "session", "keyboard", "author", "key"],
)
def test_harmless_keys_are_not(out: io.StringIO, key: str) -> None:
    """A log that hides too much helps nobody."""
    get_logger("x").info("event_seen", **{key: "shown"})
    assert events(out)[0][key] == "shown"


@pytest.mark.parametrize("prefix", SECRET_PREFIXES)
def test_our_own_secrets_are_found_anywhere(out: io.StringIO, prefix: str) -> None:
    """Proves: K-11, E-02 (logs). In a value, in a text, in a list, in an exception, in bytes, in an object's repr."""
    secret = new_secret(prefix)

    class Holder:
        def __str__(self) -> str:
            return f"Holder({secret})"

    logger = get_logger("x")
    logger.info(
        "event_seen",
        a=secret,
        b=f"GET /x?t={secret}&y",
        c=[secret, (secret,), {secret}],
        d={"k": secret},
        e=secret.encode(),
        f=Holder(),
        g=ValueError(secret),
    )
    try:
        raise ValueError(secret)
    except ValueError:
        logger.exception("it_failed")
    assert secret not in out.getvalue()
    assert secret[len(prefix) :] not in out.getvalue()
    assert "ValueError" in events(out)[1]["exception"]


def test_an_exception_is_told_by_class_and_place_and_never_by_its_message(out: io.StringIO) -> None:
    """Proves: E-02. Its cause too, and the exception during whose handling it came; ours may say what they say."""

    class Ours(Exception):  # noqa: N818
        is_safe_to_log = True

    try:
        try:
            raise KeyError("a prompt")
        except KeyError as cause:
            raise ValueError("http://peer.example/path answered with a body") from cause
    except ValueError:
        try:
            raise Ours("run 7 has no end")
        except Ours:
            get_logger("x").exception("it_failed")
    told = events(out)[0]["exception"]
    for message in ("a prompt\n", "peer.example/path answered\n", "KeyError: ", "ValueError: "):
        assert message not in told
    assert told.index("builtins.KeyError") < told.index("builtins.ValueError") < told.index("Ours: run 7 has no end")
    assert told.count("test_log.py") == 3


def test_what_nobody_caught_is_told_without_its_message() -> None:
    """Proves: E-02. In a thread and in the main one; the exit status stays what it would be."""
    program = (
        "import threading\n"
        "from turnkeeper.kit.log import configure\n"
        "configure('worker')\n"
        "thread = threading.Thread(target=lambda: int('a prompt'), name='events-reader')\n"
        "thread.start(); thread.join()\n"
        "raise ValueError('quick' + 'silver')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    of_thread, of_process = map(json.loads, done.stderr.splitlines())
    assert (of_thread["event"], of_thread["thread"]) == ("thread_broke", "events-reader")
    assert of_process["event"] == "process_broke"
    for told in (of_thread, of_process):
        assert told["exception"].endswith("builtins.ValueError")
    assert "quicksilver" not in done.stderr
    assert "a prompt" not in done.stderr


def test_bearer_credentials_and_prose() -> None:
    """Somebody else's bearer token too; a word that only looks like a prefix stays."""
    assert redact_text("Authorization: Bearer abcdefghijk") == f"Authorization: Bearer {REDACTED}"
    assert redact_text("basic YWxhZGRpbjpvcGVu") == f"basic {REDACTED}"
    assert redact_text("tk_now() and tk_short") == "tk_now() and tk_short"
    assert redact_text("a basic idea") == "a basic idea"


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    """Line by line, so that a killed process has lost none."""
    path = tmp_path / "control.log"
    path.write_text("before\n")
    try:
        configure("control", path=path)
        get_logger("x").info("started")
        lines = path.read_text(encoding="utf-8").splitlines()
    finally:
        configure("test", "error")
    assert lines[0] == "before"
    assert json.loads(lines[1])["event"] == "started"


def test_text_for_a_person() -> None:
    """One line, whatever the fields hold."""
    stream = io.StringIO()
    try:
        configure("up", json=False, stream=stream)
        get_logger("x").info("started", port=8420, text="a\nb", token=SECRET, bad="\ud800")
        assert stream.getvalue().encode("utf-8"), "a terminal can take it"
    finally:
        configure("test", "error")
    (line,) = stream.getvalue().splitlines()
    assert " info up started " in line
    assert "port=8420" in line
    assert "text='a\\nb'" in line
    assert SECRET not in line


def test_a_reader_that_is_gone_is_no_failure() -> None:
    """A log line never ends a turn."""

    class Gone(io.StringIO):
        def write(self, _text: str, /) -> int:
            raise BrokenPipeError

    try:
        configure("test", stream=Gone())
        get_logger("x").info("lost")
    finally:
        configure("test", "error")


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that was replaced after `configure`; stdout stays free for results."""
    try:
        configure("test")
        get_logger("x").info("started")
    finally:
        configure("test", "error")
    captured = capsys.readouterr()
    assert json.loads(captured.err)["event"] == "started"
    assert captured.out == ""


def test_an_unknown_level_is_refused() -> None:
    """With the choices."""
    with pytest.raises(ValueError, match="debug, info, warning, error; got 'loud'"):
        configure("x", "loud")


def test_importing_is_cheap_and_rich_is_left_alone() -> None:
    """Neither structlog nor rich is imported before the first event; rich works afterwards as if nothing had been."""
    code = (
        "import sys\n"
        "from turnkeeper.kit.log import configure, get_logger\n"
        "log = get_logger('x')\n"
        "assert 'structlog' not in sys.modules and 'rich' not in sys.modules, 'too early'\n"
        "configure('x'); log.info('e')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'rich'], 'rich was imported'\n"
        "import rich.console\n"
        "log.info('f')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["e", "f"]
    assert done.stdout == ""


def test_a_full_disk_loses_events_and_ends_nothing() -> None:
    """Whoever tells of something must not fail by telling it; what comes after there is room again is written."""
    with Path("/dev/full").open("w", buffering=1) as full:
        configure("test", "info", stream=full)
        try:
            for number in range(2000):
                get_logger("x").info("happened", number=number, text="x" * 100)
        finally:
            configure("test", "error")
        with contextlib.suppress(OSError):
            full.close()
