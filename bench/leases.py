"""Live leases by the thousand, without workers: rows as a claim and an acceptance leave them, written by SQL.

They belong to an owner and a host of their own, so that nobody's room is taken and no host looks for their children. Their
lease is an hour long: the reaper leaves them alone for as long as a bench runs.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.system import AGENT, BenchError, System

OWNER = "bench-renewals"
_TTL_S = 3600


@dataclass(frozen=True)
class LiveLease:
    """What its worker would know."""

    job: str
    token: str
    generation: int


def control_environment(system: System) -> dict[str, str]:
    """What the running control plane was started with: its database and key, for those who stand beside it."""
    given = Path(f"/proc/{system.pids['control']}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in given if b"=" in entry)


def make_leases(system: System, count: int) -> list[LiveLease]:
    """So many conversations with a running turn each, accepted by a worker."""
    with _connected(system) as connection:
        uid = connection.execute(
            "INSERT INTO users (uid, name) VALUES (uuidv7(), %s) RETURNING uid::text", (OWNER,)
        ).fetchone()
        if uid is None:
            raise BenchError("the owner of the live leases was not made")
        connection.execute(
            "INSERT INTO conversations (thread_id, uid, agent, kind, runtime_scope_id, workdir, runtime_policy) "
            "SELECT t.id, %s, %s, 'chat', t.id, 'renewals-' || t.n, 'retained' "
            "FROM (SELECT uuidv7() AS id, n FROM generate_series(1, %s) n) t",
            (uid[0], AGENT, count),
        )
        connection.execute(
            "INSERT INTO runs (id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, request_id, status, prompt, "
            "started_at) SELECT t.id, c.thread_id, c.uid, c.agent, 'chat', c.thread_id, t.id, uuidv7(), 'running', 'bench', "
            "tk_now() FROM conversations c CROSS JOIN LATERAL (SELECT uuidv7() AS id WHERE c.thread_id IS NOT NULL) t "
            "WHERE c.uid = %s",
            (uid[0],),
        )
        connection.execute(
            "INSERT INTO attempts (id, run_id, attempt_no, lease_generation, lease_owner, claim_id, host, incarnation, "
            "root_run_id, token_hash, lease_ttl_s, lease_expires_at, execution_deadline, renewable_until, accepted_at) "
            "SELECT uuidv7(), r.id, 1, nextval('lease_generations'), %(owner)s, uuidv7(), %(owner)s, uuidv7(), r.id, "
            "sha256(convert_to('bench-' || r.id, 'UTF8')), %(ttl)s, tk_now() + %(ttl)s * interval '1 s', "
            "tk_now() + interval '1 day', tk_now() + interval '1 day', tk_now() FROM runs r WHERE r.uid = %(uid)s",
            {"owner": OWNER, "ttl": _TTL_S, "uid": uid[0]},
        )
        connection.execute("ANALYZE attempts, runs, conversations")
        rows = connection.execute(
            "SELECT run_id::text, lease_generation FROM attempts WHERE host = %s", (OWNER,)
        ).fetchall()
    leases = [LiveLease(str(job), f"bench-{job}", int(generation)) for job, generation in rows]
    if len(leases) != count:
        raise BenchError(f"{len(leases)} of {count} live leases were made")
    return leases


def renewed(system: System) -> int:
    """How many of them were renewed at least once, by the database's own record."""
    with _connected(system) as connection:
        row = connection.execute(
            "SELECT count(*) FROM attempts WHERE host = %s AND last_heartbeat_at IS NOT NULL", (OWNER,)
        ).fetchone()
    return 0 if row is None else int(row[0])


def end_leases(system: System) -> None:
    """Take them away again: no turn is behind them, so nothing is to be ended."""
    with _connected(system) as connection:
        # Every row that could refer to them goes too, and to look for others row by row would take minutes.
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM attempts WHERE host = %s", (OWNER,))
        connection.execute("DELETE FROM runs r USING users u WHERE u.name = %s AND r.uid = u.uid", (OWNER,))
        connection.execute("DELETE FROM conversations c USING users u WHERE u.name = %s AND c.uid = u.uid", (OWNER,))
        connection.execute("DELETE FROM users WHERE name = %s", (OWNER,))


@contextmanager
def _connected(system: System) -> Generator[psycopg.Connection]:
    with psycopg.connect(control_environment(system)["DATABASE_URL"], autocommit=True) as connection:
        yield connection
