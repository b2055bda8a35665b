"""A release against another session that makes it wrong in the very moment (H-05).

The other session holds the attempt's row with what it has written and not committed; the release waits for that row. What
it decides after the wait is what counts: at the use case, and at the statement by itself behind its lock.
"""

import asyncio
from typing import LiteralString

import pytest

from harness.postgres import RawSession, Sessions
from services.driver import Driver, Turn, wanted
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.release import release
from turnkeeper.store import attempts
from turnkeeper.store.guards import Lease
from turnkeeper.store.locks import lock_attempt
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import FinishAnswer, Release

HOLD: LiteralString = "SELECT 1 FROM attempts WHERE id = %(attempt)s FOR NO KEY UPDATE"
WORKSPACE: LiteralString = (
    "INSERT INTO shared_workspaces (id, uid, runtime_scope_id, sandbox_id) "
    "SELECT %(workspace)s, uid, runtime_scope_id, 's' FROM runs WHERE id = %(run)s"
)
MEMBERSHIP: LiteralString = (
    "INSERT INTO memberships (id, shared_workspace_id, thread_id, admitted_job_id) "
    "VALUES (%(membership)s, %(workspace)s, %(thread)s, NULL)"
)
ACTIVATION: LiteralString = (
    "INSERT INTO activations (id, membership_id, run_id, attempt_id, fence, generation, boot_id, token_hash) "
    "VALUES (%(activation)s, %(membership)s, %(run)s, %(attempt)s, 1, 'g', 'b', %(hash)s)"
)
SPOILS: dict[str, tuple[tuple[LiteralString, ...], RefusedWhy]] = {
    "accepted": (("UPDATE attempts SET accepted_at = tk_now() WHERE id = %(attempt)s",), RefusedWhy.ACCEPTED),
    "another generation": (
        ("UPDATE attempts SET lease_generation = nextval('lease_generations') WHERE id = %(attempt)s",),
        RefusedWhy.LEASE,
    ),
    "not running": (
        ("UPDATE attempts SET ended_at = tk_now(), outcome = 'failed' WHERE id = %(attempt)s",),
        RefusedWhy.LEASE,
    ),
    "lease over": (
        ("UPDATE attempts SET lease_expires_at = tk_now() WHERE id = %(attempt)s",),
        RefusedWhy.LEASE,
    ),
    "an activation of this attempt": ((HOLD, WORKSPACE, MEMBERSHIP, ACTIVATION), RefusedWhy.ACCEPTED),
    "a membership that admitted the job": (
        (HOLD, WORKSPACE, MEMBERSHIP, "UPDATE memberships SET admitted_job_id = %(run)s WHERE id = %(membership)s"),
        RefusedWhy.ACCEPTED,
    ),
}
KINDS = list(SPOILS)


async def spoil(sessions: Sessions, turn: Turn, kind: str) -> RawSession:
    """Write what makes the release wrong, without a commit."""
    ids = {
        "attempt": turn.claim.attempt,
        "run": turn.claim.job,
        "thread": turn.claim.thread_id,
        "workspace": new_id(),
        "membership": new_id(),
        "activation": new_id(),
        "hash": digest("x"),
    }
    holder = await sessions.open()
    for statement in SPOILS[kind][0]:
        await holder.execute(statement, ids)
    return holder


def asked(driver: Driver, turn: Turn) -> "asyncio.Task[FinishAnswer | Refused]":
    """The host asks for the release."""
    request = Release(lease_generation=turn.lease, why="not_accepted")
    return asyncio.create_task(release(driver.s, turn.worker, request))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_release_that_waited_sees_what_was_committed_meanwhile(
    driver: Driver, sessions: Sessions, kind: str
) -> None:
    """Proves: H-05, R-05. Refused: neither run nor attempt is touched."""
    turn = await driver.up_to("claimed")
    holder = await spoil(sessions, turn, kind)
    waiting = asked(driver, turn)
    await sessions.wait_until_blocked_by(holder)
    await holder.commit()
    assert wanted(await waiting, Refused).why is SPOILS[kind][1]
    run = await driver.run(turn.claim.job)
    assert (run["status"], run["releases"], run["ready_at"]) == ("running", 0, None)
    assert (await driver.attempt(turn))["outcome"] != "released"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_release_that_waited_goes_through_where_nothing_was_committed(
    driver: Driver, sessions: Sessions, kind: str
) -> None:
    """The stale twin: the other session rolls back."""
    turn = await driver.up_to("claimed")
    holder = await spoil(sessions, turn, kind)
    waiting = asked(driver, turn)
    await sessions.wait_until_blocked_by(holder)
    await holder.rollback()
    assert await waiting == FinishAnswer(status="pending")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_statement_itself_refuses(driver: Driver, sessions: Sessions, kind: str) -> None:
    """Proves: H-05: the condition is in the statement, so a host or a use case that misjudged cannot re-queue anything."""
    turn = await driver.up_to("claimed")
    holder = await spoil(sessions, turn, kind)

    async def close(tx: Tx) -> int:
        await lock_attempt(tx, turn.claim.attempt)
        lease = Lease(turn.claim.attempt, turn.claim.job, turn.lease)
        return await attempts.release(tx, lease, thread_id=turn.claim.thread_id, why="not_accepted")

    waiting = asyncio.create_task(driver.s.db.run("test", close))
    await sessions.wait_until_blocked_by(holder)
    await holder.commit()
    assert await waiting == 0
    assert (await driver.attempt(turn))["outcome"] != "released"
