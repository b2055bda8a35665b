"""What the provisioner promises, whatever backend is behind it (K-01 to K-03, K-05, K-09, C-04)."""

import asyncio
import contextlib
import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from conformance.conftest import BackendMaker
from provisioner.serving import Scope, Served, serve
from turnkeeper.client.http import ClientError
from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.wire.provisioner import DeleteAnswer, SandboxRecord, SandboxSpec


async def lookup(served: Served, scope: Scope) -> SandboxRecord:
    async with served.client() as http:
        return await http.call("GET", f"/v1/sandboxes/{scope.sandbox_id}", SandboxRecord)


async def delete(served: Served, scope: Scope, if_match: str | None = None, **params: Any) -> DeleteAnswer:
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    async with served.client() as http:
        return await http.call(
            "DELETE", f"/v1/sandboxes/{scope.sandbox_id}", DeleteAnswer, params=params, headers=headers, timeout_s=60
        )


@contextlib.contextmanager
def refused(status: int, code: str, text: str = "") -> Generator[None]:
    """Within the block a call is refused so."""
    with pytest.raises(ClientError) as caught:
        yield
    assert (caught.value.status, caught.value.code) == (status, code)
    assert text in caught.value.detail


async def test_first_request_creates_everything(served: Served) -> None:
    """Proves: K-10, K-02. Workdir, HOME and skills are absent; the first request makes them and succeeds."""
    scope = Scope(workdir="a/b/v2..v3")
    sandbox = await served.ensure(scope)
    assert sandbox.created
    assert sandbox.sandbox_id == scope.sandbox_id
    assert sandbox.cwd.endswith("/a/b/v2..v3")
    assert sandbox.home.endswith(f"/agents/homes/{scope.scope}")
    found = served.inside(sandbox, "/bin/sh", "-c", "pwd; echo here > made; cat made", cwd=sandbox.cwd)
    assert found["out"].split() == [sandbox.cwd, "here"]
    written = served.settings.directory / "owners" / scope.uid / "workspace" / "a/b/v2..v3" / "made"
    assert written.read_text() == "here\n"
    assert written.parent.stat().st_mode & 0o777 == 0o700


async def test_found_again(served: Served) -> None:
    """Proves: K-02. The same scope finds the same instance, its manager and its clock; another has its own."""
    scope, other = Scope(), Scope()
    first = await served.ensure(scope)
    again = await served.ensure(scope, lease_generation=2)
    assert not again.created
    assert (again.generation, again.boot_id) == (first.generation, first.boot_id)
    assert again.mark_ms >= first.mark_ms
    assert (await served.ensure(other)).generation != first.generation


async def test_one_instance_of_twenty_requests(served: Served) -> None:
    """Proves: K-02. Twenty requests at once: one creates, all get the same instance."""
    scope = Scope()
    made = await asyncio.gather(*(served.ensure(scope, lease_generation=n + 1) for n in range(20)))
    assert len({sandbox.generation for sandbox in made}) == 1
    assert sum(sandbox.created for sandbox in made) == 1
    assert len(await served.process.service.backend.inventory()) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workdir": "elsewhere"}, "workdir"),
        ({"spec": SandboxSpec(network="host")}, "network"),
        ({"spec": SandboxSpec(programs=("/usr/bin",))}, "programs"),
        ({"spec": SandboxSpec(image="other")}, "image"),
    ],
)
async def test_live_sandbox_is_never_rebound(served: Served, changes: dict[str, Any], named: str) -> None:
    """Proves: K-02. Another Workdir, network, set of programs or image is refused, and names itself."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    with refused(409, "conflict", named):
        await served.ensure(scope, **changes)
    assert (await served.ensure(scope)).generation == sandbox.generation


async def test_four_answers(served: Served) -> None:
    """Proves: K-05 (absent and running; exited and unknown have tests of their own)."""
    scope = Scope()
    assert (await lookup(served, scope)).state == "absent"
    sandbox = await served.ensure(scope)
    record = await lookup(served, scope)
    assert (record.state, record.generation) == ("running", sandbox.generation)
    assert (record.uid, record.scope, record.workdir) == (scope.uid, scope.scope, scope.workdir)
    async with served.client() as http:
        rows = json.loads((await http.request("GET", "/v1/sandboxes")).content)
    assert [row["sandbox_id"] for row in rows] == [scope.sandbox_id]


async def test_delete_names_its_generation(served: Served) -> None:
    """Proves: K-03. Another generation is refused and nothing is deleted; absent is a success; no condition is 428."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    with refused(409, "generation_mismatch", sandbox.generation):
        await delete(served, scope, expected_generation=new_id())
    with refused(412, "precondition_failed"):
        await delete(served, scope, if_match=new_id())
    with refused(428, "precondition_required"):
        await delete(served, scope)
    with refused(428, "precondition_required"):
        await delete(served, scope, if_match=sandbox.generation, lease_generation=5)
    assert (await served.ensure(scope)).generation == sandbox.generation
    assert (await delete(served, scope, if_match=sandbox.generation)).state == "deleted"
    assert (await delete(served, scope, if_match=sandbox.generation)).state == "absent"
    assert (await delete(served, scope, expected_generation=sandbox.generation)).state == "absent"
    assert (await lookup(served, scope)).state == "absent"


async def test_cleanup_fences_older_attempts(served: Served) -> None:
    """Proves: C-04, K-03. After a delete under lease generation 7 no attempt up to 7 finds or creates; 8 does."""
    scope = Scope()
    first = await served.ensure(scope, lease_generation=7)
    assert (await delete(served, scope, lease_generation=7)).state == "deleted"
    for stale in (1, 6, 7):
        with refused(409, "fenced", "7"):
            await served.ensure(scope, lease_generation=stale)
    assert (await lookup(served, scope)).state == "absent"
    second = await served.ensure(scope, lease_generation=8)
    assert second.created
    assert second.generation != first.generation


async def test_late_cleanup_spares_the_newer_attempt(served: Served) -> None:
    """Proves: C-04, K-03. A delete of an older lease generation takes nothing away from whoever found the sandbox since."""
    scope = Scope()
    await served.ensure(scope, lease_generation=3)
    sandbox = await served.ensure(scope, lease_generation=5)
    with refused(409, "fenced", "5"):
        await delete(served, scope, lease_generation=4)
    assert (await lookup(served, scope)).generation == sandbox.generation
    with refused(409, "fenced"):
        await served.ensure(scope, lease_generation=4)
    assert (await delete(served, scope, lease_generation=5)).state == "deleted"


async def test_absent_is_fenced_too(served: Served) -> None:
    """Proves: C-04. A cleanup that finds nothing fences all the same: a worker that is late cannot create behind it."""
    scope = Scope()
    assert (await delete(served, scope, lease_generation=9)).state == "absent"
    with refused(409, "fenced"):
        await served.ensure(scope, lease_generation=9)
    assert (await served.ensure(scope, lease_generation=10)).created


async def test_fence_and_finder_survive_a_restart(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """Proves: C-04. What a delete fenced and who found the instance is known to the next provisioner process."""
    fenced, found = Scope(), Scope()
    with serve(settings, make_backend) as served:
        await delete(served, fenced, lease_generation=9)
        await served.ensure(found, lease_generation=12)
    with serve(settings, make_backend) as served:
        with refused(409, "fenced"):
            await served.ensure(fenced, lease_generation=9)
        with refused(409, "fenced", "12"):
            await delete(served, found, lease_generation=11)
        assert (await delete(served, found, lease_generation=12)).state == "deleted"


async def test_concurrent_cleanups(served: Served) -> None:
    """Proves: C-04. Of cleanups at once one deletes, the others find nothing, and all succeed."""
    scope = Scope()
    await served.ensure(scope, lease_generation=2)
    states = [
        answer.state for answer in await asyncio.gather(*(delete(served, scope, lease_generation=2) for _ in range(5)))
    ]
    assert sorted(states) == ["absent"] * 4 + ["deleted"]


async def test_generation_is_checked_on_every_way_in(served: Served) -> None:
    """Proves: D-03, K-03. Touch, proxy and snapshot of another generation are refused with 409; of nothing with 404."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    async with served.client() as http:
        good = f"/v1/sandboxes/{scope.sandbox_id}/{sandbox.generation}"
        assert (await http.request("POST", f"{good}/touch")).status == 204
        assert (await http.request("GET", f"{good}/manager/v1/state")).status == 200
        for name, generation, status, code in (
            (scope.sandbox_id, new_id(), 409, "generation_mismatch"),
            (Scope().sandbox_id, sandbox.generation, 404, "not_found"),
        ):
            bad = f"/v1/sandboxes/{name}/{generation}"
            with refused(status, code):
                await http.request("POST", f"{bad}/touch")
            with refused(status, code):
                await http.request("GET", f"{bad}/manager/v1/state")
            with refused(status, code):
                await http.request("POST", f"{bad}/snapshot", body=b'{"workdir": "project", "epoch": 1}')


async def test_adopted_by_the_next_process(settings: ProvisionerSettings, make_backend: BackendMaker) -> None:
    """A sandbox outlives its provisioner, and the next one finds it: same generation, same boot, same processes."""
    scope = Scope()
    with serve(settings, make_backend) as served:
        first = await served.ensure(scope)
        served.inside(first, "/bin/sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo kept > /tmp/kept")
    with serve(settings, make_backend) as served:
        again = await served.ensure(scope, lease_generation=2)
        assert not again.created
        assert (again.generation, again.boot_id) == (first.generation, first.boot_id)
        assert served.inside(again, "/bin/cat", "/tmp/kept")["out"] == "kept\n"


async def test_two_scopes_of_an_owner_share_the_workspace(served: Served) -> None:
    """Proves: K-09. Two conversations of one owner have two sandboxes over one workspace; another owner's is not there."""
    one = Scope(workdir="one")
    two, stranger = replace(Scope(workdir="two"), uid=one.uid), Scope(workdir="one")
    first, second = await served.ensure(one), await served.ensure(two)
    third = await served.ensure(stranger)
    assert first.generation != second.generation
    root = first.cwd.removesuffix("/one")
    served.inside(first, "/bin/sh", "-c", f"echo shared > {root}/one/note")
    assert served.inside(second, "/bin/cat", f"{root}/one/note")["out"] == "shared\n"
    assert served.inside(third, "/bin/ls", f"{root}/one")["out"] == ""


async def test_secrets_reach_the_manager_once(served: Served) -> None:
    """Proves: K-11. Values go to the manager before ensure answers, only when something changed, and survive a second agent."""
    scope = Scope()
    sandbox = await served.ensure(scope, secrets=("GIVEN_SECRET",))
    await served.ensure(scope, lease_generation=2, secrets=("GIVEN_SECRET",))
    await served.ensure(scope, lease_generation=3)
    name = f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/manager/v1/test/secrets"
    async with served.client() as http:
        held = json.loads((await http.request("GET", name)).content)
        assert (set(held["values"]), held["puts"]) == ({"GIVEN_SECRET"}, 1)
        await served.ensure(scope, lease_generation=4, secrets=("OTHER_SECRET",))
        held = json.loads((await http.request("GET", name)).content)
    assert (set(held["values"]), held["puts"]) == ({"GIVEN_SECRET", "OTHER_SECRET"}, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MISSING_SECRET", "MISSING_SECRET"),
        ("TURNKEEPER_PROVISIONER_TOKEN", "belongs to the product"),
        ("DATABASE_URL", "belongs"),
    ],
)
async def test_secrets_without_a_value(served: Served, name: str, text: str) -> None:
    """Proves: K-11. A secret that is missing or the product's own is named, and nothing is created."""
    scope = Scope()
    with refused(409, "conflict", text):
        await served.ensure(scope, secrets=("GIVEN_SECRET", name))
    assert (await lookup(served, scope)).state == "absent"
