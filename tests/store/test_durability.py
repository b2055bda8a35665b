"""Which databases the product refuses (D-04), and how it knows its own again."""

import dataclasses

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness.embedded import run
from harness.postgres import Sessions, embedded_at, private_directory, throw_away, wait_until
from turnkeeper.store import durability, migrate
from turnkeeper.store.durability import Cluster, ServerFacts, refusal
from turnkeeper.store.errors import DatabaseRefused
from turnkeeper.store.pool import open_database
from turnkeeper.store.tx import Database

GOOD = ServerFacts(version_num=150000, standby=False, fsync="on", synchronous_commit="on", full_page_writes="on")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"version_num": 180004}, None),
        ({"synchronous_commit": "local"}, None),
        ({"synchronous_commit": "remote_apply"}, None),
        ({"full_page_writes": "off"}, None),
        ({"version_num": 149999}, "x is PostgreSQL 14; at least 15 is needed"),
        ({"version_num": 90603}, "x is PostgreSQL 9; at least 15 is needed"),
        ({"standby": True}, "x is a standby (in recovery); the primary is needed"),
        ({"fsync": "off"}, "x has fsync = off and may forget what it confirmed; set fsync = on"),
        (
            {"synchronous_commit": "off"},
            "x has synchronous_commit = off and may forget what it confirmed; set synchronous_commit = on",
        ),
    ],
)
def test_what_is_refused_and_how_it_is_said(change: dict[str, object], said: str | None) -> None:
    """Proves: D-04. One line that names the setting, its value and what would be right."""
    assert refusal(dataclasses.replace(GOOD, **change), "x") == said  # type: ignore[arg-type]


async def test_synchronous_commit_off_is_refused_where_it_takes_effect(dsn: str, sessions: Sessions) -> None:
    """Proves: D-04. It may be set for the database or the user alone; what counts is our own sessions."""
    session = await sessions.open(autocommit=True)
    name = session.info.dbname
    await session.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    with pytest.raises(DatabaseRefused, match="synchronous_commit = off"):
        async with open_database(dsn, min_size=1):
            raise AssertionError("opened")
    await session.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = local'.encode())
    async with open_database(dsn, min_size=1):
        pass


async def test_fsync_off_is_refused() -> None:
    """Proves: D-04. A real server that runs without fsync, migrated and all."""
    with private_directory() as directory:
        server = embedded_at(directory)
        try:
            migrate.upgrade(server.start_blocking())
            server.stop_blocking()
            server = embedded_at(directory, fsync="off")
            url = server.start_blocking()
            with pytest.raises(DatabaseRefused, match="fsync = off") as caught:
                async with open_database(url, min_size=1):
                    raise AssertionError("opened")
            assert "\n" not in str(caught.value)
            with pytest.raises(DatabaseRefused, match="fsync = off"):
                migrate.upgrade(url)
        finally:
            throw_away(server)


@pytest.mark.parametrize("place", ["database", "connection string"])
def test_an_upgrade_changes_nothing_where_commits_may_be_forgotten(empty_dsn: str, place: str) -> None:
    """Proves: D-04. The refusal comes first, wherever the setting is made: not one table is there afterwards."""
    if place == "database":
        name = conninfo_to_dict(empty_dsn)["dbname"]
        run(empty_dsn, f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        dsn = empty_dsn
    else:
        dsn = make_conninfo(empty_dsn, options="-c synchronous_commit=off")
    with pytest.raises(DatabaseRefused, match="synchronous_commit = off"):
        migrate.upgrade(dsn)
    assert run(empty_dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == []


async def test_the_first_start_stores_who_the_database_is(database: Database) -> None:
    """The server's own system identifier and timeline; a second start changes nothing."""
    stored = await database.read("stored", durability.stored_cluster)
    assert stored == await database.read("server", durability.server_cluster)
    assert stored is not None
    assert stored.timeline == 1
    assert await durability.record_cluster(database)
    assert await database.read("claim", durability.cluster_matches)
    assert await database.read("stored", durability.stored_cluster) == stored


@pytest.mark.parametrize("column", ["system_identifier = '1'", "timeline = 7"])
async def test_another_identity_refuses_claims(database: Database, dsn: str, sessions: Sessions, column: str) -> None:
    """Proves: D-04. It does not match, a start does not store over it, and the start itself is not refused."""
    session = await sessions.open(autocommit=True)
    await session.execute(f"UPDATE cluster SET {column}".encode())  # noqa: S608 - the test's own words
    assert not await database.read("claim", durability.cluster_matches)
    async with open_database(dsn, min_size=1) as again:
        assert not await again.read("claim", durability.cluster_matches)


async def test_no_stored_identity_refuses_claims(database: Database, sessions: Sessions) -> None:
    """Unknown is not the same as equal."""
    session = await sessions.open(autocommit=True)
    await session.execute("DELETE FROM cluster")
    assert await database.read("stored", durability.stored_cluster) is None
    assert not await database.read("claim", durability.cluster_matches)


async def test_a_promotion_is_noticed_at_once() -> None:
    """Proves: D-04. A standby is refused; promoted, its timeline differs before any checkpoint has run."""
    with private_directory() as directory:
        server = embedded_at(directory, wal_level="replica", hot_standby="on")
        url = server.start_blocking()
        try:
            migrate.upgrade(url)
            async with open_database(url, min_size=1) as database:
                before = await database.read("server", durability.server_cluster)
            server.stop_blocking()
            (directory / "postgres" / "standby.signal").touch()
            server = embedded_at(directory, wal_level="replica", hot_standby="on")
            server.start_blocking()
            with pytest.raises(DatabaseRefused, match="is a standby"):
                async with open_database(url, min_size=1):
                    raise AssertionError("opened")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
                wait_until(lambda: not _standby(connection), "promotion")
            async with open_database(url, min_size=1) as database:
                after = await database.read("server", durability.server_cluster)
                assert after == Cluster(before.system_identifier, before.timeline + 1)
                assert not await database.read("claim", durability.cluster_matches)
        finally:
            throw_away(server)


def _standby(connection: psycopg.Connection[tuple[bool]]) -> bool:
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    return row is None or row[0]
