"""A failure drill on the real product: every part goes away once while agents work, and every log is kept.

What is said in the prompts, by the agents, and by whoever refuses something is marked, so that a look at the logs finds
whatever got into them. Logs of a sandbox end with it, so they are read again after every step.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import GRACE_S, LEASE_S, ROUND_S, Product, wait_for
from turnkeeper.kit.procs import is_alive, kill

SAID = "quicksilver-prompt https://prompt.example/path?token=tkw_0123456789abcdefghijklmnopqrstuvwxyz"
"""What owners write."""
FAILED = "quicksilver-failure http://failure.example/body"
"""What an agent answers with."""
STDERR = "quicksilver-stderr"
REAPED_S = LEASE_S + GRACE_S + ROUND_S + 15
AWAY_S = 5.0
"""Longer than a heartbeat and its timeout, shorter than the lease."""


@dataclass
class Drill:
    """What was done, and what it left. `runs` by the name of the step."""

    product: Product
    logs: dict[Path, str] = field(default_factory=dict[Path, str])
    runs: dict[str, str] = field(default_factory=dict[str, str])
    threads: dict[str, str] = field(default_factory=dict[str, str])

    def collect(self) -> None:
        """Keep every log as it is now."""
        data = self.product.data
        for file in [self.product.root / "up.err", *data.logs.iterdir(), *data.root.glob("sandboxes/*/*.log")]:
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue  # its sandbox ended meanwhile
            if len(text) >= len(self.logs.get(file, "")):
                self.logs[file] = text

    def hold(self, name: str) -> tuple[str, Path]:
        """A turn whose tool waits: its run, and the file that lets it go."""
        product = self.product
        thread = product.conversation(product.agent(name), name)
        product.completed(thread, f"/say {SAID}")
        run_id, go = product.hold(thread, name)
        self.runs[name], self.threads[name] = run_id, thread
        return run_id, go

    def turn(self, name: str, text: str, **fields: object) -> str:
        """A turn to its end; its run."""
        thread = self.product.conversation(self.product.agent(name, **fields))  # type: ignore[arg-type]
        done = self.product.turn(thread, text)
        self.runs[name], self.threads[name] = done.run.id, thread
        return done.run.id

    def ended(self, name: str, status: str, code: str | None) -> None:
        """The run of a step has ended so."""
        run = self.product.wait_status(self.runs[name], timeout_s=REAPED_S)
        assert (run.status, run.error_code) == (status, code), f"{name}: {run}\n{self.product.tell()}"


def control_plane_away(drill: Drill) -> None:
    """It stands still for less than a lease, comes back, and is killed later on: replies are lost."""
    _, go = drill.hold("control-away")
    control = drill.product.process("control")
    kill(control, signal.SIGSTOP)
    try:
        wait_for(lambda: "agent_heartbeat_retry" in _host_log(drill), "renewals fail", AWAY_S + 10)
    finally:
        kill(control, signal.SIGCONT)
    wait_for(lambda: "agent_heartbeat_recovered" in _host_log(drill), "renewals are answered again")
    kill(control, signal.SIGKILL)
    go.touch()
    wait_for(lambda: drill.product.process("control") != control, "another one runs")
    drill.ended("control-away", "completed", None)


def provisioner_away(drill: Drill) -> None:
    """Killed in mid-turn: the event stream and the feeding of the switch are cut."""
    _, go = drill.hold("provisioner-away")
    provisioner = drill.product.process("provisioner")
    kill(provisioner, signal.SIGKILL)
    wait_for(lambda: drill.product.process("provisioner") != provisioner, "another one runs")
    go.touch()
    drill.ended("provisioner-away", "completed", None)


def database_away(drill: Drill) -> None:
    """PostgreSQL is killed in mid-turn."""
    _, go = drill.hold("database-away")
    postmaster = drill.product.postmaster()
    kill(postmaster, signal.SIGKILL)
    wait_for(lambda: not is_alive(postmaster), "it is gone")
    go.touch()
    wait_for(lambda: _reads(drill), "another one answers", 60)
    drill.ended("database-away", "completed", None)


def agents_leave(drill: Drill) -> None:
    """In mid-turn, at their start, and by an error of their own."""
    env = {"SCRIPTED_AGENT_STDERR": STDERR}
    drill.turn("agent-exits", f"/say {SAID}\n/exit 3", env=env)
    drill.ended("agent-exits", "failed", "agent_exited")
    drill.turn("agent-never-starts", SAID, env={**env, "SCRIPTED_AGENT_FAULT": "initialize:exit1"})
    drill.ended("agent-never-starts", "failed", "agent_start_failed")
    drill.turn("agent-fails", f"/fail {FAILED}")
    drill.ended("agent-fails", "failed", "agent_protocol_error")


def setup_fails(drill: Drill) -> None:
    """A failure before the admission."""
    drill.turn("setup-fails", SAID, setup=[["/bin/sh", "-c", f"echo {STDERR} >&2; exit 7"]])
    drill.ended("setup-fails", "failed", "preparation_failed")


def lease_refused(drill: Drill) -> None:
    """The database has seen the lease end: the next renewal is refused."""
    run_id, _ = drill.hold("lease-refused")
    drill.product.rows(
        "UPDATE attempts SET lease_expires_at = tk_now() - interval '1 second' WHERE run_id = %s RETURNING id", run_id
    )
    drill.ended("lease-refused", "failed", "outcome_unknown")


def child_killed(drill: Drill) -> None:
    """Its host finds it gone."""
    run_id, _ = drill.hold("child-killed")
    kill(drill.product.child(run_id), signal.SIGKILL)
    drill.ended("child-killed", "failed", "outcome_unknown")


def child_stands_still(drill: Drill) -> None:
    """Nobody renews: the reaper ends it."""
    run_id, _ = drill.hold("child-stopped")
    child = drill.product.child(run_id)
    kill(child, signal.SIGSTOP)
    try:
        drill.ended("child-stopped", "failed", "outcome_unknown")
    finally:
        kill(child, signal.SIGCONT)
    wait_for(lambda: not is_alive(child), "it ends by itself")


def sandbox_killed(drill: Drill) -> None:
    """Its receipts are gone with it (F-07)."""
    drill.hold("sandbox-killed")
    launcher, _ = drill.product.sandboxes()[drill.threads["sandbox-killed"]]
    kill(launcher, signal.SIGKILL)
    run = drill.product.wait_status(drill.runs["sandbox-killed"], timeout_s=REAPED_S)
    assert run.status == "failed"


def cancelled(drill: Drill) -> None:
    """By its owner."""
    run_id, _ = drill.hold("cancelled")
    drill.product.client.cancel(run_id)
    drill.ended("cancelled", "cancelled", "cancelled")


STEPS: tuple[Callable[[Drill], None], ...] = (
    control_plane_away,
    provisioner_away,
    database_away,
    agents_leave,
    setup_fails,
    lease_refused,
    child_killed,
    child_stands_still,
    sandbox_killed,
    cancelled,
)


def run_drill(product: Product) -> Drill:
    """All steps, one after the other."""
    drill = Drill(product)
    for step in STEPS:
        step(drill)
        drill.collect()
        product.close_conversations()
    return drill


def _host_log(drill: Drill) -> str:
    return (drill.product.data.logs / "host.log").read_text()


def _reads(drill: Drill) -> bool:
    try:
        return bool(drill.product.client.conversation(drill.threads["database-away"]).thread_id)
    except Exception:  # whatever it says while it is away
        return False
