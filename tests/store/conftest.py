"""Directories for embedded servers."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.postgres import embedded_at, end_processes_in, private_directory


@pytest.fixture
def directory() -> Generator[Path]:
    """An empty directory for a server; whatever still works in it at the end is killed."""
    with private_directory() as made:
        try:
            yield made
        finally:
            end_processes_in(made)


@pytest.fixture(scope="session", name="template")
def _template() -> Generator[Path]:
    """A data directory to copy: making one takes longer than most of these tests."""
    with private_directory() as made:
        server = embedded_at(made)
        server.start_blocking()
        server.stop_blocking()
        yield made / "postgres"


@pytest.fixture
def ready(directory: Path, template: Path) -> Path:
    """A directory with the data of a server that was stopped cleanly."""
    shutil.copytree(template, directory / "postgres", symlinks=True)
    return directory
