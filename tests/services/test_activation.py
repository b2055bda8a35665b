"""Prepare, manifest, container, activate, admit, settle, abandon: repeats get the same answer, stale ones change nothing."""

import asyncio

import pytest

from harness.postgres import DatabaseClock
from services.driver import Driver, Turn, wanted
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.kit.ids import new_id
from turnkeeper.services.abandon import abandon
from turnkeeper.services.activate import activate
from turnkeeper.services.admit import admit
from turnkeeper.services.answers import Invalid, Refused, RefusedWhy, Rejected
from turnkeeper.services.cancel import cancel
from turnkeeper.services.container import record_container
from turnkeeper.services.manifest import record_manifest
from turnkeeper.services.prepare import prepare
from turnkeeper.services.settle import settle
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.turn import Outcome
from turnkeeper.wire.worker import (
    Abandon,
    Activate,
    AdmissionReceipt,
    Container,
    Manifest,
    ManifestAnswer,
    Prepare,
    SettleAnswer,
)


def preparing(turn: Turn, worker: str = "host-1/100/200") -> Prepare:
    return Prepare(lease_generation=turn.lease, worker=worker)


def activating(turn: Turn, **more: str) -> Activate:
    return Activate(**{"lease_generation": turn.lease, "generation": turn.generation, "boot_id": turn.boot_id, **more})  # type: ignore[arg-type]


def abandoning(turn: Turn) -> Abandon:
    return Abandon(lease_generation=turn.lease, activation=turn.act.activation, fence=turn.act.fence)


# ---- prepare ----


async def test_prepare_again_gets_the_same_answer(driver: Driver) -> None:
    turn = await driver.up_to("prepared")
    assert await prepare(driver.s, turn.worker, preparing(turn)) == turn.spec
    assert (
        wanted(await prepare(driver.s, turn.worker, preparing(turn, "host-1/7/7")), Refused).why is RefusedWhy.ACCEPTED
    )
    assert await driver.value("SELECT count(*) FROM shared_workspaces") == 1


async def test_prepare_refuses_a_cancelled_run(driver: Driver) -> None:
    turn = await driver.up_to("claimed")
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert wanted(await prepare(driver.s, turn.worker, preparing(turn)), Refused).why is RefusedWhy.CANCELLED
    assert (await driver.attempt(turn))["accepted_at"] is None
    assert await driver.finish(turn, "cancelled") == "cancelled"


async def test_prepare_refuses_another_workdir_than_a_workdir(driver: Driver) -> None:
    """Proves: T-05. Case: F14, rows edited by SQL included."""
    for workdir in ("..", "/etc", "agents/homes/x", "a/../../b"):
        thread = (await driver.conversation()).thread_id
        turn_of = driver.up_to("claimed", thread)
        turn = await turn_of
        await driver.rows("UPDATE conversations SET workdir = %s WHERE thread_id = %s", workdir, thread)
        rejected = wanted(await prepare(driver.s, turn.worker, preparing(turn)), Rejected)
        assert rejected.code is ErrorCode.INVALID_RUNTIME_SCOPE
        assert (
            await driver.finish(turn, "failed", failure={"code": rejected.code, "stage": "prepare", "delivered": "no"})
            == "failed"
        )
        assert (await driver.run(turn.claim.job))["error_code"] == "invalid_runtime_scope"
        assert await driver.delivery(turn.claim.job) == "not_delivered"


async def test_prepare_refuses_a_run_of_another_shape(driver: Driver) -> None:
    """Proves: T-05: also where the database's CHECK was not there to refuse it."""
    turn = await driver.up_to("claimed")
    await driver.rows("ALTER TABLE runs DROP CONSTRAINT runs_shape")
    await driver.rows("UPDATE runs SET created_by_run_id = id WHERE id = %s", turn.claim.job)
    assert (
        wanted(await prepare(driver.s, turn.worker, preparing(turn)), Rejected).code is ErrorCode.INVALID_RUNTIME_SCOPE
    )


async def test_a_removed_agents_run_fails_before_anything_runs(driver: Driver) -> None:
    turn = await driver.up_to("claimed")
    await driver.rows("UPDATE agents SET removed_at = tk_now()")
    assert wanted(await prepare(driver.s, turn.worker, preparing(turn)), Rejected).code is ErrorCode.PREPARATION_FAILED


async def test_the_provisioner_of_a_scope_is_fixed_for_good(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    await driver.submit(thread)
    turn = await driver.claim()
    await driver.heartbeat(provisioner="prov-2")
    assert wanted(await prepare(driver.s, turn.worker, preparing(turn)), Rejected).code is ErrorCode.SANDBOX_UNAVAILABLE
    assert await driver.value("SELECT provisioner FROM conversations WHERE thread_id = %s", thread) == "prov-1"


# ---- manifest, container ----


async def test_the_manifest_is_recorded_once(driver: Driver) -> None:
    """Proves: A-02."""
    turn = await driver.up_to("recorded")
    before = (await driver.run(turn.claim.job))["manifest"]
    other = {"other": 1}
    request = Manifest(lease_generation=turn.lease, manifest=other, sha256=canonical_sha256(other))
    answer = wanted(await record_manifest(driver.s, turn.worker, request), ManifestAnswer)
    assert answer.sha256 == canonical_sha256(before)
    assert (await driver.run(turn.claim.job))["manifest"] == before
    assert isinstance(
        await record_manifest(
            driver.s, turn.worker, Manifest(lease_generation=turn.lease, manifest=other, sha256="0" * 64)
        ),
        Invalid,
    )


async def test_another_sandbox_is_not_recorded(driver: Driver) -> None:
    turn = await driver.up_to("prepared")
    request = Container(lease_generation=turn.lease, sandbox_id="tk-other", generation="g", boot_id="b")
    assert isinstance(await record_container(driver.s, turn.worker, request), Invalid)
    assert await driver.value("SELECT generation FROM shared_workspaces") is None


# ---- activate ----


async def test_activate_again_gets_the_same_answer(driver: Driver) -> None:
    turn = await driver.up_to("activated")
    assert await activate(driver.s, turn.worker, activating(turn)) == turn.activation
    assert (await driver.membership(turn.claim.thread_id))["fence"] == 1


async def test_activate_renews_the_lease(driver: Driver, database_clock: DatabaseClock) -> None:
    turn = await driver.up_to("recorded")
    before = (await driver.attempt(turn))["lease_expires_at"]
    database_clock.offset(60)
    await driver.activate(turn)
    after = (await driver.attempt(turn))["lease_expires_at"]
    assert 59 < (after - before).total_seconds() < 70


async def test_another_instance_is_another_activation(driver: Driver) -> None:
    """Steps 5 and 6 once more, because the instance had ended: the fence grows, the earlier activation is abandoned."""
    turn = await driver.up_to("activated")
    first = turn.act
    assert (
        wanted(await activate(driver.s, turn.worker, activating(turn, boot_id="boot-2")), Refused).why
        is RefusedWhy.ACTIVATION
    )
    turn.generation, turn.boot_id = "gen-2", "boot-2"
    await driver.container(turn)
    second = await driver.activate(turn)
    assert second.fence == first.fence + 1
    assert await driver.value("SELECT state FROM activations WHERE id = %s", first.activation) == "abandoned"
    await driver.admit(turn)
    assert wanted(await activate(driver.s, turn.worker, activating(turn)), Refused).why is RefusedWhy.ADMITTED


async def test_activate_needs_acceptance_and_a_running_run(driver: Driver) -> None:
    turn = await driver.up_to("claimed")
    assert wanted(await activate(driver.s, turn.worker, activating(turn)), Refused).why is RefusedWhy.ACCEPTED
    turn = await driver.up_to("recorded")
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert wanted(await activate(driver.s, turn.worker, activating(turn)), Refused).why is RefusedWhy.CANCELLED


@pytest.mark.parametrize("state", ["quarantined", "lost", "suspended"])
async def test_a_membership_that_cannot_be_used(driver: Driver, state: str) -> None:
    turn = await driver.up_to("recorded")
    await driver.rows("ALTER TABLE memberships DROP CONSTRAINT memberships_live_has_activation")
    await driver.rows("ALTER TABLE memberships DROP CONSTRAINT memberships_lost_has_reason")
    await driver.rows("UPDATE memberships SET state = %s", state)
    assert wanted(await activate(driver.s, turn.worker, activating(turn)), Refused).why is RefusedWhy.MEMBERSHIP


# ---- admit ----


async def test_admit_again_gets_the_same_receipt(driver: Driver) -> None:
    """Proves: F-04, F-05."""
    turn = await driver.up_to("activated")
    receipts = [await driver.admit(turn) for _ in range(3)]
    assert receipts[0] == receipts[1] == receipts[2]
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert await driver.admit(turn) == receipts[0]


async def test_admissions_at_once_are_one(driver: Driver) -> None:
    turn = await driver.up_to("activated")
    receipts = await asyncio.gather(*(driver.admit(turn) for _ in range(5)))
    assert len({receipt.admitted_at for receipt in receipts}) == 1


async def test_a_cancelled_run_is_not_admitted(driver: Driver) -> None:
    """Proves: F-05."""
    turn = await driver.up_to("activated")
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert wanted(await admit(driver.s, turn.worker, driver.admit_request(turn)), Refused).why is RefusedWhy.CANCELLED
    assert (await driver.membership(turn.claim.thread_id))["admitted_job_id"] is None
    assert await abandon(driver.s, turn.worker, abandoning(turn)) is None
    assert await driver.finish(turn, "cancelled") == "cancelled"
    assert await driver.delivery(turn.claim.job) == "not_delivered"


async def test_stale_admissions_change_nothing(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: F-05, L-11."""
    turn = await driver.up_to("activated")
    right = driver.admit_request(turn)
    for wrong in ({"fence": 2}, {"activation": new_id()}, {"lease_generation": turn.lease + 1}):
        assert isinstance(await admit(driver.s, turn.worker, right.model_copy(update=wrong)), Refused)
    database_clock.offset(121)
    assert isinstance(await admit(driver.s, turn.worker, right), Refused)
    assert (await driver.membership(turn.claim.thread_id))["admitted_job_id"] is None
    assert (await driver.activation_row(turn))["state"] == "preparing"


async def test_a_turn_is_delivered_to_the_recorded_session_or_to_none(driver: Driver) -> None:
    """Proves: R-07. An agent that has a session of its own for each turn is the exception."""
    for agent, per_turn in (("keeper", False), ("fresh", True)):
        await driver.add_agent(agent, new_session_per_turn=per_turn)
        thread = (await driver.conversation(agent=agent)).thread_id
        await driver.whole_turn(thread)
        turn = await driver.up_to("activated", thread)
        turn.native_session = "another"
        answer = await admit(driver.s, turn.worker, driver.admit_request(turn))
        if per_turn:
            assert isinstance(answer, AdmissionReceipt)
            await driver.settle(turn)
        else:
            assert wanted(answer, Refused).why is RefusedWhy.MEMBERSHIP
            assert (await driver.membership(thread))["admitted_job_id"] != turn.claim.job
        await driver.finish(turn, "failed")


# ---- settle ----


async def test_settle_again_changes_nothing(driver: Driver) -> None:
    """Proves: F-06."""
    turn = await driver.up_to("admitted")
    answers = await asyncio.gather(*(driver.settle(turn) for _ in range(5)))
    assert len(set(answers)) == 1 if all(isinstance(answer, SettleAnswer) for answer in answers) else False
    other = turn.receipt(final_message="another")
    again = await settle(driver.s, turn.worker, driver.settle_request(turn).model_copy(update={"receipt": other}))
    assert again == answers[0]
    membership = await driver.membership(turn.claim.thread_id)
    assert membership["native_turn"] == 1
    assert await driver.value("SELECT epoch FROM shared_workspaces") == 1
    assert (await driver.activation_row(turn))["final_message"] == "done"


async def test_a_boundary_is_given_to_the_same_attempt_alone(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: F-06: another attempt, or an expired one, does not get it."""
    turn = await driver.up_to("settled")
    other = await driver.up_to("admitted")
    assert isinstance(await settle(driver.s, other.worker, driver.settle_request(turn)), Refused)
    database_clock.offset(121)
    assert isinstance(await settle(driver.s, turn.worker, driver.settle_request(turn)), Refused)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("native_turn", 2),
        ("fence", 7),
        ("boot_id", "boot-9"),
        ("native_session", "another"),
        ("outcome", Outcome.SUSPENDED),
    ],
)
async def test_a_receipt_of_something_else_is_refused(driver: Driver, field: str, value: object) -> None:
    """Proves: R-07, F-07."""
    turn = await driver.up_to("admitted")
    answer = await settle(driver.s, turn.worker, driver.settle_request(turn, **{field: value}))
    assert wanted(answer, Invalid).field == f"receipt.{field}"
    assert (await driver.membership(turn.claim.thread_id))["native_turn"] == 0


async def test_nothing_is_settled_that_was_not_admitted(driver: Driver) -> None:
    """Proves: F-05."""
    turn = await driver.up_to("activated")
    assert isinstance(await settle(driver.s, turn.worker, driver.settle_request(turn)), Refused)
    assert await driver.value("SELECT epoch FROM shared_workspaces") == 0


async def test_a_final_message_with_bytes_that_hurt(driver: Driver) -> None:
    """Case: F10."""
    turn = await driver.up_to("admitted")
    await driver.settle(turn, final_message="a\x00b\ud83d", stop_reason="end\x00turn")
    assert await driver.finish(turn) == "completed"
    assert await driver.value("SELECT text FROM messages WHERE role = 'assistant'") == "a\ufffdb\ufffd"


# ---- abandon ----


async def test_abandoning_keeps_the_conversation_usable(driver: Driver) -> None:
    """Proves: R-01."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("activated", thread)
    assert await abandon(driver.s, turn.worker, abandoning(turn)) is None
    assert await abandon(driver.s, turn.worker, abandoning(turn)) is None
    assert (await driver.membership(thread))["state"] == "idle"
    assert (await driver.activation_row(turn))["state"] == "abandoned"
    assert (
        await driver.finish(turn, "failed", failure={"code": "preparation_failed", "stage": "setup", "delivered": "no"})
        == "failed"
    )
    again = await driver.whole_turn(thread)
    assert again.act.fence == 2


async def test_what_was_admitted_is_not_abandoned(driver: Driver) -> None:
    """Proves: R-02."""
    turn = await driver.up_to("admitted")
    assert wanted(await abandon(driver.s, turn.worker, abandoning(turn)), Refused).why is RefusedWhy.ADMITTED
    assert (await driver.membership(turn.claim.thread_id))["state"] == "active"
    await driver.settle(turn)
    assert isinstance(await abandon(driver.s, turn.worker, abandoning(turn)), Refused)


async def test_abandon_against_admit(driver: Driver) -> None:
    """Proves: R-02: of the two one wins."""
    for _ in range(5):
        turn = await driver.up_to("activated")
        one, two = await asyncio.gather(
            abandon(driver.s, turn.worker, abandoning(turn)), admit(driver.s, turn.worker, driver.admit_request(turn))
        )
        assert (one is None) == isinstance(two, Refused)
        await driver.finish(turn, "failed")
