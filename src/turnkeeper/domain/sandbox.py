"""Names and identities of sandboxes: the stable id, Workdirs, names that become directories, and answers to a lookup.

Whatever comes in as a name, id or path is checked here before it is used, rows that somebody edited by SQL included
(F14). Refusals are values with one reason each; nothing is adjusted but the Unicode form of a Workdir (NFC), so that two
spellings that look the same are the same directory.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SANDBOX_ID_PREFIX: Final = "tk-"
COMPONENT_BYTES_MAX: Final = 255
WORKDIR_BYTES_MAX: Final = 1024
RESERVED_COMPONENT: Final = "agents"
"""The first component that belongs to the product: homes of native sessions live there (K-09)."""

AGENT_NAME_RULE = (
    "an agent's name is 1 to 63 lower-case letters, digits, '.', '_' or '-', beginning with a letter or digit"
)
_AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_UID = re.compile(r"[a-z0-9][a-z0-9._@-]{0,62}")
_SANDBOX_ID = re.compile(r"tk-[0-9a-f]{40}")
_THREAD_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ENCODED = re.compile(r"%(?:2e|2f|5c|00)", re.IGNORECASE)
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def sandbox_id(uid: str, scope: str) -> str:
    """The stable id of the sandbox of one owner and runtime scope, from these two alone (K-02).

    `tk-` and 40 hex digits of the SHA-256 over both, each preceded by its length in 8 bytes, so that no two pairs run
    together to the same bytes. Also a valid host name, container name and pod label.
    """
    hashed = hashlib.sha256()
    for field in (uid, scope):
        data = field.encode("utf-8")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return SANDBOX_ID_PREFIX + hashed.hexdigest()[:40]


def is_sandbox_id(text: str) -> bool:
    """Whether `text` has exactly the form of `sandbox_id`."""
    return _SANDBOX_ID.fullmatch(text) is not None


@dataclass(frozen=True, order=True)
class Workdir:
    """A relative directory of the owner workspace. Made by `parse_workdir` only; `path` is in NFC."""

    path: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The components."""
        return tuple(self.path.split("/"))

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class WorkdirRefused:
    """Not a Workdir. `reason` completes the sentence "the Workdir …"."""

    reason: str


def parse_workdir(text: str) -> Workdir | WorkdirRefused:
    """A Workdir, or the reason why `text` is none.

    Percent-encoding is never decoded here: that happens once, at the edge, and a second time would be the hole. A name
    that still holds an encoded dot, slash, backslash or NUL is refused all the same, because nobody wants that directory
    and some layer in front may decode it after all. `v2..v3` and `x;touch y` are names like any other: no shell sees them.
    """
    if not text:
        return WorkdirRefused("is empty; give a relative path such as 'project'")
    text = unicodedata.normalize("NFC", text)
    if text.startswith("/"):
        return WorkdirRefused("is absolute; give a path relative to the workspace")
    if (fault := _fault_of_characters(text)) is not None:
        return WorkdirRefused(fault)
    if len(text.encode("utf-8")) > WORKDIR_BYTES_MAX:
        return WorkdirRefused(f"is longer than {WORKDIR_BYTES_MAX} bytes")
    parts = text.split("/")
    for part in parts:
        if (fault := _fault_of_component(part)) is not None:
            return WorkdirRefused(fault)
    if parts[0] == RESERVED_COMPONENT:
        return WorkdirRefused(f"lies in {RESERVED_COMPONENT!r}, which is reserved")
    return Workdir(text)


def overlaps(a: Workdir, b: Workdir) -> bool:
    """Whether one is the other or lies in it: `src` and `src/app` do, `src` and `src2` do not."""
    return all(x == y for x, y in zip(a.parts, b.parts, strict=False))


def file_name_fault(name: str) -> str | None:
    """Why `name` may not be one file's name; None if it may. Completes the sentence "the name …"."""
    if not name:
        return "is empty"
    if "/" in name:
        return "has a '/'"
    return _fault_of_characters(name) or _fault_of_component(name)


def is_agent_name(text: str) -> bool:
    """Whether `text` may name an agent, skill or host: `[a-z0-9][a-z0-9._-]{0,62}`. Safe as a file name."""
    return _AGENT_NAME.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Whether `text` may be an owner's uid: lower-case letters, digits and `._@-`, at most 63. Safe as a directory name."""
    return _UID.fullmatch(text) is not None


def is_thread_id(text: str) -> bool:
    """Whether `text` may be a thread id or runtime scope id. Safe as a directory name."""
    return _THREAD_ID.fullmatch(text) is not None


def owner_directory(uid: str) -> str | None:
    """The name of the owner's directory below the storage root; None for a uid that may not be one."""
    return uid if is_uid(uid) else None


def home_path(thread_id: str) -> str | None:
    """The HOME of a conversation's agent, relative to the owner workspace (K-09); None for an unsafe id."""
    return f"{RESERVED_COMPONENT}/homes/{thread_id}" if is_thread_id(thread_id) else None


class ExitCause(StrEnum):
    """Why a sandbox instance ended, as far as the backend knows."""

    EXITED = "exited"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Running:
    """The instance of this generation runs."""

    generation: str


@dataclass(frozen=True)
class Exited:
    """The instance of this generation has ended and is still on record."""

    generation: str
    cause: ExitCause


@dataclass(frozen=True)
class Absent:
    """There is none: the backend answered, and it was not there."""


@dataclass(frozen=True)
class Unknown:
    """The backend gave no usable answer. Authorises nothing: no delete, no replacement, no "gone" (K-05)."""

    why: str


SandboxLookup = Running | Exited | Absent | Unknown
"""The four answers to a lookup."""


def _fault_of_characters(text: str) -> str | None:
    for character in text:
        if character == "\0":
            return "has a NUL character"
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _BIDI:
            return f"has a control character (U+{ord(character):04X})"
    if _ENCODED.search(text):
        return "has a percent-encoded dot, slash, backslash or NUL"
    return None


def _fault_of_component(part: str) -> str | None:
    if not part:
        return "has an empty component; write it without leading, trailing or double '/'"
    if part in (".", ".."):
        return f"has the component {part!r}"
    if part.startswith("~"):
        return "has a component that begins with '~'"
    if part != part.strip():
        return "has a component that begins or ends with white space"
    if len(part.encode("utf-8")) > COMPONENT_BYTES_MAX:
        return f"has a component longer than {COMPONENT_BYTES_MAX} bytes"
    return None
