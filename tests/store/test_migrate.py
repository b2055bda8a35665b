"""Bringing the schema to this release's."""

import asyncio
import re
from pathlib import Path

import psycopg
import pytest

from harness.postgres import Sessions, sessions_on
from turnkeeper.store import migrate
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable
from turnkeeper.store.migrate import Current, Empty, New, Old
from turnkeeper.store.pool import open_database
from turnkeeper.store.tx import Database

MIGRATIONS = Path(migrate.__file__).parent / "migrations"
# Everything that a schema is: tables with columns, constraints, indexes, triggers, functions and sequences.
SCHEMA = """
SELECT 'column', table_name || '.' || column_name,
       concat_ws(' ', data_type, is_nullable, column_default, collation_name) FROM information_schema.columns
 WHERE table_schema = 'public'
UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) || convalidated::text
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'sequence', sequencename, data_type::text FROM pg_sequences WHERE schemaname = 'public'
ORDER BY 1, 2, 3
"""


def _schema(dsn: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(dsn) as connection:
        return [row for row in connection.execute(SCHEMA.encode()).fetchall() if "alembic_version" not in row[1]]


def test_the_sum_of_the_migrations_is_the_sum_of_their_sql(empty_dsn: str, dsn: str) -> None:
    """Nothing but the SQL files makes the schema, in the order of their numbers."""
    with psycopg.connect(empty_dsn) as connection:
        for path in sorted((MIGRATIONS / "sql").glob("*.sql")):
            connection.execute(path.read_bytes())
    migrated = _schema(dsn)
    assert _schema(empty_dsn) == migrated
    assert len(migrated) > 200


def test_every_check_has_a_name_that_says_its_rule(dsn: str) -> None:
    """A violation is told by this name alone: one that PostgreSQL has made up would say which column, and not what is wrong."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint "
            "WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
        ).fetchall()
    assert len(found) > 80
    assert [name for _, name in found if re.search(r"_check\d*$", name)] == []
    assert [name for table, name in found if not name.startswith(f"{table}_")] == []


def test_revisions_are_one_line_and_named_by_their_files() -> None:
    """What a start compares (the names) is what Alembic would run."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert tuple(script.revision for script in reversed(scripts)) == migrate.revisions()
    for script in scripts:
        stem = Path(script.path).stem
        assert re.fullmatch(r"\d{4}_[a-z0-9_]+", stem)
        assert (MIGRATIONS / "sql" / f"{stem}.sql").is_file()


def test_from_nothing_and_again(empty_dsn: str) -> None:
    """An empty database is brought up; a second time nothing happens."""
    head = migrate.revisions()[-1]
    assert migrate.check(empty_dsn) == Empty()
    assert migrate.upgrade(empty_dsn) == head
    assert migrate.check(empty_dsn) == Current(head)
    before = _schema(empty_dsn)
    assert migrate.upgrade(empty_dsn) == head
    assert _schema(empty_dsn) == before


async def test_two_starts_at_once(empty_dsn: str) -> None:
    """One migrates; the other waits for it and finds it done."""
    head = migrate.revisions()[-1]
    upgrades = [asyncio.to_thread(migrate.upgrade, empty_dsn, lock_timeout_s=30) for _ in range(3)]
    assert await asyncio.gather(*upgrades) == [head] * 3


def test_states_and_their_lines() -> None:
    """Each names both revisions, and what to do."""
    head = migrate.revisions()[-1]
    assert migrate.refusal(Current(head), "x") is None
    assert migrate.refusal(Empty(), "x") == "x has no schema yet: run `turnkeeper db upgrade`"
    assert (
        migrate.refusal(Old("0000", head), "x")
        == f"x has schema 0000, this release needs {head}: run `turnkeeper db upgrade`"
    )
    assert migrate.refusal(New("9999", head), "x") == (
        f"x has schema 9999, newer than this release's {head}: install the newer release"
    )
    assert migrate.state_of(None) == Empty()
    assert migrate.state_of("9999") == New("9999", head)


def test_an_older_revision_is_told_from_a_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the place in the list of revisions, not by comparing text."""
    monkeypatch.setattr(migrate, "revisions", lambda: ("0001", "0002"))
    assert migrate.state_of("0001") == Old("0001", "0002")
    assert migrate.state_of("0002") == Current("0002")
    assert migrate.state_of("0003") == New("0003", "0002")


async def test_a_start_refuses_another_schema(dsn: str, empty_dsn: str, sessions: Sessions) -> None:
    """One line that says what to run; the newer one is also refused by `upgrade`."""
    with pytest.raises(DatabaseRefused, match="has no schema yet: run `turnkeeper db upgrade`"):
        async with open_database(empty_dsn, min_size=1):
            raise AssertionError("opened")
    session = await sessions.open(autocommit=True)
    await session.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseRefused, match="newer than this release's"):
        async with open_database(dsn, min_size=1):
            raise AssertionError("opened")
    with pytest.raises(DatabaseRefused, match="newer than this release's"):
        await asyncio.to_thread(migrate.upgrade, dsn)


async def test_a_lock_that_is_not_free_gives_up(empty_dsn: str) -> None:
    """A migration that queued behind a long transaction would stop every query behind itself."""
    async with sessions_on(empty_dsn) as sessions:
        holder = await sessions.open()
        await holder.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        await holder.commit()
        await holder.execute("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(
            DatabaseUnavailable, match="a lock was not free in time; end long transactions and try again"
        ):
            await asyncio.to_thread(migrate.upgrade, empty_dsn, lock_timeout_s=0.1)
        await holder.rollback()
    assert migrate.check(empty_dsn) == Empty()


def test_a_migration_that_fails_leaves_nothing(empty_dsn: str) -> None:
    """All revisions run in one transaction: a table in the way stops the first, and its earlier statements are undone."""
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("CREATE TABLE signing_keys ()")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate.upgrade(empty_dsn)
    with psycopg.connect(empty_dsn) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert found == [("signing_keys",)]


def test_an_unreachable_server_is_said_in_one_line() -> None:
    """By both entries."""
    for ask in (migrate.check, migrate.upgrade):
        with pytest.raises(DatabaseUnavailable, match='database "x" at /nonexistent') as caught:
            ask("postgresql://me:hunter2@/x?host=/nonexistent")
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_the_state_by_an_open_pool(database: Database) -> None:
    """As `check` says it."""
    assert await database.read("schema", migrate.schema_state) == Current(migrate.revisions()[-1])
