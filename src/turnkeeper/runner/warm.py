"""Paying for first uses while nobody waits.

The first HTTP call of a process imports what it needs, which takes longer than all calls of a turn together. So a spare child
makes two small calls to each peer before it says that it is ready, and closes the connections again. Whether they
succeed is of no interest.
"""

import contextlib
from typing import Final

from turnkeeper.client.http import CallError, HttpClient, Timeouts
from turnkeeper.runner.settings import ChildSettings

_TIMEOUT_S: Final = 2.0
_CALLS: Final = 2


def warm_up(settings: ChildSettings) -> None:
    """Bounded; leaves no connection and no descriptor behind."""
    for url in (settings.control_url, settings.provisioner_url):
        with contextlib.suppress(CallError, ValueError, OSError):
            _call(url)


def _call(url: str) -> None:
    with HttpClient(url, timeouts=Timeouts(call=_TIMEOUT_S, connect=_TIMEOUT_S, read=_TIMEOUT_S)) as client:
        for _ in range(_CALLS):
            client.request("GET", "/livez")
