"""What all state machines share: a table of (state, event) -> state, and the answer for everything that is not in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True)
class Refused(Generic[S, E]):
    """`event` is not possible in `state`. An answer, not an error: two parties may have wanted to move the same thing."""

    state: S
    event: E

    @property
    def reason(self) -> str:
        """One line for logs and problems."""
        return f"{self.event.value} is not possible in state {self.state.value}"


def step(table: Mapping[tuple[S, E], S], state: S, event: E) -> S | Refused[S, E]:
    """The next state by `table`, or `Refused`."""
    following = table.get((state, event))
    return Refused(state, event) if following is None else following
