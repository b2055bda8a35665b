"""Owners, keys, browser sessions, agents, hosts, readiness and numbers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from harness.postgres import DatabaseClock, Sessions
from services.driver import HOST, Driver, wanted
from turnkeeper.domain.agent import AgentDefinition, parse_definition
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.services import agents, auth, bootstrap, host_tokens, hosts, keys, metrics, readiness, sessions, users
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound
from turnkeeper.services.auth import NoSuchJob, OtherJob, UnknownToken, Worker
from turnkeeper.services.context import Lacks
from turnkeeper.services.idempotency import request_key
from turnkeeper.store.attempts import TokenOwner
from turnkeeper.wire.public import Agent, CreatedHostToken, CreatedKey, HostToken, Key, Me, MePatch, NewKey, NewUser

NEVER_USED = new_secret("tk_")


async def test_a_key_opens_until_it_is_revoked(driver: Driver) -> None:
    made = wanted(await keys.create_key(driver.s, driver.owner.uid, NewKey(name="laptop")), CreatedKey)
    found = await auth.owner_of_key(driver.s, made.key)
    assert found is not None
    assert found.uid == driver.owner.uid
    assert made.key.startswith(made.shown_prefix)
    assert await driver.value("SELECT count(*) FROM api_keys WHERE key_hash = %s", digest(made.key)) == 1
    assert made.key not in str(await driver.rows("SELECT * FROM api_keys, idempotency_keys"))
    shown = [key.name for key in await keys.list_keys(driver.s, driver.owner)]
    assert shown == ["first key", "laptop"]
    other = await driver.new_owner("other")
    assert isinstance(await keys.revoke_key(driver.s, other, made.id), NotFound)
    revoked = wanted(await keys.revoke_key(driver.s, driver.owner, made.id), Key)
    assert await keys.revoke_key(driver.s, driver.owner, made.id) == revoked
    assert await auth.owner_of_key(driver.s, made.key) is None
    assert await auth.owner_of_key(driver.s, NEVER_USED) is None


async def test_a_key_is_shown_once(driver: Driver) -> None:
    """Case: F08, for a secret: it is stored nowhere, so a repeated request cannot get it again."""
    idem = request_key("POST /v1/keys", "k", {"name": "a"})
    made = wanted(await keys.create_key(driver.s, driver.owner.uid, NewKey(name="a"), idem), CreatedKey)
    again = await keys.create_key(driver.s, driver.owner.uid, NewKey(name="a"), idem)
    assert "shown only once" in wanted(again, Conflict).detail
    assert made.key not in str(await driver.rows("SELECT * FROM idempotency_keys"))
    other = await keys.create_key(
        driver.s, driver.owner.uid, NewKey(name="b"), request_key("POST /v1/keys", "k", {"name": "b"})
    )
    assert isinstance(other, Mismatch)
    assert await driver.value("SELECT count(*) FROM api_keys WHERE name IN ('a', 'b')") == 1


async def test_tokens_of_workers(driver: Driver) -> None:
    turn, other = await driver.up_to("claimed"), await driver.up_to("claimed")
    token = turn.claim.worker_token
    assert await auth.worker_of_token(driver.s, token, turn.claim.job) == Worker(
        turn.claim.attempt, turn.claim.job, HOST
    )
    assert isinstance(await auth.worker_of_token(driver.s, token, other.claim.job), OtherJob)
    assert isinstance(await auth.worker_of_token(driver.s, token, new_id()), NoSuchJob)
    assert isinstance(await auth.worker_of_token(driver.s, token, "../x\x00"), NoSuchJob)
    assert isinstance(await auth.worker_of_token(driver.s, "tkw_unknown", turn.claim.job), UnknownToken)


async def test_a_workers_token_is_looked_up_once_it_is_fixed(driver: Driver) -> None:
    """Proves: D-05: a token that the same claim replaced is unknown at once. After the acceptance nothing replaces it."""
    turn = await driver.up_to("claimed")
    job, first = turn.claim.job, turn.claim.worker_token
    for _ in range(2):
        assert isinstance(await auth.worker_of_token(driver.s, first, job), Worker)
    assert driver.s.accepted_tokens == {}  # it may still be replaced
    await driver.rows("UPDATE attempts SET token_hash = %s WHERE id = %s", digest("tkw_fresh"), turn.claim.attempt)
    assert isinstance(await auth.worker_of_token(driver.s, first, job), UnknownToken)
    await driver.prepare(turn)
    assert isinstance(await auth.worker_of_token(driver.s, "tkw_fresh", job), Worker)
    assert set(driver.s.accepted_tokens) == {digest("tkw_fresh")}
    other = await driver.up_to("claimed")
    assert isinstance(await auth.worker_of_token(driver.s, "tkw_fresh", other.claim.job), OtherJob)
    assert isinstance(await auth.worker_of_token(driver.s, "tkw_fresh", new_id()), NoSuchJob)


async def test_tokens_of_accepted_attempts_are_remembered_within_bounds(driver: Driver) -> None:
    known = driver.s.accepted_tokens
    known.update({n.to_bytes(4, "big"): TokenOwner("a", "r", "h", accepted=True) for n in range(auth.REMEMBERED_MAX)})
    turn = await driver.up_to("prepared")
    assert isinstance(await auth.worker_of_token(driver.s, turn.claim.worker_token, turn.claim.job), Worker)
    assert len(known) == auth.REMEMBERED_MAX
    assert digest(turn.claim.worker_token) in known
    assert bytes(4) not in known  # the oldest has gone


async def test_tokens_of_hosts(driver: Driver) -> None:
    uid = driver.owner.uid
    made = wanted(await host_tokens.create_token(driver.s, uid, "h2"), CreatedHostToken)
    second = wanted(await host_tokens.create_token(driver.s, uid, "h2"), CreatedHostToken)
    token = made.token
    assert await auth.host_of_token(driver.s, token) == await auth.host_of_token(driver.s, second.token) == "h2"
    assert token not in str(await driver.rows("SELECT * FROM host_tokens, idempotency_keys"))
    assert isinstance(await host_tokens.revoke_token(driver.s, uid, "h3", second.id), NotFound)
    assert isinstance(await host_tokens.revoke_token(driver.s, uid, "h2", "x"), NotFound)
    revoked = wanted(await host_tokens.revoke_token(driver.s, uid, "h2", second.id), HostToken)
    assert await host_tokens.revoke_token(driver.s, uid, "h2", second.id) == revoked
    assert await auth.host_of_token(driver.s, second.token) is None
    assert await auth.host_of_token(driver.s, token) == "h2"
    listed = await host_tokens.list_tokens(driver.s, "h2")
    assert isinstance(listed, list)
    assert [one.revoked_at is None for one in listed] == [True, False]
    for _ in range(2):
        left = await host_tokens.revoke_tokens(driver.s, uid, "h2")
        assert isinstance(left, list)
        assert all(one.revoked_at for one in left)
    assert isinstance(await host_tokens.revoke_tokens(driver.s, uid, "h9"), NotFound)
    assert await auth.host_of_token(driver.s, token) is None
    assert await host_tokens.list_tokens(driver.s, "h9") == []
    for name in ("", "../x", "a b", "x" * 64, "a\0b", "h2\n", "\ud800"):
        for answer in (
            await host_tokens.create_token(driver.s, uid, name),
            await host_tokens.list_tokens(driver.s, name),
            await host_tokens.revoke_tokens(driver.s, uid, name),
            await host_tokens.revoke_token(driver.s, uid, name, second.id),
        ):
            assert wanted(answer, Invalid).field == "name"
    idem = request_key("POST /v1/admin/hosts/{name}/tokens", "k", {"name": "h4"})
    wanted(await host_tokens.create_token(driver.s, uid, "h4", idem), CreatedHostToken)
    again = wanted(await host_tokens.create_token(driver.s, uid, "h4", idem), Conflict)
    assert "shown only once" in again.detail
    tokens = await host_tokens.list_tokens(driver.s, "h4")
    assert isinstance(tokens, list)
    assert len(tokens) == 1
    await bootstrap.ensure_host_token(driver.s.db, "h3", token + "x")
    await bootstrap.ensure_host_token(driver.s.db, "h3", token + "x")
    assert await auth.host_of_token(driver.s, token + "x") == "h3"


async def test_a_link_opens_one_session_once(driver: Driver, database_clock: DatabaseClock) -> None:
    link = await bootstrap.new_login_link(driver.s.db, driver.owner.uid)
    opened = await asyncio.gather(*(sessions.open_link(driver.s, link) for _ in range(4)))
    secrets = [secret for secret in opened if secret is not None]
    assert len(secrets) == 1
    owner = await sessions.owner_of_session(driver.s, secrets[0])
    assert owner is not None
    assert owner.uid == driver.owner.uid
    assert await sessions.owner_of_session(driver.s, link) is None
    await sessions.end_session(driver.s, secrets[0])
    assert await sessions.owner_of_session(driver.s, secrets[0]) is None
    late = await bootstrap.new_login_link(driver.s.db, driver.owner.uid)
    database_clock.offset(25 * 3600)
    assert await sessions.open_link(driver.s, late) is None


async def test_a_revoked_key_leaves_nothing_open_that_it_made(driver: Driver) -> None:
    """Whoever held a stolen key may have made links and sessions with it: they end with it, another owner's do not."""
    made = wanted(await keys.create_key(driver.s, driver.owner.uid, NewKey(name="lost")), CreatedKey)
    other = await driver.new_owner("other")
    kept = await sessions.open_link(driver.s, await bootstrap.new_login_link(driver.s.db, other.uid))
    opened = await sessions.open_link(driver.s, await bootstrap.new_login_link(driver.s.db, driver.owner.uid))
    unused = await bootstrap.new_login_link(driver.s.db, driver.owner.uid)
    assert opened is not None
    assert kept is not None
    wanted(await keys.revoke_key(driver.s, driver.owner, made.id), Key)
    assert await sessions.owner_of_session(driver.s, opened) is None
    assert await sessions.open_link(driver.s, unused) is None
    assert await sessions.owner_of_session(driver.s, kept) is not None


async def test_bootstrap_again_changes_nothing(driver: Driver) -> None:
    key = new_secret("tk_")
    first = await bootstrap.ensure_owner(driver.s.db, "boss", key)
    assert await bootstrap.ensure_owner(driver.s.db, "boss", key) == first
    assert await driver.value("SELECT count(*) FROM api_keys WHERE uid = %s", first) == 1
    owner = await auth.owner_of_key(driver.s, key)
    assert owner is not None
    assert owner.role == "admin"
    await bootstrap.publish_signing_key(driver.s.db, driver.s.signer)
    await bootstrap.publish_signing_key(driver.s.db, driver.s.signer)
    assert await driver.value("SELECT count(*) FROM signing_keys") == 1


async def test_users_and_their_language(driver: Driver) -> None:
    made = wanted(await users.create_user(driver.s, driver.owner, NewUser(name="lin", language="zh")), Me)
    assert isinstance(await users.create_user(driver.s, driver.owner, NewUser(name="lin")), Conflict)
    for name in ("", "../x", "a b", "x" * 64, "a\x00"):
        assert wanted(await users.create_user(driver.s, driver.owner, NewUser(name=name)), Invalid).field == "name"
    assert made in await users.list_users(driver.s)
    assert (await users.set_language(driver.s, driver.owner, MePatch(language="zh"))).language == "zh"
    assert (await users.me(driver.s, driver.owner)).language == "zh"


async def test_agents(driver: Driver) -> None:
    definition = {"name": "helper", "command": ["helper"], "install_hint": "pip install helper", "env": {"A": "b"}}
    made = wanted(await agents.put_agent(driver.s, "helper", definition), Agent)
    assert (made.available, made.network, made.runtime_policy) == (True, "none", "retained")
    assert made.definition is not None
    assert isinstance(await agents.put_agent(driver.s, "other", definition), Invalid)
    complaints = wanted(await agents.put_agent(driver.s, "x", {"name": "x", "colour": "red"}), Invalid)
    assert len(complaints.extra["complaints"]) >= 2
    assert [agent.name for agent in await agents.list_agents(driver.s)] == ["helper", "scripted"]
    assert isinstance(await agents.get_agent(driver.s, driver.owner, "nobody\x00"), NotFound)
    wanted(await agents.remove_agent(driver.s, "helper"), Agent)
    assert isinstance(await agents.get_agent(driver.s, driver.owner, "helper"), NotFound)
    assert isinstance(await agents.remove_agent(driver.s, "helper"), NotFound)
    ready_made = AgentDefinition(name="helper", title="H", command=("helper",))
    assert not await agents.put_if_new(driver.s.db, ready_made)
    assert await agents.put_if_new(driver.s.db, AgentDefinition(name="fresh", title="F", command=("fresh",)))
    newer = AgentDefinition(name="fresh", title="Newer", command=("fresh", "--new"))
    assert not await agents.put_if_new(driver.s.db, newer)
    assert wanted(await agents.get_agent(driver.s, driver.owner, "fresh"), Agent).title == "Newer"
    wanted(await agents.put_agent(driver.s, "fresh", {"name": "fresh", "title": "Mine", "command": ["mine"]}), Agent)
    assert not await agents.put_if_new(driver.s.db, newer)
    assert wanted(await agents.get_agent(driver.s, driver.owner, "fresh"), Agent).title == "Mine"


async def test_a_definition_that_was_reset_follows_the_next_release(driver: Driver) -> None:
    """What equals a release's definition goes on with the next; what somebody wrote stays, also if it once was a release's."""
    texts = [{"name": "made", "title": f"Release {n}", "command": ["made"]} for n in (1, 2, 3)]
    first, second, third = (wanted(parse_definition(text), AgentDefinition) for text in texts)
    mine = {"name": "made", "title": "Mine", "command": ["mine"]}

    async def title_with(release: AgentDefinition) -> str:
        driver.s = replace(driver.s, ready_made={"made": agents.digest_of(release)})
        await agents.put_if_new(driver.s.db, release)
        return wanted(await agents.get_agent(driver.s, driver.owner, "made"), Agent).title

    assert await title_with(first) == "Release 1"
    wanted(await agents.put_agent(driver.s, "made", mine), Agent)
    assert await title_with(second) == "Mine"
    wanted(await agents.put_agent(driver.s, "made", texts[1]), Agent)  # as `agents reset` does
    assert await title_with(third) == "Release 3"
    wanted(await agents.put_agent(driver.s, "made", mine), Agent)
    assert await title_with(second) == "Mine"
    assert (
        await title_with(wanted(parse_definition(mine), AgentDefinition)) == "Mine"
    )  # a release ships what somebody had written: from now on it is the release's
    assert await title_with(third) == "Release 3"


async def test_an_agent_whose_command_is_missing_says_how_to_install_it(driver: Driver) -> None:
    class Missing:
        async def missing(self, command: object, programs: object, secrets: Sequence[str]) -> Lacks:  # noqa: ARG002
            return Lacks(program=gone, secrets="no value for secret 'KEY'" if secrets else None)

    gone: str | None = "the command helper is not there"
    definition: dict[str, object] = {"name": "helper", "command": ["helper"], "install_hint": "pip install helper"}
    s = replace(driver.s, commands=Missing())
    made = wanted(await agents.put_agent(s, "helper", definition), Agent)
    assert (made.available, made.unavailable, made.install) == (
        False,
        "the command helper is not there",
        "pip install helper",
    )
    gone = None
    secret = wanted(await agents.put_agent(s, "helper", {**definition, "secrets": ["KEY"]}), Agent)
    assert (secret.available, secret.unavailable, secret.install) == (False, "no value for secret 'KEY'", None)
    assert wanted(await agents.put_agent(s, "helper", definition), Agent).available


async def test_servers(driver: Driver) -> None:
    """Proves: H-06: the launch error is shown beside the host."""
    await driver.up_to("claimed")
    await driver.heartbeat(state="backing_off", launch_error="no\x00 memory")
    (server,) = await hosts.list_servers(driver.s)
    assert (server.state, server.launch_error, server.live_trees) == ("backing_off", "no\ufffd memory", 1)


async def test_readiness(driver: Driver, database_clock: DatabaseClock, sessions: Sessions) -> None:
    sent = await driver.submit((await driver.conversation()).thread_id)
    assert (await readiness.readiness(driver.s)).ready
    assert await driver.ready(sent.run.id)
    database_clock.offset(61)
    assert (await readiness.readiness(driver.s)).ready, "no host is expected"
    await host_tokens.create_token(driver.s, driver.owner.uid, HOST)
    assert (await readiness.readiness(driver.s)).problems == ("no host was heard yet",)
    long_since = replace(driver.s, started_s=driver.s.clock.monotonic() - 61)
    assert (await readiness.readiness(long_since)).problems == ("no host was heard within 60 s",)
    await driver.heartbeat()
    assert (await readiness.readiness(driver.s)).ready
    holder = await sessions.open()
    await holder.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
    assert not (await readiness.readiness(driver.s)).ready
    await holder.rollback()
    await driver.rows("UPDATE cluster SET timeline = timeline + 1")
    assert "claims are refused" in (await readiness.readiness(driver.s)).problems[0]


async def test_numbers(driver: Driver) -> None:
    assert (await metrics.read_metrics(driver.s)).runs == {"ready": 0}
    await driver.up_to("claimed")
    await driver.submit((await driver.conversation()).thread_id)
    numbers = await metrics.read_metrics(driver.s)
    assert numbers.runs == {"running": 1, "pending": 1, "ready": 1}
    assert (numbers.open_attempts, numbers.hosts) == (1, {"ready": 1})
    assert numbers.oldest_ready_s >= 0
