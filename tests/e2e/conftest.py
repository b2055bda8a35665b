"""One product for all tests that leave it as they found it; those that kill its parts start one of their own."""

from collections.abc import Generator

import pytest

from e2e.harness import Product


@pytest.fixture(scope="session", name="product")
def _product() -> Generator[Product]:
    """Started by the first test that asks for it."""
    with Product() as running:
        yield running


@pytest.fixture(autouse=True)
def _conversations_end(request: pytest.FixtureRequest) -> Generator[None]:
    """A retained sandbox lives until its conversation is closed: those of a test end with it."""
    running: Product | None = request.getfixturevalue("product") if "product" in request.fixturenames else None
    yield
    if running is not None:
        running.close_conversations()
