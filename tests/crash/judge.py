"""Afterwards: recovery runs to rest, and then the promises must hold, judged by what the agents themselves received and
wrote, and by the checkers of `domain.history` over everything that the database records."""

import asyncio
import time
from typing import Final

from crash.drill import AGENTS, LEASE_S, LOOK_S, Drill
from crash.watch import Use, now, processes_seen
from e2e.harness import command_of
from turnkeeper.domain.history import Finding, History, check, check_succession
from turnkeeper.domain.history.facts import LedgerEntry
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.procs import descendants
from turnkeeper.services.doctor import collect
from turnkeeper.store.pool import open_database

REST_WITHIN_S: Final = 90.0
TRIES: Final = 3
LEASE_CODES: Final = ("worker_lease_expired", "lease_feed_lost", "outcome_unknown")
_UNREST: Final = (
    "SELECT 'run ' || id || ' is ' || status AS what FROM runs "
    "WHERE status IN ('pending', 'running', 'cancel_requested', 'recovering') "
    "UNION ALL SELECT 'attempt ' || id || ' is open' FROM attempts WHERE ended_at IS NULL "
    "UNION ALL SELECT 'membership ' || id || ' is ' || state FROM memberships WHERE state IN ('active', 'quarantined') "
    "UNION ALL SELECT 'run ' || id || ' has a cleanup fence' FROM runs WHERE runtime_cleanup_pending"
)


def wait_rest(drill: Drill) -> None:
    """Until nothing is on its way any more: nothing stays stuck."""
    end = time.monotonic() + REST_WITHIN_S
    while unrest := [str(row["what"]) for row in drill.product.rows(_UNREST)]:
        assert time.monotonic() < end, f"stuck: {unrest}\n{drill.product.tell()}"
        time.sleep(LOOK_S * 5)


def judge(drill: Drill) -> None:
    """Everything that must hold at rest; a conversation that is open must take another message to its end."""
    wait_rest(drill)
    for thread in drill.threads:
        if _is_open(drill, thread):
            _go_on(drill, thread)
    wait_rest(drill)
    faults = [
        *_prompts(drill),
        *_writers(drill),
        *_processes(drill),
        *(f"{one.rule}: {one.text}" for one in _findings(drill)),
    ]
    assert not faults, "\n".join([*faults, drill.product.tell()])


def _is_open(drill: Drill, thread: str) -> bool:
    return bool(drill.product.rows("SELECT 1 FROM conversations WHERE thread_id = %s AND state = 'open'", thread))


def _go_on(drill: Drill, thread: str) -> None:
    """What failed has been mended: the next message is answered, unless that shows that the session is gone.

    A busy machine may let a lease of seconds end; then the next one is.
    """
    agent = drill.product.row("SELECT agent FROM conversations WHERE thread_id = %s", thread)["agent"]
    expected = ("failed", "preparation_failed") if agent == "drill-setup" else ("completed", None)
    for _ in range(TRIES):
        run_id = drill.submit(thread)
        drill.wait_ended(run_id)
        wait_rest(drill)
        run = drill.product.row("SELECT status, error_code, error_detail FROM runs WHERE id = %s", run_id)
        said = (run["status"], run["error_code"])
        if said == expected:
            return
        if said[1] in ("session_unavailable", *LEASE_CODES) and not _is_open(drill, thread):
            return
        assert said[1] in LEASE_CODES, (
            f"the conversation is open, and its next message ends {run}\n{drill.product.tell()}"
        )
    raise AssertionError(f"{TRIES} messages in a row lost their lease\n{drill.product.tell()}")


def _prompts(drill: Drill) -> list[str]:
    """At most once, by the agent's own ledger; and what the owner is told of the delivery is true."""
    faults: list[str] = []
    for run_id, mark in drill.marks.items():
        times = len(drill.received(run_id))
        row = drill.product.row(
            "SELECT r.status, r.error_code, m.delivery FROM runs r JOIN messages m ON m.run_id = r.id AND m.role = 'owner' "
            "WHERE r.id = %s",
            run_id,
        )
        if times > 1:
            faults.append(f"prompt {mark} of run {run_id} was received {times} times")
        if times and row["delivery"] == "not_delivered":
            faults.append(f"prompt {mark} of run {run_id} was received, and its owner is told that it was not: {row}")
        if not times and (row["delivery"] == "delivered" or row["status"] == "completed"):
            faults.append(f"prompt {mark} of run {run_id} was never received, and its owner is told that it was: {row}")
    return faults


def _writers(drill: Drill) -> list[str]:
    """One Workdir, one writer: once a later turn has written, no earlier one writes (D-03)."""
    faults: list[str] = []
    for thread in drill.threads:
        seen: list[str] = []
        for mark in drill.ticks(thread):
            if mark in seen[:-1]:
                faults.append(f"{mark} wrote in {thread} after {seen[-1]} had begun")
                break
            if mark not in seen:
                seen.append(mark)
    return faults


def _processes(drill: Drill) -> list[str]:
    """Nothing of an older turn lives beside or after a newer one: at rest a sandbox has one agent at most, and no tool (D-03)."""
    faults: list[str] = []
    for thread, (launcher, _) in drill.product.sandboxes().items():
        if thread in drill.threads:
            commands = [command_of(process) for process in descendants(launcher.pid)]
            faults += [f"{command} still runs in {thread}" for command in commands if "ticks" in command]
            agents = [command for command in commands if command.endswith("-m turnkeeper.agents.scripted")]
            if len(agents) > 2:  # the agent and its keeper, which carries its command
                faults.append(f"{len(agents) - 1} agents run in {thread}")
    return faults


def _findings(drill: Drill) -> list[Finding]:
    """Of the whole record by itself, and against the one that the cell before left: what is final stays as it was."""
    before, after = drill.product.recorded, asyncio.run(_collect(drill))
    drill.product.recorded = after
    return [*check(after), *([] if before is None else check_succession(before, after))]


async def _collect(drill: Drill) -> History:
    ledger = [LedgerEntry(entry.text) for agent in AGENTS for entry in drill.product.ledger(agent)]
    processes = processes_seen(drill.product.watch.look(), _uses(drill))
    async with open_database(drill.product.dsn, min_size=1, max_size=1, check=False) as db:
        return await collect(db, Timing(lease_ttl_s=LEASE_S), ledger=ledger, processes=processes, slack_s=0.0)


def _uses(drill: Drill) -> list[Use]:
    """Which agent received the prompts of this drill's runs, for the activation that was admitted (D-03)."""
    wall_s = time.time() - now()
    uses: list[Use] = []
    for run_id in drill.marks:
        admitted = drill.product.rows(
            "SELECT a.id, r.thread_id FROM activations a JOIN runs r ON r.id = a.run_id "
            "WHERE a.run_id = %s AND a.admitted_at IS NOT NULL",
            run_id,
        )
        if len(admitted) == 1:  # of more than one there is a finding of its own, and nobody knows whose the prompt was
            (one,) = admitted
            uses += [
                Use(str(one["id"]), str(one["thread_id"]), entry.pid, entry.at_s - wall_s)
                for entry in drill.received(run_id)
            ]
    return uses


def let_go(drill: Drill) -> None:
    """Close what was made, so that the next cell finds a small product."""
    for thread in drill.threads:
        if _is_open(drill, thread):
            drill.close(thread)
    wait_rest(drill)
