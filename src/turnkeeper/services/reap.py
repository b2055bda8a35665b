"""The reaper: settles attempts whose lease has ended (protocol 8: 2 s after the lease end), and nobody's else.

It looks when the next lease may have ended and not every second. A lease that is granted while it waits is longer than
interval + timeout (L-09), so a wait of at most that misses none.

When it looks at an attempt is a moment of its own, never later than the lease's end: a renewal moves only that end, which
is in no index, and whoever was renewed is looked at again when the new end has come.
"""

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services.conclude import conclude, decide, lock_turn
from turnkeeper.services.context import Services
from turnkeeper.services.decide import Move, Word
from turnkeeper.services.loop import run_loop
from turnkeeper.services.verdict import give_verdict
from turnkeeper.store import attempts, runs
from turnkeeper.store.attempts import AttemptId, ExpiredAttempt
from turnkeeper.store.locks import lock_attempts_skipping
from turnkeeper.store.tx import Tx

_BATCH = 100
_LOOKS_MAX = 1000
_UNSETTLED_WAIT_S = 2.0
_log = get_logger("services.reap")


async def run(s: Services, stop: StopSignal) -> None:
    """Reap until told to stop."""
    settled_all = True

    async def work() -> None:
        nonlocal settled_all
        settled_all = await _round(s)

    async def wait_s() -> float:
        seconds = await seconds_to_wait(s)
        return seconds if settled_all else max(seconds, _UNSETTLED_WAIT_S)

    await run_loop(s, stop, "reap", work, wait_s=wait_s)


async def seconds_to_wait(s: Services) -> float:
    """How long nothing can have to be reaped."""
    longest = s.timing.lease_ttl_floor_s
    next_look = await s.db.read("reap.next", attempts.seconds_to_next_look)
    return longest if next_look is None else min(longest, max(0.0, next_look + s.timing.reap_grace_s))


async def _round(s: Services) -> bool:
    """Settle all that can be; False: something was found that could not be, and is tried again later."""
    moved_all = await look_later(s)
    while True:
        settled = await reap(s)
        if settled < _BATCH:
            left = await s.db.read("reap.left", lambda r: attempts.expired(r, grace_s=s.timing.reap_grace_s, limit=1))
            return moved_all and (not left or settled > 0)


async def look_later(s: Services, limit: int = _LOOKS_MAX) -> bool:
    """Have attempts that were renewed since the reaper decided when to look at them be looked at when their lease ends.

    False: some are locked by somebody, and are left for the next round.
    """
    while True:
        found = await s.db.read("reap.renewed", lambda r: attempts.renewed_since_look(r, limit))
        if not found:
            return True

        async def work(tx: Tx, found: list[str] = found) -> int:
            locked = await lock_attempts_skipping(tx, found, AttemptId)
            return await attempts.look_later(tx, [row.id for row in locked])

        if await s.db.run("reap.later", work) < len(found):
            return False
        if len(found) < limit:
            return True


async def reap(s: Services, limit: int = _BATCH) -> int:
    """Settle attempts whose lease ended at least the grace time ago; how many were settled."""
    grace_s = s.timing.reap_grace_s
    found = await s.db.read("reap.expired", lambda r: attempts.expired(r, grace_s=grace_s, limit=limit))
    settled = 0
    for one in found:
        try:
            if not await reap_one(s, one):
                continue
        except InvariantViolation:
            # Told with its traceback, and left as it is; the other attempts must not wait for it.
            _log.exception("reap_failed", run=one.run_id, attempt=one.id)
            continue
        settled += 1
        _log.info("lease_expired", run=one.run_id, attempt=one.id, lease_generation=one.lease_generation)
    return settled


async def reap_one(s: Services, expired: ExpiredAttempt) -> bool:
    """Settle one attempt. False: it was renewed, finished or reaped meanwhile; the closing statement looks again."""

    async def work(tx: Tx) -> bool:
        seen = await runs.place_of(tx, expired.run_id)
        if seen is None:
            return False
        turn = await lock_turn(tx, s, seen, expired.id)
        if turn.attempt is None:
            return False
        closed = await attempts.close_expired(
            tx, expired.id, lease_generation=expired.lease_generation, grace_s=s.timing.reap_grace_s
        )
        if not closed:
            return False
        facts, end = decide(turn, Word.LEASE_EXPIRED)
        await conclude(tx, s, turn, facts, end, None if end.settled else {"stage": "lease", "why": "lease_expired"})
        if end.move is Move.QUARANTINE and turn.membership is not None:
            thread, fence = turn.membership.thread_id, turn.membership.fence + 1
            tx.after_commit(lambda: _verdict(s, thread, fence, seen.runtime_scope_id, seen.uid))
        return True

    return await s.db.run("reap", work)


async def end_gone(s: Services, host: str, run_id: str, attempt_id: str, lease_generation: int) -> bool:
    """End an attempt whose child its own host found gone by pid and start time. False: it is not open any more."""

    async def work(tx: Tx) -> bool:
        seen = await runs.place_of(tx, run_id)
        if seen is None:
            return False
        turn = await lock_turn(tx, s, seen, attempt_id)
        if turn.attempt is None:
            return False
        if not await attempts.close_gone(tx, attempt_id, lease_generation=lease_generation, host=host):
            return False
        facts, end = decide(turn, Word.CHILD_GONE)
        await conclude(tx, s, turn, facts, end, None if end.settled else {"stage": "worker", "why": "child_gone"})
        if end.move is Move.QUARANTINE and turn.membership is not None:
            thread, fence = turn.membership.thread_id, turn.membership.fence + 1
            tx.after_commit(lambda: _verdict(s, thread, fence, seen.runtime_scope_id, seen.uid))
        return True

    return await s.db.run("host.gone", work)


async def _verdict(s: Services, thread_id: str, fence: int, scope: str, uid: str) -> None:
    await give_verdict(s, thread_id, fence, scope, uid)
