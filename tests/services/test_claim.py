"""Claims: one attempt for one claim id, rooms as trees, and the database's identity."""

import asyncio

from services.driver import HOST, Driver, wanted
from services.trees import add_child
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.services.answers import ClaimsRefused, Gone, Refused, RefusedWhy
from turnkeeper.services.auth import UnknownToken, Worker, worker_of_token
from turnkeeper.services.work import wait_for_work
from turnkeeper.wire.worker import ClaimAnswer


async def claimed(driver: Driver, **more: object) -> ClaimAnswer:
    return wanted(await driver.try_claim(**more), ClaimAnswer)  # type: ignore[arg-type]


async def test_nothing_to_claim(driver: Driver) -> None:
    assert await claimed(driver) == ClaimAnswer(claim=None, more=False)


async def test_a_repeated_claim_gets_the_same_attempt_with_a_fresh_token(driver: Driver) -> None:
    """Proves: D-05."""
    await driver.submit((await driver.conversation()).thread_id)
    claim_id = new_id()
    first = await driver.claim(claim_id=claim_id)
    second = await driver.claim(claim_id=claim_id)
    assert second.claim.attempt == first.claim.attempt
    assert second.claim.lease_generation == first.claim.lease_generation
    assert second.claim.worker_token != first.claim.worker_token
    assert await driver.value("SELECT count(*) FROM attempts") == 1
    job = first.claim.job
    assert isinstance(await worker_of_token(driver.s, first.claim.worker_token, job), UnknownToken)
    assert isinstance(await worker_of_token(driver.s, second.claim.worker_token, job), Worker)
    assert (await driver.attempt(first))["token_hash"] == digest(second.claim.worker_token)
    await driver.prepare(second)


async def test_after_acceptance_the_claim_is_refused(driver: Driver) -> None:
    """Proves: D-05, H-04."""
    await driver.submit((await driver.conversation()).thread_id)
    claim_id = new_id()
    turn = await driver.claim(claim_id=claim_id)
    await driver.prepare(turn)
    assert wanted(await driver.try_claim(claim_id=claim_id), Refused).why is RefusedWhy.ACCEPTED
    assert (await driver.attempt(turn))["token_hash"] == digest(turn.claim.worker_token)


async def test_one_claim_id_used_twice_at_once_is_one_attempt(driver: Driver) -> None:
    """Proves: D-05."""
    for _ in range(3):
        await driver.submit((await driver.conversation()).thread_id)
    claim_id = new_id()
    answers = await asyncio.gather(*(claimed(driver, claim_id=claim_id) for _ in range(6)))
    assert len({answer.claim.attempt for answer in answers if answer.claim is not None}) == 1
    assert await driver.value("SELECT count(*) FROM attempts") == 1
    assert await driver.value("SELECT count(*) FROM runs WHERE status = 'running'") == 1
    assert await driver.value("SELECT count(*) FROM runs WHERE ready_at IS NOT NULL") == 2


async def test_another_incarnation_does_not_get_the_attempt(driver: Driver) -> None:
    """Proves: D-05: the same claim id of another process of the host is another claim."""
    await driver.submit((await driver.conversation()).thread_id)
    claim_id = new_id()
    await driver.claim(claim_id=claim_id)
    before = driver.incarnation
    driver.incarnation = new_id()
    await driver.heartbeat()
    assert (await claimed(driver, claim_id=claim_id)).claim is None
    driver.incarnation = before
    assert isinstance(await driver.try_claim(), Gone)


async def test_many_hosts_never_get_the_same_run(driver: Driver) -> None:
    for number in range(3):
        await driver.submit((await driver.conversation()).thread_id, f"{number}")
    for number in range(4):
        await driver.heartbeat(f"h{number}")
    answers = await asyncio.gather(*(claimed(driver, host=f"h{number}") for number in range(4)))
    jobs = [answer.claim.job for answer in answers if answer.claim is not None]
    assert len(set(jobs)) == len(jobs) == 3


async def test_a_full_host_takes_no_other_tree(driver: Driver) -> None:
    """Proves: D-06. Rooms are counted here too: an earlier incarnation's trees are the host's."""
    await driver.heartbeat(capacity=2)
    for _ in range(3):
        await driver.submit((await driver.conversation()).thread_id)
    first = await driver.claim()
    await driver.claim()
    answer = await claimed(driver)
    assert answer == ClaimAnswer(claim=None, more=True)
    driver.incarnation = new_id()
    await driver.heartbeat(capacity=2)
    assert (await claimed(driver)).claim is None
    await driver.finish(first, "failed")
    assert (await claimed(driver)).claim is not None


async def test_two_claims_at_once_do_not_share_the_last_room(driver: Driver) -> None:
    """Proves: D-06."""
    await driver.heartbeat(capacity=1)
    for _ in range(4):
        await driver.submit((await driver.conversation()).thread_id)
    answers = await asyncio.gather(*(claimed(driver) for _ in range(4)))
    assert sum(answer.claim is not None for answer in answers) == 1


async def test_without_rooms_only_runs_of_held_trees_are_given(driver: Driver) -> None:
    """Proves: D-06. A child of a tree that this host holds is given to a full or draining host."""
    thread = (await driver.conversation()).thread_id
    await driver.submit(thread)
    parent = await driver.claim()
    run = await add_child(driver, parent.claim.job)
    await driver.submit((await driver.conversation()).thread_id)
    await driver.heartbeat(state="draining")
    turn = await driver.claim(rooms=0)
    assert turn.claim.job == run
    assert (await claimed(driver, rooms=0)).claim is None
    assert (await claimed(driver, rooms=5)).claim is None
    await driver.prepare(turn)


async def test_an_owners_room_counts_trees(driver: Driver) -> None:
    """Proves: D-01, D-06: what a tree leaves is given to the owner's other conversations, the longest waiting first."""
    await driver.rows("UPDATE users SET tree_room = 1")
    runs = [(await driver.submit((await driver.conversation()).thread_id)).run.id for _ in range(3)]
    assert [await driver.ready(run) for run in runs] == [True, False, False]
    turn = await driver.claim()
    await driver.finish(turn, "failed")
    assert [await driver.ready(run) for run in runs] == [False, True, False]


async def test_a_scopes_provisioner_decides_which_host(driver: Driver) -> None:
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    await driver.submit(thread)
    await driver.heartbeat("elsewhere", provisioner="prov-2")
    assert await claimed(driver, host="elsewhere") == ClaimAnswer(claim=None, more=False)
    assert not (await wait_for_work(driver.s, "elsewhere", wait_s=0)).maybe
    assert (await wait_for_work(driver.s, HOST, wait_s=0)).maybe
    await driver.claim()


async def test_a_claim_needs_a_heartbeat_first(driver: Driver) -> None:
    await driver.submit((await driver.conversation()).thread_id)
    assert isinstance(await driver.try_claim(host="unheard"), Refused)


async def test_claims_are_refused_on_another_database(driver: Driver) -> None:
    """Proves: D-04."""
    await driver.submit((await driver.conversation()).thread_id)
    await driver.rows("UPDATE cluster SET timeline = timeline + 1")
    assert isinstance(await driver.try_claim(), ClaimsRefused)
    await driver.rows("UPDATE cluster SET timeline = timeline - 1, system_identifier = 'another'")
    assert isinstance(await driver.try_claim(), ClaimsRefused)
    assert await driver.value("SELECT count(*) FROM attempts") == 0


async def test_waiting_for_work_ends_when_a_run_becomes_ready(driver: Driver) -> None:
    waiting = asyncio.create_task(wait_for_work(driver.s, HOST, wait_s=25))
    thread = (await driver.conversation()).thread_id
    await driver.submit(thread)
    async with asyncio.timeout(10):
        assert (await waiting).maybe


async def test_a_full_host_is_not_woken_for_what_it_cannot_take(driver: Driver) -> None:
    """Proves: D-06: but it is for a run of a tree that it holds."""
    await driver.heartbeat(capacity=1)
    turn = await driver.up_to("claimed")
    await driver.submit((await driver.conversation()).thread_id)
    assert not (await wait_for_work(driver.s, HOST, wait_s=0)).maybe
    await add_child(driver, turn.claim.job)
    assert (await wait_for_work(driver.s, HOST, wait_s=0)).maybe


async def test_an_agents_own_execution_timeout(driver: Driver) -> None:
    await driver.add_agent("quick", execution_timeout_s=30)
    await driver.submit((await driver.conversation(agent="quick")).thread_id)
    turn = await driver.claim()
    assert turn.claim.execution_timeout_s == 30
    attempt = await driver.attempt(turn)
    assert (attempt["execution_deadline"] - attempt["claimed_at"]).total_seconds() == 30
    assert (attempt["renewable_until"] - attempt["claimed_at"]).total_seconds() == 90
