"""The servers that tests use leave nothing behind, also where a session is killed, and take nothing from one that lives."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from harness import postgres
from harness.embedded import run
from harness.postgres import PostgresServer, private_directory, sweep

SESSION = """
import sys
sys.path.insert(0, sys.argv[1])
from harness.postgres import postgres_server
with postgres_server() as server:
    server.create_database()
    print(server.prefix, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def given(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """This session's own server, as one that somebody named."""
    monkeypatch.setenv("TEST_DATABASE_URL", postgres_server.url)
    return postgres_server.url


def databases(url: str, prefix: str) -> list[str]:
    """Those whose names begin so."""
    return [name for (name,) in run(url, "SELECT datname FROM pg_database") if name.startswith(prefix)]


def session(name: str = "") -> "subprocess.Popen[str]":
    """Another test session on the given server, with a database. `name`: what its connections are called there."""
    command = [sys.executable, "-c", SESSION, str(Path(postgres.__file__).parents[1])]
    environment = {**os.environ, "PGAPPNAME": name}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_session_leaves_nothing_on_a_server_that_stays(given: str) -> None:
    """Not even where a test keeps a connection, or has not given its database back."""
    of_others = set(databases(given, "test_"))
    assert of_others, "those of the session that runs this test"
    with postgres.postgres_server() as server:
        kept = psycopg.connect(server.create_database())
        server.give_back(server.create_database())
        server.create_database(empty=True)
        assert len(databases(given, server.prefix)) >= 3
    assert databases(given, server.prefix) == []
    template = {name for name in of_others if name.endswith("_template")}
    assert template <= set(databases(given, "test_"))
    with pytest.raises(psycopg.OperationalError):
        kept.execute("SELECT 1")


def test_what_a_killed_session_left_is_removed_by_the_next(given: str) -> None:
    """And nothing of one that lives."""
    name = f"killed-{os.getpid()}"
    with session(name) as killed, session() as living:
        left, kept = first_line(killed), first_line(living)
        killed.kill()
        killed.wait()
        # Its backends see that a moment later, and one that copies a database finishes that first.
        end = time.monotonic() + 30
        while (name,) in run(given, "SELECT application_name FROM pg_stat_activity"):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert databases(given, left)
        before = databases(given, kept)
        with postgres.postgres_server():
            assert databases(given, left) == []
            assert set(before) <= set(databases(given, kept))
        living.communicate("")
    assert living.returncode == 0
    assert databases(given, kept) == []


def test_no_sweep_takes_a_directory_before_its_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session may sweep at any moment, so at the worst one."""
    lock = fcntl.flock

    def after_a_sweep(file: IO[Any], operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            sweep()
        lock(file, operation)

    monkeypatch.setattr(postgres.fcntl, "flock", after_a_sweep)
    with private_directory() as directory:
        assert directory.is_dir()
        sweep()
        assert directory.is_dir()
    assert not directory.exists()
