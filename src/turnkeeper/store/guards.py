"""What every write of a worker names: attempt, lease generation and source state of the run, and a lease that is still valid.

The fragments are parts of statements, so that no caller can forget them. They decide only together with the attempt's row
lock: the lock is taken by an earlier statement, so the time that is tested here is one after the wait (L-11).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

from turnkeeper.store.tx import Reader

_HELD: Final[LiteralString] = (
    "EXISTS (SELECT 1 FROM attempts ga JOIN runs gr ON gr.id = ga.run_id WHERE ga.id = %(attempt)s "
    "AND gr.id = %(run)s AND ga.lease_generation = %(generation)s AND ga.ended_at IS NULL "
    "AND ga.lease_expires_at > tk_now() AND gr.status "
)
HELD: Final[LiteralString] = _HELD + "IN ('running', 'cancel_requested'))"
"""The lease is held, whether or not the run was asked to stop."""
HELD_RUNNING: Final[LiteralString] = _HELD + "= 'running')"
"""The lease is held and the run may go on."""


@dataclass(frozen=True)
class Lease:
    """What a worker names with every write."""

    attempt_id: str
    run_id: str
    generation: int

    def params(self, **more: object) -> Mapping[str, object]:
        """The parameters of the fragments, and further ones."""
        return {"attempt": self.attempt_id, "run": self.run_id, "generation": self.generation, **more}


async def is_held(reader: Reader, lease: Lease) -> bool:
    """Whether the lease is held now. Only worth anything under the attempt's row lock."""
    return await reader.fetch_value(f"SELECT {HELD}", lease.params())
