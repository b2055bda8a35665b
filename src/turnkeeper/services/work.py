"""`GET work`: a host waits for a sign of work. The answer is only *maybe*: the claim decides."""

from turnkeeper.services.claim import has_room
from turnkeeper.services.context import Services
from turnkeeper.store import attempts, hosts, runs
from turnkeeper.store.signals import READY_TOPIC
from turnkeeper.store.tx import Reader
from turnkeeper.wire.worker import WORK_WAIT_S_MAX, Work

REPAIR_S = 2.0
"""A lost signal costs at most this (F04, protocol 3)."""


async def wait_for_work(s: Services, host: str, *, wait_s: float) -> Work:
    """Returns as soon as a ready run exists that this host could take, at the latest after `wait_s`.

    A signal is passed on as it comes to a host that has room: a look before the claim would only make the turn wait.
    """
    end = s.clock.monotonic() + min(max(wait_s, 0.0), WORK_WAIT_S_MAX)

    async def look(reader: Reader) -> tuple[bool, bool]:
        """Whether there is work, and whether there is room for another tree."""
        known = await hosts.get_host(reader, host)
        if known is None:
            return False, False
        trees = await attempts.trees_of_host(reader, host)
        room = has_room(known, trees)
        return await runs.any_claimable(reader, provisioner=known.provisioner, any_tree=room, trees=trees), room

    with s.bus.subscribe(READY_TOPIC) as woken:
        while True:
            work, room = await s.db.read("work", look)
            if work:
                return Work(maybe=True)
            left = end - s.clock.monotonic()
            if left <= 0:
                return Work(maybe=False)
            if await woken.wait(min(left, REPAIR_S)) and room:
                return Work(maybe=True)
