"""Names in paths that are none: whatever stands where a name belongs, the answer is a problem and never a fault of ours."""

import re

import pytest

from api.world import World, problem

TOKENS = "/v1/admin/hosts/{name}/tokens"
ODD = ("%00", "a%00b", "%FF", "%ED%A0%80", "%0A", "%1B%5B2J", "%C2%9B", "a%20b", "x" * 300, "%25", "-", "~")


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:12])
def test_every_path_takes_any_name(shared_world: World, odd: str) -> None:
    """All methods of all paths with a name or an id in them. Case: F10, F14."""
    http = shared_world.owner.http
    asked = 0
    for template, methods in http.get("/openapi.json").json()["paths"].items():
        path = re.sub(r"\{[^}]*\}", odd, template)
        for method in methods:
            if path != template and "/agent/worker/" not in path:
                answer = http.request(method.upper(), path, json=None if method in ("get", "delete") else {})
                assert answer.status_code < 500, (method, path, answer.text)
                asked += 1
    assert asked > 10


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:12])
def test_a_host_s_name_that_is_none_is_named_by_every_verb(shared_world: World, odd: str) -> None:
    """One problem with the field and what would be right, also where there is nothing to find anyway."""
    http = shared_world.owner.http
    path = TOKENS.format(name=odd)
    one = f"{path}/{shared_world.owner.uid}"
    for answer in (http.post(path), http.get(path), http.delete(path), http.delete(one)):
        found = problem(answer, 400, "bad_request")
        assert found["field"] == "name"
        assert found["detail"].startswith("a host's name is 1 to 63 letters")


def test_revoking_the_tokens_of_a_host_that_has_none_is_told(shared_world: World) -> None:
    """A mistyped name does not look like a host that was shut out; again, after it was, is the same answer."""
    http = shared_world.owner.http
    path = TOKENS.format(name="tokened")
    problem(http.delete(path), 404, "not_found")
    shared_world.owner.good("POST", path)
    first, again = shared_world.owner.good("DELETE", path), shared_world.owner.good("DELETE", path)
    assert first == again
    assert [one["revoked_at"] is None for one in first["items"]] == [False]
