"""A host and its workers, as far as the control plane hears of them: without a sandbox or an agent behind them.

One loop claims, as in a host, whenever a driver is free; each driver carries one turn at a time.

The calls are those of a real turn, in its order: claim, prepare, manifest, container, activate, admit, the events of a
short answer, settle, the settlement's event, finish. What the sandbox manager would have said is made up.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from bench.wire import Connection
from turnkeeper.domain.sandbox import sandbox_id
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.turn import AgentProcess, EventKind, Outcome, SettlementReceipt
from turnkeeper.wire.worker import (
    Activate,
    Admit,
    ClaimRequest,
    Container,
    EventBatch,
    Finish,
    Manifest,
    Prepare,
    Settle,
    TurnEvent,
)

_WORKER = "/v1/agent/worker"
_GENERATION, _BOOT = "bench-generation", "bench-boot"
_SESSION = "bench-session"
_CHUNKS = 5
_EMPTY_WAIT_S = 1


@dataclass
class Tally:
    """What the drivers of one run have done. `call_ms`: by the call's name."""

    turns: int = 0
    empty_claims: int = 0
    turn_ms: list[float] = field(default_factory=list[float])
    call_ms: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


class _Claims:
    """The one connection that claims."""

    def __init__(self, connection: Connection, host_token: str, incarnation: str, tally: Tally) -> None:
        self.connection = connection
        self._host_token = host_token
        self._incarnation = incarnation
        self._tally = tally

    async def next(self) -> tuple[dict[str, Any], float]:
        """A claim, waited for as a host does, and when it was sent."""
        while True:
            began = time.perf_counter()
            claim = await self._claim()
            if claim is not None:
                return claim, began
            self._tally.empty_claims += 1
            path = f"{_WORKER}/work?wait={_EMPTY_WAIT_S}&incarnation={self._incarnation}"
            await self.connection.call("GET", path, self._host_token)

    async def _claim(self) -> dict[str, Any] | None:
        request = ClaimRequest(claim_id=new_id(), incarnation=self._incarnation, rooms=1)
        body = request.model_dump_json().encode()
        began = time.perf_counter()
        answer = await self.connection.call("POST", f"{_WORKER}/claim", self._host_token, body)
        _note(self._tally, "claim", began)
        return answer.get("claim")


class _Turn:
    """One claimed attempt."""

    def __init__(self, connection: Connection, claim: dict[str, Any], tally: Tally) -> None:
        self._connection = connection
        self._tally = tally
        self._job: str = claim["job"]
        self._generation: int = claim["lease_generation"]
        self._token: str = claim["worker_token"]

    async def carry_out(self) -> None:
        """From prepare to finish."""
        generation = self._generation
        spec = await self._call("prepare", Prepare(lease_generation=generation, worker="bench/1/1"))
        manifest = spec["manifest"]
        sha256 = canonical_sha256(manifest)
        await self._call("manifest", Manifest(lease_generation=generation, manifest=manifest, sha256=sha256))
        ensure = spec["ensure"]
        await self._call(
            "container",
            Container(
                lease_generation=generation,
                sandbox_id=sandbox_id(ensure["uid"], ensure["scope"]),
                generation=_GENERATION,
                boot_id=_BOOT,
            ),
        )
        answer = await self._call(
            "activate", Activate(lease_generation=generation, generation=_GENERATION, boot_id=_BOOT)
        )
        activation, fence = str(answer["activation"]), int(answer["fence"])
        await self._call(
            "admit",
            Admit(lease_generation=generation, activation=activation, fence=fence, native_session=_SESSION),
        )
        await self._events(1, [(EventKind.TEXT, {"text": f"chunk {number} "}) for number in range(_CHUNKS)])
        receipt = self._receipt(spec, activation, fence)
        settled = await self._call(
            "settle", Settle(lease_generation=generation, activation=activation, fence=fence, receipt=receipt)
        )
        told = {"epoch": settled["epoch"], "native_turn": settled["native_turn"], "native_session": _SESSION}
        await self._events(_CHUNKS + 1, [(EventKind.SHARED_WORKSPACE_SETTLED, told)])
        await self._call("finish", Finish(lease_generation=generation, status="completed"))

    async def _events(self, first: int, events: list[tuple[EventKind, dict[str, Any]]]) -> None:
        made = tuple(TurnEvent(n=first + place, kind=kind, data=data) for place, (kind, data) in enumerate(events))
        await self._call("events", EventBatch(lease_generation=self._generation, first=first, events=made))

    def _receipt(self, spec: dict[str, Any], activation: str, fence: int) -> SettlementReceipt:
        return SettlementReceipt(
            activation=activation,
            run=self._job,
            fence=fence,
            boot_id=_BOOT,
            native_session=_SESSION,
            native_turn=spec["membership"]["native_turn"] + 1,
            outcome=Outcome.COMPLETED,
            stop_reason="end_turn",
            final_message="".join(f"chunk {number} " for number in range(_CHUNKS)),
            last_event=_CHUNKS,
            agent=AgentProcess(pid=1, start_ticks=1),
        )

    async def _call(self, name: str, request: Any) -> dict[str, Any]:
        body = request.model_dump_json().encode()
        began = time.perf_counter()
        answer = await self._connection.call("POST", f"{_WORKER}/jobs/{self._job}/{name}", self._token, body)
        _note(self._tally, name, began)
        return answer


def _note(tally: Tally, name: str, began: float) -> None:
    tally.call_ms.setdefault(name, []).append((time.perf_counter() - began) * 1000)


async def drive(url: str, host_token: str, incarnation: str, *, drivers: int, turns: int) -> Tally:
    """At most `drivers` turns at a time, `turns` in all. Raises what failed first."""
    tally, free, idle = Tally(), asyncio.Semaphore(drivers), list[Connection]()
    claims = _Claims(await Connection.open(url), host_token, incarnation, tally)

    async def carry(claim: dict[str, Any], began: float) -> None:
        connection = idle.pop() if idle else await Connection.open(url)
        await _Turn(connection, claim, tally).carry_out()
        idle.append(connection)
        tally.turn_ms.append((time.perf_counter() - began) * 1000)
        tally.turns += 1
        free.release()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(turns):
                await free.acquire()
                group.create_task(carry(*await claims.next()))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        for connection in (claims.connection, *idle):
            connection.close()
    return tally
