"""`POST jobs/<job>/container`: the exact sandbox instance that was found or created (protocol 4, step 5; R-01)."""

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services.answers import Invalid, Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.leased import LEASE_REFUSED, lock_leased
from turnkeeper.store import workspaces
from turnkeeper.store.guards import is_held
from turnkeeper.store.locks import lock_workspace
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import Container


async def record_container(s: Services, worker: Worker, request: Container) -> Refused | Invalid | None:
    """None: recorded. `Invalid`: another sandbox than this scope's."""

    async def work(tx: Tx) -> Refused | Invalid | None:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        await lock_workspace(tx, leased.run.runtime_scope_id)
        recorded = await workspaces.record_container(
            tx,
            leased.lease,
            runtime_scope_id=leased.run.runtime_scope_id,
            sandbox_id=request.sandbox_id,
            generation=request.generation,
            boot_id=request.boot_id,
        )
        if not recorded:
            if not await is_held(tx, leased.lease):
                return LEASE_REFUSED
            return Invalid(ProblemCode.BAD_REQUEST, "sandbox_id", "it must be the sandbox of this run's scope")
        return None

    return await s.db.run("container", work)
