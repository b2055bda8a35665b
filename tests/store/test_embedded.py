"""The embedded PostgreSQL: real servers, killed, stopped and found again."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from harness.postgres import FAST_SETTINGS, embedded_at, end_processes_in, private_directory, throw_away, wait_until
from turnkeeper.kit.procs import ProcessId, descendants, identify, is_alive, kill
from turnkeeper.store import pginstall
from turnkeeper.store.embedded import EmbeddedPostgres
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable

# A supervisor that is killed has to be a process of its own. It says where the server is, and stays.
SUPERVISOR = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.postgres import embedded_at
server = embedded_at(Path(sys.argv[1]))
server.start_blocking()
print(server.postmaster.pid, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def directory() -> Generator[Path]:
    """An empty directory for a server; whatever still works in it at the end is killed."""
    with private_directory() as made:
        try:
            yield made
        finally:
            end_processes_in(made)


@pytest.fixture(scope="session", name="template")
def _template() -> Generator[Path]:
    """A data directory to copy: making one takes longer than most of these tests."""
    with private_directory() as made:
        server = embedded_at(made)
        server.start_blocking()
        server.stop_blocking()
        yield made / "postgres"


@pytest.fixture
def ready(directory: Path, template: Path) -> Path:
    """A directory with the data of a server that was stopped cleanly."""
    shutil.copytree(template, directory / "postgres", symlinks=True)
    return directory


def _run(url: str, statement: str, *, autocommit: bool = True) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=autocommit) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def _supervised(directory: Path) -> Generator[tuple["subprocess.Popen[str]", ProcessId]]:
    tests = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(directory), str(tests)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        postmaster = identify(int(process.stdout.readline()))
        assert postmaster is not None
        yield process, postmaster
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_a_new_server_is_ours_alone(directory: Path) -> None:
    """Made, started and answering; private, durable, checksummed, and on no network."""
    server = embedded_at(directory)
    url = await server.start()
    try:
        assert server.alive
        assert not server.adopted
        assert await server.start() == url  # started already
        for path in (directory / "postgres", directory / "s"):
            assert path.stat().st_mode & 0o777 == 0o700
        assert (directory / "s" / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o700
        shown = {
            name: _run(url, f"SHOW {name}")[0][0]
            for name in ("listen_addresses", "fsync", "synchronous_commit", "full_page_writes", "data_checksums",
                         "server_encoding", "log_error_verbosity", "timezone", "server_version")
        }  # fmt: skip
        assert shown.pop("server_version").startswith("18.")
        assert shown == {
            "listen_addresses": "", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
            "data_checksums": "on", "server_encoding": "UTF8", "log_error_verbosity": "terse", "timezone": "UTC",
        }  # fmt: skip
        assert _run(url, "SELECT lower('ÄÖ') || '漢'") == [("äö漢",)]
        assert server.postmaster is not None
        assert _listening_inodes(server.postmaster) == set()
    finally:
        await server.stop()
    assert not server.alive
    assert not (directory / "postgres" / "postmaster.pid").exists()


def _listening_inodes(process: ProcessId) -> set[str]:
    """The TCP sockets that a process listens on."""
    inodes = {
        str(entry.readlink()).removeprefix("socket:[").removesuffix("]")
        for entry in Path(f"/proc/{process.pid}/fd").iterdir()
    }
    listening: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.add(fields[9])
    return listening


def test_only_our_own_account_is_let_in(ready: Path) -> None:
    """Peer authentication as the one database user; another database user is refused, and so is another account."""
    server = embedded_at(ready)
    url = server.start_blocking()
    try:
        assert _run(url, "SELECT current_user, inet_server_addr()") == [("turnkeeper", None)]
        _run(url, "CREATE ROLE mallory LOGIN SUPERUSER")
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf rejects"):
            _run(make_conninfo(url, user="mallory"), "SELECT 1")
        if os.geteuid() == 0:
            # The directory's mode keeps others out; even one that gets to the socket is not who the map names.
            for path in (ready, ready / "s", ready / "s" / ".s.PGSQL.5432"):
                path.chmod(0o777)
            psql = str(pginstall.find_installation().bin / "psql")
            with contextlib.suppress(PermissionError):  # below root's home nobody else can run it
                said = subprocess.run(
                    [psql, url, "-c", "SELECT 1"], user=65533, group=65533, extra_groups=[], cwd="/",
                    capture_output=True, text=True, check=False, env={},
                )  # fmt: skip
                assert said.returncode != 0
                assert "eer authentication failed" in said.stderr
    finally:
        throw_away(server)


def test_a_survivor_is_adopted(ready: Path) -> None:
    """The supervisor is killed with SIGKILL; the server goes on, and the next start takes over the same process and data."""
    with _supervised(ready) as (supervisor, postmaster):
        server = embedded_at(ready)
        url = server.url()
        _run(url, "CREATE TABLE kept AS SELECT 1 AS one")
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        assert is_alive(postmaster)
        assert server.start_blocking() == url
        try:
            assert server.adopted
            assert server.postmaster == postmaster
            assert server.alive
            assert _run(url, "SELECT one FROM kept") == [(1,)]
        finally:
            server.stop_blocking()
    assert not is_alive(postmaster)


def test_a_second_supervisor_is_refused(ready: Path) -> None:
    """Two of them would end each other's server. The first one's goes on."""
    with _supervised(ready) as (_, postmaster):
        second = embedded_at(ready)
        with pytest.raises(DatabaseRefused, match="is in use by another Turnkeeper: stop it first"):
            second.start_blocking()
        assert is_alive(postmaster)
        assert _run(second.url(), "SELECT 1") == [(1,)]


def test_a_killed_server_recovers(ready: Path) -> None:
    """SIGKILL for the postmaster and all of its processes: what was committed is there, what was not is not."""
    server = embedded_at(ready)
    url = server.start_blocking()
    _run(url, "CREATE TABLE kept (n integer)")
    _run(url, "INSERT INTO kept SELECT generate_series(1, 1000)")
    open_one = psycopg.connect(url)
    open_one.execute("INSERT INTO kept VALUES (0)")
    assert server.postmaster is not None
    for process in [server.postmaster, *descendants(server.postmaster.pid)]:
        kill(process, signal.SIGKILL)
    wait_until(lambda: not server.alive, "the server's end")
    open_one.close()
    assert (ready / "postgres" / "postmaster.pid").exists()
    server.start_blocking()
    try:
        assert _run(url, "SELECT count(*), min(n) FROM kept") == [(1000, 1)]
    finally:
        server.stop_blocking()


def test_children_of_a_killed_postmaster_are_waited_for(ready: Path) -> None:
    """A backend that has not yet noticed its postmaster's death still writes: no second server beside it."""
    server = embedded_at(ready)
    url = server.start_blocking()
    assert server.postmaster is not None
    with psycopg.connect(url, autocommit=True) as connection:
        backend = identify(connection.info.backend_pid)
        assert backend is not None
        kill(backend, signal.SIGSTOP)
        kill(server.postmaster, signal.SIGKILL)
        wait_until(lambda: not server.alive, "the postmaster's end")
        server.release()
        impatient = EmbeddedPostgres(ready / "postgres", ready / "s", ready / "postgres.log", start_timeout_s=0.5)
        with pytest.raises(DatabaseUnavailable, match="still runs and cannot be found"):
            impatient.start_blocking()
        kill(backend, signal.SIGCONT)
    again = embedded_at(ready)
    again.start_blocking()
    again.stop_blocking()


def test_a_remnant_pid_file_that_names_somebody_else(ready: Path) -> None:
    """A pid that was given to another process since: that process is neither adopted nor touched."""
    server = embedded_at(ready)
    url = server.start_blocking()
    server.stop_blocking()
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        pid_file = ready / "postgres" / "postmaster.pid"
        pid_file.write_text(f"{innocent.pid}\n{ready / 'postgres'}\n1\n5432\n{ready / 's'}\n\n0 0\nready\n")
        server.start_blocking()
        assert server.postmaster is not None
        assert server.postmaster.pid != innocent.pid
        assert not server.adopted
        assert _run(url, "SELECT 1") == [(1,)]
        server.stop_blocking()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_pid_file_of_nonsense(ready: Path) -> None:
    """Nobody holds the server's lock, so it is a remnant whatever it says."""
    for content in (b"", b"\n\n", b"not a number\n", b"999999999\n", b"-1\n", b"\xff\xfe"):
        (ready / "postgres" / "postmaster.pid").write_bytes(content)
        server = embedded_at(ready)
        server.start_blocking()
        server.stop_blocking()


def test_a_survivor_of_another_directory_is_not_ours(directory: Path) -> None:
    """A pid file that was copied with the data names the original's live server: it is left alone."""
    original = embedded_at(directory / "a")
    original.start_blocking()
    try:
        subprocess.run(["cp", "-a", str(directory / "a" / "postgres"), str(directory / "b")], check=True)
        copied = directory / "b-dir"
        copied.mkdir(mode=0o700)
        (directory / "b").rename(copied / "postgres")
        copy = embedded_at(copied)
        url = copy.start_blocking()
        try:
            assert not copy.adopted
            assert copy.postmaster != original.postmaster
            assert _run(url, "SELECT 1") == [(1,)]
            assert original.alive
        finally:
            throw_away(copy)
    finally:
        throw_away(original)


def test_a_survivor_that_does_not_answer_is_replaced(ready: Path) -> None:
    """A stopped postmaster is ours and of no use: it is ended, and a new one recovers."""
    with _supervised(ready) as (supervisor, postmaster):
        supervisor.kill()
        supervisor.wait()
        _run(embedded_at(ready).url(), "CREATE TABLE kept ()")
        kill(postmaster, signal.SIGSTOP)
        server = EmbeddedPostgres(
            ready / "postgres",
            ready / "s",
            ready / "postgres.log",
            settings=FAST_SETTINGS,
            start_timeout_s=6,
        )
        url = server.start_blocking()
        try:
            assert not server.adopted
            assert not is_alive(postmaster)
            assert _run(url, "SELECT * FROM kept") == []
        finally:
            throw_away(server)


def test_a_survivor_with_another_socket_is_replaced(ready: Path) -> None:
    """Its clients would not find it. It is ended cleanly, and started where it is expected."""
    with _supervised(ready) as (supervisor, postmaster):
        supervisor.kill()
        supervisor.wait()
        elsewhere = EmbeddedPostgres(ready / "postgres", ready / "s2", ready / "postgres.log", settings=FAST_SETTINGS)
        url = elsewhere.start_blocking()
        try:
            assert not is_alive(postmaster)
            assert str(ready / "s2") in url.replace("%2F", "/")
            assert _run(url, "SELECT 1") == [(1,)]
        finally:
            throw_away(elsewhere)


def test_a_half_made_data_directory_is_made_again(directory: Path) -> None:
    """The supervisor was killed while initdb ran: what it left was never a server's, so it is made anew."""
    tests = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(directory), str(tests)], stdout=subprocess.DEVNULL
    )
    half_made = directory / ".postgres.initdb"
    wait_until((half_made / "PG_VERSION").exists, "initdb at work")
    process.kill()
    process.wait()
    assert not (directory / "postgres").exists()
    server = embedded_at(directory)
    url = server.start_blocking()
    try:
        assert _run(url, "SELECT 1") == [(1,)]
        assert not half_made.exists()
    finally:
        throw_away(server)


def test_what_is_not_a_data_directory_is_not_touched(directory: Path) -> None:
    """Somebody's files in the place, or another major version's data: one line, and nothing is changed."""
    precious = directory / "postgres" / "thesis.txt"
    precious.parent.mkdir(mode=0o700)
    precious.write_text("three years")
    with pytest.raises(DatabaseRefused, match="holds something that is no PostgreSQL data directory: move it away"):
        embedded_at(directory).start_blocking()
    assert precious.read_text() == "three years"
    precious.unlink()
    (directory / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(DatabaseRefused, match="is of PostgreSQL 16; this release runs 18"):
        embedded_at(directory).start_blocking()
    assert [path.name for path in (directory / "postgres").iterdir()] == ["PG_VERSION"]


def test_a_directory_that_cannot_be_made(directory: Path) -> None:
    """The refusal names the path and the system's reason."""
    (directory / "file").write_text("")
    server = EmbeddedPostgres(directory / "file" / "postgres", directory / "s", directory / "postgres.log")
    with pytest.raises(DatabaseRefused, match=r"cannot use .*/file.* for PostgreSQL: "):
        server.start_blocking()


def test_a_server_that_does_not_start_says_why(ready: Path) -> None:
    """PostgreSQL's own last word, and where the log is; a second try without the mistake works."""
    with pytest.raises(DatabaseUnavailable) as caught:
        embedded_at(ready, shared_buffers="nonsense").start_blocking()
    said = str(caught.value)
    assert 'invalid value for parameter "shared_buffers": "nonsense"' in said
    assert str(ready / "postgres.log") in said
    assert "\n" not in said
    server = embedded_at(ready)
    server.start_blocking()
    throw_away(server)


def test_a_long_path_gets_a_short_socket(ready: Path) -> None:
    """PostgreSQL refuses socket paths over 107 bytes: a private ready is used, found again by the next start, and removed."""
    deep = ready / ("d" * 60) / ("e" * 60)
    server = embedded_at(deep)
    url = server.start_blocking()
    short = server.socket_dir
    assert short != deep / "s"
    assert short.stat().st_mode & 0o777 == 0o700
    assert _run(url, "SELECT 1") == [(1,)]
    server.release()
    again = embedded_at(deep)
    assert again.start_blocking() == url
    assert again.adopted
    again.stop_blocking()
    assert not short.exists()
    assert [path.name for path in (deep / "s").iterdir()] == []


def test_a_short_directory_that_somebody_took_is_not_used(ready: Path) -> None:
    """The recorded one may have been replaced since: by a link, or by a ready that others can enter."""
    deep = ready / ("d" * 60) / ("e" * 60)
    (deep / "s").mkdir(parents=True)
    taken = ready / "taken"
    taken.mkdir()
    taken.chmod(0o777)
    (deep / "s" / "socket-directory").write_text(str(taken))
    server = embedded_at(deep)
    server.start_blocking()
    try:
        assert server.socket_dir != taken
        assert list(taken.iterdir()) == []
    finally:
        throw_away(server)


def test_stopping_is_idempotent_and_ends_open_sessions(ready: Path) -> None:
    """A fast shutdown: open transactions are rolled back, and the next start needs no recovery."""
    server = embedded_at(ready)
    url = server.start_blocking()
    session = psycopg.connect(url)
    session.execute("CREATE TABLE unfinished ()")
    server.stop_blocking()
    server.stop_blocking()
    session.close()
    server.start_blocking()
    try:
        assert _run(url, "SELECT to_regclass('unfinished')") == [(None,)]
        log = (ready / "postgres.log").read_text()
        assert "automatic recovery" not in log
    finally:
        throw_away(server)


async def test_a_stop_ends_a_start_that_is_under_way(ready: Path) -> None:
    """`up` may be stopped while it brings the server back; the thread that starts it cannot be cancelled."""
    holder = embedded_at(ready)
    holder.start_blocking()
    assert holder.postmaster is not None
    kill(holder.postmaster, signal.SIGSTOP)
    survivor = holder.postmaster
    holder.release()
    server = embedded_at(ready)
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)  # it is in its thread, or about to be
    await server.stop()
    with pytest.raises(DatabaseUnavailable, match="was stopped while it started"):
        await starting
    holder = embedded_at(ready)
    with contextlib.suppress(OSError):
        kill(survivor, signal.SIGCONT)
    holder.start_blocking()  # whether or not the start had found the survivor by then, the directory is left usable
    throw_away(holder)


async def test_the_end_of_the_server_is_noticed(ready: Path) -> None:
    """So that whoever supervises it can start it again."""
    server = embedded_at(ready)
    await server.start()
    assert server.postmaster is not None
    kill(server.postmaster, signal.SIGKILL)
    await server.wait_ended()
    assert not server.alive
    await server.start()
    assert server.alive
    throw_away(server)


def test_no_failing_row_gets_into_the_log(ready: Path) -> None:
    """Proves: E-02. PostgreSQL's DETAIL shows the row that a constraint refused: a prompt, perhaps."""
    server = embedded_at(ready)
    url = server.start_blocking()
    try:
        _run(url, "CREATE TABLE prompts (id integer PRIMARY KEY, text text NOT NULL, CHECK (id < 10))")
        with psycopg.connect(url, autocommit=True) as connection, pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("INSERT INTO prompts VALUES (%s, %s)", (11, "the owner's own words"))
    finally:
        throw_away(server)
    log = (ready / "postgres.log").read_text()
    assert "violates check constraint" in log
    assert "the owner's own words" not in log


def test_the_environment_of_the_server_is_its_own(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves: K-11. No variable of ours is shown by its processes, and libpq's variables do not lead us elsewhere."""
    monkeypatch.setenv("TURNKEEPER_SECRET_VALUE", "hunter2")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=elsewhere")
    monkeypatch.setenv("PGHOST", "/nonexistent")
    server = embedded_at(ready)
    server.start_blocking()
    try:
        assert server.postmaster is not None
        environment = Path(f"/proc/{server.postmaster.pid}/environ").read_bytes()
        assert b"hunter2" not in environment
        assert b"PGHOST" not in environment
        descriptors = [str(entry.readlink()) for entry in Path(f"/proc/{server.postmaster.pid}/fd").iterdir()]
        assert sum("server.lock" in target for target in descriptors) == 1
        assert not any("supervisor.lock" in target for target in descriptors)
    finally:
        throw_away(server)


def test_the_socket_belongs_to_whom_we_ask(ready: Path) -> None:
    """Another process that answers on the socket's name is not taken for the server."""
    server = embedded_at(ready)
    server.start_blocking()
    try:
        stranger = identify(os.getpid())
        assert stranger is not None
        assert server.postmaster is not None
        assert server.answers(server.postmaster)
        assert not server.answers(stranger)
    finally:
        throw_away(server)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(str(ready / "s" / ".s.PGSQL.5432"))
        start = time.monotonic()
        assert not server.answers(stranger)
        assert time.monotonic() - start < 10
