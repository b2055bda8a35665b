"""What the next start of the embedded PostgreSQL makes of what an earlier one left: living, dying, dead, or somebody else's."""

import asyncio
import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from harness.embedded import run, supervised
from harness.postgres import FAST_SETTINGS, embedded_at, throw_away, wait_until
from turnkeeper.kit.procs import ProcessId, descendants, identify, is_alive, kill
from turnkeeper.store.embedded import EmbeddedPostgres
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable


def test_a_survivor_is_adopted(ready: Path) -> None:
    """The supervisor is killed with SIGKILL; the server goes on, and the next start takes over the same process and data."""
    with supervised(ready) as (supervisor, postmaster):
        server = embedded_at(ready)
        url = server.url()
        run(url, "CREATE TABLE kept AS SELECT 1 AS one")
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        assert is_alive(postmaster)
        assert server.start_blocking() == url
        try:
            assert server.adopted
            assert server.postmaster == postmaster
            assert server.alive
            assert run(url, "SELECT one FROM kept") == [(1,)]
        finally:
            server.stop_blocking()
    assert not is_alive(postmaster)


def test_a_second_supervisor_is_refused(ready: Path) -> None:
    """Two of them would end each other's server. The first one's goes on."""
    with supervised(ready) as (_, postmaster):
        second = embedded_at(ready)
        with pytest.raises(DatabaseRefused, match="is in use by another Turnkeeper: stop it first"):
            second.start_blocking()
        assert is_alive(postmaster)
        assert run(second.url(), "SELECT 1") == [(1,)]


def test_a_killed_server_recovers(ready: Path) -> None:
    """SIGKILL for the postmaster and all of its processes: what was committed is there, what was not is not."""
    server = embedded_at(ready)
    url = server.start_blocking()
    run(url, "CREATE TABLE kept (n integer)")
    run(url, "INSERT INTO kept SELECT generate_series(1, 1000)")
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
        assert run(url, "SELECT count(*), min(n) FROM kept") == [(1000, 1)]
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
        assert run(url, "SELECT 1") == [(1,)]
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
            assert run(url, "SELECT 1") == [(1,)]
            assert original.alive
        finally:
            throw_away(copy)
    finally:
        throw_away(original)


def test_a_survivor_that_does_not_answer_is_replaced(ready: Path) -> None:
    """A stopped postmaster is ours and of no use: it is ended, and a new one recovers."""
    with supervised(ready) as (supervisor, postmaster):
        supervisor.kill()
        supervisor.wait()
        run(embedded_at(ready).url(), "CREATE TABLE kept ()")
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
            assert run(url, "SELECT * FROM kept") == []
        finally:
            throw_away(server)


def test_a_survivor_with_another_socket_is_replaced(ready: Path) -> None:
    """Its clients would not find it. It is ended cleanly, and started where it is expected."""
    with supervised(ready) as (supervisor, postmaster):
        supervisor.kill()
        supervisor.wait()
        elsewhere = EmbeddedPostgres(ready / "postgres", ready / "s2", ready / "postgres.log", settings=FAST_SETTINGS)
        url = elsewhere.start_blocking()
        try:
            assert not is_alive(postmaster)
            assert str(ready / "s2") in url.replace("%2F", "/")
            assert run(url, "SELECT 1") == [(1,)]
        finally:
            throw_away(elsewhere)


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


@pytest.mark.timeout(180)  # it waits out a stop and a start of PostgreSQL
async def test_a_server_that_waits_for_a_dead_recovery_is_ended(ready: Path) -> None:
    """A backend is killed, then the process that recovers from that: the postmaster lives on and serves nobody (18.4)."""
    server = EmbeddedPostgres(
        ready / "postgres", ready / "s", ready / "postgres.log", settings=FAST_SETTINGS, look_s=0.1, silent_s=0.5
    )
    url = await server.start()
    try:
        postmaster = server.postmaster
        assert postmaster is not None
        ending = asyncio.create_task(server.wait_ended())

        for _ in range(20):  # the recovery of an empty database is short: now and then it is over before it is killed
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
                backend = identify(connection.info.backend_pid)
                assert backend is not None
                kill(backend, signal.SIGKILL)
            await asyncio.to_thread(_kill_recovery, postmaster)
            done, _ = await asyncio.wait({ending}, timeout=3)
            if done:
                break
        await asyncio.wait_for(ending, 20)
        assert not is_alive(postmaster)
        assert await server.start() == url
        assert run(url, "SELECT 1") == [(1,)]
    finally:
        await asyncio.to_thread(throw_away, server)


async def test_a_server_whose_socket_was_removed_is_ended(ready: Path) -> None:
    """It lives and can be reached by nobody: started again it can, without waiting for as long as a recovery is given."""
    server = EmbeddedPostgres(
        ready / "postgres", ready / "s", ready / "postgres.log", settings=FAST_SETTINGS, look_s=0.1, silent_s=1000
    )
    url = await server.start()
    try:
        postmaster = server.postmaster
        assert postmaster is not None
        (ready / "s" / ".s.PGSQL.5432").unlink()
        await asyncio.wait_for(server.wait_ended(), 40)
        assert not is_alive(postmaster)
        assert await server.start() == url
        assert run(url, "SELECT 1") == [(1,)]
    finally:
        await asyncio.to_thread(throw_away, server)


def _kill_recovery(postmaster: ProcessId) -> None:
    """Kill the process that recovers, if it is seen within 2 s."""
    end = time.monotonic() + 2
    while time.monotonic() < end and is_alive(postmaster):
        for one in descendants(postmaster.pid):
            if b"startup" in _words(one):
                kill(one, signal.SIGKILL)
                return


def _words(process: ProcessId) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return b""
