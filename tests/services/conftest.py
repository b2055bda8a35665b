"""A driver on a database of its own, with the signals running."""

from collections.abc import AsyncGenerator

import pytest

from services.driver import Driver
from turnkeeper.store.signals import SignalBus
from turnkeeper.store.tx import Database


@pytest.fixture
async def driver(database: Database, dsn: str) -> AsyncGenerator[Driver]:
    """Services, one owner, one agent, one host."""
    bus = SignalBus(dsn)
    await bus.start()
    try:
        yield await Driver.start(database, bus, dsn)
    finally:
        await bus.stop()
