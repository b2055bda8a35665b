"""`turnkeeper doctor` on real databases: good ones, ones that were made wrong by hand, and none."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cli.terminal import Ran, turnkeeper
from harness.embedded import run
from harness.postgres import PostgresServer, private_directory, throw_away
from services.driver import Driver
from turnkeeper.store.embedded import EmbeddedPostgres
from turnkeeper.store.migrate import upgrade

# Each statement, by a superuser with triggers and foreign keys suspended: as a bad restore or a bad hand would do it.
WRONG: dict[str, tuple[bytes, str]] = {
    "epoch": (b"UPDATE shared_workspaces SET epoch = epoch + 1", "settled_turn_moves_the_epoch_once: workspace"),
    "native turn": (b"UPDATE memberships SET native_turn = 7", "settled_turn_moves_the_native_turn_once: membership"),
    "end": (b"UPDATE events SET kind = 'text' WHERE kind = 'end'", "run_has_one_end: run"),
    "event": (b"DELETE FROM events WHERE seq = 2", "event_numbers_have_no_gap: conversation"),
    "output": (b"DELETE FROM messages WHERE role = 'assistant'", "completed_run_has_an_output: run"),
    "delivery": (
        b"UPDATE messages SET delivery = 'queued' WHERE role = 'owner'",
        "delivery_follows_the_run: message",
    ),
    "attempt": (b"UPDATE attempts SET attempt_no = 2", "attempts_are_numbered: the attempts of run"),
    "late write": (
        b"UPDATE attempts SET last_heartbeat_at = ended_at + interval '1 second'",
        "superseded_attempt_writes_nothing: renewal of attempt",
    ),
    "hold": (b"DELETE FROM workdir_holds", "open_conversation_holds_its_workdir: conversation"),
}


async def doctor(home: Path, *arguments: str, dsn: str | None = None, **settings: str) -> Ran:
    """Run it beside the event loop."""
    env = settings if dsn is None else {"DATABASE_URL": dsn, **settings}
    return await asyncio.to_thread(turnkeeper, "doctor", *arguments, home=home, env=env)


def wrong(dsn: str, statement: bytes) -> None:
    """Write what the schema's triggers would refuse."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        assert connection.execute(statement).rowcount > 0


async def test_a_database_in_order(driver: Driver, dsn: str, tmp_path: Path) -> None:
    """A summary, status 0, the same by `--database`; and JSON."""
    await driver.whole_turn((await driver.conversation()).thread_id)
    for ran in (await doctor(tmp_path, dsn=dsn), await doctor(tmp_path, "--database", dsn)):
        assert (ran.status, ran.out, ran.err) == (0, "1 scope and 1 run looked at: no finding\n", "")
    ran = await doctor(tmp_path, "--json", dsn=dsn)
    assert (ran.status, json.loads(ran.out)) == (0, {"findings": [], "scopes": 1, "runs": 1})


@pytest.mark.parametrize("what", WRONG)
async def test_a_row_that_is_wrong(driver: Driver, dsn: str, tmp_path: Path, what: str) -> None:
    """One line that names it, the summary, status 1."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    statement, line = WRONG[what]
    wrong(dsn, statement)
    ran = await doctor(tmp_path, dsn=dsn)
    assert (ran.status, ran.err) == (1, "")
    *findings, summary = ran.out.splitlines()
    assert len(findings) == 1
    assert findings[0].startswith(line)
    assert summary == "1 scope and 1 run looked at: 1 finding"


async def test_who_waits_for_room_is_judged_by_the_setting(driver: Driver, dsn: str, tmp_path: Path) -> None:
    """As the control plane has it: by the usual 8 whoever waits for the only place may start. Proves: D-01."""
    driver.s = replace(driver.s, limits=replace(driver.s.limits, trees_per_owner=1))
    for _ in range(2):
        await driver.submit((await driver.conversation()).thread_id)
    wrong(dsn, b"UPDATE runs SET created_at = created_at - interval '1 hour'")
    wrong(dsn, b"UPDATE conversations SET updated_at = updated_at - interval '1 hour'")
    ran = await doctor(tmp_path, dsn=dsn, TURNKEEPER_TREES_PER_OWNER="1")
    assert (ran.status, ran.out, ran.err) == (0, "2 scopes and 2 runs looked at: no finding\n", "")
    ran = await doctor(tmp_path, dsn=dsn)
    assert ran.status == 1
    assert ran.out.startswith("nothing_stays_stuck: run")
    ran = await doctor(tmp_path, dsn=dsn, TURNKEEPER_TREES_PER_OWNER="some")
    assert (ran.status, ran.out) == (1, "")
    assert "TURNKEEPER_TREES_PER_OWNER is 'some'; it must be a positive integer" in ran.one_line()


async def test_findings_as_json_and_of_several_scopes(driver: Driver, dsn: str, tmp_path: Path) -> None:
    """Rule, subject and text of each; a loss that was taken back by hand among them. Proves: R-05."""
    for _ in range(2):
        await driver.whole_turn((await driver.conversation()).thread_id)
    lost = await driver.up_to("admitted")
    await driver.finish(lost, "failed")
    wrong(dsn, b"UPDATE memberships SET state = 'idle', lost_reason = NULL WHERE state = 'lost'")
    wrong(dsn, b"UPDATE workdir_holds SET workdir = 'same/' || id WHERE true")
    wrong(dsn, b"UPDATE workdir_holds SET workdir = 'same' WHERE id = (SELECT max(id::text)::uuid FROM workdir_holds)")
    ran = await doctor(tmp_path, "--json", dsn=dsn)
    assert ran.status == 1
    told = json.loads(ran.out)
    assert {one["rule"] for one in told["findings"]} == {"lost_is_final", "workdir_holds_do_not_overlap"}
    assert lost.claim.thread_id in {one["subject"] for one in told["findings"]}
    assert all(set(one) == {"rule", "subject", "text"} for one in told["findings"])
    assert (told["scopes"], told["runs"]) == (3, 3)


def test_nothing_is_written(dsn: str, tmp_path: Path) -> None:
    """Not even what every start of the product records; and a user that may only read is enough."""
    role = dsn.rpartition("dbname=")[2].split()[0]
    run(dsn, f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        reading = make_conninfo(dsn, options=f"-c role={role}")
        ran = turnkeeper("doctor", "--database", reading, home=tmp_path)
        assert (ran.status, ran.out) == (0, "0 scopes and 0 runs looked at: no finding\n")
        assert run(dsn, "SELECT count(*) FROM cluster") == [(0,)]
    finally:
        run(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_another_schema_is_one_line(dsn: str, empty_dsn: str, tmp_path: Path) -> None:
    """None, and a newer one."""
    ran = turnkeeper("doctor", home=tmp_path, env={"DATABASE_URL": empty_dsn})
    assert (ran.status, ran.out) == (1, "")
    assert "has no schema yet: run `turnkeeper db upgrade`" in ran.one_line()
    run(dsn, "UPDATE alembic_version SET version_num = '9999'")
    ran = turnkeeper("doctor", home=tmp_path, env={"DATABASE_URL": dsn})
    assert (ran.status, ran.out) == (1, "")
    assert "has schema 9999, newer than this release's" in ran.one_line()


@pytest.mark.parametrize("words", [("doctor",), ("db", "check"), ("db", "upgrade")], ids=" ".join)
def test_a_database_that_is_not_there_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """Named without its password."""
    url = "postgresql://somebody:secret-word@127.0.0.1:1/nothing"
    ran = turnkeeper(*words, home=tmp_path, env={"DATABASE_URL": url})
    assert ran.status == 1
    (line,) = (ran.out + ran.err).splitlines()
    assert line.removeprefix("error: ").startswith('cannot connect to database "nothing" at 127.0.0.1:1: ')
    assert "secret-word" not in line


@pytest.mark.parametrize("words", [("doctor",), ("db", "check")], ids=" ".join)
def test_which_database_must_be_clear(words: tuple[str, ...], tmp_path: Path) -> None:
    """Status 2 for none, for two, and for a directory that has none."""
    ran = turnkeeper(*words, home=tmp_path)
    assert ran.status == 2
    assert "set DATABASE_URL, or give --database or the --data of a local `turnkeeper up`" in ran.one_line()
    ran = turnkeeper(*words, "--database", "postgresql://x/y", "--data", str(tmp_path), home=tmp_path)
    assert ran.status == 2
    assert "give one of them" in ran.one_line()
    ran = turnkeeper(*words, "--data", str(tmp_path), home=tmp_path, env={"DATABASE_URL": "postgresql://x/y"})
    assert ran.status == 2
    assert f"--data is '{tmp_path}'" in ran.one_line()


@pytest.mark.parametrize("words", [("doctor",), ("db", "check"), ("db", "upgrade")], ids=" ".join)
def test_what_is_no_database_is_told_by_the_name_that_it_was_given_by(words: tuple[str, ...], tmp_path: Path) -> None:
    """The option is wrong use, the variable a wrong setting; neither shows the value, which may hold a password."""
    ran = turnkeeper(*words, "--database", "pass=secret", home=tmp_path, env={"DATABASE_URL": "postgresql://x/y"})
    assert ran.status == 2
    assert ran.one_line().startswith("error: --database is no valid PostgreSQL connection string or URL, such as ")
    ran = turnkeeper(*words, home=tmp_path, env={"DATABASE_URL": "pass=secret"})
    assert ran.status == 1
    assert ran.one_line().startswith("error: DATABASE_URL is no valid PostgreSQL connection string or URL, such as ")
    assert "secret" not in ran.out


def test_the_database_of_a_local_up(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """By `--data` and by TURNKEEPER_DATA while it runs; one line when it does not."""
    assert postgres_server.url
    with private_directory() as data:
        server = EmbeddedPostgres(data / "postgres", data / "run" / "pg", data / "logs" / "postgres.log")
        upgrade(server.start_blocking())
        try:
            ran = turnkeeper("doctor", "--data", str(data), home=tmp_path)
            assert (ran.status, ran.out, ran.err) == (0, "0 scopes and 0 runs looked at: no finding\n", "")
            assert turnkeeper("doctor", home=tmp_path, env={"TURNKEEPER_DATA": str(data)}).status == 0
            ran = turnkeeper("db", "check", home=tmp_path, env={"TURNKEEPER_DATA": str(data)})
            assert (ran.status, ran.out, ran.err) == (0, "ok\n", "")
        finally:
            throw_away(server)
        ran = turnkeeper("doctor", "--data", str(data), home=tmp_path)
        assert (ran.status, ran.out) == (1, "")
        assert str(data / "run" / "pg") in ran.one_line()
        assert ran.one_line().endswith("is its `turnkeeper up` running?")
        ran = turnkeeper("db", "check", "--data", str(data), home=tmp_path)
        assert (ran.status, ran.err) == (1, "")
        assert ran.out.endswith("is its `turnkeeper up` running?\n")
