"""`POST jobs/<job>/heartbeat`: a renewal (L-11). Locks the attempt's row alone, then looks at the time."""

from turnkeeper.services.answers import Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.leased import LEASE_REFUSED
from turnkeeper.store.guards import Lease
from turnkeeper.wire.worker import Heartbeat, HeartbeatAnswer


async def heartbeat(s: Services, worker: Worker, request: Heartbeat) -> HeartbeatAnswer | Refused:
    """The lease's new end, never an earlier one; or refused for good (L-05). A lost reply changes nothing."""
    renewal = await s.renewals.renew(Lease(worker.attempt_id, worker.run_id, request.lease_generation))
    if renewal is None:
        return LEASE_REFUSED
    return HeartbeatAnswer(
        lease_ttl_s=renewal.lease_ttl_s,
        lease_expires_at=renewal.lease_expires_at,
        cancel_requested=renewal.cancel_requested,
    )
