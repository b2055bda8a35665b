"""Names, paths and identities (F14), tried with what hurts."""

import unicodedata
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper.domain.sandbox import (
    Workdir,
    WorkdirRefused,
    file_name_fault,
    home_path,
    is_agent_name,
    is_sandbox_id,
    is_thread_id,
    is_uid,
    overlaps,
    owner_directory,
    parse_workdir,
    sandbox_id,
)

UUID = "019aa8a0-0000-7000-8000-000000000000"

HURTFUL = [
    "..", ".", "/etc", "a/../../b", "a/..", "../a", "~", "~root", "a/~b", "%2e%2e", "%2E%2e/x", "a%2fb", "a%5Cb", "a%00",
    "a\0b", "\0", "", "/", "//", "a//b", "a/", "/a", "./a", "a/./b", "x" * 300, "x" * 256, "a\nb", "a\rb", "\x1b[31m",
    "a\x7f", "\ud800", "a\udfffb", "a\u2028b", "a\u202eb", " ", "a ", " a", "a/ b", "agents", "agents/homes/x", "é" * 128,
    "/".join(["ab"] * 400),
]  # fmt: skip


@pytest.mark.parametrize("text", HURTFUL)
def test_hurtful_workdirs_are_refused_with_a_reason(text: str) -> None:
    """Case: F14. Proves: K-09 (the name). A refusal says what is wrong, in printable words."""
    answer = parse_workdir(text)
    assert isinstance(answer, WorkdirRefused)
    assert answer.reason.isprintable()


@pytest.mark.parametrize(
    "text",
    ["v2..v3", "src", "src/app", "x;touch y", "$(reboot)", "a b", "-rf", "项目/代码", "...", "a.b", ".hidden", "x" * 255,
     "agents2", "src/agents", "100%", "%41", "été", "Agents", "👩‍💻", "conversations/" + UUID, "*", "a'\"b", "a\\b"],
)  # fmt: skip
def test_legitimate_workdirs(text: str) -> None:
    """Case: F14. `v2..v3` works, and so does what only a shell would trip over."""
    answer = parse_workdir(text)
    assert isinstance(answer, Workdir)
    assert answer.path == str(answer) == text


def test_two_spellings_are_one_directory() -> None:
    """Case: F14. What looks the same is the same: NFC."""
    decomposed = unicodedata.normalize("NFD", "été")
    assert decomposed != "été"
    assert parse_workdir(decomposed) == parse_workdir("été") == Workdir("été")


@given(st.text(max_size=40))
@example("a/../b")
@example("agents/x")
@example("\u212bngstrom")
def test_whatever_is_accepted_is_safe(text: str) -> None:
    """Case: F14. An accepted Workdir stays below its root whatever the text was, and parses to itself again."""
    answer = parse_workdir(text)
    if isinstance(answer, WorkdirRefused):
        return
    path = PurePosixPath("/root") / answer.path
    assert path.parts[:2] == ("/", "root")
    assert path.parts[2:] == answer.parts
    assert ".." not in answer.parts
    assert answer.parts[0] != "agents"
    assert "\0" not in answer.path
    answer.path.encode("utf-8")
    assert parse_workdir(answer.path) == answer


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("src", "src/app", True),
        ("src/app", "src", True),
        ("src", "src", True),
        ("src", "src2", False),
        ("src/app", "src/app2", False),
        ("src/a/b", "src/a", True),
        ("a/b", "b/a", False),
    ],
)
def test_overlaps(a: str, b: str, wanted: bool) -> None:
    """Proves: D-02 (the predicate). By components, not by characters."""
    assert overlaps(Workdir(a), Workdir(b)) is wanted
    assert overlaps(Workdir(b), Workdir(a)) is wanted


def test_sandbox_id_is_of_uid_and_scope_alone() -> None:
    """Proves: K-02. A fixed vector: another value would orphan every sandbox that lives during an upgrade."""
    assert sandbox_id("u", "s") == "tk-f49d08c1c8fec5279e4c7fe8ee77b9f666f1eb76"
    assert is_sandbox_id(sandbox_id(UUID, UUID))
    assert sandbox_id("ab", "c") != sandbox_id("a", "bc")
    assert sandbox_id("a", "") != sandbox_id("", "a")


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_sandbox_ids_differ_where_the_pairs_do(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Proves: K-02. Length-prefixed fields never run together."""
    assert (sandbox_id(*one) == sandbox_id(*other)) == (one == other)


@pytest.mark.parametrize(
    "text", ["", "tk-", "tk-" + "0" * 39, "tk-" + "0" * 41, "tk-" + "G" * 40, "tk-" + "0" * 40 + "\n"]
)
def test_other_texts_are_no_sandbox_ids(text: str) -> None:
    """Case: F14."""
    assert not is_sandbox_id(text)


@pytest.mark.parametrize("check", [is_agent_name, is_uid, is_thread_id])
@pytest.mark.parametrize(
    "text",
    [
        "..",
        ".",
        "",
        "/etc",
        "a/b",
        "~",
        "%2e%2e",
        "a\0",
        "x" * 64,
        "x;touch y",
        "a\n",
        "-a",
        "_a",
        "A",
        "é",
        "a b",
        "\ud800",
    ],
)
def test_hurtful_names(check: Callable[[str], bool], text: str) -> None:
    """Case: F14."""
    assert not check(text)


def test_good_names() -> None:
    """Case: F14. `v2..v3` is a name; an id is one everywhere."""
    assert all(is_agent_name(name) for name in ("v2..v3", "claude-code", "a", "0x", "a_b.c", "x" * 63))
    assert all(is_uid(name) for name in (UUID, "ann", "ann@example.com", "v2..v3"))
    assert is_thread_id(UUID)
    assert owner_directory(UUID) == UUID
    assert owner_directory("../x") is None
    assert home_path(UUID) == f"agents/homes/{UUID}"
    assert home_path("..") is None


@pytest.mark.parametrize("name", ["a/b", "", "..", "~x", "a\0", "x" * 256, " a", "%2e%2e", "a\nb"])
def test_hurtful_file_names(name: str) -> None:
    """Case: F14."""
    assert file_name_fault(name)


def test_good_file_names() -> None:
    """Case: F14."""
    assert file_name_fault("v2..v3") is None
    assert file_name_fault("x;touch y") is None
