"""No transaction and no pooled connection is held across a call to anything outside PostgreSQL."""

import asyncio

import pytest

from turnkeeper.client.failures import ConnectionFailed
from turnkeeper.client.http import AsyncHttpClient, HttpClient
from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.outside import open_transaction, transaction_open
from turnkeeper.store.tx import Database, Reader, Tx

NOBODY = "unix:/nonexistent/nobody.sock"


async def test_a_client_refuses_inside_a_transaction(database: Database) -> None:
    """In a transaction and in a read, by both clients; after the commit the call is made (and finds nobody)."""
    async with AsyncHttpClient(NOBODY) as client:

        async def work(tx: Tx) -> None:
            tx.after_commit(after)
            with (
                HttpClient(NOBODY) as blocking,
                pytest.raises(InvariantViolation, match="inside the transaction outer"),
            ):
                blocking.request("GET", "/x")
            with pytest.raises(InvariantViolation, match="inside the transaction outer"):
                await client.request("GET", "/x")

        async def look(reader: Reader) -> None:
            with pytest.raises(InvariantViolation, match="inside the transaction look"):
                await client.request("GET", "/x")

        async def after() -> None:
            with pytest.raises(ConnectionFailed):
                await client.request("GET", "/x")
            reached.append(True)

        reached: list[bool] = []
        await database.run("outer", work)
        await database.read("look", look)
        assert reached == [True]


async def test_the_mark_belongs_to_the_task() -> None:
    """Two tasks at once do not see each other's; one that is started inside keeps the name."""
    inside, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> str | None:
        with transaction_open("held"):
            inside.set()
            await leave.wait()
            return await asyncio.create_task(child())

    async def child() -> str | None:
        return open_transaction()

    holder = asyncio.create_task(hold())
    await inside.wait()
    assert open_transaction() is None
    leave.set()
    assert await holder == "held"
