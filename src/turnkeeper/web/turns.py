"""What a conversation's page shows: its turns, each with prompt, reply, state and changes."""

import asyncio
from dataclasses import dataclass, field

from turnkeeper.services import conversations, messages, runs
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.openings import open_conversation
from turnkeeper.web.tools import ToolCall, calls_of
from turnkeeper.wire.public import Conversation, Run, RunDetail, RunSnapshot

_READS_AT_ONCE = 3
_MESSAGES_PER_TURN = 3


@dataclass(frozen=True)
class Turn:
    """One run as the page shows it. `output` is the agent's text as it wrote it."""

    run: Run
    prompt: str
    delivery: str | None
    output: str | None
    snapshot: RunSnapshot | None
    tools: list[ToolCall] = field(default_factory=list[ToolCall])

    @property
    def reached(self) -> str | None:
        """Whether the prompt reached the agent: what the run's own record says of it, and else the message's status."""
        said = str((self.run.error_detail or {}).get("delivered"))
        return {"no": "not_delivered", "yes": "delivered", "unknown": "unknown"}.get(said, self.delivery)


@dataclass(frozen=True)
class ConversationPage:
    """`after`: the event number that the live stream goes on from. `seq`: all events up to it are in what is shown.
    `earlier`: from where the page before goes back."""

    conversation: Conversation
    turns: list[Turn]
    after: int
    seq: int
    earlier: str | None


async def read_page(
    s: Services, owner: Owner, thread_id: str, *, before: str | None, limit: int
) -> ConversationPage | NotFound:
    """The newest turns (or those before `before`), oldest first."""
    # The number is read first: whatever happens after it is told again by the stream.
    opening = await open_conversation(s, owner, thread_id)
    if isinstance(opening, NotFound):
        return opening
    conversation = await conversations.get(s, owner, thread_id)
    found = await runs.list_runs(s, owner, limit=limit, thread_id=thread_id, before=before)
    if isinstance(conversation, NotFound):
        return conversation
    if isinstance(found, NotFound):
        return found
    shown, earlier = list(reversed(found[0])), found[1]
    return ConversationPage(
        conversation, await _turns(s, owner, thread_id, shown), opening.first, opening.last_seq, earlier
    )


async def _turns(s: Services, owner: Owner, thread_id: str, shown: list[Run]) -> list[Turn]:
    if not shown:
        return []
    delivery: dict[str, str | None] = {}
    # A message's id is drawn after its run's, and ids grow: all messages of these runs follow the first run's id.
    listed = await messages.list_messages(
        s, owner, thread_id, limit=len(shown) * _MESSAGES_PER_TURN, after=min(run.id for run in shown)
    )
    if not isinstance(listed, NotFound):
        delivery = {message.run_id: message.delivery for message in listed[0] if message.role == "owner"}
    room = asyncio.Semaphore(_READS_AT_ONCE)

    async def one(run: Run) -> Turn:
        async with room:
            detail = await runs.get_run(s, owner, run.id)
        if isinstance(detail, NotFound):
            return Turn(run, "", None, None, None)
        return await turn_of(s, detail, delivery.get(run.id))

    return list(await asyncio.gather(*(one(run) for run in shown)))


async def turn_of(s: Services, detail: RunDetail, delivery: str | None) -> Turn:
    """A run with everything about it, as a turn. One that has not ended tells its tool calls by its stream."""
    tools = calls_of(await runs.tool_events(s, detail.id)) if detail.ended_at is not None else []
    return Turn(detail, detail.prompt, delivery, detail.output, detail.snapshot, tools)
