"""The service in front of backends that misbehave: never two sandboxes of a scope, never a conclusion from silence (K-05, F06)."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TypeVar

from conformance.bad_backends import (
    Doubled,
    HalfCreate,
    LateCreate,
    Lying,
    Passing,
    Unanswering,
    Unending,
    Vanishing,
)
from conformance.conftest import BackendMaker
from conformance.test_contract import delete, lookup, refused
from provisioner.serving import STANDIN, Scope, Served, serve, standin_settings
from turnkeeper.domain.sandbox import Absent
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner import upkeep
from turnkeeper.provisioner.backends.base import Backend, Instance
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.process import build
from turnkeeper.provisioner.service import Service
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.wire.provisioner import Sandbox

B = TypeVar("B", bound=Passing)


@contextlib.contextmanager
def serving(
    settings: ProvisionerSettings, make_backend: BackendMaker, wrap: Callable[[Backend], B]
) -> Generator[tuple[Served, B]]:
    made: list[B] = []

    def make(given: ProvisionerSettings) -> Backend:
        made.append(wrap(make_backend(given)))
        return made[0]

    with serve(settings, make) as served:
        yield served, made[0]


def service_with(settings: ProvisionerSettings, backend: Backend) -> Service:
    return build(settings, backend, system_clock).service


async def test_create_that_succeeds_late(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Case: F06 (a). Create times out here and succeeds later: after the retry exactly one sandbox exists, and it answers."""
    settings = replace(settings, create_timeout_s=0.3)
    backend = LateCreate(make_backend(settings), late_s=1.0)
    service, scope = service_with(settings, backend), Scope()
    first = await service.ensure(scope.request(1))
    assert not isinstance(first, Sandbox)
    await asyncio.wait_for(backend.done.wait(), 20)
    service = service_with(replace(settings, create_timeout_s=10), backend)
    service_half = await service.ensure(scope.request(2))
    assert isinstance(service_half, Sandbox)
    rows = await backend.inventory()
    assert len(rows) == 1
    assert isinstance(rows[0].state, Instance)
    assert rows[0].state.generation == service_half.generation
    await service.live.close()
    await asyncio.gather(*backend.tasks, return_exceptions=True)


async def test_create_that_succeeds_late_in_the_same_process(
    settings: ProvisionerSettings, make_backend: BackendMaker
) -> None:
    """Case: F06 (a). As above, and the process that gave it up still knows: what came late is ended, a new one is made."""
    settings = replace(settings, create_timeout_s=2.0)
    backend = LateCreate(make_backend(settings), late_s=4.0)
    service, scope = service_with(settings, backend), Scope()
    assert not isinstance(await service.ensure(scope.request(1)), Sandbox)
    await asyncio.wait_for(backend.done.wait(), 20)
    late = await backend.lookup(scope.sandbox_id)
    assert isinstance(late, Instance)
    made = await service.ensure(scope.request(2))
    while not isinstance(made, Sandbox):  # a loaded machine may need another try
        made = await service.ensure(scope.request(2))
    assert made.generation != late.generation
    assert late.generation in backend.ends
    assert len(await backend.inventory()) == 1
    await service.live.close()
    await asyncio.gather(*backend.tasks, return_exceptions=True)


async def test_manager_that_never_answers(settings: ProvisionerSettings) -> None:
    """Case: F06 (b). Created and never ready: the request fails within its time, and nothing of the sandbox is left."""
    settings = replace(settings, create_timeout_s=1.0)
    backend = LocalBackend(standin_settings(settings, "--never-ready"))
    scope = Scope()
    with serve(settings, lambda _: backend) as served:
        with refused(503, "upstream_unavailable", "no answer"):
            await served.ensure(scope)
        assert (await lookup(served, scope)).state == "absent"


async def test_manager_that_leaves_at_once(settings: ProvisionerSettings) -> None:
    """Case: F06 (b). A manager that ends at its start is told apart from one that is silent, well before the time is over."""
    backend = LocalBackend(standin_settings(settings, "--exit-at-once"))
    scope = Scope()
    with serve(settings, lambda _: backend) as served:
        async with asyncio.timeout(8):
            with refused(503, "upstream_unavailable", "ended at once"):
                await served.ensure(scope)
        assert (await lookup(served, scope)).state == "absent"


async def test_half_a_create(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Case: F06. The instance was made and the answer lost: it is ended, and the retry makes exactly one."""
    with serving(settings, make_backend, HalfCreate) as (served, backend):
        scope = Scope()
        with refused(503, "upstream_unavailable", "the answer was lost"):
            await served.ensure(scope)
        assert (await lookup(served, scope)).state == "absent"
        assert (await served.ensure(scope, lease_generation=2)).created
        assert backend.creates == 2
        assert len(await backend.inventory()) == 1


async def test_unknown_authorises_nothing(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: K-05. While the backend gives no answer nothing is created, deleted or called gone; then all is as it was."""
    with serving(settings, make_backend, Unanswering) as (served, backend):
        scope, fresh = Scope(), Scope()
        sandbox = await served.ensure(scope)
        backend.silent = True
        for one in (scope, fresh):
            with refused(503, "upstream_unavailable", "503 from the engine"):
                await served.ensure(one, lease_generation=2)
        with refused(503, "upstream_unavailable"):
            await delete(served, scope, lease_generation=2)
        with refused(503, "upstream_unavailable"):
            await delete(served, scope, if_match=sandbox.generation)
        assert (await lookup(served, scope)).state == "unknown"
        assert (backend.creates, backend.ends) == (1, [])
        backend.silent = False
        assert (await served.ensure(scope, lease_generation=3)).generation == sandbox.generation


async def test_look_that_hangs(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: K-05. A look is waited for in bounded time, and then it is unknown."""
    backend = Unanswering(make_backend(settings), hang_s=30)
    backend.silent = True
    found = await service_with(replace(settings, lookup_timeout_s=0.2), backend).ensure(Scope().request())
    assert not isinstance(found, Sandbox)
    assert "no answer within 0.2 s" in found.detail
    assert backend.creates == 0


async def test_delete_that_cannot_be_shown(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: C-04. A delete without proof fails, keeps its fence, and a repetition converges."""
    with serving(settings, make_backend, Unending) as (served, backend):
        scope = Scope()
        await served.ensure(scope, lease_generation=2)
        backend.stuck = True
        with refused(503, "upstream_unavailable", "still terminating"):
            await delete(served, scope, lease_generation=2)
        with refused(409, "fenced"):
            await served.ensure(scope, lease_generation=2)
        backend.stuck = False
        assert (await delete(served, scope, lease_generation=2)).state == "deleted"


async def test_half_made_that_cannot_be_ended(settings: ProvisionerSettings) -> None:
    """Case: F06. What a failed create left cannot be ended: the next request ends it first, or does nothing at all."""
    settings = replace(settings, create_timeout_s=1.0)
    backend = Unending(LocalBackend(standin_settings(settings, "--never-ready")))
    scope = Scope()
    with serve(settings, lambda _: backend) as served:
        backend.stuck = True
        for lease_generation in (1, 2):
            with refused(503, "upstream_unavailable"):
                await served.ensure(scope, lease_generation=lease_generation)
        assert backend.creates == 1
        backend.stuck = False
        with refused(503, "upstream_unavailable"):
            await served.ensure(scope, lease_generation=3)
        assert backend.creates == 2
        assert (await lookup(served, scope)).state == "absent"


async def test_backend_that_lies(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: K-02. An instance that is shown as another owner's, or whose manager is another generation's, is refused."""
    with serving(settings, make_backend, Lying) as (served, backend):
        scope = Scope()
        sandbox = await served.ensure(scope)
        backend.lie = "owner"
        with refused(409, "conflict", "uid"):
            await served.ensure(scope)
        backend.lie = "generation"
        with refused(409, "generation_mismatch"):
            await served.ensure(scope)
        backend.lie = ""
        assert (await served.ensure(scope)).generation == sandbox.generation
        assert backend.ends == []


async def test_instance_that_vanishes(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: K-05. Seen and then gone: only the second look, not the silence, lets another be made."""
    with serving(settings, make_backend, Vanishing) as (served, backend):
        scope = Scope()
        first = await served.ensure(scope)
        backend.vanish = True
        second = await served.ensure(scope, lease_generation=2)
        assert second.created
        assert second.generation != first.generation
        assert len(await backend.inventory()) == 1


async def test_silent_manager_is_not_replaced(settings: ProvisionerSettings) -> None:
    """Proves: K-05. A manager that stops answering is no proof: the request fails, and the sandbox is not replaced."""
    backend = Passing(LocalBackend(standin_settings(settings)))
    with serve(settings, lambda _: backend) as served:
        scope = Scope()
        await served.ensure(scope)
        live = served.process.service.live.get(scope.sandbox_id)
        assert live is not None
        hidden = served.settings.directory / "sandboxes" / scope.sandbox_id / "manager.sock"
        hidden.rename(hidden.with_suffix(".hidden"))
        await asyncio.sleep(4.5)  # past the kept connections
        with refused(503, "upstream_unavailable", "does not answer"):
            await served.ensure(scope, lease_generation=2)
        assert backend.creates == 1
        assert backend.ends == []
        hidden.with_suffix(".hidden").rename(hidden)


async def test_second_instance_of_a_name_is_swept(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Case: F06. What exists beside the current instance is ended by the next sweep, and the current one is not."""
    with serving(settings, make_backend, Doubled) as (served, backend):
        scope = Scope()
        sandbox = await served.ensure(scope)
        backend.extra = (scope.sandbox_id, new_id())
        await upkeep.end_leftovers(served.process.service)
        assert backend.extra is None
        assert (await lookup(served, scope)).generation == sandbox.generation


async def test_broken_sandbox_is_not_adopted(settings: ProvisionerSettings) -> None:
    """A running launcher whose manager does not answer with the recorded generation is ended at the start, not adopted."""
    scope = Scope()
    with serve(settings) as served:
        await served.ensure(scope)
    secret = settings.directory / "sandboxes" / scope.sandbox_id / "secret"
    secret.write_text("tks_" + "x" * 43)
    with serve(settings) as served:
        assert (await lookup(served, scope)).state == "absent"


async def test_half_made_directory_is_cleared_at_the_start(settings: ProvisionerSettings) -> None:
    """Case: F06 (c). A directory without a record, of a process that died in between, stands in nobody's way."""
    scope = Scope()
    (settings.directory / "sandboxes" / scope.sandbox_id).mkdir(parents=True)
    with serve(settings) as served:
        assert isinstance(await served.process.service.look(scope.sandbox_id), Absent)
        assert (await served.ensure(scope)).created


def test_standin_is_a_file_of_its_own() -> None:
    """The stand-in must stay runnable without the product inside a sandbox."""
    assert "turnkeeper" not in [
        line.split()[1].split(".")[0]
        for line in STANDIN.read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert sys.version_info >= (3, 11)
