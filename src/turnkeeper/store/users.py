"""Owners and administrators."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class UserRow:
    """A row of `users`."""

    uid: str
    name: str
    role: str
    language: str
    created_at: datetime


async def insert_user(tx: Tx, *, uid: str, name: str, role: str, language: str) -> UserRow | None:
    """None: somebody has that name."""
    return await tx.fetch_one(
        "INSERT INTO users (uid, name, role, language) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (name) DO NOTHING RETURNING uid, name, role, language, created_at",
        (uid, name, role, language),
        as_=UserRow,
    )


async def get_user(reader: Reader, uid: str) -> UserRow | None:
    """The user of that id."""
    return await reader.fetch_one(
        "SELECT uid, name, role, language, created_at FROM users WHERE uid = %s", (uid,), as_=UserRow
    )


async def user_by_name(reader: Reader, name: str) -> UserRow | None:
    """The user of that name."""
    return await reader.fetch_one(
        "SELECT uid, name, role, language, created_at FROM users WHERE name = %s", (name,), as_=UserRow
    )


async def language_of_run(reader: Reader, run_id: str) -> str:
    """The language of a run's owner."""
    return await reader.fetch_value(
        "SELECT u.language FROM runs r JOIN users u ON u.uid = r.uid WHERE r.id = %s", (run_id,)
    )


async def list_users(reader: Reader) -> list[UserRow]:
    """All of them, by name."""
    return await reader.fetch_all("SELECT uid, name, role, language, created_at FROM users ORDER BY name", as_=UserRow)


async def set_language(tx: Tx, uid: str, language: str) -> int:
    """Rows touched."""
    return await tx.execute("UPDATE users SET language = %s WHERE uid = %s", (language, uid))
