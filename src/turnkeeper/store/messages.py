"""Messages of owners and assistants. An owner's message carries its delivery status, which follows its run (A-05)."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class MessageRow:
    """A row of `messages`."""

    id: str
    thread_id: str
    run_id: str
    role: str
    text: str
    delivery: str | None
    created_at: datetime


async def insert_message(
    tx: Tx, *, message_id: str, thread_id: str, run_id: str, role: str, text: str, delivery: str | None
) -> MessageRow:
    """Add a message; a second one of the same run and role breaks the schema's rule."""
    row = await tx.fetch_one(
        "INSERT INTO messages (id, thread_id, run_id, role, text, delivery) VALUES (%s, %s, %s, %s, %s, %s) "
        "RETURNING id, thread_id, run_id, role, text, delivery, created_at",
        (message_id, thread_id, run_id, role, text, delivery),
        as_=MessageRow,
    )
    assert row is not None  # noqa: S101 - an insert returns its row
    return row


async def set_delivery(tx: Tx, run_id: str, delivery: str) -> int:
    """Move the delivery status of a run's message, in the transaction that moves the run."""
    return await tx.execute(
        "UPDATE messages SET delivery = %s WHERE run_id = %s AND role = 'owner'",
        (delivery, run_id),
    )


async def list_messages(reader: Reader, thread_id: str, *, after: str | None, limit: int) -> list[MessageRow]:
    """A conversation's messages, oldest first, from the one after `after` on."""
    return await reader.fetch_all(
        "SELECT id, thread_id, run_id, role, text, delivery, created_at FROM messages "
        "WHERE thread_id = %s AND (%s::uuid IS NULL OR id > %s::uuid) ORDER BY id LIMIT %s",
        (thread_id, after, after, limit),
        as_=MessageRow,
    )


async def message_of_run(reader: Reader, run_id: str, role: str) -> MessageRow | None:
    """The message of that role which belongs to a run."""
    return await reader.fetch_one(
        "SELECT id, thread_id, run_id, role, text, delivery, created_at FROM messages WHERE run_id = %s AND role = %s",
        (run_id, role),
        as_=MessageRow,
    )
