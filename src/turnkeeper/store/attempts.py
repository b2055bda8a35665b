"""Attempts: ownerships of runs (A-01). A lease is granted, renewed and refused by the database's clock alone (L-11)."""
# ruff: noqa: S608 - statements are LiteralString, which pyright proves; parameters are always bound

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from turnkeeper.store.guards import HELD, HELD_RUNNING, Lease
from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class AttemptRow:
    """A row of `attempts` without its token's hash."""

    id: str
    run_id: str
    attempt_no: int
    lease_generation: int
    lease_owner: str
    claim_id: str
    host: str
    incarnation: str
    root_run_id: str
    claimed_at: datetime
    lease_ttl_s: int
    lease_expires_at: datetime
    execution_deadline: datetime
    renewable_until: datetime
    accepted_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    stream_no_last: int
    stream_bytes: int


@dataclass(frozen=True)
class TokenOwner:
    """Whose worker token it is. Once `accepted` it is the attempt's for good (`refresh_token`)."""

    attempt_id: str
    run_id: str
    host: str
    accepted: bool


@dataclass(frozen=True)
class Renewal:
    """A granted renewal."""

    lease_expires_at: datetime
    lease_ttl_s: int
    cancel_requested: bool


@dataclass(frozen=True)
class _RenewedRow(Renewal):
    """A granted renewal, and of which lease."""

    attempt_id: str
    run_id: str
    lease_generation: int


@dataclass(frozen=True)
class AttemptId:
    """An attempt by its id alone: what is locked without being read."""

    id: str


@dataclass(frozen=True)
class ExpiredAttempt:
    """An open attempt whose lease has ended, and where it belongs. Nothing of this ever changes."""

    id: str
    run_id: str
    lease_generation: int


COLUMNS: Final[LiteralString] = (
    "id, run_id, attempt_no, lease_generation, lease_owner, claim_id, host, incarnation, root_run_id, claimed_at, "
    "lease_ttl_s, lease_expires_at, execution_deadline, renewable_until, accepted_at, ended_at, outcome, "
    "stream_no_last, stream_bytes"
)


async def insert_attempt(
    tx: Tx, *, attempt_id: str, run_id: str, root_run_id: str, host: str, incarnation: str, claim_id: str,
    token_hash: bytes, lease_ttl_s: int, agent: str, execution_timeout_s: float, drain_s: float,
) -> AttemptRow | None:  # fmt: skip
    """A new attempt with the next number of its run and the next lease generation of all.

    The agent's own limit for a turn, where its definition has one, takes the place of `execution_timeout_s`.

    None: an attempt with this claim id appeared meanwhile (two requests with one claim id at once, D-05).
    """
    return await tx.fetch_one(
        "INSERT INTO attempts (id, run_id, attempt_no, lease_generation, lease_owner, claim_id, host, incarnation, "
        "root_run_id, token_hash, claimed_at, lease_ttl_s, lease_expires_at, execution_deadline, renewable_until) "
        "SELECT %(id)s, %(run)s, coalesce((SELECT max(attempt_no) FROM attempts WHERE run_id = %(run)s), 0) + 1, "
        "nextval('lease_generations'), %(host)s || '/' || %(incarnation)s, %(claim)s, %(host)s, %(incarnation)s::uuid, "
        "%(root)s, %(hash)s, t.at, %(ttl)s, t.at + make_interval(secs => %(ttl)s), "
        "t.at + make_interval(secs => t.timeout), t.at + make_interval(secs => t.timeout + %(drain)s) "
        "FROM (SELECT tk_now() AS at, coalesce((SELECT (definition ->> 'execution_timeout_s')::float8 FROM agents "
        "WHERE name = %(agent)s), %(timeout)s::float8) AS timeout) t "
        f"ON CONFLICT (host, incarnation, claim_id) DO NOTHING RETURNING {COLUMNS}",
        {
            "id": attempt_id, "run": run_id, "root": root_run_id, "host": host, "incarnation": incarnation,
            "claim": claim_id, "hash": token_hash, "ttl": lease_ttl_s, "agent": agent, "timeout": execution_timeout_s, "drain": drain_s,
        },
        as_=AttemptRow,
    )  # fmt: skip


async def refresh_token(tx: Tx, attempt_id: str, token_hash: bytes) -> int:
    """A fresh token for an attempt that nobody accepted yet; the earlier one is dead with it. Zero: too late."""
    return await tx.execute(
        "UPDATE attempts SET token_hash = %s WHERE id = %s AND accepted_at IS NULL AND ended_at IS NULL "
        "AND lease_expires_at > tk_now()",
        (token_hash, attempt_id),
    )


async def find_token(reader: Reader, token_hash: bytes) -> TokenOwner | None:
    """The attempt of a worker token, open or closed."""
    return await reader.fetch_one(
        "SELECT id AS attempt_id, run_id, host, accepted_at IS NOT NULL AS accepted FROM attempts WHERE token_hash = %s",
        (token_hash,),
        as_=TokenOwner,
    )


async def get_attempt(reader: Reader, attempt_id: str) -> AttemptRow | None:
    """The row."""
    return await reader.fetch_one(f"SELECT {COLUMNS} FROM attempts WHERE id = %s", (attempt_id,), as_=AttemptRow)


async def renew(tx: Tx, lease: Lease) -> Renewal | None:
    """Renew a held lease; never to an earlier end than it has. None: refused for good (L-05)."""
    return (await renew_all(tx, [lease])).get(lease)


async def renew_all(tx: Tx, leases: Sequence[Lease]) -> dict[Lease, Renewal]:
    """As `renew`, for several leases in one statement. A lease that is not in the answer is refused for good.

    The attempts' rows must be locked. Different leases of one attempt may be asked for: at most one has its generation.
    """
    rows = await tx.fetch_all(
        "UPDATE attempts a SET last_heartbeat_at = t.at, "
        "lease_expires_at = greatest(a.lease_expires_at, t.at + make_interval(secs => a.lease_ttl_s)) "
        "FROM (SELECT tk_now() AS at) t, "
        "unnest(%s::uuid[], %s::uuid[], %s::bigint[]) AS w (attempt_id, run_id, generation), runs r "
        "WHERE a.id = w.attempt_id AND r.id = a.run_id AND r.id = w.run_id "
        "AND a.lease_generation = w.generation AND a.ended_at IS NULL AND a.lease_expires_at > t.at "
        "AND a.renewable_until > t.at AND r.status IN ('running', 'cancel_requested') "
        "RETURNING a.id AS attempt_id, a.run_id, a.lease_generation, a.lease_expires_at, a.lease_ttl_s, "
        "r.cancel_requested_at IS NOT NULL AS cancel_requested",
        (
            [lease.attempt_id for lease in leases],
            [lease.run_id for lease in leases],
            [lease.generation for lease in leases],
        ),
        as_=_RenewedRow,
    )
    return {Lease(row.attempt_id, row.run_id, row.lease_generation): row for row in rows}


async def release(tx: Tx, lease: Lease, *, thread_id: str, why: str) -> int:
    """Close an attempt that its child provably never took (H-05). The admission condition is part of the statement:

    not accepted, no activation of this attempt, and no membership that admitted the job.
    """
    return await tx.execute(
        "UPDATE attempts SET ended_at = tk_now(), outcome = 'released', launch_failure = %(why)s "
        "WHERE id = %(attempt)s AND ended_at IS NULL AND accepted_at IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM activations x WHERE x.attempt_id = %(attempt)s) "
        "AND NOT EXISTS (SELECT 1 FROM memberships m WHERE m.thread_id = %(thread)s AND m.admitted_job_id = %(run)s) "
        f"AND {HELD}",
        lease.params(why=why, thread=thread_id),
    )


async def accept(tx: Tx, lease: Lease, worker: str) -> int:
    """Record acceptance by `worker`, once; the same worker again changes nothing and counts. Zero: refused."""
    return await tx.execute(
        "UPDATE attempts SET accepted_at = coalesce(accepted_at, tk_now()), lease_owner = %(worker)s "
        "WHERE id = %(attempt)s AND (accepted_at IS NULL OR lease_owner = %(worker)s) "
        f"AND {HELD_RUNNING}",
        lease.params(worker=worker),
    )


async def extend(tx: Tx, lease: Lease) -> int:
    """The renewal that comes with an activation (protocol 4, step 6)."""
    return await tx.execute(
        "UPDATE attempts SET lease_expires_at = greatest(lease_expires_at, tk_now() + make_interval(secs => lease_ttl_s)) "
        f"WHERE id = %(attempt)s AND renewable_until > tk_now() AND {HELD_RUNNING}",
        lease.params(),
    )


async def close_held(tx: Tx, lease: Lease, outcome: str) -> int:
    """Close an attempt by its worker's own word. Zero: the lease is not held."""
    return await tx.execute(
        f"UPDATE attempts SET ended_at = tk_now(), outcome = %(outcome)s WHERE id = %(attempt)s AND {HELD}",
        lease.params(outcome=outcome),
    )


async def close_expired(tx: Tx, attempt_id: str, *, lease_generation: int, grace_s: float) -> int:
    """Close an attempt whose lease ended at least `grace_s` ago. Zero: renewed, closed, or another generation."""
    return await tx.execute(
        "UPDATE attempts SET ended_at = tk_now(), outcome = 'lease_expired' WHERE id = %s AND lease_generation = %s "
        "AND ended_at IS NULL AND lease_expires_at <= tk_now() - make_interval(secs => %s)",
        (attempt_id, lease_generation, grace_s),
    )


async def close_gone(tx: Tx, attempt_id: str, *, lease_generation: int, host: str) -> int:
    """Close an attempt whose child its own host found gone. Zero: closed, another generation, or another host's."""
    return await tx.execute(
        "UPDATE attempts SET ended_at = tk_now(), outcome = 'failed' WHERE id = %s AND lease_generation = %s "
        "AND ended_at IS NULL AND host = %s",
        (attempt_id, lease_generation, host),
    )


async def lower_deadline(tx: Tx, attempt_id: str, *, seconds: float) -> int:
    """After a cancel: no renewal later than `seconds` from now (cancel grace + drain). Never raises the limit."""
    return await tx.execute(
        "UPDATE attempts SET renewable_until = least(renewable_until, tk_now() + make_interval(secs => %s)) "
        "WHERE id = %s AND ended_at IS NULL",
        (seconds, attempt_id),
    )


async def expired(reader: Reader, *, grace_s: float, limit: int) -> list[ExpiredAttempt]:
    """Open attempts whose lease ended at least `grace_s` ago, the longest first as far as the reaper has looked."""
    return await reader.fetch_all(
        "SELECT id, run_id, lease_generation FROM attempts, (SELECT tk_now() - make_interval(secs => %s) AS at) t "
        "WHERE ended_at IS NULL AND reaper_looks_at <= t.at AND lease_expires_at <= t.at ORDER BY reaper_looks_at LIMIT %s",
        (grace_s, limit),
        as_=ExpiredAttempt,
    )


async def renewed_since_look(reader: Reader, limit: int) -> list[str]:
    """Open attempts that the reaper is to look at, and whose lease was renewed since it decided so."""
    rows = await reader.fetch_all(
        "SELECT id FROM attempts WHERE ended_at IS NULL AND reaper_looks_at <= tk_now() "
        "AND lease_expires_at > reaper_looks_at ORDER BY reaper_looks_at LIMIT %s",
        (limit,),
    )
    return [row["id"] for row in rows]


async def look_later(tx: Tx, attempt_ids: Sequence[str]) -> int:
    """Have the reaper look at these attempts when their lease ends; they must be locked. How many these were.

    Renewals leave that moment alone, so that they touch no index.
    """
    return await tx.execute(
        "UPDATE attempts SET reaper_looks_at = lease_expires_at WHERE id = ANY(%s::uuid[]) AND ended_at IS NULL",
        (list(attempt_ids),),
    )


async def seconds_to_next_look(reader: Reader) -> float | None:
    """How long until a lease may have ended, by the database's clock; negative if it may. None: there is no open attempt."""
    return await reader.fetch_value(
        "SELECT extract(epoch FROM reaper_looks_at - tk_now())::float8 FROM attempts WHERE ended_at IS NULL "
        "ORDER BY reaper_looks_at LIMIT 1"
    )


async def trees_of_host(reader: Reader, host: str) -> list[str]:
    """The distinct roots among a host's open attempts, of whatever incarnation: its load (protocol 3)."""
    rows = await reader.fetch_all(
        "SELECT DISTINCT root_run_id FROM attempts WHERE host = %s AND ended_at IS NULL", (host,)
    )
    return [row["root_run_id"] for row in rows]


async def take_stream_numbers(tx: Tx, lease: Lease, *, after: int, upto: int, stored_bytes: int) -> int:
    """Note that the worker's events `after`+1 … `upto` were taken. Zero: somebody took some meanwhile, or no lease."""
    return await tx.execute(
        "UPDATE attempts SET stream_no_last = %(upto)s, stream_bytes = stream_bytes + %(bytes)s "
        f"WHERE id = %(attempt)s AND stream_no_last = %(after)s AND {HELD}",
        lease.params(after=after, upto=upto, bytes=stored_bytes),
    )


@dataclass(frozen=True)
class AttemptState:
    """What a worker is told while it waits."""

    cancel_requested: bool
    ended: bool


async def state_of(reader: Reader, attempt_id: str) -> AttemptState:
    """Whether the attempt's run was asked to stop, and whether the attempt is over."""
    row = await reader.fetch_one(
        "SELECT r.cancel_requested_at IS NOT NULL AS cancel_requested, a.ended_at IS NOT NULL AS ended "
        "FROM attempts a JOIN runs r ON r.id = a.run_id WHERE a.id = %s",
        (attempt_id,),
        as_=AttemptState,
    )
    return row or AttemptState(cancel_requested=False, ended=True)
