"""The transaction runner."""

from turnkeeper.store.tx import Database, Tx


async def test_returns_ids_as_text(database: Database) -> None:
    """Ids leave PostgreSQL as canonical text."""

    async def work(tx: Tx) -> object:
        return await tx.fetch_value("SELECT '01980000-0000-7000-8000-00000000000a'::uuid")

    assert await database.run("test", work) == "01980000-0000-7000-8000-00000000000a"
