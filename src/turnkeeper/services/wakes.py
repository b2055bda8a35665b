"""Signals of the control plane to its own loops. Hints, as all signals: the loops look by themselves too."""

from typing import Final

from turnkeeper.store.signals import Signal, run_signal

CLEANUP: Final[Signal] = run_signal("cleanup")
"""A cleanup fence was raised."""
VERDICTS: Final[Signal] = run_signal("verdicts")
"""A membership was quarantined."""
