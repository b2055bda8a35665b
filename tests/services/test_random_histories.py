"""Random histories of owners, hosts, workers and faults, several at once; then rest; then what must hold of the rows.

The faults are those that the database can see: workers that vanish at any step, replies that are lost and asked for
again, stale workers that go on, cancels, closes and reaps at any moment.
"""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from harness.postgres import DatabaseClock
from services.driver import Driver, Turn
from turnkeeper.domain.sandbox import sandbox_id
from turnkeeper.kit.ids import new_id
from turnkeeper.services import cleanup, conversations, reap, reconcile, submit
from turnkeeper.services.abandon import abandon
from turnkeeper.services.activate import activate
from turnkeeper.services.admit import admit
from turnkeeper.services.answers import Refused
from turnkeeper.services.cancel import cancel
from turnkeeper.services.container import record_container
from turnkeeper.services.finish import finish
from turnkeeper.services.prepare import prepare
from turnkeeper.services.release import release
from turnkeeper.services.renew import heartbeat
from turnkeeper.services.settle import settle
from turnkeeper.store.cleanup import pending
from turnkeeper.wire.public import NewMessage, Submitted
from turnkeeper.wire.turn import Outcome
from turnkeeper.wire.worker import (
    Abandon,
    Activate,
    ActivateAnswer,
    AdmissionReceipt,
    ClaimAnswer,
    Container,
    ExecutionSpec,
    Finish,
    Heartbeat,
    Prepare,
    Release,
    SettleAnswer,
)

STEPS = 60
ACTORS = 4


@dataclass
class World:
    """What the actors share."""

    driver: Driver
    clock: DatabaseClock
    threads: list[str]
    runs: list[str] = field(default_factory=list[str])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    jumps: int = 0

    def prompt_sent(self, run: str) -> None:
        """A worker sends the prompt once it has its receipt: at most one worker of a run may ever get that far."""
        self.sent[run] = self.sent.get(run, 0) + 1


class Actor:
    """One source of events: an owner, a host with a worker, and a clock that jumps."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.turn: Turn | None = None
        self.stale: list[Turn] = []
        self.claim_id = new_id()
        self.settled: set[str] = set()

    async def run(self) -> None:
        for _ in range(STEPS):
            await self.random.choice([self.submit] * 2 + [self.work] * 9 + [self.ghost, self.rare])()

    async def submit(self) -> None:
        world = self.world
        answer = await submit.submit(
            world.driver.s, world.driver.owner, self.random.choice(world.threads[-6:]), NewMessage(text="hello")
        )
        if isinstance(answer, Submitted):
            world.runs.append(answer.run.id)
        else:
            world.threads.append((await world.driver.conversation()).thread_id)

    async def rare(self) -> None:
        world, s = self.world, self.world.driver.s
        what = self.random.randrange(20)
        if what < 4 and world.runs:
            await cancel(s, world.driver.owner, self.random.choice(world.runs))
        elif what == 4:
            await conversations.close(s, world.driver.owner, self.random.choice(world.threads))
        elif what == 5:
            world.jumps += 1
            world.clock.offset(world.jumps * 130.0)
            await world.driver.heartbeat()
        elif what < 12:
            await reap.reap(s)
        else:
            await reconcile.reconcile(s)
            for one in await s.db.read("test", lambda r: pending(r, 10)):
                await cleanup.clean_scope(s, one.runtime_scope_id, one.uid)

    async def ghost(self) -> None:
        """A worker that is long gone says something after all."""
        if self.stale:
            await self.step(self.random.choice(self.stale))

    async def work(self) -> None:
        if self.turn is None:
            answer = await self.world.driver.try_claim(rooms=8, claim_id=self.claim_id)
            if isinstance(answer, ClaimAnswer) and answer.claim is not None:
                self.turn = self.world.driver.turn_of(answer.claim)
                if self.random.random() < 0.2:
                    return  # the reply was lost: the same claim id is used again
            self.claim_id = new_id()
            return
        if self.random.random() < 0.03:
            self.stale.append(self.turn)
            self.turn = None
            return
        await self.step(self.turn)

    async def step(self, turn: Turn) -> None:
        """Some call that a worker could make next, or again, in its state."""
        calls = [
            self.prepare,
            self.activate,
            self.admit,
            self.settle,
            self.settle,
            self.finish,
            self.renew,
            self.events,
        ]
        if turn.spec is None:
            calls = [self.prepare] * 6 + [self.release]
        elif turn.activation is None:
            calls = [self.activate] * 8 + [self.prepare, self.finish]
        elif turn.claim.job not in turn.admitted:
            calls = [self.admit] * 6 + [self.activate, self.abandon]
        elif turn.claim.job in self.settled or self.random.random() < 0.1:
            calls = [self.finish, self.finish, self.settle, self.events]
        await self.random.choice(calls)(turn)

    async def prepare(self, turn: Turn) -> None:
        asked = Prepare(lease_generation=turn.lease, worker=f"host-1/{turn.claim.attempt}")
        answer = await prepare(self.world.driver.s, turn.worker, asked)
        if isinstance(answer, ExecutionSpec):
            turn.spec = answer
            turn.native_turn = answer.membership.native_turn + 1
            request = Container(
                lease_generation=turn.lease,
                sandbox_id=sandbox_id(answer.uid, answer.scope),
                generation=turn.generation,
                boot_id=turn.boot_id,
            )
            await record_container(self.world.driver.s, turn.worker, request)
        else:
            await self.finish(turn, "cancelled")

    async def activate(self, turn: Turn) -> None:
        request = Activate(lease_generation=turn.lease, generation=turn.generation, boot_id=turn.boot_id)
        answer = await activate(self.world.driver.s, turn.worker, request)
        if isinstance(answer, ActivateAnswer):
            turn.activation = answer

    async def admit(self, turn: Turn) -> None:
        first = turn.claim.job not in turn.admitted
        answer = await admit(self.world.driver.s, turn.worker, self.world.driver.admit_request(turn))
        if isinstance(answer, AdmissionReceipt) and first:
            turn.admitted.add(turn.claim.job)
            self.world.prompt_sent(turn.claim.job)

    async def abandon(self, turn: Turn) -> None:
        request = Abandon(lease_generation=turn.lease, activation=turn.act.activation, fence=turn.act.fence)
        await abandon(self.world.driver.s, turn.worker, request)

    async def settle(self, turn: Turn) -> None:
        outcome = self.random.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED])
        request = self.world.driver.settle_request(turn, outcome=outcome)
        if isinstance(await settle(self.world.driver.s, turn.worker, request), SettleAnswer):
            self.settled.add(turn.claim.job)

    async def renew(self, turn: Turn) -> None:
        await heartbeat(self.world.driver.s, turn.worker, Heartbeat(lease_generation=turn.lease))

    async def events(self, turn: Turn) -> None:
        await self.world.driver.send_events(turn, self.random.randrange(1, 4), "a", "b")

    async def release(self, turn: Turn) -> None:
        await release(self.world.driver.s, turn.worker, Release(lease_generation=turn.lease, why="not_created"))
        self.leave(turn)

    async def finish(self, turn: Turn, status: str | None = None) -> None:
        said = status or self.random.choice(["completed", "failed", "cancelled"])
        request = Finish(lease_generation=turn.lease, status=said)  # type: ignore[arg-type]
        answer = await finish(self.world.driver.s, turn.worker, request)
        if not isinstance(answer, Refused) or self.random.random() < 0.5:
            self.leave(turn)

    def leave(self, turn: Turn) -> None:
        if turn is self.turn:
            self.stale.append(turn)
            self.turn = None


async def to_rest(world: World) -> None:
    """No more faults: leases run out, loops work, hosts take what is ready and finish it."""
    driver = world.driver
    for _ in range(200):
        world.jumps += 1
        world.clock.offset(world.jumps * 130.0)
        await driver.heartbeat()
        await reap.reap(driver.s)
        await reconcile.reconcile(driver.s)
        for one in await driver.s.db.read("test", lambda r: pending(r, 50)):
            await cleanup.clean_scope(driver.s, one.runtime_scope_id, one.uid)
        answer = await driver.try_claim(rooms=8)
        while isinstance(answer, ClaimAnswer) and answer.claim is not None:
            turn = driver.turn_of(answer.claim)
            await driver.finish(turn, "failed")
            answer = await driver.try_claim(rooms=8)
        if not await driver.value(
            "SELECT count(*) FROM runs WHERE status IN ('pending', 'running', 'cancel_requested', 'recovering') "
            "OR runtime_cleanup_pending"
        ):
            return
    left = await driver.rows("SELECT id, status, ready_at, runtime_cleanup_pending FROM runs WHERE ended_at IS NULL")
    raise AssertionError(f"not at rest: {left}")


NOTHING: dict[str, str] = {
    "an open attempt": "SELECT id FROM attempts WHERE ended_at IS NULL",
    "a membership in use or quarantined": "SELECT id FROM memberships WHERE state NOT IN ('idle', 'lost')",
    "a live activation": "SELECT id FROM activations WHERE ended_at IS NULL",
    "a run without exactly one end": (
        "SELECT r.id FROM runs r WHERE (SELECT count(*) FROM events e WHERE e.run_id = r.id AND kind = 'end') <> 1"
    ),
    "an event after its run's end": (
        "SELECT e.seq FROM events e JOIN events x ON x.run_id = e.run_id AND x.kind = 'end' WHERE e.seq > x.seq"
    ),
    "a gap in a conversation's numbers": (
        "SELECT thread_id FROM events GROUP BY thread_id HAVING max(seq) <> count(*) OR min(seq) <> 1"
    ),
    "a completed run that was cancelled, or has no output": (
        "SELECT r.id FROM runs r WHERE status = 'completed' AND (cancel_requested_at IS NOT NULL OR NOT EXISTS "
        "(SELECT 1 FROM messages m WHERE m.run_id = r.id AND m.role = 'assistant'))"
    ),
    "a completed run without its settlement": (
        "SELECT r.id FROM runs r WHERE status = 'completed' AND NOT EXISTS "
        "(SELECT 1 FROM activations a WHERE a.run_id = r.id AND a.state = 'settled' AND a.outcome = 'completed')"
    ),
    "a run that was admitted twice": (
        "SELECT run_id FROM activations WHERE admitted_at IS NOT NULL GROUP BY run_id HAVING count(*) > 1"
    ),
    "a run that was claimed again after it was accepted": (
        "SELECT a.run_id FROM attempts a JOIN attempts b ON b.run_id = a.run_id AND b.attempt_no > a.attempt_no "
        "WHERE a.accepted_at IS NOT NULL"
    ),
    "a native turn that is not the number of settlements": (
        "SELECT m.id FROM memberships m WHERE native_turn <> "
        "(SELECT count(*) FROM activations a WHERE a.membership_id = m.id AND a.state = 'settled')"
    ),
    "an epoch that is not the number of settlements": (
        "SELECT w.id FROM shared_workspaces w WHERE epoch <> (SELECT count(*) FROM activations a "
        "JOIN memberships m ON m.id = a.membership_id WHERE m.shared_workspace_id = w.id AND a.state = 'settled')"
    ),
    "a message whose delivery does not follow its run": (
        "SELECT m.id FROM messages m JOIN runs r ON r.id = m.run_id WHERE m.role = 'owner' AND ("
        "(r.status = 'completed' AND m.delivery <> 'delivered') OR m.delivery IN ('queued', 'delivering') OR "
        "(m.delivery = 'not_delivered') <> NOT EXISTS "
        "(SELECT 1 FROM activations a WHERE a.run_id = r.id AND a.admitted_at IS NOT NULL))"
    ),
    "a lease generation that does not grow": (
        "SELECT a.id FROM attempts a JOIN attempts b ON a.run_id = b.run_id AND a.attempt_no < b.attempt_no "
        "WHERE a.lease_generation >= b.lease_generation"
    ),
    "two turns of one conversation at once": (
        "SELECT a.id FROM attempts a JOIN runs r ON r.id = a.run_id JOIN attempts b ON b.id <> a.id "
        "JOIN runs q ON q.id = b.run_id AND q.thread_id = r.thread_id "
        "WHERE a.claimed_at < b.claimed_at AND b.claimed_at < a.ended_at AND a.lease_generation > b.lease_generation"
    ),
    "a hold of a closed or lost conversation": (
        "SELECT h.id FROM workdir_holds h JOIN conversations c ON c.thread_id = h.runtime_scope_id "
        "WHERE h.ended_at IS NULL AND c.state <> 'open'"
    ),
    "an open conversation without its hold": (
        "SELECT c.thread_id FROM conversations c WHERE c.state = 'open' AND NOT EXISTS "
        "(SELECT 1 FROM workdir_holds h WHERE h.runtime_scope_id = c.thread_id AND h.ended_at IS NULL)"
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_random_histories_come_to_rest_with_every_promise_kept(
    driver: Driver, database_clock: DatabaseClock, seed: int
) -> None:
    """Proves: A-01, A-03, A-04, A-05, D-01, D-02, D-05, F-05, F-06, H-04, H-05, R-02, R-05."""
    world = World(driver, database_clock, [(await driver.conversation()).thread_id for _ in range(4)])
    await asyncio.gather(*(Actor(world, seed * 100 + number).run() for number in range(ACTORS)))
    await to_rest(world)
    assert max(world.sent.values(), default=0) <= 1, "two workers of one run got an admission receipt"
    for what, query in NOTHING.items():
        assert await driver.rows(query) == [], what  # type: ignore[arg-type]
    assert await driver.value("SELECT count(*) FROM attempts WHERE accepted_at IS NOT NULL") > 0, "too quiet a history"
    await driver.whole_turn((await driver.conversation()).thread_id)
