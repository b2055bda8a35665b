"""The bench itself: it measures a real product, says what it measured in one object, and is used in one way."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=230, check=False
    )


@pytest.mark.timeout(180)
def test_a_chapter_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    """One object, alone, with every promised number; the data directory is gone afterwards."""
    ran = bench("stream", "--quick", "--json", "--data-parent", str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    (line,) = ran.stdout.splitlines()
    measured = json.loads(line)
    assert measured["machine"]["cores"] >= 1
    chapter = measured["chapters"]["stream"]
    for name in ("slow_chunk_ms", "fast_chunk_ms"):
        assert 0 < chapter[name]["p50"] <= chapter[name]["p99"] <= chapter[name]["max"]
    assert [target["met"] for target in chapter["targets"]] == [
        target["measured"] <= target["limit"] for target in chapter["targets"]
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
def test_renewals_are_measured_beside_bare_updates(tmp_path: Path) -> None:
    """With one control plane and with two, each beside `pgbench` where there is one; more is better, and said so."""
    ran = bench("renewals", "--quick", "--json", "--data-parent", str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    chapter = json.loads(ran.stdout)["chapters"]["renewals"]
    assert set(chapter["by_control_planes"]) == {"1", "2"}
    for rows in chapter["by_control_planes"].values():
        for row in rows.values():
            assert row["renewals_per_s"] > 0
            assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
            assert row["ratio"] == round(row["renewals_per_s"] / row["bare_updates_per_s"], 3)
    assert [(target["sign"], target["met"]) for target in chapter["targets"]] == [
        (">=", target["measured"] >= target["limit"]) for target in chapter["targets"]
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(240)
def test_recovery_is_timed_for_each_way_to_die(tmp_path: Path) -> None:
    """A killed worker, a killed host, and one of which nobody tells: only there is the lease waited for."""
    ran = bench("recovery", "--quick", "--json", "--data-parent", str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    chapter = json.loads(ran.stdout)["chapters"]["recovery"]
    for way in ("child", "host", "child_short_lease", "lease_alone"):
        ended, free, prepared = (
            chapter[f"{way}_{stage}_ms"]["p50"] for stage in ("admitted_ended", "admitted_free", "prepared")
        )
        assert 0 < ended <= free
        assert prepared > 0
    lease_s, interval_s = (
        float(chapter["short_lease"][f"AGENT_{name}"]) for name in ("LEASE_TTL", "HEARTBEAT_INTERVAL")
    )
    assert chapter["lease_alone_admitted_ended_ms"]["p50"] > (lease_s - interval_s) * 1000
    assert list(tmp_path.iterdir()) == []


def test_without_pgbench_its_figure_alone_is_left_out() -> None:
    """No program of the embedded server, none of the system's: no command, and no failure."""
    program = (
        "from bench import bare; from turnkeeper.store.errors import DatabaseRefused\n"
        "def nothing(): raise DatabaseRefused('there is none')\n"
        "bare.find_installation = nothing; print(bare.find_pgbench())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("None\n", "")


def test_a_driver_says_what_was_no_renewal() -> None:
    """One line and status 1, whatever the peer answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        order = {"urls": [url], "connections": 1, "seconds": 0, "leases": [("job", "token", 1)]}
        driver = subprocess.Popen(
            [sys.executable, "-m", "bench.renewer"], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert driver.stdin is not None
        driver.stdin.write(json.dumps(order))
        driver.stdin.close()
        listening.settimeout(30)
        peer, _ = listening.accept()
        with peer:
            assert peer.recv(65536).startswith(b"POST /v1/agent/worker/jobs/job/heartbeat HTTP/1.1")
            peer.sendall(b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}")
            assert driver.wait(30) == 1
        assert driver.stderr is not None
        assert driver.stderr.read() == "a renewal was answered HTTP/1.1 409 Conflict: {}\n"
        driver.stderr.close()


def test_a_chapter_that_there_is_not() -> None:
    """One line, status 2, before anything is started."""
    ran = bench("warmth")
    assert ran.returncode == 2
    assert "there is no chapter 'warmth'; there are memory, warm, cold, stream, recovery, turns, renewals" in ran.stderr
