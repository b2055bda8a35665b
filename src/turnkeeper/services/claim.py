"""`POST claim`: a host takes one ready run (protocol 3 and 4, step 1).

Reads the runs row only, so its cost grows neither with history nor with waiting runs. The same claim id from the same
host process, before acceptance, gets the same attempt with a fresh token (D-05): a claim whose reply was lost strands
nothing. Every claim compares the database's identity with the stored one (D-04).
"""

from collections.abc import Awaitable, Callable

from turnkeeper.domain.host import HostState, may_take
from turnkeeper.domain.run import DeliveryStatus, RunStatus
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.kit.log import get_logger
from turnkeeper.services.answers import ClaimsRefused, Gone, Refused, RefusedWhy
from turnkeeper.services.context import Services
from turnkeeper.services.leased import must
from turnkeeper.services.publish import Outbox
from turnkeeper.store import attempts, messages, runs
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.claims import claim_facts
from turnkeeper.store.hosts import HostRow
from turnkeeper.store.locks import lock_attempt, lock_host
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import Claim, ClaimAnswer, ClaimRequest

ClaimResult = ClaimAnswer | Refused | Gone | ClaimsRefused
_TAKEN_MEANWHILE = "the same claim id was used twice at once"
_log = get_logger("services.claim")


class _Again(Exception):  # noqa: N818 - never seen outside this module
    """Rolls back a claim that lost against the same claim id."""


async def claim(s: Services, host: str, request: ClaimRequest) -> ClaimResult:
    """One attempt; `claim` None where nothing fits. `Gone`: a newer incarnation of this host was heard."""
    ttl_s = _lease_ttl(s, request)
    if isinstance(ttl_s, Refused):
        return ttl_s
    for _ in range(2):
        try:
            return await s.db.run("claim", _work(s, host, request, ttl_s))
        except _Again:
            continue  # now the other's attempt is there, and this is the repeated request
    return Refused(RefusedWhy.ACCEPTED, _TAKEN_MEANWHILE)


def _lease_ttl(s: Services, request: ClaimRequest) -> int | Refused:
    if request.lease_ttl_s is None:
        return max(1, int(s.timing.lease_ttl_s))
    if request.lease_ttl_s <= s.timing.lease_ttl_floor_s:
        return Refused(
            RefusedWhy.LEASE,
            f"lease_ttl_s is {request.lease_ttl_s}; it must be greater than {s.timing.lease_ttl_floor_s:g}",
        )
    return request.lease_ttl_s


def _work(s: Services, host: str, request: ClaimRequest, ttl_s: int) -> Callable[[Tx], Awaitable[ClaimResult]]:
    async def work(tx: Tx) -> ClaimResult:
        facts = await claim_facts(tx, host=host, incarnation=request.incarnation, claim_id=request.claim_id)
        if not facts.cluster_matches:
            _log.error("claims_refused", host=host)
            return ClaimsRefused(
                "the database is not the one that was recorded; see turnkeeper recover --after-failover"
            )
        if facts.claimed_before is not None:
            return await _same_again(tx, facts.claimed_before)
        known = facts.host
        if known is None:
            return Refused(RefusedWhy.LEASE, f"host {host} was never heard; send a heartbeat before the first claim")
        if known.incarnation != request.incarnation:
            return Gone(f"another process of host {host} was heard")
        return await _take(s, tx, known, facts.trees, request, ttl_s)

    return work


async def _same_again(tx: Tx, attempt_id: str) -> ClaimAnswer | Refused:
    attempt = await lock_attempt(tx, attempt_id, AttemptRow)
    token = new_secret("tkw_")
    if attempt is None or not await attempts.refresh_token(tx, attempt_id, digest(token)):
        return Refused(RefusedWhy.ACCEPTED, "this claim was taken or has ended")
    run = await runs.get_run(tx, attempt.run_id)
    assert run is not None  # noqa: S101 - an attempt's run exists (foreign key)
    return ClaimAnswer(claim=_claim(run, attempt, token))


async def _take(
    s: Services, tx: Tx, known: HostRow, trees: list[str], request: ClaimRequest, ttl_s: int
) -> ClaimAnswer:
    run = await runs.lock_claimable(
        tx, provisioner=known.provisioner, any_tree=_has_room(known, request, trees), trees=trees
    )
    if run is None:
        return ClaimAnswer(more=await runs.any_claimable(tx, provisioner=known.provisioner, any_tree=True, trees=trees))
    # Two claims of one host at once must not both take its last room: the host's row orders them, and now its load is read.
    host = await lock_host(tx, known.name, HostRow)
    trees = await attempts.trees_of_host(tx, known.name)
    if host is None or not (run.root_run_id in trees or _has_room(host, request, trees)):
        return ClaimAnswer(more=True)
    must(await runs.mark_claimed(tx, run.id), "claimed run")
    token = new_secret("tkw_")
    attempt = await attempts.insert_attempt(
        tx,
        attempt_id=new_id(),
        run_id=run.id,
        root_run_id=run.root_run_id,
        host=known.name,
        incarnation=request.incarnation,
        claim_id=request.claim_id,
        token_hash=digest(token),
        lease_ttl_s=ttl_s,
        agent=run.agent,
        execution_timeout_s=s.timing.execution_timeout_s,
        drain_s=s.timing.drain_s,
    )
    if attempt is None:
        raise _Again
    await messages.set_delivery(tx, run.id, DeliveryStatus.DELIVERING)
    outbox = Outbox(s.limits.event_bytes_max)
    outbox.run(run.thread_id, run.id, RunStatus.RUNNING.value, attempt_no=attempt.attempt_no)
    await outbox.flush(tx)
    return ClaimAnswer(claim=_claim(run, attempt, token))


def _has_room(host: HostRow, request: ClaimRequest, trees: list[str]) -> bool:
    """Whether the host may take another tree: by its own count and by ours, which knows its earlier incarnation's too."""
    return request.rooms > 0 and has_room(host, trees)


def has_room(host: HostRow, trees: list[str]) -> bool:
    """Whether a host that already has `trees` may take another one."""
    return may_take(
        HostState(host.state),
        load=len(trees),
        capacity=host.capacity,
        tree_is_live_here=False,
        created_by_live_run=False,
    )


def _claim(run: RunRow, attempt: AttemptRow, token: str) -> Claim:
    timeout_s = (attempt.execution_deadline - attempt.claimed_at).total_seconds()
    return Claim(
        job=run.id,
        attempt=attempt.id,
        attempt_no=attempt.attempt_no,
        lease_generation=attempt.lease_generation,
        worker_token=token,
        lease_ttl_s=attempt.lease_ttl_s,
        execution_timeout_s=max(1, int(timeout_s)),
        thread_id=run.thread_id,
        root_run_id=run.root_run_id,
        kind=run.kind,  # type: ignore[arg-type] - the column's CHECK names the same words
        agent=run.agent,
    )
