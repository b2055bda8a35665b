"""Parts by themselves: journal, tokens, permissions, start-up message."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sandboxd.manager import KEY, PUBLIC_PEM, Manager, ManagerOptions, sign
from turnkeeper.domain.admission import Journal
from turnkeeper.kit import files
from turnkeeper.sandboxd.boot import EXIT_BROKEN
from turnkeeper.sandboxd.journal import JournalWriteError, SessionJournal, parse
from turnkeeper.sandboxd.permissions import ToolCall, decide
from turnkeeper.sandboxd.tokens import BadToken, TokenVerifier, Verified
from turnkeeper.wire.sandbox import PermissionRule
from turnkeeper.wire.sandbox_start import SandboxLimits, SandboxStart, SandboxStartError

A = "01a229f0-3ac8-75a2-8fdd-aa711bd8a1d3"


@pytest.fixture
def journal(tmp_path: Path) -> SessionJournal:
    """A journal below a workspace."""
    return SessionJournal(str(tmp_path), str(tmp_path / "agents/homes/t"))


def test_journal_round_trip(journal: SessionJournal) -> None:
    """Proves: R-07. What was written is read, session ids of any text included."""
    assert journal.read() is None
    session = 'ses "x"\n世界 \\'
    journal.begun(1, A, session)
    assert journal.read() == Journal(session, 1, 0)
    journal.settled(1, A, session)
    assert journal.read() == Journal(session, 1, 1)
    journal.begun(2, A, session)
    journal.withdrawn(2, A, session)
    assert journal.read() == Journal(session, 1, 1)
    journal.begun(2, A, "other")
    journal.withdrawn(2, A, "other")
    assert journal.read() == Journal(session, 1, 1)


def test_journal_stays_small(journal: SessionJournal, tmp_path: Path) -> None:
    """Proves: R-07. A long conversation never outgrows its journal."""
    for turn in range(1, 80):
        journal.begun(turn, A, "s" * 7000)
        journal.settled(turn, A, "s" * 7000)
    assert journal.read() == Journal("s" * 7000, 79, 79)
    assert (tmp_path / "agents/homes/t/.turnkeeper/journal").stat().st_size < 600 * 1024


@pytest.mark.parametrize("path", ["/etc", "agents/../..", "a//b", "a/./b", "a/../../b", "~/x/..", "a\0b"])
def test_journal_outside_of_the_workspace(tmp_path: Path, path: str) -> None:
    """Case: F14. A HOME that is no path below the workspace is refused before anything is opened."""
    home = path if path.startswith("/") else f"{tmp_path}/{path}"
    with pytest.raises(files.UnsafePathError):
        SessionJournal(str(tmp_path), home)


def test_journal_through_a_link(journal: SessionJournal, tmp_path: Path) -> None:
    """Case: F14. A component that is a link leads nowhere, for reading and for writing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/homes").symlink_to(outside)
    assert journal.read() is None
    with pytest.raises(JournalWriteError):
        journal.begun(1, A, "s")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "begun 1\n",
        f'begun 0 {A} "s"\n',
        f"begun 1 {A} s\n",
        f'BEGUN 1 {A} "s"\n',
        f'begun -1 {A} "s"\n\n',
        f'begun 1 {A} "\\"\n',
    ],
)
def test_journal_of_another_form_is_none(text: str) -> None:
    """Proves: R-07. A torn line alone says nothing was begun; any other form says nothing at all."""
    assert parse(text.encode()) == (Journal("", 0, 0) if text == "x" else None)


def test_tokens() -> None:
    """Proves: D-03. Signature, key id, audience and every claim are checked; expiry is told apart."""
    verifier = TokenVerifier({"k1": PUBLIC_PEM})
    claims: dict[str, Any] = {
        "aud": "turnkeeper-sandbox",
        "sub": A,
        "attempt": A,
        "lease_generation": 1,
        "membership": A,
        "activation": A,
        "fence": 3,
        "generation": "g",
        "boot_id": "b",
        "exp": int(time.time()) + 60,
    }
    good = verifier.verify(sign(claims))
    assert isinstance(good, Verified)
    assert (good.claims.fence, good.claims.purpose, good.expired) == (3, "turn", False)
    old = verifier.verify(sign({**claims, "exp": 1}))
    assert isinstance(old, Verified)
    assert old.expired
    for name in claims:
        missing = {key: value for key, value in claims.items() if key != name}
        assert isinstance(verifier.verify(sign(missing)), BadToken), name
    bad = [
        sign({**claims, "aud": "turnkeeper-provisioner"}),
        sign({**claims, "fence": "x"}),
        sign({**claims, "purpose": "other"}),
        sign(claims, key=Ed25519PrivateKey.generate()),
        sign(claims, kid="k2"),
        sign({**claims, "exp": 1}, key=Ed25519PrivateKey.generate()),
        jwt.encode(claims, "k" * 64, algorithm="HS256", headers={"kid": "k1"}),
        jwt.encode(claims, "", algorithm="none", headers={"kid": "k1"}),
        jwt.encode(claims, KEY, algorithm="EdDSA"),
        "",
        "a.b.c",
        "x" * 10_000,
    ]
    for token in bad:
        assert isinstance(verifier.verify(token), BadToken), token[:80]
    with pytest.raises(ValueError, match="PEM"):
        TokenVerifier({"k1": "nonsense"})


OPTIONS = [
    {"optionId": "allow", "name": "No", "kind": "reject_once"},
    {"optionId": "x1", "name": "Always", "kind": "allow_always"},
    {"optionId": "x2", "name": "Once", "kind": "allow_once"},
]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], "allow"),
        ([PermissionRule(kind="edit", action="allow")], "x2"),
        ([PermissionRule(kind="read", action="allow")], "allow"),
        ([PermissionRule(kind="*", action="allow"), PermissionRule(kind="edit", action="reject")], "x2"),
        ([PermissionRule(kind="edit", action="reject"), PermissionRule(kind="*", action="allow")], "allow"),
    ],
)
def test_permission_is_chosen_by_kind(rules: list[PermissionRule], expected: str) -> None:
    """Proves: K-08. The first rule that fits; the narrowest option of the kind; ids mean nothing; default reject."""
    params = {"toolCall": {"toolCallId": "c1"}, "options": OPTIONS}
    decision = decide(params, ToolCall("c1", "Write a file", "edit"), rules, cancelled=False)
    assert decision.response["outcome"] == {"outcome": "selected", "optionId": expected}
    assert (decision.event["title"], decision.event["kind"]) == ("Write a file", "edit")


@pytest.mark.parametrize(
    "options", [[], "nonsense", [{"optionId": 5, "kind": "reject_once"}], [{"kind": "allow_once"}]]
)
def test_permission_without_a_fitting_option(options: object) -> None:
    """Proves: K-08. Where the agent offers nothing that fits, it is told `cancelled`."""
    decision = decide({"toolCall": None, "options": options}, None, [], cancelled=False)
    assert decision.response == {"outcome": {"outcome": "cancelled"}}


def test_start_message() -> None:
    """Proves: K-11. It survives its round trip, and its secret is in no repr."""
    start = SandboxStart("tks_" + "x" * 40, "g", {"k": "pem"}, limits=SandboxLimits(frame_bytes_max=5))
    assert SandboxStart.from_json(start.to_json()) == start
    assert "tks_" not in repr(start)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"secret": "short"}, "secret"),
        ({"secret": None}, "secret"),
        ({"generation": ""}, "generation"),
        ({"public_keys": []}, "public_keys"),
        ({"public_keys": {"k": 1}}, "public_keys.k"),
        ({"workspace": "relative"}, "workspace"),
        ({"workspace": "/a/../b"}, "workspace"),
        ({"limits": {"frame_bytes_max": 0}}, "frame_bytes_max"),
        ({"limits": {"frame_bytes_max": 1.5}}, "frame_bytes_max"),
        ({"limits": {"frame_bytes_max": True}}, "frame_bytes_max"),
        ({"limits": {"unknown": 1}}, "unknown"),
        ({"log_level": "loud"}, "log_level"),
        ({"other": 1}, "other"),
    ],
)
def test_start_message_that_is_none(change: dict[str, Any], name: str) -> None:
    """Proves: K-11. A refusal names the field and never its value."""
    raw = json.loads(SandboxStart("tks_" + "x" * 40, "g", {"k": "pem"}).to_json())
    with pytest.raises(SandboxStartError, match=name):
        SandboxStart.from_json(json.dumps({**raw, **change}).encode())


def test_wrong_key_is_refused_with_one_line(tmp_path: Path) -> None:
    """Proves: K-08. A start that cannot work ends with one line, without a traceback."""
    pem = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    manager = Manager(tmp_path, ManagerOptions(public_pem=pem))
    manager.workdir.mkdir(parents=True)
    manager.spawn()
    assert manager.process is not None
    assert manager.process.wait(20) == EXIT_BROKEN
    manager.end()
    manager.folder.cleanup()
    (line,) = manager.log_path.read_text().splitlines()
    assert line.startswith("sandboxd: cannot start: ")
