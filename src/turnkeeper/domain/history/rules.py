"""What a rule is, and the list of all of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from turnkeeper.domain.history.book import Book


@dataclass(frozen=True)
class Finding:
    """A broken rule: its name, the id of what breaks it, and one line that names every id involved."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


Broken = Iterable[tuple[str, str]]
"""What a rule yields: subject and text of each finding."""


def broken(subject: str, text: str) -> tuple[str, str]:
    """One of them, where the text takes more than a line."""
    return subject, text


Check = Callable[[Book], Broken]


@dataclass(frozen=True)
class Rule:
    """A named rule. `sentence` is its docstring: what must hold, and which requirement says so."""

    name: str
    sentence: str
    check: Check

    def findings(self, book: Book) -> list[Finding]:
        """What breaks it."""
        return [Finding(self.name, subject, text) for subject, text in self.check(book)]


REGISTERED: list[Rule] = []
"""Every rule whose module is imported; the package has them in the order of its modules."""


def rule(check: Check) -> Check:
    """Registers a function as the rule of its name."""
    REGISTERED.append(Rule(check.__name__, " ".join((check.__doc__ or "").split()), check))
    return check
