"""The rules themselves: each rejects its known-bad histories and no other rule does, and all pass the known-good one."""

import re
from pathlib import Path

import pytest

from history.bad_histories import BAD, SEVERAL, Bad
from history.histories import GOOD
from turnkeeper.domain.history import RULES, check


def test_the_good_history_has_no_finding() -> None:
    """Every kind of fact is in it, so that no rule passes for want of something to look at."""
    assert check(GOOD) == []
    assert all(getattr(GOOD, name) for name in GOOD.__dataclass_fields__)


@pytest.mark.parametrize("bad", BAD, ids=[f"{bad.rule}: {bad.what}" for bad in BAD])
def test_exactly_its_rule_rejects_a_bad_history(bad: Bad) -> None:
    """One line, about the right thing."""
    findings = check(bad.history)
    assert {finding.rule for finding in findings} == {bad.rule}, [str(finding) for finding in findings]
    assert bad.subject in {finding.subject for finding in findings}
    for finding in findings:
        assert "\n" not in str(finding)
        assert finding.subject in finding.text or "prompt" in finding.text


@pytest.mark.parametrize("what", SEVERAL)
def test_several_rules_see_a_history_from_their_own_sides(what: str) -> None:
    """Those, and no other."""
    rules, history = SEVERAL[what]
    findings = check(history)
    assert {finding.rule for finding in findings} == rules, [str(finding) for finding in findings]


def test_every_rule_has_a_bad_history() -> None:
    """A rule that was never seen to reject anything proves nothing."""
    assert {bad.rule for bad in BAD} == set(RULES)


def test_every_rule_says_what_must_hold_and_who_says_so() -> None:
    """One sentence with its requirements."""
    for rule in RULES.values():
        assert re.search(r"\((?:[A-Z]-\d\d|F\d\d)(?:, (?:[A-Z]-\d\d|F\d\d))*\)\.$", rule.sentence), rule
        assert rule.sentence[0].isupper(), rule


def test_the_operators_page_explains_every_rule() -> None:
    """By its name, and none that is not there any more."""
    page = (Path(__file__).parents[2] / "docs" / "operations" / "doctor.md").read_text()
    tables = page.partition("## What the rules say")[2].partition("## Two limits")[0]
    assert set(re.findall(r"`([a-z_]+_[a-z_]+)`", tables)) == set(RULES)


def test_a_rule_can_be_asked_alone() -> None:
    """`only` names it."""
    bad = BAD[0]
    assert check(bad.history, only=(bad.rule,))
    assert check(bad.history, only=set(RULES) - {bad.rule}) == []
