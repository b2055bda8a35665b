"""The bench itself: it measures a real product, says what it measured in one object, and is used in one way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
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


def test_a_chapter_that_there_is_not() -> None:
    """One line, status 2, before anything is started."""
    ran = bench("warmth")
    assert ran.returncode == 2
    assert "there is no chapter 'warmth'; there are memory, warm, cold, stream, turns" in ran.stderr
