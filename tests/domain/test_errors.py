"""Codes are closed lists, and every one has its words in every language."""

import re

import pytest

from turnkeeper.domain.errors import (
    ErrorCode,
    Language,
    OperationalError,
    ProblemCode,
    SettingRefused,
    lost_sentence,
    problem_title,
    sentence,
)

# architecture.md, section 3
CLOSED_LIST = """worker_lease_expired lease_feed_lost execution_timeout preparation_failed invalid_runtime_scope
manifest_persist_failed sandbox_unavailable sandbox_out_of_memory agent_start_failed agent_exited agent_protocol_error
session_unavailable admission_refused outcome_unknown settlement_failed execution_tree_closed cancelled no_output"""

INFRASTRUCTURE = re.compile(
    r"\blease|sandbox|container|pod|worker|host\b|database|postgres|http|fence|activation|manifest|token|journal|process|"
    r"socket|receipt|租约|沙箱|容器|数据库|令牌|进程",
    re.IGNORECASE,
)


def test_error_codes_are_the_closed_list() -> None:
    """Architecture, section 3."""
    assert sorted(code.value for code in ErrorCode) == sorted(CLOSED_LIST.split())


@pytest.mark.parametrize("code", list(ErrorCode))
def test_sentences_are_plain_words(code: ErrorCode) -> None:
    """Proves: R-06 (the words). One sentence in each language, without infrastructure; Chinese is Chinese."""
    english, chinese = sentence(code, Language.EN), sentence(code, Language.ZH)
    assert english.endswith(".")
    assert "\n" not in english
    assert chinese.endswith("。")
    assert re.search(r"[一-鿿]", chinese)
    assert not re.search(r"[A-Za-z]", chinese)
    assert not INFRASTRUCTURE.search(english)
    assert not INFRASTRUCTURE.search(chinese)


def test_sentences_are_told_apart() -> None:
    """Two codes never read the same (E-06: the kinds of ends are kept apart)."""
    for language in Language:
        assert len({sentence(code, language) for code in ErrorCode}) == len(ErrorCode)


def test_lost_says_what_the_owner_needs() -> None:
    """Proves: R-06. The reply was interrupted, and the conversation can no longer be used; in plain words."""
    assert "interrupted" in lost_sentence(Language.EN)
    assert "no longer be used" in lost_sentence(Language.EN)
    assert "中断" in lost_sentence(Language.ZH)
    assert "无法继续使用" in lost_sentence(Language.ZH)
    assert not INFRASTRUCTURE.search(lost_sentence(Language.EN))


@pytest.mark.parametrize("code", list(ProblemCode))
def test_problem_titles(code: ProblemCode) -> None:
    """Every problem has a title in both languages, and a stable code."""
    assert problem_title(code, Language.EN)
    assert re.search(r"[一-鿿]", problem_title(code, Language.ZH))
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)


def test_exceptions_carry_their_code() -> None:
    """Operational errors are one small tree with stable codes and `retryable`."""
    error = OperationalError(ErrorCode.SANDBOX_UNAVAILABLE, "no answer", retryable=True)
    assert (error.code, error.retryable, str(error)) == (ErrorCode.SANDBOX_UNAVAILABLE, True, "no answer")
    assert SettingRefused("a", "b").lines == ("a", "b")
