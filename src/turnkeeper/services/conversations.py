"""Conversations: create, read, close. Other people's ids are not found."""

from turnkeeper.domain.errors import ErrorCode, ProblemCode
from turnkeeper.domain.said import Said
from turnkeeper.domain.sandbox import Workdir, WorkdirRefused, overlaps, parse_workdir
from turnkeeper.kit.ids import is_id, new_id
from turnkeeper.kit.text import clean, cut
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import lock_line, recompute
from turnkeeper.services.ending import begin_closing
from turnkeeper.services.idempotency import IdempotencyKey, once
from turnkeeper.services.losing import end_waiting, raise_fence
from turnkeeper.services.tree import stop_run
from turnkeeper.services.views import conversation_of
from turnkeeper.store import agents, holds
from turnkeeper.store import conversations as statements
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.conversations import ConversationView
from turnkeeper.store.locks import lock_open_attempts, lock_scope_runs
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Reader, Tx
from turnkeeper.wire.public import Conversation, NewConversation

TITLE_BYTES_MAX = 1000
NO_CONVERSATION = NotFound("conversation")
_SHOWN = 80


async def create(
    s: Services, owner: Owner, request: NewConversation, idem: IdempotencyKey | None = None
) -> Conversation | Invalid | Conflict | Mismatch:
    """A chat with its Workdir hold. `Conflict` workdir_held names holder and state (D-02)."""
    workdir = None if request.workdir is None else parse_workdir(request.workdir)
    if isinstance(workdir, WorkdirRefused):
        shown = clean(request.workdir or "")
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
        return Invalid(ProblemCode.INVALID_WORKDIR, "workdir", f"the Workdir {shown!r} {workdir.reason}")

    async def work(tx: Tx) -> Conversation | Invalid | Conflict | Mismatch:
        return await once(tx, owner.uid, idem, Conversation, lambda: _create(tx, owner, request, workdir))

    return await s.db.run("conversation.create", work)


async def _create(
    tx: Tx, owner: Owner, request: NewConversation, workdir: Workdir | None
) -> Conversation | Invalid | Conflict:
    thread_id = new_id()
    await lock_line(tx, thread_id, owner.uid)
    agent = await agents.get_agent(tx, clean(request.agent))
    if agent is None or agent.removed_at is not None:
        return Invalid(
            ProblemCode.UNKNOWN_AGENT,
            "agent",
            Said(
                f"there is no agent {clean(request.agent)!r}; see the list of agents",
                f"没有名为 {clean(request.agent)!r} 的智能体，请查看智能体列表",
            ),
        )
    place = workdir or Workdir(f"conversations/{thread_id}")
    held = await _held(tx, owner.uid, place)
    if held is not None:
        return held
    await statements.insert_conversation(
        tx,
        thread_id=thread_id,
        uid=owner.uid,
        agent=agent.name,
        workdir=place.path,
        title=cut(request.title, TITLE_BYTES_MAX)[0],
        runtime_policy=agent.runtime_policy,
    )
    await holds.insert_hold(tx, hold_id=new_id(), uid=owner.uid, workdir=place.path, runtime_scope_id=thread_id)
    view = await statements.get_view(tx, owner.uid, thread_id)
    assert view is not None  # noqa: S101 - inserted above
    return conversation_of(view, owner.tongue)


async def _held(tx: Tx, uid: str, place: Workdir) -> Conflict | None:
    """The overlap check, under the owner's row lock."""
    for hold in await holds.live_holds(tx, uid):
        other = parse_workdir(hold.workdir)
        if isinstance(other, WorkdirRefused) or overlaps(place, other):
            return Conflict(
                ProblemCode.WORKDIR_HELD,
                Said(
                    f"the Workdir {place.path!r} overlaps {hold.workdir!r}, which conversation {hold.runtime_scope_id} "
                    f"({hold.state}) holds; choose another one, or close that conversation",
                    f"工作目录 {place.path!r} 与对话 {hold.runtime_scope_id}（{hold.state}）占用的 {hold.workdir!r} 重叠，"
                    "请另选一个，或关闭那个对话",
                ),
                {"holder": hold.runtime_scope_id, "state": hold.state, "workdir": hold.workdir},
            )
    return None


async def get(s: Services, owner: Owner, thread_id: str) -> Conversation | NotFound:
    """One conversation of this owner."""
    view = await _view(s, owner, thread_id)
    return NO_CONVERSATION if view is None else conversation_of(view, owner.tongue)


async def _view(s: Services, owner: Owner, thread_id: str) -> ConversationView | None:
    if not is_id(thread_id):
        return None
    return await s.db.read("conversation.get", lambda r: statements.get_view(r, owner.uid, thread_id))


async def list_(
    s: Services, owner: Owner, *, limit: int, before: str | None = None
) -> tuple[list[Conversation], str | None]:
    """A page, newest first, and where the next one begins (None: this is the last)."""

    async def look(reader: Reader) -> list[ConversationView]:
        return await statements.list_views(reader, owner.uid, before=before, limit=limit + 1)

    views = await s.db.read("conversation.list", look)
    page = views[:limit]
    return [conversation_of(view, owner.tongue) for view in page], page[-1].thread_id if len(views) > limit else None


async def close(s: Services, owner: Owner, thread_id: str) -> Conversation | NotFound:
    """Close a conversation for good (protocol 3).

    Waiting runs end, live ones are asked to stop, and the cleanup fence goes up; the Workdir is given back when the
    delete of its sandbox is confirmed. Closing again changes nothing.
    """
    if not is_id(thread_id):
        return NO_CONVERSATION
    scope = await s.db.read("conversation.scope", lambda r: statements.scope_of(r, owner.uid, thread_id))
    if scope is None:
        return NO_CONVERSATION

    async def work(tx: Tx) -> Conversation | NotFound:
        closing = await begin_closing(tx, s, scope, owner.uid)
        scope_runs = await lock_scope_runs(tx, scope, RunRow)
        attempts = await lock_open_attempts(tx, sorted(run.id for run in scope_runs), AttemptRow)
        if await statements.close_scope(tx, scope):
            await raise_fence(tx, closing, scope)
            await end_waiting(tx, s, closing, [run for run in scope_runs if run.status == "pending"])
            for run in scope_runs:
                if run.status != "pending":
                    attempt = next((one for one in attempts if one.run_id == run.id), None)
                    await stop_run(tx, s, closing, run, attempt, ErrorCode.CANCELLED)
            if closing.flagged_run_id is None:
                # A scope without a single run never had a sandbox, which counts as confirmed.
                await holds.end_hold(tx, scope, "closed without a sandbox")
            await recompute(tx, s, scope, closing.owner, others_are_asked=closing.gives_out)
            await closing.outbox.flush(tx)
        view = await statements.get_view(tx, owner.uid, thread_id)
        return NO_CONVERSATION if view is None else conversation_of(view, owner.tongue)

    return await s.db.run("conversation.close", work)
