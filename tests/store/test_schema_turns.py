"""What the database refuses by itself about attempts, workspaces, memberships, activations and the rest of a turn."""

from dataclasses import dataclass

import pytest

from harness.guards import refused
from harness.postgres import Sessions
from harness.rows import Rows
from turnkeeper.kit.ids import new_id

SOON = "2026-01-01T00:00:00Z"


@pytest.fixture
async def rows(sessions: Sessions) -> Rows:
    """Rows on a session that commits each statement by itself."""
    return Rows(await sessions.open(autocommit=True))


@dataclass(frozen=True)
class Turn:
    """A running turn up to its attempt, and the membership of its conversation."""

    uid: str
    thread: str
    run: str
    attempt: str
    workspace: str
    membership: str


@pytest.fixture
async def turn(rows: Rows) -> Turn:
    """One running turn."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run)
    workspace = await rows.workspace(uid, thread)
    return Turn(uid, thread, run, attempt, workspace, await rows.membership(workspace, thread))


async def _close(rows: Rows, attempt: str, outcome: str = "failed") -> None:
    await rows.update("attempts", attempt, ended_at=SOON, outcome=outcome)


# ---------------------------------------------------------------------------------------------------------------- attempts


async def test_one_open_attempt_of_a_run(rows: Rows, turn: Turn) -> None:
    """Proves: A-01. A second one only after the first is closed, with a number of its own."""
    await refused(rows, "attempts_one_open_per_run", rows.attempt(turn.run, number=2))
    await _close(rows, turn.attempt, "released")
    await refused(rows, "attempts_run_id_attempt_no_key", rows.attempt(turn.run, number=1))
    await rows.attempt(turn.run, number=2)


async def test_lease_generations_grow(rows: Rows, turn: Turn) -> None:
    """Proves: A-01. An older or equal generation is refused at a new attempt, a falling one at an old."""
    generation = await rows.value("SELECT lease_generation FROM attempts WHERE id = %s", turn.attempt)
    await refused(
        rows, "lease_generation_monotonic", rows.update("attempts", turn.attempt, lease_generation=generation - 1)
    )
    await _close(rows, turn.attempt)
    for wrong in (generation, generation - 1):
        await refused(rows, "lease_generation_monotonic", rows.attempt(turn.run, number=2, lease_generation=wrong))
    await rows.attempt(turn.run, number=2, lease_generation=generation + 1)
    other = await rows.run(*await rows.chat(), status="running")
    await refused(rows, "attempts_lease_generation_key", rows.attempt(other, lease_generation=generation + 1))


async def test_a_closed_attempt_is_never_rewritten(rows: Rows, turn: Turn) -> None:
    """Proves: E-04. Not its times, not its outcome, not back to open."""
    await rows.update("attempts", turn.attempt, last_heartbeat_at=SOON)
    await _close(rows, turn.attempt, "lease_expired")
    for columns in (
        {"outcome": "completed"},
        {"ended_at": None, "outcome": None},
        {"last_heartbeat_at": SOON},
        {"lease_expires_at": "2030-01-01T00:00:00Z"},
    ):
        await refused(rows, "attempts_closed_is_closed", rows.update("attempts", turn.attempt, **columns))


async def test_ends_and_outcomes_of_attempts(rows: Rows, turn: Turn) -> None:
    """Proves: H-05. Both or neither; an attempt that was accepted is never released."""
    await refused(rows, "attempts_end_has_outcome", rows.update("attempts", turn.attempt, outcome="failed"))
    await refused(rows, "attempts_end_has_outcome", rows.update("attempts", turn.attempt, ended_at=SOON))
    await refused(rows, "attempts_outcome_known", _close(rows, turn.attempt, "lost"))
    await rows.update("attempts", turn.attempt, accepted_at=SOON)
    await refused(rows, "attempts_released_never_accepted", _close(rows, turn.attempt, "released"))
    await _close(rows, turn.attempt, "completed")


async def test_a_claim_makes_one_attempt(rows: Rows, turn: Turn) -> None:
    """Proves: D-05. The claim id is unique within a host process; another process may draw the same."""
    claim, incarnation = new_id(), new_id()
    first = await rows.run(*await rows.chat(), status="running")
    second = await rows.run(*await rows.chat(), status="running")
    await rows.attempt(first, claim_id=claim, incarnation=incarnation)
    await refused(
        rows, "attempts_host_incarnation_claim_id_key", rows.attempt(second, claim_id=claim, incarnation=incarnation)
    )
    await rows.attempt(second, claim_id=claim)


async def test_expiry_is_never_absent(rows: Rows, turn: Turn) -> None:
    """Proves: L-11. Neither expiry, deadline nor the renewals' bound can be NULL."""
    for column in ("lease_expires_at", "execution_deadline", "renewable_until", "lease_generation", "token_hash"):
        nullable = await rows.value(
            "SELECT is_nullable FROM information_schema.columns WHERE table_name = 'attempts' AND column_name = %s",
            column,
        )
        assert nullable == "NO", column


# -------------------------------------------------------------------------------------------- workspaces and memberships


async def test_a_workspace_keeps_its_identity_and_its_epoch_grows(rows: Rows, turn: Turn) -> None:
    """Proves: K-02. Owner, scope, sandbox id and, once known, the provisioner; generation and boot id may change."""
    uid, thread = await rows.chat()
    await rows.update("shared_workspaces", turn.workspace, provisioner="local", generation="g1", boot_id="b1", epoch=5)
    await rows.update("shared_workspaces", turn.workspace, generation="g2", boot_id="b2", epoch=6)
    for columns in ({"uid": uid}, {"runtime_scope_id": thread}, {"sandbox_id": "x"}, {"provisioner": "docker"},
                    {"provisioner": None}):  # fmt: skip
        await refused(rows, "workspace_identity", rows.update("shared_workspaces", turn.workspace, **columns))
    await refused(rows, "workspace_epoch_monotonic", rows.update("shared_workspaces", turn.workspace, epoch=5))
    await refused(
        rows,
        "shared_workspaces_boot_has_generation",
        rows.update("shared_workspaces", turn.workspace, generation=None),
    )
    await refused(rows, "shared_workspaces_runtime_scope_id_key", rows.workspace(turn.uid, turn.thread))


async def test_fence_and_native_turn_never_fall(rows: Rows, turn: Turn) -> None:
    """The fence and the boundary that continuation is checked against."""
    await rows.update("memberships", turn.membership, fence=3, native_turn=2, native_session="s")
    await rows.update("memberships", turn.membership, fence=3, native_turn=2)
    for columns in ({"fence": 2}, {"native_turn": 1}, {"fence": 4, "native_turn": 1}):
        await refused(rows, "membership_monotonic", rows.update("memberships", turn.membership, **columns))
    await rows.update("memberships", turn.membership, fence=4, native_turn=3)


async def test_lost_is_final(rows: Rows, turn: Turn) -> None:
    """Proves: R-05. A membership that is LOST stays so; it has a reason, and no other state has one."""
    lost = "membership_lost_is_final"
    await refused(rows, "memberships_lost_has_reason", rows.update("memberships", turn.membership, state="lost"))
    await refused(rows, "memberships_lost_has_reason", rows.update("memberships", turn.membership, lost_reason="x"))
    await rows.update("memberships", turn.membership, state="lost", lost_reason="outcome_unknown")
    for state in ("idle", "suspended"):
        await refused(rows, lost, rows.update("memberships", turn.membership, state=state, lost_reason=None))
    for state in ("active", "quarantined"):
        await refused(
            rows,
            lost,
            rows.update("memberships", turn.membership, state=state, lost_reason=None, activation_id=new_id()),
        )


async def test_state_and_activation_go_together(rows: Rows, turn: Turn) -> None:
    """Active and quarantined name their activation, and nothing else does; it must exist by the commit."""
    activation = await rows.activation(turn.membership, turn.run, turn.attempt, 1)
    both = "memberships_live_has_activation"
    for state in ("active", "quarantined"):
        await refused(rows, both, rows.update("memberships", turn.membership, state=state))
        await rows.update("memberships", turn.membership, state=state, activation_id=activation)
        await refused(rows, both, rows.update("memberships", turn.membership, state="idle"))
        await rows.update("memberships", turn.membership, state="idle", activation_id=None)
    await rows.update("memberships", turn.membership, state="active", activation_id=activation)
    await refused(
        rows, "memberships_activation_id_fkey", rows.update("memberships", turn.membership, activation_id=new_id())
    )
    await refused(rows, "memberships_turn_has_session", rows.update("memberships", turn.membership, native_turn=1))
    await refused(rows, "memberships_thread_id_key", rows.membership(turn.workspace, turn.thread))


# -------------------------------------------------------------------------------------------------------------- activations


async def test_one_live_activation_of_a_membership(rows: Rows, turn: Turn) -> None:
    """Preparing, admitted and quarantined are live; a fence is used once."""
    first = await rows.activation(turn.membership, turn.run, turn.attempt, 1)
    for columns in ({}, {"admitted_at": SOON, "state": "admitted"}, {"state": "quarantined"}):
        await rows.update("activations", first, **columns or {"state": "preparing"})
        await refused(
            rows, "activations_one_live_per_membership", rows.activation(turn.membership, turn.run, turn.attempt, 2)
        )
    await rows.update("activations", first, state="lost", ended_at=SOON)
    await refused(
        rows, "activations_membership_id_fence_key", rows.activation(turn.membership, turn.run, turn.attempt, 1)
    )
    await rows.activation(turn.membership, turn.run, turn.attempt, 2)


async def test_what_goes_with_the_state_of_an_activation(rows: Rows, turn: Turn) -> None:
    """Proves: R-02, F-06. An admitted turn is never abandoned; a settlement has outcome, native turn and epoch."""
    activation = await rows.activation(turn.membership, turn.run, turn.attempt, 1)
    settled = {"state": "settled", "admitted_at": SOON, "settled_at": SOON, "ended_at": SOON, "outcome": "completed",
               "native_turn": 1, "epoch": 1}  # fmt: skip
    for guard, columns in (
        ("activations_admitted_has_time", {"state": "admitted"}),
        ("activations_abandoned_never_admitted", {"state": "abandoned", "admitted_at": SOON, "ended_at": SOON}),
        ("activations_settled_has_time", {"settled_at": SOON}),
        ("activations_settled_has_time", {**settled, "settled_at": None}),
        ("activations_settled_is_whole", {**settled, "outcome": None}),
        ("activations_settled_is_whole", {**settled, "native_turn": None}),
        ("activations_settled_is_whole", {**settled, "epoch": None}),
        ("activations_end_is_final", {**settled, "ended_at": None}),
        ("activations_end_is_final", {"ended_at": SOON}),
        ("activations_end_is_final", {"state": "lost"}),
        ("activations_outcome_known", {**settled, "outcome": "done"}),
        ("activations_native_turn_positive", {**settled, "native_turn": 0}),
        ("activations_state_known", {"state": "done", "ended_at": SOON}),
        ("activations_fence_positive", {"fence": 0}),
    ):
        await refused(rows, guard, rows.update("activations", activation, **columns))
    await rows.update("activations", activation, state="quarantined", admitted_at=SOON)
    await rows.update("activations", activation, **settled)


# ------------------------------------------------------------------------------------------------------------------ the rest


async def test_one_snapshot_of_an_epoch(rows: Rows, turn: Turn) -> None:
    """Proves: F-06, D-08. A repeated settlement appends none; a snapshot has a tree or a reason why not."""
    tree = "a" * 40

    async def snapshot(epoch: int, **columns: object) -> None:
        values = {"shared_workspace_id": turn.workspace, "epoch": epoch, "run_id": turn.run, **columns}
        await rows.insert("snapshots", **values)

    await snapshot(1, tree_id=tree)
    await refused(rows, "snapshots_pkey", snapshot(1, tree_id="b" * 40))
    await snapshot(2, unavailable_why="too large")
    await refused(rows, "snapshots_tree_or_why", snapshot(3))
    await refused(rows, "snapshots_tree_or_why", snapshot(3, tree_id=tree, unavailable_why="x"))
    await refused(rows, "snapshots_tree_id_form", snapshot(3, tree_id="HEAD"))


async def test_answers_of_inputs(rows: Rows, turn: Turn) -> None:
    """An answered one has its answer; an ended one its end."""
    question = new_id()
    await rows.insert("inputs", id=question, thread_id=turn.thread, run_id=turn.run, kind="question", asked_by="agent",
                      question="?", deadline=SOON)  # fmt: skip
    for guard, columns in (
        ("inputs_answered_has_answer", {"state": "answered"}),
        ("inputs_answered_has_answer", {"state": "answered", "answered_at": SOON}),
        ("inputs_end_is_final", {"state": "expired"}),
        ("inputs_end_is_final", {"ended_at": SOON}),
    ):
        await refused(rows, guard, rows.update("inputs", question, **columns))
    await rows.update("inputs", question, state="answered", answer='"yes"', answered_at=SOON)


async def test_a_host_that_backs_off_says_why(rows: Rows) -> None:
    """Proves: H-06."""
    host = {"name": "h", "incarnation": new_id(), "version": "1", "capacity": 1, "provisioner": "local"}
    await refused(rows, "hosts_backing_off_has_error", rows.insert("hosts", **host, state="backing_off"))
    await refused(rows, "hosts_capacity_positive", rows.insert("hosts", **{**host, "capacity": 0}, state="ready"))
    await refused(rows, "hosts_name_form", rows.insert("hosts", **{**host, "name": "../h"}, state="ready"))
    await rows.insert("hosts", **host, state="backing_off", launch_error="no such file")


async def test_one_answer_for_an_idempotency_key(rows: Rows) -> None:
    """Case: F08. By owner and route."""
    uid, other = await rows.user(), await rows.user()

    async def insert(owner: str, route: str, key: str = "k") -> None:
        await rows.insert(
            "idempotency_keys", uid=owner, route=route, key=key, body_digest=b"\0" * 32, status=201, answer={}
        )

    await insert(uid, "POST /v1/x")
    await refused(rows, "idempotency_keys_pkey", insert(uid, "POST /v1/x"))
    await insert(uid, "POST /v1/y")
    await insert(other, "POST /v1/x")
    for key in ("", "x" * 256):
        await refused(rows, "idempotency_keys_key_length", insert(uid, "POST /v1/z", key))


async def test_one_identity_of_the_database(rows: Rows) -> None:
    """Two could not both be checked against."""
    await rows.session.execute("DELETE FROM cluster")
    await rows.insert("cluster", system_identifier="1", timeline=1)
    await refused(rows, "cluster_pkey", rows.insert("cluster", system_identifier="2", timeline=1))
    await refused(
        rows, "cluster_is_one_row", rows.insert("cluster", singleton=False, system_identifier="2", timeline=1)
    )


# -------------------------------------------------------------------------------------------------------------- large numbers


async def test_numbers_above_two_to_the_31(rows: Rows) -> None:
    """Case: F13. Every sequence is set to 2147483646: at this layer all that counts goes on, bigint throughout."""
    sequences = await (await rows.session.execute("SELECT sequencename, data_type::text FROM pg_sequences")).fetchall()
    assert {"lease_generations", "queue_positions"} <= {name for name, _ in sequences}
    assert {kind for _, kind in sequences} == {"bigint"}
    for name, _ in sequences:
        await rows.session.execute("SELECT setval(%s::regclass, 2147483646)", (name,))
    large = 2**31 + 5
    uid, thread = await rows.chat()
    positions: list[int] = []
    workspace = await rows.workspace(uid, thread, epoch=large)
    membership = await rows.membership(workspace, thread, fence=large, native_turn=large, native_session="s")
    await rows.insert("event_counters", thread_id=thread, last_seq=large)
    for number in range(10):
        run = await rows.run(uid, thread, status="running")
        positions.append(await rows.value("SELECT queue_position FROM runs WHERE id = %s", run))
        attempt = await rows.attempt(run, stream_no_last=large + number)
        await rows.event(thread, run, large + number, attempt_id=attempt, stream_no=large + number)
        activation = await rows.activation(membership, run, attempt, large + number)
        await rows.update(
            "activations", activation, state="settled", admitted_at=SOON, settled_at=SOON, ended_at=SOON,
            outcome="failed", native_turn=large + number, epoch=large + number,
        )  # fmt: skip
        await rows.insert(
            "snapshots", shared_workspace_id=workspace, epoch=large + number, run_id=run, tree_id="a" * 40
        )
        await rows.update("runs", run, status="failed", error_code="agent_exited", ended_at=SOON)
    assert positions == list(range(2147483647, 2147483657))
    assert await rows.value("SELECT max(lease_generation) FROM attempts") == 2147483656


async def test_no_counter_is_narrow(rows: Rows) -> None:
    """Case: F13. The integers of 32 bits are counts and limits that stay small, none of them drawn from a sequence."""
    found = await rows.session.execute(
        "SELECT table_name || '.' || column_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND data_type IN ('integer', 'smallint') ORDER BY 1"
    )
    assert [name for (name,) in await found.fetchall()] == [
        "attempts.attempt_no",
        "attempts.lease_ttl_s",
        "hosts.capacity",
        "idempotency_keys.status",
        "runs.depth",
        "runs.releases",
        "users.tree_room",
    ]
