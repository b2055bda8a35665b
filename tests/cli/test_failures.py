"""Commands that fail: one line on stderr that names the thing, and status 1."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.terminal import environment, turnkeeper
from turnkeeper.cli.stream import Printer
from turnkeeper.wire.turn import EventKind

KEY = {"TURNKEEPER_API_KEY": "tk_not-a-real-key"}


def test_without_a_key_the_line_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """Neither the variable nor the data directory's file."""
    ran = turnkeeper("runs", "list", home=tmp_path)
    assert ran.status == 1
    assert "TURNKEEPER_API_KEY is not set" in ran.one_line()
    assert str(tmp_path / ".local/share/turnkeeper/keys/owner-key") in ran.one_line()


def test_an_empty_key_file_is_named(tmp_path: Path) -> None:
    """A key that is no key is not sent."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "owner-key").write_text("\n")
    ran = turnkeeper("runs", "list", "--data", str(tmp_path), home=tmp_path)
    assert ran.status == 1
    assert f"{tmp_path}/keys/owner-key holds no API key" in ran.one_line()


@pytest.mark.parametrize("key", ["schlüssel", "two words", "a\tb"])
def test_a_key_that_cannot_be_sent_is_named_and_not_shown(key: str, tmp_path: Path) -> None:
    """A header takes neither."""
    ran = turnkeeper("runs", "list", home=tmp_path, env={"TURNKEEPER_API_KEY": key})
    assert ran.status == 1
    assert "TURNKEEPER_API_KEY holds no API key" in ran.one_line()
    assert key not in ran.err


def test_no_control_plane_is_one_line_with_the_address(tmp_path: Path) -> None:
    """A refused connection; the key is not in the line."""
    ran = turnkeeper("chat", "hello", "--url", "http://127.0.0.1:1", home=tmp_path, env=KEY)
    assert ran.status == 1
    assert "no answer from the control plane at http://127.0.0.1:1" in ran.one_line()
    assert "tk_not" not in ran.err


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://", "unix:relative"])
def test_an_address_that_is_none_is_wrong_use(url: str, tmp_path: Path) -> None:
    """`--url` is named."""
    ran = turnkeeper("runs", "list", "--url", url, home=tmp_path, env=KEY)
    assert ran.status == 2
    assert "--url" in ran.one_line()


def test_a_peer_that_speaks_something_else_is_one_line(tmp_path: Path) -> None:
    """Another service listens on the port: no traceback, whatever it says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)
        import threading

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        ran = turnkeeper("runs", "list", "--url", f"http://127.0.0.1:{port}", home=tmp_path, env=KEY)
        thread.join()
    assert ran.status == 1
    assert f"127.0.0.1:{port}" in ran.one_line()


def test_a_definition_that_is_no_toml_is_one_line(tmp_path: Path) -> None:
    """`agents add` reads the file before it asks anybody."""
    file = tmp_path / "agent.toml"
    file.write_text("name = ")
    ran = turnkeeper("agents", "add", str(file), home=tmp_path, env=KEY)
    assert ran.status == 1
    assert f"{file} is not TOML" in ran.one_line()
    file.write_bytes(b"name = '\xff'")
    assert f"{file} is not TOML" in turnkeeper("agents", "add", str(file), home=tmp_path, env=KEY).one_line()


@pytest.mark.parametrize(("name", "value"), [("", "None"), ("name = 'Bad Name'\n", "'Bad Name'"), ("name = 3\n", "3")])
def test_a_definition_without_a_good_name_is_told_all_its_faults(name: str, value: str, tmp_path: Path) -> None:
    """One line for each; the name's says the rule."""
    file = tmp_path / "agent.toml"
    file.write_text(f"{name}command = 'python'\nnetwork = 'wide'\n")
    ran = turnkeeper("agents", "add", str(file), home=tmp_path, env=KEY)
    assert ran.status == 1
    assert ran.error_lines[0] == f"error: {file} is no agent definition:"
    assert ran.error_lines[1].startswith(f"  name is {value}; it must be 1 to 63 lower-case letters, digits, ")
    assert [line.split(" is ")[0] for line in ran.error_lines[2:]] == ["  command", "  network"]


def test_a_reader_that_leaves_is_no_failure_worth_a_traceback(tmp_path: Path) -> None:
    """`turnkeeper --help | head -0`."""
    import subprocess
    import sys

    from cli.terminal import environment

    with subprocess.Popen(
        [sys.executable, "-m", "turnkeeper", "--help"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert b"Exception" not in process.stderr.read()
        process.wait(timeout=20)


def test_a_fault_of_ours_is_one_line_unless_the_trace_is_asked_for(tmp_path: Path) -> None:
    """A home that is a file breaks something nobody foresaw in the same way on every command."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "keys").mkdir()
    (data / "keys" / "owner-key").mkdir()
    ran = turnkeeper("runs", "list", "--data", str(data), home=tmp_path)
    assert ran.status == 1
    assert "owner-key" in ran.one_line()


@pytest.mark.parametrize("words", [("chat", "\udcff"), ("runs", "show", "a\udcffb"), ("\udcff",)])
def test_an_argument_that_is_no_text_is_wrong_use(words: tuple[str, ...], tmp_path: Path) -> None:
    """Bytes that are not UTF-8, as a shell in another encoding sends them. Case: F14."""
    ran = turnkeeper(*words, home=tmp_path, env=KEY)
    assert ran.status == 2
    assert "is not text: arguments must be UTF-8" in ran.one_line()


@pytest.mark.parametrize("closed", [1, 2])
def test_without_an_output_nothing_breaks(closed: int, tmp_path: Path) -> None:
    """`turnkeeper runs list >&-`."""
    command = f'exec "{sys.executable}" -m turnkeeper runs list --url http://127.0.0.1:1 {closed}>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=environment(tmp_path, KEY),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert ("no answer from the control plane" in done.stderr) == (closed == 1)


@pytest.mark.parametrize("process", ["control", "provisioner", "host"])
def test_a_log_level_that_is_none_is_one_line(process: str, tmp_path: Path) -> None:
    """The setting, its value, and what would be right."""
    ran = turnkeeper(process, home=tmp_path, env={"TURNKEEPER_LOG_LEVEL": "loud"})
    assert ran.status == 1
    assert ran.one_line() == "error: TURNKEEPER_LOG_LEVEL is 'loud'; it must be one of debug, info, warning, error"


def test_a_cancel_that_was_asked_for_is_not_red(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said like the other states; an error is red, with its reason below."""

    def keeps(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("click.utils.should_strip_ansi", keeps)
    printer = Printer()
    printer.show(EventKind.ERROR, {"code": "cancelled", "text": "The turn was cancelled."})
    printer.show(
        EventKind.ERROR, {"code": "sandbox_unavailable", "text": "No.", "refusal": "conflict", "detail": "no value"}
    )
    cancelled, failed = capsys.readouterr().out.split("\x1b[0m\n")[:2]
    assert cancelled == "\x1b[2m! The turn was cancelled."
    assert failed.endswith("! No.\n  no value")
    assert failed.startswith("\x1b[31m")
