"""The demo as a newcomer runs it: what it prints, what it exits with, and that it leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cli.terminal import turnkeeper
from e2e.harness import processes_of

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place() -> Path:
    """A directory for temporary files, with a short name (sockets)."""
    return Path(tempfile.mkdtemp(prefix="tk-demo-"))


def test_the_demo_shows_three_turns_and_leaves_nothing(place: Path) -> None:
    """Stream, run table, changes and the page's address; its directory and processes are gone. Proves: K-10, R-07."""
    ran = turnkeeper("demo", "--once", home=place, env={"TMPDIR": str(place)}, timeout_s=150)
    assert ran.status == 0, ran
    for said in (
        "turn 1: a file is written",
        "wrote notes.txt",
        "The answer is 42.",
        "turn 3, remembering 2 earlier turns",
        "changed: notes.txt",
        "added        notes.txt",
        "The page was at http://127.0.0.1:",
    ):
        assert said in ran.out, said
    assert ran.out.count("completed") >= 6
    assert ran.err == ""
    assert not processes_of(place)
    assert list(place.iterdir()) == []
    shutil.rmtree(place)


def test_a_demo_that_is_stopped_ends_at_once_and_leaves_no_sandbox(place: Path) -> None:
    """Ctrl-C in the middle of the talk: one line says so, and nothing of it runs on."""
    starting = [sys.executable, "-m", "turnkeeper", "demo", "--port", "0"]
    environment = {**os.environ, "HOME": str(place), "TMPDIR": str(place), "XDG_DATA_HOME": str(place / "share")}
    with subprocess.Popen(
        starting, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("turn 1"):
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(60) == 1
    assert "stopping" in rest
    assert rest.splitlines()[-1] == "the demo was stopped before its conversation had ended"
    assert not processes_of(place)
    shutil.rmtree(place)


def test_the_demo_s_last_line_is_one_object(place: Path) -> None:
    """Run ids, statuses, native turns, epochs and timings."""
    ran = turnkeeper("demo", "--once", "--json", home=place, env={"TMPDIR": str(place)}, timeout_s=150)
    assert ran.status == 0, ran
    report = json.loads(ran.out.splitlines()[-1])
    assert report["ok"] is True
    assert report["broken"] == []
    assert [(turn["status"], turn["native_turn"], turn["epoch"]) for turn in report["turns"]] == [
        ("completed", number, number) for number in (1, 2, 3)
    ]
    assert len({turn["run_id"] for turn in report["turns"]}) == 3
    assert [turn["changed"] for turn in report["turns"]] == [["notes.txt"], ["words.txt"], []]
    assert all(0 < turn["first_text_ms"] <= turn["took_ms"] for turn in report["turns"])
    assert list(place.iterdir()) == []
    shutil.rmtree(place)


def test_a_demo_that_cannot_be_given_ends_with_status_1(place: Path) -> None:
    """Without bubblewrap nothing that it promises can happen. Proves: K-08."""
    ran = turnkeeper(
        "demo", "--once", "--json", home=place, env={"PATH": str(place), "TMPDIR": str(place)}, timeout_s=60
    )
    assert ran.status == 1
    assert "bubblewrap" in ran.one_line()
    assert list(place.iterdir()) == []
    shutil.rmtree(place)


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        ((), "demo"),
        (("ONCE=1",), "demo --once"),
        (("ONCE=1", "JSON=1"), "demo --once --json"),
        (("JSON=1",), "demo --json"),
    ],
)
def test_make_demo_passes_its_variables_on(variables: tuple[str, ...], arguments: str) -> None:
    """What `make demo` would run; the installation before it is what CI does with every run."""
    done = subprocess.run(
        ["make", "--dry-run", "demo", *variables], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    commands = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert f".venv/bin/turnkeeper {arguments}" in commands
    assert any("system-packages.sh demo" in line for line in commands)
