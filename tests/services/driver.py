"""Drives the use cases as owner, host and worker would, without HTTP and without a sandbox; reads every row back."""

from dataclasses import dataclass, field, replace
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import dict_row

from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.services import agents, bootstrap, conversations, events, hosts, submit
from turnkeeper.services.activate import activate
from turnkeeper.services.admit import admit
from turnkeeper.services.auth import Owner, Worker
from turnkeeper.services.claim import claim
from turnkeeper.services.container import record_container
from turnkeeper.services.context import Deleted, NotDeleted, Services
from turnkeeper.services.finish import finish
from turnkeeper.services.idempotency import IdempotencyKey
from turnkeeper.services.manifest import record_manifest
from turnkeeper.services.prepare import prepare
from turnkeeper.services.settle import settle
from turnkeeper.services.signer import Signer, new_private_pem
from turnkeeper.store.signals import SignalBus
from turnkeeper.store.tx import Database
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.host import HostHeartbeat
from turnkeeper.wire.public import Conversation, NewConversation, NewMessage, Submitted
from turnkeeper.wire.turn import AgentProcess, EventKind, Outcome, SettlementReceipt
from turnkeeper.wire.worker import (
    Activate,
    ActivateAnswer,
    AdmissionReceipt,
    Admit,
    Claim,
    ClaimAnswer,
    ClaimRequest,
    Container,
    EventBatch,
    ExecutionSpec,
    Finish,
    FinishAnswer,
    Manifest,
    ManifestAnswer,
    Prepare,
    Settle,
    SettleAnswer,
    TurnEvent,
)

T = TypeVar("T")
HOST = "host-1"
PROVISIONER = "prov-1"
SIGNER = Signer(new_private_pem())


def wanted(value: object, kind: type[T]) -> T:
    """`value`, which must be a `kind`: another answer fails the test with its own text."""
    assert isinstance(value, kind), value
    return value


@dataclass
class Deletes:
    """The provisioner's delete, as a fake peer that answers what it is told and remembers what it was asked."""

    answers: list[Deleted | NotDeleted] = field(default_factory=list[Deleted | NotDeleted])
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def delete(self, sandbox_id: str, *, lease_generation: int) -> Deleted | NotDeleted:
        self.asked.append((sandbox_id, lease_generation))
        return self.answers.pop(0) if self.answers else Deleted()


@dataclass
class Turn:
    """One claimed turn and what its worker has learned so far."""

    claim: Claim
    worker: Worker
    generation: str = "gen-1"
    boot_id: str = "boot-1"
    native_session: str = "native-1"
    native_turn: int = 1
    spec: ExecutionSpec | None = None
    activation: ActivateAnswer | None = None
    admitted: set[str] = field(default_factory=set[str])

    @property
    def lease(self) -> int:
        return self.claim.lease_generation

    @property
    def act(self) -> ActivateAnswer:
        assert self.activation is not None
        return self.activation

    def receipt(self, **more: Any) -> SettlementReceipt:
        values: dict[str, Any] = {
            "activation": self.act.activation,
            "run": self.claim.job,
            "fence": self.act.fence,
            "boot_id": self.boot_id,
            "native_session": self.native_session,
            "native_turn": self.native_turn,
            "outcome": Outcome.COMPLETED,
            "stop_reason": "end_turn",
            "final_message": "done",
            "last_event": 1,
            "agent": AgentProcess(pid=42, start_ticks=4242),
        }
        return SettlementReceipt(**{**values, **more})


class Driver:
    """An installation with one owner and one host, on a database of its own."""

    def __init__(self, s: Services, dsn: str) -> None:
        self.s = s
        self.dsn = dsn
        self.owner = Owner("", "", "", "en")
        self.incarnation = new_id()
        self.deletes = Deletes()

    @classmethod
    async def start(cls, db: Database, bus: SignalBus, dsn: str, *, timing: Timing | None = None) -> "Driver":
        deletes = Deletes()
        s = Services(db=db, bus=bus, timing=timing or Timing(), limits=Limits(), signer=SIGNER, sandboxes=deletes)
        driver = cls(s, dsn)
        driver.deletes = deletes
        driver.owner = await driver.new_owner("owner")
        await driver.add_agent("scripted")
        await driver.heartbeat()
        return driver

    def with_limits(self, **limits: Any) -> None:
        self.s = replace(self.s, limits=replace(self.s.limits, **limits))

    async def new_owner(self, name: str) -> Owner:
        uid = await bootstrap.ensure_owner(self.s.db, name, new_secret("tk_"))
        return Owner(uid, name, "owner", "en")

    async def add_agent(self, name: str, **more: Any) -> None:
        definition = {"name": name, "title": name, "command": ["agent"], **more}
        assert not hasattr(await agents.put_agent(self.s, name, definition), "code")

    async def heartbeat(self, host: str = HOST, **more: Any) -> None:
        values: dict[str, Any] = {
            "incarnation": self.incarnation,
            "version": "1",
            "capacity": 8,
            "provisioner": PROVISIONER,
            "state": "ready",
        }
        await hosts.heartbeat(self.s, host, HostHeartbeat(**{**values, **more}))

    # ---- owner ----

    async def conversation(self, *, owner: Owner | None = None, agent: str = "scripted", **more: Any) -> Conversation:
        made = await conversations.create(self.s, owner or self.owner, NewConversation(agent=agent, **more))
        return wanted(made, Conversation)

    async def submit(
        self, thread_id: str, text: str = "hello", *, owner: Owner | None = None, idem: IdempotencyKey | None = None
    ) -> Submitted:
        return wanted(
            await submit.submit(self.s, owner or self.owner, thread_id, NewMessage(text=text), idem), Submitted
        )

    # ---- host and worker ----

    async def try_claim(self, *, rooms: int = 4, claim_id: str | None = None, host: str = HOST) -> Any:
        request = ClaimRequest(claim_id=claim_id or new_id(), incarnation=self.incarnation, rooms=rooms)
        return await claim(self.s, host, request)

    async def claim(self, **more: Any) -> Turn:
        answer = wanted(await self.try_claim(**more), ClaimAnswer)
        assert answer.claim is not None, "nothing could be claimed"
        return self.turn_of(answer.claim)

    def turn_of(self, claimed: Claim, host: str = HOST) -> Turn:
        return Turn(claimed, Worker(claimed.attempt, claimed.job, host))

    async def prepare(self, turn: Turn) -> ExecutionSpec:
        request = Prepare(lease_generation=turn.lease, worker="host-1/100/200")
        turn.spec = wanted(await prepare(self.s, turn.worker, request), ExecutionSpec)
        turn.native_turn = turn.spec.membership.native_turn + 1
        turn.native_session = turn.spec.membership.native_session or turn.native_session
        return turn.spec

    async def record(self, turn: Turn) -> None:
        assert turn.spec is not None
        manifest = Manifest(
            lease_generation=turn.lease, manifest=turn.spec.manifest, sha256=canonical_sha256(turn.spec.manifest)
        )
        wanted(await record_manifest(self.s, turn.worker, manifest), ManifestAnswer)
        await self.container(turn)

    async def container(self, turn: Turn) -> None:
        sandbox_id = await self.value(
            "SELECT sandbox_id FROM shared_workspaces w JOIN runs r USING (runtime_scope_id) WHERE r.id = %s",
            turn.claim.job,
        )
        request = Container(
            lease_generation=turn.lease, sandbox_id=sandbox_id, generation=turn.generation, boot_id=turn.boot_id
        )
        assert await record_container(self.s, turn.worker, request) is None

    async def activate(self, turn: Turn) -> ActivateAnswer:
        request = Activate(lease_generation=turn.lease, generation=turn.generation, boot_id=turn.boot_id)
        turn.activation = wanted(await activate(self.s, turn.worker, request), ActivateAnswer)
        return turn.activation

    def admit_request(self, turn: Turn) -> Admit:
        return Admit(
            lease_generation=turn.lease,
            activation=turn.act.activation,
            fence=turn.act.fence,
            native_session=turn.native_session,
        )

    async def admit(self, turn: Turn) -> AdmissionReceipt:
        return wanted(await admit(self.s, turn.worker, self.admit_request(turn)), AdmissionReceipt)

    def settle_request(self, turn: Turn, **more: Any) -> Settle:
        return Settle(
            lease_generation=turn.lease,
            activation=turn.act.activation,
            fence=turn.act.fence,
            receipt=turn.receipt(**more),
        )

    async def settle(self, turn: Turn, **more: Any) -> SettleAnswer:
        return wanted(await settle(self.s, turn.worker, self.settle_request(turn, **more)), SettleAnswer)

    async def send_events(self, turn: Turn, first: int, *texts: str) -> Any:
        batch = tuple(TurnEvent(n=first + i, kind=EventKind.TEXT, data={"text": text}) for i, text in enumerate(texts))
        request = EventBatch(lease_generation=turn.lease, first=first, events=batch)
        return await events.store_batch(self.s, turn.worker, request)

    async def finish(self, turn: Turn, status: str = "completed", **more: Any) -> str:
        request = Finish(lease_generation=turn.lease, status=status, **more)  # type: ignore[arg-type]
        return wanted(await finish(self.s, turn.worker, request), FinishAnswer).status

    async def up_to(self, stage: str, thread_id: str | None = None) -> Turn:
        """A turn that has got to `stage`: claimed, prepared, recorded, activated, admitted, settled."""
        if thread_id is None:
            thread_id = (await self.conversation()).thread_id
        await self.submit(thread_id)
        turn = await self.claim()
        for name, step in (
            ("claimed", None),
            ("prepared", self.prepare),
            ("recorded", self.record),
            ("activated", self.activate),
            ("admitted", self.admit),
            ("settled", self.settle),
        ):
            if step is not None:
                await step(turn)
            if name == stage:
                return turn
        raise ValueError(stage)

    async def whole_turn(self, thread_id: str, text: str = "hello") -> Turn:
        """A turn from its message to its end."""
        await self.submit(thread_id, text)
        turn = await self.claim()
        for step in (self.prepare, self.record, self.activate, self.admit, self.settle):
            await step(turn)
        assert await self.finish(turn) == "completed"
        return turn

    # ---- rows ----

    async def rows(self, query: LiteralString, *params: object) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection[dict[str, Any]].connect(
            self.dsn, autocommit=True, row_factory=dict_row
        ) as connection:
            cursor = await connection.execute(query, params)
            found = await cursor.fetchall() if cursor.description is not None else []
        return [{key: _plain(value) for key, value in row.items()} for row in found]

    async def row(self, query: LiteralString, *params: object) -> dict[str, Any]:
        found = await self.rows(query, *params)
        assert len(found) == 1, found
        return found[0]

    async def value(self, query: LiteralString, *params: object) -> Any:
        found = await self.rows(query, *params)
        return next(iter(found[0].values())) if found else None

    async def run(self, run_id: str) -> dict[str, Any]:
        return await self.row("SELECT * FROM runs WHERE id = %s", run_id)

    async def attempt(self, turn: Turn) -> dict[str, Any]:
        return await self.row("SELECT * FROM attempts WHERE id = %s", turn.claim.attempt)

    async def membership(self, thread_id: str) -> dict[str, Any]:
        return await self.row("SELECT * FROM memberships WHERE thread_id = %s", thread_id)

    async def activation_row(self, turn: Turn) -> dict[str, Any]:
        return await self.row("SELECT * FROM activations WHERE id = %s", turn.act.activation)

    async def events_of(self, thread_id: str) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM events WHERE thread_id = %s ORDER BY seq", thread_id)

    async def delivery(self, run_id: str) -> str:
        return await self.value("SELECT delivery FROM messages WHERE run_id = %s AND role = 'owner'", run_id)

    async def ready(self, run_id: str) -> bool:
        return (await self.run(run_id))["ready_at"] is not None


def _plain(value: Any) -> Any:
    return str(value) if type(value).__name__ == "UUID" else value


TOKEN_HASH = digest("x")
