"""Typed clients of the worker API (`wire.worker`) and the host API (`wire.host`).

`HostControl` is the host's: asynchronous, with the host's token. `JobControl` is a worker's: blocking, usable from
several threads, bound to one job, its lease generation and its attempt's token, so that no call can name another.

Every call here is bounded as a whole by its own time, also where the peer trickles its answer: a receipt by the
receipts' (F-04), a renewal by the heartbeat's, a batch of events by that of events, what waits at the server by its wait
and a margin, and every other (claim, prepare, finish, ...) by the client's `Timeouts.call`. The lease needs none of
these: its end is the watchdog's, which `interrupt`s whatever still waits (L-07).
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from turnkeeper.client.http import AsyncHttpClient, HttpClient, Timeouts, path
from turnkeeper.wire.host import HostHeartbeat, HostHeartbeatAnswer
from turnkeeper.wire.turn import SettlementReceipt, SnapshotResult
from turnkeeper.wire.worker import (
    Abandon,
    Activate,
    ActivateAnswer,
    AdmissionReceipt,
    Admit,
    ClaimAnswer,
    ClaimRequest,
    Container,
    EventBatch,
    EventBatchAnswer,
    ExecutionSpec,
    FailureReport,
    Finish,
    FinishAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Manifest,
    ManifestAnswer,
    Prepare,
    Release,
    Settle,
    SettleAnswer,
    Signals,
    TurnEvent,
    Work,
)

_WORKER: Final = "/v1/agent/worker"
_JOB: Final = _WORKER + "/jobs/{job}/"
_WAIT_MARGIN_S: Final = 10.0

FinishStatus = Literal["completed", "failed", "cancelled", "interrupted"]


class HostControl:
    """What a host says to the control plane. Every method raises `ClientError` or `ConnectionFailed`."""

    def __init__(self, url: str, token: str, *, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008 - frozen
        self._http = AsyncHttpClient(url, token=token, timeouts=timeouts)

    async def close(self) -> None:
        """Closes every connection."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def work(self, incarnation: str, wait_s: float) -> Work:
        """Waits at the server for at most `wait_s`; only ever *maybe*."""
        params = {"wait": f"{wait_s:g}", "incarnation": incarnation}
        return await self._http.call("GET", f"{_WORKER}/work", Work, params=params, timeout_s=wait_s + _WAIT_MARGIN_S)

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """The same request again, before acceptance, gives the same attempt (D-05)."""
        return await self._http.call("POST", f"{_WORKER}/claim", ClaimAnswer, body=request)

    async def heartbeat(self, host: str, beat: HostHeartbeat, timeout_s: float) -> HostHeartbeatAnswer:
        """Says that this incarnation lives, and which children it found gone."""
        name = path("/v1/agent/hosts/{host}/heartbeat", host=host)
        return await self._http.call("POST", name, HostHeartbeatAnswer, body=beat, timeout_s=timeout_s)

    async def release(self, job: str, worker_token: str, release: Release) -> None:
        """Gives an attempt back that the child provably never took (H-05), with that attempt's own token."""
        headers = {"Authorization": f"Bearer {worker_token}"}
        await self._http.request("POST", path(_JOB + "release", job=job), body=release, headers=headers)


class JobControl:
    """What the worker of one attempt says to the control plane. Every method raises `ClientError` or `ConnectionFailed`."""

    def __init__(
        self,
        url: str,
        *,
        job: str,
        lease_generation: int,
        token: str,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    ) -> None:
        self._http = HttpClient(url, token=token, timeouts=timeouts)
        self._job = job
        self._generation = lease_generation
        self._prefix = path(_JOB, job=job)

    def interrupt(self) -> None:
        """From any thread: ends every call at once, for good."""
        self._http.interrupt()

    def close(self) -> None:
        """Closes every connection."""
        self._http.close()

    def heartbeat(self, timeout_s: float) -> HeartbeatAnswer:
        """Renews the lease. Idempotent."""
        body = Heartbeat(lease_generation=self._generation)
        return self._http.call("POST", self._prefix + "heartbeat", HeartbeatAnswer, body=body, timeout_s=timeout_s)

    def prepare(self, worker: str) -> ExecutionSpec:
        """Records acceptance and returns all that is needed to run the turn. `worker`: host/pid/start ticks."""
        body = Prepare(lease_generation=self._generation, worker=worker)
        return self._http.call("POST", self._prefix + "prepare", ExecutionSpec, body=body)

    def manifest(self, manifest: Mapping[str, Any], sha256: str) -> ManifestAnswer:
        """Records the run manifest, once (A-02)."""
        body = Manifest(lease_generation=self._generation, manifest=dict(manifest), sha256=sha256)
        return self._http.call("POST", self._prefix + "manifest", ManifestAnswer, body=body)

    def container(self, *, sandbox_id: str, generation: str, boot_id: str) -> None:
        """Records the exact sandbox."""
        body = Container(
            lease_generation=self._generation, sandbox_id=sandbox_id, generation=generation, boot_id=boot_id
        )
        self._http.request("POST", self._prefix + "container", body=body)

    def activate(self, *, generation: str, boot_id: str) -> ActivateAnswer:
        """Raises the membership fence and renews the lease. The same again: the same answer."""
        body = Activate(lease_generation=self._generation, generation=generation, boot_id=boot_id)
        return self._http.call("POST", self._prefix + "activate", ActivateAnswer, body=body)

    def admit(self, *, activation: str, fence: int, native_session: str, timeout_s: float) -> AdmissionReceipt:
        """Asks for the durable fact that the prompt may be sent. Asked again: the same receipt (F-04)."""
        body = Admit(
            lease_generation=self._generation, activation=activation, fence=fence, native_session=native_session
        )
        return self._http.call("POST", self._prefix + "admit", AdmissionReceipt, body=body, timeout_s=timeout_s)

    def settle(self, *, activation: str, fence: int, receipt: SettlementReceipt, timeout_s: float) -> SettleAnswer:
        """Takes the supervisor's receipt to the control plane. Asked again: the same answer (F-04, F-06)."""
        body = Settle(lease_generation=self._generation, activation=activation, fence=fence, receipt=receipt)
        return self._http.call("POST", self._prefix + "settle", SettleAnswer, body=body, timeout_s=timeout_s)

    def abandon(self, *, activation: str, fence: int) -> None:
        """Gives the membership back, where nothing was admitted (R-02)."""
        body = Abandon(lease_generation=self._generation, activation=activation, fence=fence)
        self._http.request("POST", self._prefix + "abandon", body=body)

    def events(self, events: tuple[TurnEvent, ...], *, timeout_s: float) -> int:
        """Stores consecutive events; returns the number that is wanted next."""
        body = EventBatch(lease_generation=self._generation, first=events[0].n, events=events)
        answer = self._http.call("POST", self._prefix + "events", EventBatchAnswer, body=body, timeout_s=timeout_s)
        return answer.next

    def finish(
        self, status: FinishStatus, *, failure: FailureReport | None = None, snapshot: SnapshotResult | None = None
    ) -> FinishAnswer:
        """Ends the run."""
        body = Finish(lease_generation=self._generation, status=status, failure=failure, snapshot=snapshot)
        return self._http.call("POST", self._prefix + "finish", FinishAnswer, body=body)

    def signals(self, wait_s: float) -> Signals:
        """Waits at the server for a hint, at most `wait_s` (T-03)."""
        params = {"wait": f"{wait_s:g}"}
        return self._http.call(
            "GET", self._prefix + "signals", Signals, params=params, timeout_s=wait_s + _WAIT_MARGIN_S
        )
