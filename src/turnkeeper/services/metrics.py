"""Numbers of the whole installation for `/metrics`."""

from dataclasses import dataclass

from turnkeeper.services.context import Services
from turnkeeper.store import metrics as statements
from turnkeeper.store.tx import Reader


@dataclass(frozen=True)
class Gauges:
    """As of now. `runs` by status, with `ready` for those of the pending ones that may be claimed."""

    runs: dict[str, int]
    hosts: dict[str, int]
    oldest_ready_s: float
    open_attempts: int
    quarantined_memberships: int
    pending_cleanups: int


async def read_metrics(s: Services) -> Gauges:
    """A few statements over partial indexes."""

    async def look(reader: Reader) -> Gauges:
        return Gauges(
            runs=await statements.live_runs(reader),
            hosts=await statements.hosts_by_state(reader),
            oldest_ready_s=await statements.oldest_ready_s(reader),
            open_attempts=await statements.open_attempts(reader),
            quarantined_memberships=await statements.quarantined_memberships(reader),
            pending_cleanups=await statements.pending_cleanups(reader),
        )

    return await s.db.read("metrics", look)
