"""A message of an owner becomes a waiting run: message, run, events, `ready_at` and wake-up in one transaction."""

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.run import DeliveryStatus, RunStatus
from turnkeeper.domain.said import Said
from turnkeeper.kit.ids import is_id, new_id
from turnkeeper.kit.text import clean
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.conversations import NO_CONVERSATION
from turnkeeper.services.dispatch import lock_line, recompute
from turnkeeper.services.idempotency import IdempotencyKey, once
from turnkeeper.services.publish import Outbox
from turnkeeper.services.views import message_of, new_run_of
from turnkeeper.store import conversations, messages, runs
from turnkeeper.store.tx import Tx
from turnkeeper.wire.public import NewMessage, Submitted

TITLE_CHARS_MAX = 80
SubmitResult = Submitted | NotFound | Invalid | Conflict | Mismatch


async def submit(
    s: Services, owner: Owner, thread_id: str, request: NewMessage, idem: IdempotencyKey | None = None
) -> SubmitResult:
    """The message and its run. `Conflict`: the conversation is closed or lost, or its queue is full."""
    text = clean(request.text)
    refused = _fault(s, text)
    if refused is not None:
        return refused
    if not is_id(thread_id):
        return NO_CONVERSATION
    # Owner and scope of a conversation never change, so they may be read before the locks.
    scope = await s.db.read("submit.scope", lambda r: conversations.scope_of(r, owner.uid, thread_id))
    if scope is None:
        return NO_CONVERSATION

    async def work(tx: Tx) -> SubmitResult:
        return await once(tx, owner.uid, idem, Submitted, lambda: _submit(tx, s, owner, thread_id, scope, text))

    return await s.db.run("submit", work)


def _fault(s: Services, text: str) -> Invalid | None:
    if not text.strip():
        said = Said("the message is empty; write at least one character", "消息为空，请至少输入一个字符")
        return Invalid(ProblemCode.EMPTY_PROMPT, "text", said)
    size = len(text.encode("utf-8"))
    if size > s.limits.prompt_bytes_max:
        return Invalid(
            ProblemCode.PROMPT_TOO_LARGE,
            "text",
            Said(
                f"the message has {size} bytes; at most {s.limits.prompt_bytes_max} are allowed",
                f"消息有 {size} 字节，最多允许 {s.limits.prompt_bytes_max} 字节",
            ),
            {"size_bytes": size, "size_bytes_max": s.limits.prompt_bytes_max},
        )
    return None


def _title_of(text: str) -> str:
    """What a conversation is called by its first message, where nobody has called it anything."""
    line = " ".join(next((line for line in text.splitlines() if line.strip()), "").split())
    return line if len(line) <= TITLE_CHARS_MAX else line[: TITLE_CHARS_MAX - 1] + "…"


async def _submit(tx: Tx, s: Services, owner: Owner, thread_id: str, scope: str, text: str) -> SubmitResult:
    locked = await lock_line(tx, scope, owner.uid)
    conversation = await conversations.get_conversation(tx, thread_id)
    if conversation is None or conversation.kind != "chat":
        return NO_CONVERSATION
    if conversation.state != "open":
        code = ProblemCode.CONVERSATION_LOST if conversation.state == "lost" else ProblemCode.CONVERSATION_CLOSED
        state = "已无法继续使用" if conversation.state == "lost" else "已关闭"
        said = Said(
            f"conversation {thread_id} is {conversation.state}; start a new one",
            f"对话 {thread_id} {state}，请开始新的对话",
        )
        return Conflict(code, said)
    if await runs.waiting_count(tx, thread_id) >= s.limits.queue_max:
        return Conflict(
            ProblemCode.QUEUE_FULL,
            Said(
                f"{s.limits.queue_max} messages wait in this conversation already, which is the limit",
                f"该对话中已有 {s.limits.queue_max} 条消息在等待，达到上限",
            ),
        )
    run = await runs.insert_chat(
        tx,
        run_id=new_id(),
        thread_id=thread_id,
        uid=owner.uid,
        agent=conversation.agent,
        request_id=new_id(),
        prompt=text,
    )
    message = await messages.insert_message(
        tx,
        message_id=new_id(),
        thread_id=thread_id,
        run_id=run.id,
        role="owner",
        text=text,
        delivery=DeliveryStatus.QUEUED,
    )
    await conversations.touch_conversation(tx, thread_id, title=_title_of(text))
    is_ready = run.id in (await recompute(tx, s, scope, locked)).ready
    outbox = Outbox(s.limits.event_bytes_max)
    outbox.message(thread_id, run.id, message_id=message.id, role=message.role, text=message.text)
    outbox.run(thread_id, run.id, RunStatus.PENDING.value, ready=is_ready)
    await outbox.flush(tx)
    return Submitted(message=message_of(message), run=new_run_of(run, ready=is_ready))
