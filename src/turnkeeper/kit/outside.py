"""Whether the current task is inside a transaction, for whoever is about to speak to something outside PostgreSQL.

No transaction and no pooled connection is held across a call to anything outside (protocol, section 1). The store says
what is open; a client that starts a call asks. Both know only this module.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_open: ContextVar[str | None] = ContextVar("open_transaction", default=None)


def open_transaction() -> str | None:
    """The name of the transaction or read that this task is inside of; None outside.

    A task that was created inside keeps the name: starting one there is an effect before the commit.
    """
    return _open.get()


@contextlib.contextmanager
def transaction_open(name: str) -> Generator[None]:
    """Within the block this task is inside the transaction `name`."""
    token = _open.set(name)
    try:
        yield
    finally:
        _open.reset(token)
