"""A real sandbox manager, outside of a sandbox: its own process, its own workspace, spoken to over real HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd.manager import Manager, ManagerOptions


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    """One running manager; the test ends with nothing of it left."""
    async with Manager(tmp_path, ManagerOptions()) as running:
        yield running
