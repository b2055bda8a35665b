"""The product's promises, held against what is recorded: pure checkers over histories (style guide, tests/history).

    findings = check(History(now=..., runs=..., attempts=..., ...))
    findings = check_succession(before, after)

Each rule is a function of its own with one sentence that cites its requirement; `RULES` lists them. They are used by the
tests of crashes, where a ledger and observed processes are held against the record too, and by `turnkeeper doctor`, which
reads a live database. A true history has no finding, whenever it is read: every rule holds after each commit.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from turnkeeper.domain.history import attempts, places, prompts, records, settlements, waiting, writers
from turnkeeper.domain.history.book import Book
from turnkeeper.domain.history.facts import History
from turnkeeper.domain.history.rules import REGISTERED, Finding, Rule
from turnkeeper.domain.history.succession import SUCCESSION, check_succession

__all__ = ["RULES", "SUCCESSION", "Finding", "History", "Rule", "check", "check_succession"]

_MODULES = (prompts, writers, settlements, attempts, records, places, waiting)

RULES: Mapping[str, Rule] = MappingProxyType(
    {one.name: one for module in _MODULES for one in REGISTERED if one.check.__module__ == module.__name__}
)
"""Every rule by its name: the worst to break first."""


def check(history: History, *, only: Collection[str] | None = None) -> list[Finding]:
    """What breaks the rules, rule by rule; `only` names those to be asked. Empty for a true history."""
    book = Book(history)
    chosen = [one for name, one in RULES.items() if only is None or name in only]
    return [finding for one in chosen for finding in one.findings(book)]
