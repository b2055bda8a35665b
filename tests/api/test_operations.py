"""`/livez`, `/readyz`, `/metrics`."""

import pytest

from api.world import World, problem
from turnkeeper.api.operations import is_asked_here


def test_ready_means_that_work_can_be_given_out(world: World) -> None:
    """A claim statement answers, and where a host is expected one was heard; not only that the process lives."""
    client = world.client()
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.head("/readyz").status_code == 200
    world.execute("UPDATE hosts SET last_heartbeat_at = last_heartbeat_at - interval '1 hour'")
    found = problem(client.get("/readyz"), 503, "not_ready")
    assert found["problems"] == ["no host was heard yet"]
    assert found["retryable"] is True
    assert client.get("/livez").status_code == 200
    world.beat()
    assert client.get("/readyz").status_code == 200
    world.execute("UPDATE cluster SET timeline = timeline + 1")
    assert "claims are refused" in problem(client.get("/readyz"), 503, "not_ready")["detail"]


def test_metrics_tell_what_goes_on(world: World) -> None:
    """Requests by route template (never a path), transactions by name, runs by status, hosts, streams."""
    run = world.turn("x")
    world.owner.submit(run["thread_id"])
    world.client().get("/v1/runs/not-an-id-but-some-secret")
    text = world.client().get("/metrics").text
    assert (
        'turnkeeper_http_request_seconds_count{method="POST",route="/v1/agent/worker/jobs/{job}/settle",status="200"} 1.0'
        in text
    )
    assert 'turnkeeper_http_request_seconds_count{method="GET",route="/v1/runs/{run_id}",status="200"}' in text
    assert "some-secret" not in text
    assert 'turnkeeper_runs{status="pending"} 1.0' in text
    assert 'turnkeeper_runs{status="ready"} 1.0' in text
    assert 'turnkeeper_hosts{state="ready"} 1.0' in text
    assert 'turnkeeper_claims_total{answer="claimed"} 1.0' in text
    assert 'turnkeeper_transaction_seconds_count{name="submit"}' in text
    assert "process_resident_memory_bytes" in text
    for name in {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}:
        assert name.startswith(("turnkeeper_", "process_", "python_")), name
    assert not [line for line in text.splitlines() if line.startswith("# TYPE") and text.count(line + "\n") > 1]


def test_metrics_from_elsewhere_are_an_administrator_s(world: World) -> None:
    """Without a token only for this machine by its own name; whether the system lives is everybody's to ask."""
    nobody, user = world.client(), world.add_owner("bob", role="owner")
    for name in ("localhost", "127.0.0.1", "LOCALHOST:80"):
        assert nobody.get("/metrics", headers={"Host": name}).status_code == 200
    elsewhere = {"Host": "turnkeeper.example"}
    problem(nobody.get("/metrics", headers=elsewhere), 401, "unauthorized")
    problem(user.http.get("/metrics", headers=elsewhere), 403, "forbidden")
    assert "turnkeeper_runs" in world.owner.http.get("/metrics", headers=elsewhere).text
    for path in ("/livez", "/readyz"):
        assert nobody.get(path, headers=elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("reached", "host", "here"),
    [
        ("127.0.0.1", b"localhost:8420", True),
        ("::1", b"[::1]:8420", True),
        ("::ffff:127.0.0.1", b"127.0.0.1", True),
        ("/run/control.sock", b"whatever", True),
        ("127.0.0.1", b"evil.example", False),
        ("127.0.0.1", b"", False),
        ("192.0.2.1", b"192.0.2.1:8420", False),
        ("192.0.2.1", b"localhost", False),
        ("2001:db8::1", b"[::1]", False),
    ],
)
def test_what_counts_as_this_machine(reached: str, host: bytes, here: bool) -> None:
    """The address that was reached and the name that was asked for, both."""
    assert is_asked_here({"server": (reached, 8420), "headers": [(b"host", host)]}) is here
