"""`/livez`, `/readyz`, `/metrics`."""

from api.world import World, problem


def test_ready_means_that_work_can_be_given_out(world: World) -> None:
    """A claim statement answers, and where a host is expected one was heard; not only that the process lives."""
    client = world.client()
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.head("/readyz").status_code == 200
    world.execute("UPDATE hosts SET last_heartbeat_at = last_heartbeat_at - interval '1 hour'")
    found = problem(client.get("/readyz"), 503, "not_ready")
    assert found["problems"] == ["no host was heard within 60 s"]
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
