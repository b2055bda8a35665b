"""Messages as their owner reads them."""

from turnkeeper.kit.ids import is_id
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.conversations import NO_CONVERSATION
from turnkeeper.services.views import message_of
from turnkeeper.store import conversations
from turnkeeper.store import messages as statements
from turnkeeper.store.messages import MessageRow
from turnkeeper.store.tx import Reader
from turnkeeper.wire.public import Message


async def list_messages(
    s: Services, owner: Owner, thread_id: str, *, limit: int, after: str | None = None
) -> tuple[list[Message], str | None] | NotFound:
    """A page, oldest first, and where the next one begins (None: this is the last)."""
    if not is_id(thread_id):
        return NO_CONVERSATION

    async def look(reader: Reader) -> list[MessageRow] | NotFound:
        if await conversations.scope_of(reader, owner.uid, thread_id) is None:
            return NO_CONVERSATION
        return await statements.list_messages(reader, thread_id, after=after, limit=limit + 1)

    rows = await s.db.read("messages.list", look)
    if isinstance(rows, NotFound):
        return rows
    page = rows[:limit]
    return [message_of(row) for row in page], page[-1].id if len(rows) > limit else None
