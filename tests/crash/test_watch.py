"""What the drills tell of agents' processes, and that the rule about them finds one that outlives its activation (D-03)."""

import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace

import pytest

from crash.watch import Sighting, Use, Watch, now, processes_seen
from history.histories import GOOD
from turnkeeper.domain.history import check
from turnkeeper.kit.procs import ProcessId, identify

RULE = "no_process_outlives_its_activation"
OLD, NEW = ProcessId(70, 1000), ProcessId(80, 2000)


@pytest.fixture
def child() -> Generator["subprocess.Popen[bytes]"]:
    """A process that waits until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_process_is_seen_while_it_lives_and_is_gone_afterwards(child: "subprocess.Popen[bytes]") -> None:
    """By its own start time, on the clock of start times; death is told of by when it was seen last."""
    process = identify(child.pid)
    assert process is not None
    watch = Watch(lambda: {"thread": [one for one in [identify(child.pid)] if one is not None]})
    (first,) = watch.look()
    # Start times are told in ticks of the kernel: within its first one a process cannot be seen to grow older.
    while now() <= first.alive_at:
        time.sleep(0.001)
    (second,) = watch.look()
    assert (first.process, first.inner_pid, first.gone) == (process, child.pid, False)
    assert first.began_at <= first.alive_at < second.alive_at < now()
    child.communicate(b"\n")
    (last,) = watch.look()
    assert (last.gone, last.alive_at) == (True, second.alive_at)
    (told,) = processes_seen([last], [Use("a", "thread", child.pid, now())])
    assert (told.started_at, told.dead_at) == (last.began_at, last.alive_at)


@pytest.mark.parametrize(
    ("old", "faulty"),
    [
        (Sighting("beta", OLD, 7, 10.0, 19.9, gone=True), False),
        (Sighting("beta", OLD, 7, 10.0, 20.5, gone=True), True),  # it was seen after the newer one had begun
        (Sighting("beta", OLD, 7, 10.0, 30.0), True),  # and this one lives on
    ],
    ids=["dead before", "seen beside", "lives on"],
)
def test_the_rule_finds_who_outlives_its_activation(old: Sighting, *, faulty: bool) -> None:
    """Proves: D-03. The same record, the same processes: what counts is when the older one was seen last."""
    new = Sighting("beta", NEW, 9, 20.0, 30.0)
    seen = processes_seen([old, new], [Use("in-b1.1", "beta", 7, 12.0), Use("in-b2.1", "beta", 9, 21.0)])
    found = check(replace(GOOD, processes=tuple(seen)))
    assert [one.rule for one in found] == ([RULE] if faulty else [])


def test_a_use_is_of_the_newest_process_that_had_begun_by_then() -> None:
    """The next sandbox of a conversation counts its pids anew."""
    both = [Sighting("beta", OLD, 7, 10.0, 19.0, gone=True), Sighting("beta", NEW, 7, 20.0, 30.0)]
    uses = [Use("a", "beta", 7, 12.0), Use("b", "beta", 7, 25.0), Use("c", "other", 7, 25.0), Use("d", "beta", 8, 25.0)]
    told = [(one.activation_id, one.process) for one in processes_seen(both, uses)]
    assert told == [("a", "70/1000"), ("b", "80/2000")]


def test_where_two_processes_can_be_meant_none_is_told_of() -> None:
    """Ephemeral turns follow each other faster than the clocks can tell apart, each in a sandbox that counts its pids anew."""
    old = Sighting("beta", OLD, 7, 10.0, 19.9, gone=True)
    soon = Sighting("beta", NEW, 7, 20.3, 30.0)
    assert processes_seen([old, soon], [Use("a", "beta", 7, 19.5)]) == []
    assert (
        processes_seen([old], [Use("b", "beta", 7, 25.0)]) == []
    )  # dead long before: the one that it was, was never seen
