"""One product for all tests that leave it as they found it; those that kill its parts start one of their own."""

from collections.abc import Generator

import pytest
from pluggy import Result

from e2e.harness import Product


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Result[pytest.TestReport]]:
    """With a test that failed goes what its products logged: a machine that ran it keeps nothing else (K-10)."""
    outcome = yield
    report = outcome.get_result()
    if call.excinfo is None or not report.failed:
        return
    funcargs: dict[str, object] = getattr(item, "funcargs", {})
    for name, value in funcargs.items():
        if isinstance(value, Product):
            report.sections.append((f"logs of {name}", value.tell(lines=_LOG_LINES)))


_LOG_LINES = 400


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
