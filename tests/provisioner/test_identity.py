"""Who may do what at the provisioner (K-01, protocol section 9)."""

import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from provisioner.serving import ADMIN, Scope, Served, Signing
from turnkeeper.client.http import AsyncHttpClient, ClientError
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit.clock import ManualClock
from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner.identity import Administrator, Attempt, Callers, Nobody
from turnkeeper.wire.provisioner import Sandbox

GENERATION = "01a22996-2a40-7361-bdbb-df950432fc83"


def routes(name: str) -> list[tuple[str, str]]:
    here = f"/v1/sandboxes/{name}"
    return [
        ("POST", "/v1/sandboxes/ensure"),
        ("GET", "/v1/sandboxes"),
        ("GET", here),
        ("DELETE", here),
        ("POST", f"{here}/{GENERATION}/touch"),
        ("POST", f"{here}/{GENERATION}/snapshot"),
        ("GET", f"{here}/{GENERATION}/manager/v1/state"),
    ]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Basic abc",
        f"Bearer {ADMIN[:-1]}",
        f"Bearer {ADMIN}x",
        "Bearer a.b.c",
        f"Basic {ADMIN}",
    ],
)
async def test_every_route_but_health_asks(served: Served, header: str | None) -> None:
    """Proves: K-01. Without the token, or with a wrong one, every route but `/livez` answers 401."""
    headers = {} if header is None else {"Authorization": header}
    async with AsyncHttpClient(served.url) as http:
        for method, name in routes(Scope().sandbox_id):
            with pytest.raises(ClientError) as caught:
                await http.request(method, name, headers=headers)
            assert (caught.value.status, caught.value.code) == (401, "unauthorized"), (method, name)
        assert (await http.request("GET", "/livez", headers=headers)).status == 200


@pytest.mark.parametrize("token", ["", "short", "x" * 31])
def test_short_tokens_stop_the_start(token: str) -> None:
    """Proves: K-01. At least 32 characters, refused at the start with one line that does not hold the token."""
    with pytest.raises(SettingRefused, match="at least 32") as caught:
        Callers(token, {})
    assert not token or f" {token} " not in str(caught.value)


def test_admin_and_attempt(signing: Signing) -> None:
    callers = Callers(ADMIN, signing.public_keys)
    assert isinstance(callers.identify(f"Bearer {ADMIN}"), Administrator)
    assert isinstance(callers.identify(f"bearer {ADMIN}"), Administrator)
    caller = callers.identify(f"Bearer {signing.token('u' * 36, 's' * 36)}")
    assert isinstance(caller, Nobody)  # ids must be UUIDs
    caller = callers.identify(f"Bearer {signing.token(new_id(), new_id(), 3)}")
    assert isinstance(caller, Attempt)
    assert caller.claims.lease_generation == 3


def test_tokens_expire_also_when_remembered(signing: Signing) -> None:
    """A token that was verified once is refused from its expiry on, like any other."""
    clock = ManualClock()
    callers = Callers(ADMIN, signing.public_keys, clock)
    token = signing.token(new_id(), new_id(), exp=int(clock.utcnow().timestamp()) + 60)
    assert isinstance(callers.identify(f"Bearer {token}"), Attempt)
    clock.advance(59)
    assert isinstance(callers.identify(f"Bearer {token}"), Attempt)
    clock.advance(1)
    assert callers.identify(f"Bearer {token}") == Nobody("the token has expired")


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "turnkeeper-sandbox"},
        {"exp": int(time.time()) - 1},
        {"exp": None},
        {"sub": None},
        {"verbs": ["everything"]},
        {"lease_generation": "many"},
        {"uid": "../x"},
    ],
)
def test_tokens_that_are_not_for_here(signing: Signing, change: dict[str, Any]) -> None:
    """An activation token, an expired one, and one with claims that are none are nobody's."""
    claims: dict[str, Any] = {"exp": int(time.time()) + 60, **change}
    given: dict[str, Any] = {name: value for name, value in claims.items() if value is not None}
    token = signing.token(given.pop("uid", new_id()), new_id(), **given)
    if change in ({"exp": None}, {"sub": None}):
        payload = jwt.decode(token, options={"verify_signature": False})
        payload.pop(next(iter(change)))
        token = jwt.encode(payload, signing.key, algorithm="EdDSA", headers={"kid": signing.kid})
    assert isinstance(Callers(ADMIN, signing.public_keys).identify(f"Bearer {token}"), Nobody)


def test_forged_tokens(signing: Signing) -> None:
    """Another key under our kid, another kid, the algorithm `none`, and HMAC with the public key are all refused."""
    callers = Callers(ADMIN, signing.public_keys)
    payload = jwt.decode(signing.token(new_id(), new_id()), options={"verify_signature": False})
    pem = signing.public_keys["k1"]
    forged = [
        jwt.encode(payload, Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": "k1"}),
        jwt.encode(payload, signing.key, algorithm="EdDSA", headers={"kid": "k2"}),
        jwt.encode(payload, signing.key, algorithm="EdDSA"),
        jwt.encode(payload, "", algorithm="none", headers={"kid": "k1"}),
        jwt.encode(payload, "x" * 32, algorithm="HS256", headers={"kid": "k1"}),
    ]
    assert pem.startswith("-----BEGIN PUBLIC KEY")
    for token in forged:
        assert isinstance(callers.identify(f"Bearer {token}"), Nobody)


async def test_verbs_and_scope_of_an_attempt(served: Served, signing: Signing) -> None:
    """Proves: K-01. A token opens its own scope with its own verbs, under its own lease generation, and nothing else."""
    scope, other = Scope(), Scope()
    sandbox = await served.ensure(scope, lease_generation=4)
    elsewhere = await served.ensure(other)

    async def status(method: str, name: str, body: bytes | None = None, **claims: Any) -> int:
        token = signing.token(scope.uid, scope.scope, claims.pop("lease_generation", 4), **claims)
        async with served.client(token) as http:
            try:
                return (await http.request(method, name, body=body)).status
            except ClientError as error:
                return error.status

    own = f"/v1/sandboxes/{sandbox.sandbox_id}"
    foreign = f"/v1/sandboxes/{elsewhere.sandbox_id}"
    ensure = scope.request(4).model_dump_json().encode()
    assert await status("POST", "/v1/sandboxes/ensure", ensure) == 200
    assert await status("POST", "/v1/sandboxes/ensure", ensure, verbs=["proxy", "touch", "snapshot"]) == 403
    assert await status("POST", "/v1/sandboxes/ensure", ensure, lease_generation=5) == 403
    assert await status("POST", "/v1/sandboxes/ensure", other.request(4).model_dump_json().encode()) == 403
    assert await status("GET", "/v1/sandboxes") == 403
    assert await status("DELETE", f"{own}?lease_generation=9") == 403
    for verb, name, method in (
        ("touch", "touch", "POST"),
        ("proxy", "manager/v1/state", "GET"),
        ("snapshot", "snapshot", "POST"),
    ):
        body = json.dumps({"workdir": scope.workdir, "epoch": 1}).encode() if verb == "snapshot" else None
        others = [one for one in ("ensure", "touch", "proxy", "snapshot") if one != verb]
        assert await status(method, f"{own}/{sandbox.generation}/{name}", body, verbs=[verb]) < 300
        assert await status(method, f"{own}/{sandbox.generation}/{name}", body, verbs=others) == 403
        assert await status(method, f"{foreign}/{elsewhere.generation}/{name}", body) == 403
    assert await status("GET", own) == 200
    assert await status("GET", foreign) == 403


async def test_requests_that_are_not_valid(served: Served) -> None:
    """Case: F14. Bad bodies, ids and numbers are named in one line each; nothing is created."""
    scope = Scope()
    good = json.loads(scope.request().model_dump_json())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"uid": "../../etc"}, "uid"),
        ({"scope": "x;touch y"}, "scope"),
        ({"thread_id": "%2e%2e"}, "thread_id"),
        ({"lease_generation": "one"}, "lease_generation"),
        ({"surprise": 1}, "surprise"),
        ({"spec": {"network": "all"}}, "spec.network"),
    ]
    async with served.client() as http:
        for change, field in wrong:
            with pytest.raises(ClientError) as caught:
                await http.request("POST", "/v1/sandboxes/ensure", body=json.dumps({**good, **change}).encode())
            assert (caught.value.status, caught.value.extra["field"]) == (400, field)
        for body, code in ((b"{", "invalid_json"), (b"x" * 2_000_000, "too_large"), (b"\xff\xfe", "invalid_json")):
            with pytest.raises(ClientError) as caught:
                await http.request("POST", "/v1/sandboxes/ensure", body=body)
            assert caught.value.code == code
        for method, name, status in (
            ("GET", "/v1/sandboxes/..", 404),
            ("GET", "/v1/sandboxes/tk-x", 404),
            ("DELETE", f"/v1/sandboxes/{scope.sandbox_id}?lease_generation=-1", 400),
            ("PUT", "/v1/sandboxes", 405),
            ("GET", "/v2", 404),
        ):
            with pytest.raises(ClientError) as caught:
                await http.request(method, name)
            assert caught.value.status == status, name
        assert (await http.request("GET", "/v1/sandboxes")).content == b"[]"


@pytest.mark.parametrize(
    ("workdir", "text"),
    [
        ("..", "'..'"),
        ("/etc", "absolute"),
        ("a/../../b", "'..'"),
        ("~", "'~'"),
        ("%2e%2e", "percent"),
        ("a\x00b", "NUL"),
        ("x" * 300, "longer"),
        ("agents/homes", "reserved"),
        ("a//b", "empty"),
        ("", "empty"),
    ],
)
async def test_workdirs_that_are_none(served: Served, workdir: str, text: str) -> None:
    """Case: F14. Proves: K-09. Refused with the field and the reason; nothing is made of it."""
    scope = Scope(workdir=workdir)
    with pytest.raises(ClientError) as caught:
        await served.ensure(scope)
    assert (caught.value.status, caught.value.code, caught.value.extra["field"]) == (422, "invalid_workdir", "workdir")
    assert text in caught.value.detail
    assert not (served.settings.directory / "owners" / scope.uid).exists()


@pytest.mark.parametrize("workdir", ["v2..v3", "x;touch y", "$(touch y)", "-rf", "é/日本"])
async def test_workdirs_that_look_odd(served: Served, workdir: str) -> None:
    """Case: F14. No shell sees a Workdir, so these are names like any other."""
    scope = Scope(workdir=workdir)
    sandbox: Sandbox = await served.ensure(scope)
    assert sandbox.cwd == f"/workspace/{workdir}"
    assert served.inside(sandbox, "/bin/pwd", cwd=sandbox.cwd)["out"] == f"/workspace/{workdir}\n"
    workspace = served.settings.directory / "owners" / scope.uid / "workspace"
    assert sorted(path.name for path in workspace.iterdir()) == sorted(["agents", workdir.split("/", maxsplit=1)[0]])
