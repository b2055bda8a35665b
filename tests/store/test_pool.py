"""Opening a database, and what is said when it cannot be."""

import socket
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness.postgres import FAST_SETTINGS, embedded_at, private_directory, throw_away
from turnkeeper.store import migrate
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable, place
from turnkeeper.store.pool import connection_settings, open_database
from turnkeeper.store.tx import Database, Reader, Tx


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgresql://me:hunter2@db.example:5433/turns", 'database "turns" at db.example:5433'),
        ("host=/run/pg dbname=x user=me password=hunter2", 'database "x" at /run/pg'),
        ("postgresql://me:hunter2@/x?host=%2Frun%2Fpg&port=5432", 'database "x" at /run/pg'),
        ("user=me password=hunter2", 'database "me" at the default socket'),
        ("postgresql://me:hunter2@[", "the database (its connection string cannot be parsed)"),
    ],
)
def test_a_place_is_named_without_secrets(dsn: str, said: str) -> None:
    """Proves: K-11. Host and database, never the password."""
    assert place(dsn) == said


async def _refusal(dsn: str) -> str:
    with pytest.raises((DatabaseUnavailable, DatabaseRefused)) as caught:
        async with open_database(dsn, min_size=1, pool_wait_s=5):
            raise AssertionError("opened")
    said = str(caught.value)
    assert "hunter2" not in said
    assert "\n" not in said
    assert caught.value.__suppress_context__  # the library's own message is not shown behind it
    return said


async def test_no_such_socket() -> None:
    """One line with the place and the reason."""
    said = await _refusal("postgresql://me:hunter2@/x?host=/nonexistent")
    assert said.startswith('cannot connect to database "x" at /nonexistent: ')
    assert "No such file or directory" in said


async def test_nobody_listens() -> None:
    """A refused port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = await _refusal(f"postgresql://me:hunter2@127.0.0.1:{port}/x")
    assert f'database "x" at 127.0.0.1:{port}' in said
    assert "refused" in said


async def test_something_listens_that_never_answers() -> None:
    """The connect is bounded by the string's own connect_timeout, else by ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        start = time.monotonic()
        said = await _refusal(f"postgresql://me:hunter2@127.0.0.1:{port}/x?connect_timeout=2")
        assert time.monotonic() - start < 8
    assert "timeout" in said


async def test_no_such_database(dsn: str) -> None:
    """The server's own word."""
    assert '"nowhere" does not exist' in await _refusal(make_conninfo(dsn, dbname="nowhere"))


async def test_a_string_that_is_none() -> None:
    """Names the setting."""
    assert "DATABASE_URL is no valid" in await _refusal("postgresql://me:hunter2@[")


async def test_a_wrong_password() -> None:
    """The login's failure, the right one being accepted; the password is not in it."""
    with private_directory() as directory:
        server = embedded_at(directory)
        url = server.start_blocking()
        try:
            migrate.upgrade(url)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE ROLE alice LOGIN PASSWORD 'right' SUPERUSER")
                hba = directory / "postgres" / "pg_hba.conf"
                hba.write_text("local all alice scram-sha-256\n" + hba.read_text())
                connection.execute("SELECT pg_reload_conf()")
            alice = make_conninfo(url, user="alice", password="right")
            async with open_database(alice, min_size=1) as database:
                assert await database.read("who", _who) == "alice"
            said = await _refusal(make_conninfo(url, user="alice", password="hunter2"))
            assert "password authentication failed" in said
        finally:
            throw_away(server)


async def _who(reader: Reader) -> str:
    return await reader.fetch_value("SELECT current_user")


async def test_every_connection_has_the_limits(database: Database) -> None:
    """As connection options, so that RESET brings them back instead of removing them."""

    async def work(tx: Tx) -> dict[str, str]:
        await tx.execute("SET LOCAL statement_timeout = 0")
        await tx.execute("RESET statement_timeout")
        names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone"]
        return {name: await tx.fetch_value("SELECT current_setting(%s)", (name,)) for name in names}

    assert await database.run("limits", work) == {
        "statement_timeout": "30s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "30s",
        "TimeZone": "UTC",
    }


def test_settings_of_the_string_are_kept() -> None:
    """Its own options stay, and its own choices win over our defaults but not over our limits."""
    parts = conninfo_to_dict(connection_settings("dbname=x options='-c search_path=mine' application_name=me"))
    assert parts["application_name"] == "me"
    assert str(parts["options"]).startswith("-c search_path=mine -c statement_timeout=30000 ")
    assert conninfo_to_dict(connection_settings("dbname=x"))["application_name"] == "turnkeeper"


async def test_a_server_that_comes_back_is_used_again() -> None:
    """During the outage callers hear of it in bounded time; after it the next request is served, without a restart of ours."""
    with private_directory() as directory:
        server = embedded_at(directory)
        url = server.start_blocking()
        try:
            migrate.upgrade(url)
            async with open_database(url, min_size=2, max_size=4, pool_wait_s=4) as database:
                assert await database.read("who", _who) == "turnkeeper"
                server.stop_blocking()
                for _ in range(2):
                    with pytest.raises(DatabaseUnavailable):
                        await database.read("who", _who)
                server.start_blocking()
                assert await database.read("who", _who) == "turnkeeper"
                assert database.pool_stats()["pool_size"] >= 1
        finally:
            throw_away(server)


def test_the_harness_keeps_the_server_durable() -> None:
    """Proves: D-04. No test setting makes the tests' own server one that the product would refuse."""
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & set(FAST_SETTINGS)
