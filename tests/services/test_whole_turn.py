"""The order of protocol section 4, driven step by step; every row is read back."""

import jwt

from services.driver import PROVISIONER, SIGNER, Driver
from turnkeeper.kit.ids import digest
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.tokens import ACTIVATION_AUDIENCE, PROVISIONER_AUDIENCE
from turnkeeper.wire.turn import ChangedFile, ChangeSummary, SnapshotResult


async def test_a_turn_from_message_to_end(driver: Driver) -> None:
    """Proves: A-01, A-02, A-03, A-04, A-05, F-05, F-06."""
    thread = (await driver.conversation()).thread_id
    submitted = await driver.submit(thread, "write it")
    run_id = submitted.run.id
    assert submitted.run.ready
    assert (await driver.delivery(run_id)) == "queued"

    turn = await driver.claim()
    assert turn.claim.job == run_id
    attempt = await driver.attempt(turn)
    assert attempt["attempt_no"] == 1
    assert attempt["token_hash"] == digest(turn.claim.worker_token)
    assert attempt["accepted_at"] is None
    assert (await driver.run(run_id))["status"] == "running"
    assert not await driver.ready(run_id)
    assert (await driver.delivery(run_id)) == "delivering"

    spec = await driver.prepare(turn)
    assert (await driver.attempt(turn))["accepted_at"] is not None
    assert (await driver.attempt(turn))["lease_owner"] == "host-1/100/200"
    assert spec.prompt == "write it"
    claims = jwt.decode(spec.provisioner_token, SIGNER.public_pem, algorithms=["EdDSA"], audience=PROVISIONER_AUDIENCE)
    assert claims["scope"] == thread
    assert claims["lease_generation"] == turn.lease
    workspace = await driver.row("SELECT * FROM shared_workspaces WHERE runtime_scope_id = %s", thread)
    assert workspace["provisioner"] == PROVISIONER
    assert workspace["epoch"] == 0
    assert (await driver.membership(thread))["state"] == "idle"

    await driver.record(turn)
    run = await driver.run(run_id)
    assert run["manifest_sha256"] == canonical_sha256(run["manifest"])
    assert "write it" not in str(run["manifest"])
    workspace = await driver.row("SELECT * FROM shared_workspaces WHERE runtime_scope_id = %s", thread)
    assert (workspace["generation"], workspace["boot_id"]) == ("gen-1", "boot-1")

    activation = await driver.activate(turn)
    claims = jwt.decode(
        activation.activation_token, SIGNER.public_pem, algorithms=["EdDSA"], audience=ACTIVATION_AUDIENCE
    )
    assert (claims["fence"], claims["generation"], claims["boot_id"]) == (1, "gen-1", "boot-1")
    membership = await driver.membership(thread)
    assert (membership["state"], membership["fence"], membership["admitted_job_id"]) == ("active", 1, None)

    receipt = await driver.admit(turn)
    assert (await driver.membership(thread))["admitted_job_id"] == run_id
    assert (await driver.activation_row(turn))["admitted_at"] == receipt.admitted_at

    assert (await driver.send_events(turn, 1, "work", "ing")).next == 3

    settled = await driver.settle(turn)
    assert (settled.native_turn, settled.epoch) == (1, 1)
    membership = await driver.membership(thread)
    assert membership["native_turn"] == 1
    assert (membership["agent_pid"], membership["settled_boot_id"]) == (42, "boot-1")

    changes = ChangeSummary(files=(ChangedFile(path="a.txt", status="added"),), added_lines=1)
    snapshot = SnapshotResult(tree_id="a" * 40, changes=changes)
    assert await driver.finish(turn, snapshot=snapshot) == "completed"

    run = await driver.run(run_id)
    assert (run["status"], run["error_code"]) == ("completed", None)
    attempt = await driver.attempt(turn)
    assert attempt["outcome"] == "completed"
    membership = await driver.membership(thread)
    assert (membership["state"], membership["activation_id"], membership["admitted_job_id"]) == ("idle", None, run_id)
    output = await driver.row("SELECT * FROM messages WHERE run_id = %s AND role = 'assistant'", run_id)
    assert output["text"] == "done"
    assert (await driver.delivery(run_id)) == "delivered"
    stored = await driver.row("SELECT * FROM snapshots WHERE run_id = %s", run_id)
    assert (stored["epoch"], stored["tree_id"]) == (1, "a" * 40)

    events = await driver.events_of(thread)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events] == [
        "message",
        "run",
        "run",
        "text",
        "text",
        "changes",
        "shared_workspace_settled",
        "message",
        "end",
    ]
    assert events[-1]["data"]["final_message_id"] == output["id"]


async def test_a_second_and_third_message_continue_the_session(driver: Driver) -> None:
    """Proves: R-07, D-01. The recorded evidence of the last settlement is what the next worker is given."""
    thread = (await driver.conversation()).thread_id
    first = await driver.submit(thread, "one")
    second = await driver.submit(thread, "two")
    third = await driver.submit(thread, "three")
    for number, waiting in enumerate((first, second, third), 1):
        assert await driver.ready(waiting.run.id)
        turn = await driver.claim()
        assert turn.claim.job == waiting.run.id
        assert await driver.value("SELECT count(*) FROM runs WHERE ready_at IS NOT NULL") == 0
        spec = await driver.prepare(turn)
        assert spec.membership.native_turn == number - 1
        if number > 1:
            assert spec.membership.native_session == "native-1"
            assert (spec.membership.settled_generation, spec.membership.settled_boot_id) == ("gen-1", "boot-1")
            assert (spec.membership.agent_pid, spec.membership.agent_start_ticks) == (42, 4242)
        await driver.record(turn)
        assert (await driver.activate(turn)).fence == number
        await driver.admit(turn)
        assert (await driver.settle(turn)).epoch == number
        assert await driver.finish(turn) == "completed"
    generations = [
        row["g"] for row in await driver.rows("SELECT lease_generation AS g FROM attempts ORDER BY claimed_at")
    ]
    assert generations == sorted(set(generations))


async def test_two_conversations_of_one_owner_run_side_by_side(driver: Driver) -> None:
    """Proves: D-01, D-06."""
    one, two = (await driver.conversation()).thread_id, (await driver.conversation()).thread_id
    await driver.submit(one)
    await driver.submit(two)
    first, second = await driver.claim(), await driver.claim()
    assert {first.claim.thread_id, second.claim.thread_id} == {one, two}
    for turn in (first, second):
        await driver.prepare(turn)
        await driver.record(turn)
        await driver.activate(turn)
        await driver.admit(turn)
        await driver.settle(turn)
    assert await driver.finish(second) == "completed"
    assert await driver.finish(first) == "completed"


async def test_ids_and_sequences_above_2_to_the_31(driver: Driver) -> None:
    """Case: F13."""
    thread = (await driver.conversation()).thread_id
    await driver.rows("SELECT setval('lease_generations', 2147483646), setval('queue_positions', 2147483646)")
    await driver.submit(thread)
    await driver.rows("UPDATE event_counters SET last_seq = 2147483646")
    first = await driver.claim()
    for step in (driver.prepare, driver.record, driver.activate, driver.admit, driver.settle):
        await step(first)
    assert await driver.finish(first) == "completed"
    await driver.rows("UPDATE shared_workspaces SET epoch = 2147483646")
    await driver.rows("UPDATE memberships SET native_turn = 2147483646, fence = 2147483646")
    for _ in range(9):
        await driver.whole_turn(thread)
    membership = await driver.membership(thread)
    assert membership["native_turn"] == 2147483655
    assert membership["fence"] == 2147483655
    assert max(event["seq"] for event in await driver.events_of(thread)) > 2147483690
