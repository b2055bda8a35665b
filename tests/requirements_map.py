"""Writes the tests and the status of every requirement into docs/requirements.md: `python tests/requirements_map.py [--check]`.

The page is its own source of the requirements' words: only the last two columns are made here. A test names what it proves
in its docstring (`Proves: L-07, L-08`). A requirement is *passed* where it is claimed below and named by tests, which CI
runs on every commit; named by a test and not claimed, it is proved in part only, and says *not run*.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"

# Proved whole by the suite. Add a line here only with the tests that would fail without it.
CLAIMED = (
    "L-01 to L-13, E-01 to E-06, F-01 to F-07, R-01 to R-03, R-05 to R-07, H-01 to H-06, A-01 to A-05, D-01 to D-03, D-05, D-08, "
    "K-01 to K-03, K-05, K-08 to K-11"
)
# Proved for a part that the page says in words.
PARTLY = {
    "R-02": "the verdict is from the database alone, without the proof of R-04",
    "D-04": "the refusal to start is proved; the fail-over is not",
    "K-01": "local backend",
    "K-02": "local backend",
    "K-03": "local backend",
    "K-05": "local backend",
    "K-08": "local backend",
    "K-09": "local backend",
    "K-10": "local backend",
    "K-11": "local backend",
}

# About a page of ours: read, and held against what the product prints.
INSPECTED = {"E-07": "docs/operations/lease-loss.md"}

ROW = re.compile(r"^\| ([A-Z]-\d\d) \| (.*?) \| [^|]* \| [^|]* \|$")
PROVES = re.compile(r"Proves: ([^\n]*(?:\n\s+[A-Z]-\d\d[^\n]*)*)")
NUMBER = re.compile(r"\b([A-Z])-(\d\d)(?:(?: to |–|\.\.)\1-(\d\d))?")


def proofs() -> dict[str, list[str]]:
    """Requirement to the tests that name it, as `path::test`."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text())
        nodes = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        for node in nodes:
            for number in named(ast.get_docstring(node) or ""):
                found[number].append(f"{file.relative_to(ROOT)}::{node.name}")
        for number in named(ast.get_docstring(tree) or ""):
            found[number].append(str(file.relative_to(ROOT)))
    return found


def named(docstring: str) -> list[str]:
    """The numbers of a docstring's `Proves:` lines; `A-01 to A-05` names all between."""
    return [number for line in PROVES.findall(docstring) for number in numbers(line)]


def numbers(text: str) -> list[str]:
    """The numbers that a text names."""
    found = NUMBER.findall(text)
    return [f"{group}-{n:02}" for group, first, last in found for n in range(int(first), int(last or first) + 1)]


def rewritten(page: str, found: dict[str, list[str]]) -> str:
    """The page with fresh last columns."""
    lines: list[str] = []
    for line in page.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        number, words = row.groups()
        tests = sorted(set(found.get(number, [])))
        shown = "<br>".join(f"`{one}`" for one in tests[:4]) + (
            f"<br>and {len(tests) - 4} more" if len(tests) > 4 else ""
        )
        lines.append(f"| {number} | {words} | {shown or '—'} | {status(number, tests)} |")
    return "\n".join(lines) + "\n"


def status(number: str, tests: list[str]) -> str:
    """*passed*, *inspected* or *not run*, with what is left out."""
    if number in INSPECTED:
        return f"inspected (`{INSPECTED[number]}`)"
    if number in PARTLY and tests:
        return f"passed ({PARTLY[number]})" if number in numbers(CLAIMED) else f"not run as a whole ({PARTLY[number]})"
    if number in numbers(CLAIMED) and tests:
        return "passed"
    return "not run as a whole" if tests else "not run"


def main() -> None:
    """Write the page, or with `--check` fail when it is not current or a claim has no test."""
    found = proofs()
    page = PAGE.read_text()
    fresh = rewritten(page, found)
    unproved = sorted(set(numbers(CLAIMED)) - set(found))
    if "--check" in sys.argv:
        if unproved:
            sys.exit(f"claimed as proved, and no test names them: {', '.join(unproved)}")
        if fresh != page:
            sys.exit("docs/requirements.md is not current: run `make docs`")
        return
    PAGE.write_text(fresh)


if __name__ == "__main__":
    main()
