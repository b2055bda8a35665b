"""The embedded PostgreSQL: made, started, refused and stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from harness.embedded import SUPERVISOR, run
from harness.postgres import embedded_at, throw_away, wait_until
from turnkeeper.kit.procs import ProcessId, identify, kill
from turnkeeper.store import pginstall
from turnkeeper.store.embedded import EmbeddedPostgres
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable


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
            name: run(url, f"SHOW {name}")[0][0]
            for name in ("listen_addresses", "fsync", "synchronous_commit", "full_page_writes", "data_checksums",
                         "server_encoding", "log_error_verbosity", "timezone", "server_version")
        }  # fmt: skip
        assert shown.pop("server_version").startswith("18.")
        assert shown == {
            "listen_addresses": "", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
            "data_checksums": "on", "server_encoding": "UTF8", "log_error_verbosity": "terse", "timezone": "UTC",
        }  # fmt: skip
        assert run(url, "SELECT lower('ÄÖ') || '漢'") == [("äö漢",)]
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
        assert run(url, "SELECT current_user, inet_server_addr()") == [("turnkeeper", None)]
        run(url, "CREATE ROLE mallory LOGIN SUPERUSER")
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf rejects"):
            run(make_conninfo(url, user="mallory"), "SELECT 1")
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
        assert run(url, "SELECT 1") == [(1,)]
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
    assert run(url, "SELECT 1") == [(1,)]
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
        assert run(url, "SELECT to_regclass('unfinished')") == [(None,)]
        log = (ready / "postgres.log").read_text()
        assert "automatic recovery" not in log
    finally:
        throw_away(server)


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
        run(url, "CREATE TABLE prompts (id integer PRIMARY KEY, text text NOT NULL, CHECK (id < 10))")
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
