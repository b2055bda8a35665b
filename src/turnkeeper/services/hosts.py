"""Hosts: heartbeats, gone children, and the list that operators read."""

from turnkeeper.kit.log import get_logger
from turnkeeper.kit.text import clean
from turnkeeper.services.context import Services
from turnkeeper.services.reap import end_gone
from turnkeeper.store import hosts as statements
from turnkeeper.store.hosts import HostReport, HostRow
from turnkeeper.store.locks import lock_host
from turnkeeper.store.tx import Tx
from turnkeeper.wire.host import HostHeartbeat, HostHeartbeatAnswer
from turnkeeper.wire.public import Server

EARLIER_KEPT = 20
_log = get_logger("services.hosts")


async def heartbeat(s: Services, host: str, request: HostHeartbeat) -> HostHeartbeatAnswer:
    """Note that a host lives, and end the attempts whose children it found gone.

    A new incarnation takes the host over; that by itself ends no attempt. `superseded` tells an earlier one to stop.
    """

    report = _report(host, request)

    async def work(tx: Tx) -> bool:
        if await statements.insert_host(tx, report):
            return False
        known = await lock_host(tx, host, HostRow)
        if known is None or request.incarnation in known.earlier_incarnations:
            return True
        earlier = known.earlier_incarnations
        if known.incarnation != request.incarnation:
            earlier = [*earlier, known.incarnation][-EARLIER_KEPT:]
            _log.info("host_registered", host=host, incarnation=request.incarnation)
        await statements.update_host(tx, report, earlier)
        return False

    superseded = await s.db.run("host.heartbeat", work)
    for child in request.gone:
        if await end_gone(s, host, child.job, child.attempt, child.lease_generation):
            _log.info("child_gone", host=host, run=child.job, attempt=child.attempt)
    return HostHeartbeatAnswer(superseded=superseded, interval_s=max(1, int(s.timing.host_heartbeat_s)))


def _report(host: str, request: HostHeartbeat) -> HostReport:
    error = clean(request.launch_error or "") or None
    if request.state == "backing_off" and error is None:
        error = "no reason was given"
    return HostReport(
        name=host,
        incarnation=request.incarnation,
        version=clean(request.version),
        capacity=request.capacity,
        labels={clean(name): clean(value) for name, value in request.labels.items()},
        provisioner=clean(request.provisioner),
        state=request.state,
        launch_error=error,
    )


async def list_servers(s: Services) -> list[Server]:
    """Admin → Servers."""
    return [Server.model_validate(vars(row)) for row in await s.db.read("host.list", statements.list_hosts)]
