"""`/readyz`: whether this control plane can give out work, not only whether it is alive."""

import asyncio
from dataclasses import dataclass

from turnkeeper.services.context import Services
from turnkeeper.store import hosts, runs
from turnkeeper.store.durability import cluster_matches
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.tx import Tx

CLAIM_BOUND_S = 2.0


@dataclass(frozen=True)
class Readiness:
    """`problems`: one line each; none where it is ready."""

    ready: bool
    problems: tuple[str, ...]


class _RolledBack(Exception):  # noqa: N818 - carries the answer out of a transaction that must not commit
    def __init__(self, *, cluster: bool, expected: bool, heard: bool) -> None:
        super().__init__()
        self.cluster = cluster
        self.expected = expected
        self.heard = heard


async def readiness(s: Services, *, expect_hosts: bool = False) -> Readiness:
    """A claim's own statement answers within 2 s (rolled back: nothing is claimed), and an expected host was heard.

    A host is expected where a token for one is out, or `expect_hosts` says so.
    """

    async def work(tx: Tx) -> None:
        cluster = await cluster_matches(tx)
        expected, heard = await hosts.expected_and_heard(tx, silent_s=s.timing.host_silent_s)
        await runs.lock_claimable(tx, provisioner="", any_tree=True, trees=[])
        raise _RolledBack(cluster=cluster, expected=expected, heard=heard)

    problems: list[str] = []
    try:
        async with asyncio.timeout(CLAIM_BOUND_S):
            await s.db.run("ready", work)
    except _RolledBack as found:
        if not found.cluster:
            problems.append("claims are refused: the database is not the one that was recorded")
        if (found.expected or expect_hosts) and not found.heard:
            problems.append(_unheard(s))
    except TimeoutError:
        problems.append(f"a claim statement did not answer within {CLAIM_BOUND_S:g} s")
    except DatabaseError:
        problems.append("the database does not answer")
    return Readiness(not problems, tuple(problems))


def _unheard(s: Services) -> str:
    """Who has just started cannot say that somebody was silent for long."""
    silent_s = s.timing.host_silent_s
    listened_s = s.clock.monotonic() - s.started_s
    return "no host was heard yet" if listened_s < silent_s else f"no host was heard within {silent_s:g} s"
