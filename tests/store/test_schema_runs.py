"""What the database refuses by itself about conversations, runs, messages and events. Each refusal has a twin that passes."""

import pytest
from psycopg import errors

from harness.guards import LIVE, TERMINAL, ended, refused
from harness.postgres import Sessions
from harness.rows import DIGEST, SHA256, Rows
from turnkeeper.kit.ids import new_id


@pytest.fixture
async def rows(sessions: Sessions) -> Rows:
    """Rows on a session that commits each statement by itself."""
    return Rows(await sessions.open(autocommit=True))


# ------------------------------------------------------------------------------------------------------------- T-04 shapes


async def test_the_three_shapes_are_accepted(rows: Rows) -> None:
    """Proves: T-04. Chat, resume and subagent as they should be, in every state that is not final."""
    uid, thread = await rows.chat()
    root = await rows.run(uid, thread, **ended("interrupted"))
    await rows.run(uid, thread, kind="resume", created_by_run_id=root)
    await rows.subagent(uid, thread, thread, root, root, 1)
    for status in LIVE:
        await rows.run(*await rows.chat(), **ended(status))


@pytest.mark.parametrize(
    "wrong",
    ["chat with a creator", "chat with a relation", "chat of another root", "chat with a depth", "resume without a creator",
     "resume with a relation", "resume of another root", "subagent without a creator", "subagent without a relation",
     "subagent as a root", "subagent without depth", "chat in another scope", "resume in another scope"],
)  # fmt: skip
async def test_a_live_run_of_another_shape_is_refused(rows: Rows, wrong: str) -> None:
    """Proves: T-04. In every state that is not final."""
    uid, thread = await rows.chat()
    root = await rows.run(uid, thread, **ended("completed"))
    child = await rows.conversation(uid, parent_thread_id=thread, runtime_scope_id=thread)
    relation = new_id()
    await rows.insert(
        "subagent_relations", id=relation, parent_thread_id=thread, child_thread_id=child, creating_run_id=root
    )
    subagent = {"kind": "subagent", "runtime_scope_id": thread, "root_run_id": root, "depth": 1, "created_by_run_id": root,
                "relation_id": relation}  # fmt: skip
    itself = new_id()
    where, columns = {
        "chat with a creator": (thread, {"created_by_run_id": root}),
        "chat with a relation": (thread, {"relation_id": relation}),
        "chat of another root": (thread, {"root_run_id": root}),
        "chat with a depth": (thread, {"depth": 1}),
        "resume without a creator": (thread, {"kind": "resume"}),
        "resume with a relation": (thread, {"kind": "resume", "created_by_run_id": root, "relation_id": relation}),
        "resume of another root": (thread, {"kind": "resume", "created_by_run_id": root, "root_run_id": root}),
        "subagent without a creator": (child, {**subagent, "created_by_run_id": None}),
        "subagent without a relation": (child, {**subagent, "relation_id": None}),
        "subagent as a root": (child, {**subagent, "id": itself, "root_run_id": itself}),
        "subagent without depth": (child, {**subagent, "depth": 0}),
        "chat in another scope": (child, {"runtime_scope_id": thread}),
        "resume in another scope": (child, {"kind": "resume", "created_by_run_id": root, "runtime_scope_id": thread}),
    }[wrong]
    for status in LIVE:
        await refused(rows, "runs_shape", rows.run(uid, where, **{**ended(status), **columns}))


async def test_a_run_is_tied_to_its_conversation(rows: Rows) -> None:
    """Proves: T-04. Scope and owner of a run are those of its conversation, by composite foreign keys, in every state."""
    uid, thread = await rows.chat()
    other_uid, other_thread = await rows.chat()
    await refused(
        rows,
        "runs_thread_id_runtime_scope_id_fkey",
        rows.run(uid, thread, **{**ended("completed"), "runtime_scope_id": other_thread}),
    )
    for columns in ({}, ended("completed")):
        await refused(rows, "runs_thread_id_uid_fkey", rows.run(other_uid, thread, **columns))


async def test_terminal_history_of_another_shape_stays(rows: Rows) -> None:
    """Proves: T-04. It is neither scanned nor refused, stays readable, and cannot come back to life."""
    uid, thread = await rows.chat()
    root = await rows.run(uid, thread, **ended("completed"))
    odd = await rows.run(uid, thread, **{**ended("completed"), "created_by_run_id": root, "depth": 3})
    await rows.update("runs", odd, runtime_cleanup_pending=True)
    assert await rows.value("SELECT depth FROM runs WHERE id = %s", odd) == 3
    await rows.session.execute("ALTER TABLE runs DISABLE TRIGGER runs_terminal_is_absorbing")
    await refused(rows, "runs_shape", rows.update("runs", odd, status="pending", ended_at=None))


async def test_the_shape_constraint_is_not_validated(rows: Rows) -> None:
    """Proves: T-04. A live row of another shape from before the constraint exists, is read, and passes when it ends."""
    assert await rows.value("SELECT convalidated FROM pg_constraint WHERE conname = 'runs_shape'") is False
    definition = await rows.value("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'runs_shape'")
    await rows.session.execute("ALTER TABLE runs DROP CONSTRAINT runs_shape")
    uid, thread = await rows.chat()
    old = await rows.run(uid, thread, depth=2)
    await rows.session.execute(b"ALTER TABLE runs ADD CONSTRAINT runs_shape " + definition.encode())
    await refused(rows, "runs_shape", rows.update("runs", old, status="running"))
    await rows.update("runs", old, **ended("failed"))


# ------------------------------------------------------------------------------------------------------------ states of runs


@pytest.mark.parametrize("status", TERMINAL)
async def test_terminal_states_are_absorbing(rows: Rows, status: str) -> None:
    """Proves: A-03. No other status, error, end or manifest, whoever writes; the cleanup flag still moves (C-01)."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, **ended(status))
    for other in (*LIVE, *TERMINAL):
        if other != status:
            await refused(rows, "runs_terminal_is_absorbing", rows.update("runs", run, status=other))
    await refused(rows, "runs_terminal_is_absorbing", rows.update("runs", run, error_code="cancelled"))
    await refused(rows, "runs_terminal_is_absorbing", rows.update("runs", run, ended_at="2027-01-01T00:00:00Z"))
    await refused(rows, "runs_terminal_is_absorbing", rows.update("runs", run, manifest="{}", manifest_sha256=SHA256))
    await rows.update("runs", run, runtime_cleanup_pending=True)
    await rows.update("runs", run, runtime_cleanup_pending=False)


async def test_columns_that_go_with_a_status(rows: Rows) -> None:
    """A combination that no code path may write is refused, wherever it comes from."""
    uid, thread = await rows.chat()
    soon = "2026-01-01T00:00:00Z"
    await rows.run(uid, thread, ready_at=soon)
    for guard, columns in (
        ("runs_ready_is_pending", {"status": "running", "ready_at": soon}),
        ("runs_end_is_terminal", {"ended_at": soon}),
        ("runs_end_is_terminal", {"status": "cancelled"}),
        ("runs_cancelled_never_completes", {**ended("completed"), "cancel_requested_at": soon}),
        ("runs_cancel_requested_has_time", {"status": "cancel_requested"}),
        ("runs_failed_has_code", {**ended("failed"), "error_code": None}),
        ("runs_code_needs_failure", {"error_code": "agent_exited"}),
        ("runs_code_needs_failure", {**ended("completed"), "error_code": "agent_exited"}),
        ("runs_manifest_has_sha256", {"manifest": {"a": 1}}),
        ("runs_manifest_sha256_form", {"manifest": {"a": 1}, "manifest_sha256": "x"}),
        ("runs_status_known", {"status": "done"}),
        ("runs_error_code_known", {**ended("failed"), "error_code": "oops"}),
        ("runs_kind_known", {"kind": "batch", **ended("cancelled")}),
    ):
        await refused(rows, guard, rows.run(uid, thread, **columns))
    await rows.run(uid, thread, **ended("cancelled"), cancel_requested_at=soon, error_code="cancelled")
    await rows.run(uid, thread, status="running", manifest={"a": 1}, manifest_sha256=SHA256)


async def test_one_run_of_a_conversation_is_live(rows: Rows) -> None:
    """One line, one head: at most one run of a conversation is in a worker's or in recovery's hands."""
    uid, thread = await rows.chat()
    await rows.run(uid, thread, status="running")
    waiting = await rows.run(uid, thread)
    for status in ("running", "cancel_requested", "recovering"):
        await refused(rows, "runs_one_live_per_thread", rows.update("runs", waiting, **ended(status)))
    await rows.run(*await rows.chat(), status="running")


async def test_one_request_makes_one_run(rows: Rows) -> None:
    """Case: F08. The request id is unique over all owners."""
    uid, thread = await rows.chat()
    request = new_id()
    await rows.run(uid, thread, request_id=request)
    await refused(rows, "runs_request_id_key", rows.run(uid, thread, request_id=request))


# ------------------------------------------------------------------------------------------------------- messages, events


async def _message(rows: Rows, thread: str, run: str, role: str = "assistant", delivery: str | None = None) -> None:
    await rows.insert("messages", id=new_id(), thread_id=thread, run_id=run, role=role, text="x", delivery=delivery)


async def test_a_completed_run_has_its_output(rows: Rows) -> None:
    """Proves: A-04. Checked at the commit, so run and message may be written in either order; of the same run, an assistant's."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    other = await rows.run(uid, thread)
    await _message(rows, thread, run, "owner", "delivered")
    await _message(rows, thread, other)
    await refused(rows, "runs_completed_has_output", rows.update("runs", run, **ended("completed")))
    async with rows.session.transaction():
        await rows.update("runs", run, **ended("completed"))
        await _message(rows, thread, run)
    for status in ("failed", "cancelled", "interrupted"):
        silent = await rows.run(*await rows.chat(), status="running")
        await rows.update("runs", silent, **ended(status))


async def test_messages_belong_to_a_run_of_their_conversation(rows: Rows) -> None:
    """Proves: A-05. One of each role for a run; only an owner's has a delivery status."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread)
    other = await rows.conversation(uid)
    await refused(rows, "messages_run_id_thread_id_fkey", _message(rows, other, run))
    await refused(rows, "messages_delivery_of_owner", _message(rows, thread, run, "owner"))
    await refused(rows, "messages_delivery_of_owner", _message(rows, thread, run, "assistant", "delivered"))
    await refused(rows, "messages_delivery_known", _message(rows, thread, run, "owner", "lost"))
    await _message(rows, thread, run)
    await refused(rows, "messages_one_per_run_and_role", _message(rows, thread, run))


async def test_the_end_is_one_and_the_last(rows: Rows) -> None:
    """Proves: A-03. No second end of a run, no event of the run after it; other runs of the conversation go on."""
    uid, thread = await rows.chat()
    run, other = await rows.run(uid, thread), await rows.run(uid, thread)
    await rows.event(thread, run, 1)
    await rows.event(thread, run, 3, "end")
    await refused(rows, "events_end_is_last", rows.event(thread, run, 4))
    await refused(rows, "events_end_is_last", rows.event(thread, run, 5, "end"))
    await refused(rows, "events_one_end_per_run", rows.event(thread, run, 2, "end"))
    await rows.event(thread, other, 4)
    await refused(rows, "events_pkey", rows.event(thread, other, 4))


async def test_a_stream_number_is_used_once(rows: Rows) -> None:
    """A batch that is sent again stores nothing twice; numbers count within an attempt."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run)
    later = await rows.attempt(await rows.run(*await rows.chat(), status="running"))
    await rows.event(thread, run, 1, attempt_id=attempt, stream_no=1)
    await refused(rows, "events_stream_no", rows.event(thread, run, 2, attempt_id=attempt, stream_no=1))
    await refused(rows, "events_stream_no_has_attempt", rows.event(thread, run, 2, stream_no=2))
    await rows.event(thread, run, 2, attempt_id=later, stream_no=1)
    await rows.event(thread, run, 3)
    await rows.event(thread, run, 4)


# ------------------------------------------------------------------------------------------------------------------- holds


async def _hold(rows: Rows, uid: str, scope: str, workdir: str, **columns: object) -> str:
    hold = new_id()
    await rows.insert("workdir_holds", id=hold, uid=uid, workdir=workdir, runtime_scope_id=scope, **columns)
    return hold


async def test_a_workdir_has_one_holder(rows: Rows) -> None:
    """Proves: D-02. One scope for a Workdir of an owner and one Workdir for a scope; an ended hold counts no more."""
    uid = await rows.user()
    first, second, third = [await rows.conversation(uid) for _ in range(3)]
    hold = await _hold(rows, uid, first, "src")
    await refused(rows, "workdir_holds_one_holder", _hold(rows, uid, second, "src"))
    await refused(rows, "workdir_holds_one_per_scope", _hold(rows, uid, first, "docs"))
    await _hold(rows, uid, second, "docs")
    stranger, elsewhere = await rows.chat()
    await _hold(rows, stranger, elsewhere, "src")
    await refused(rows, "workdir_holds_end_has_why", rows.update("workdir_holds", hold, ended_why="closed"))
    await rows.update("workdir_holds", hold, ended_at="2026-01-01T00:00:00Z", ended_why="closed")
    await _hold(rows, uid, third, "src")


async def test_a_hold_is_of_the_owner_of_its_scope(rows: Rows) -> None:
    """A scope of somebody else's is refused."""
    uid, _ = await rows.chat()
    _, elsewhere = await rows.chat()
    await refused(rows, "workdir_holds_runtime_scope_id_uid_fkey", _hold(rows, uid, elsewhere, "src"))


async def test_shapes_of_conversations(rows: Rows) -> None:
    """A root conversation is its own scope; a subagent's has a parent and another scope than itself."""
    uid, thread = await rows.chat()
    await rows.conversation(uid, parent_thread_id=thread, runtime_scope_id=thread)
    for columns in (
        {"runtime_scope_id": thread},
        {"parent_thread_id": thread, "kind": "chat"},
        {"parent_thread_id": None, "kind": "subagent", "runtime_scope_id": thread},
        {"parent_thread_id": thread},
    ):
        await refused(rows, "conversations_kind_shape", rows.conversation(uid, **columns))
    _, of_another = await rows.chat()
    for scope in (new_id(), of_another):
        below = rows.conversation(uid, parent_thread_id=thread, runtime_scope_id=scope)
        await refused(rows, "conversations_runtime_scope_id_uid_fkey", below)
    await refused(rows, "conversations_workdir_length", rows.conversation(uid, workdir=""))
    await refused(rows, "conversations_state_known", rows.conversation(uid, state="busy"))


@pytest.mark.parametrize("table", ["api_keys", "host_tokens"])
async def test_only_hashes_of_secrets_are_stored(rows: Rows, table: str) -> None:
    """A token that is no SHA-256 is refused, and no two are equal."""
    uid = await rows.user()

    async def insert(hashed: bytes) -> None:
        if table == "api_keys":
            await rows.insert("api_keys", id=new_id(), uid=uid, name="k", shown_prefix="tk_", key_hash=hashed)
        else:
            await rows.insert("host_tokens", id=new_id(), host="h", token_hash=hashed)

    column = "key_hash" if table == "api_keys" else "token_hash"
    await refused(rows, f"{table}_{column}_size", insert(b"tk_plain"))
    await insert(DIGEST)
    await refused(rows, f"{table}_{column}_key", insert(DIGEST))


async def test_references_are_kept(rows: Rows) -> None:
    """A run of an agent, a conversation or a creator that does not exist is refused; a root by the commit."""
    uid, thread = await rows.chat()
    for name, columns in (
        ("runs_agent_fkey", {"agent": "nobody"}),
        ("runs_created_by_run_id_fkey", {"created_by_run_id": new_id(), **ended("cancelled")}),
        ("runs_root_run_id_fkey", {"root_run_id": new_id(), **ended("cancelled")}),
    ):
        await refused(rows, name, rows.run(uid, thread, **columns))
    with pytest.raises(errors.ForeignKeyViolation):
        await rows.session.execute("DELETE FROM users WHERE uid = %s", (uid,))
