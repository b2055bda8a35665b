"""Answers that were given under an idempotency key (F08).

A transaction first *takes* its key: an insert, which waits for whoever holds the same key, while nothing else is
locked. With the commit the key and what was created under it appear together.
"""

from dataclasses import dataclass
from typing import Any

from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class StoredAnswer:
    """What the first request with this key was and got."""

    body_digest: bytes
    status: int
    answer: Any


async def take_key(tx: Tx, *, uid: str, route: str, key: str, body_digest: bytes) -> int:
    """One: the key is this transaction's. Zero: it was used before."""
    return await tx.execute(
        "INSERT INTO idempotency_keys (uid, route, key, body_digest, status, answer) VALUES (%s, %s, %s, %s, 0, 'null') "
        "ON CONFLICT (uid, route, key) DO NOTHING",
        (uid, route, key, body_digest),
    )


async def get_answer(reader: Reader, *, uid: str, route: str, key: str) -> StoredAnswer | None:
    """The stored answer of a key."""
    return await reader.fetch_one(
        "SELECT body_digest, status, answer FROM idempotency_keys WHERE uid = %s AND route = %s AND key = %s",
        (uid, route, key),
        as_=StoredAnswer,
    )


async def store_answer(tx: Tx, *, uid: str, route: str, key: str, status: int, answer: object) -> int:
    """Complete a key that this transaction took."""
    return await tx.execute(
        "UPDATE idempotency_keys SET status = %s, answer = %s WHERE uid = %s AND route = %s AND key = %s AND status = 0",
        (status, jsonb(answer), uid, route, key),
    )


async def drop_key(tx: Tx, *, uid: str, route: str, key: str) -> int:
    """Give back a key that this transaction took: nothing was created under it."""
    return await tx.execute(
        "DELETE FROM idempotency_keys WHERE uid = %s AND route = %s AND key = %s AND status = 0", (uid, route, key)
    )


async def delete_old(tx: Tx, *, age_s: float, limit: int) -> int:
    """Forget answers that are older than `age_s`."""
    return await tx.execute(
        "DELETE FROM idempotency_keys WHERE (uid, route, key) IN (SELECT uid, route, key FROM idempotency_keys "
        "WHERE created_at < tk_now() - make_interval(secs => %s) ORDER BY created_at LIMIT %s)",
        (age_s, limit),
    )
