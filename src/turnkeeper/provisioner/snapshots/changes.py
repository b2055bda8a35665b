"""What differs between two recorded trees, as a bounded summary with diffs.

`git diff-tree` compares objects; names come NUL-terminated, and the patch is asked for only for the files that are listed. A
file name is bytes and is shown cleaned (F10).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turnkeeper.kit import text
from turnkeeper.provisioner.snapshots.git import EMPTY_TREE, Git, GitFailedError
from turnkeeper.wire.turn import ChangedFile, ChangeSummary

FILES_MAX: Final = 100
SUMMARY_BYTES_MAX: Final = 48 << 10
"""With its frame below the 64 KiB of a stored event, so that no reader sees it cut."""

_DIFF_BYTES_MAX: Final = 8 << 10
_PATH_BYTES_MAX: Final = 512
_LIST_BYTES_MAX: Final = 64 << 20
_PATCH_BYTES_MAX: Final = 16 << 20
_DIFFED_LINES_MAX: Final = 4000
_ENTRY_BYTES: Final = 160

Status = Literal["added", "modified", "deleted", "type_changed"]
_STATUS: Final[Mapping[bytes, Status]] = {
    b"A": "added",
    b"M": "modified",
    b"D": "deleted",
    b"T": "type_changed",
}


@dataclass(frozen=True)
class _Entry:
    path: bytes
    status: Status
    added: int | None
    removed: int | None

    @property
    def diffable(self) -> bool:
        return self.added is not None and self.status != "type_changed" and self.lines <= _DIFFED_LINES_MAX

    @property
    def lines(self) -> int:
        return (self.added or 0) + (self.removed or 0)


async def summary(git: Git, base: str | None, tree: str, sizes: Mapping[bytes, int]) -> ChangeSummary:
    """The changes from the tree `base` (None: from nothing) to `tree`. `sizes` are those of the files in `tree`."""
    before = EMPTY_TREE if base is None else base
    if before == tree:
        return ChangeSummary(base_tree_id=base)
    output = await git.run(*_diff_tree("--raw", "--numstat", "-z"), before, tree, output_bytes_max=_LIST_BYTES_MAX)
    entries = _entries(output)
    listed: list[tuple[_Entry, ChangedFile]] = []
    room = SUMMARY_BYTES_MAX
    for entry in entries[:FILES_MAX]:
        shown = text.cut_bytes(entry.path, _PATH_BYTES_MAX)[0]
        room -= _ENTRY_BYTES + _json_size(shown)
        if room < 0:
            break
        listed.append(
            (
                entry,
                ChangedFile(
                    path=shown,
                    status=entry.status,
                    added_lines=entry.added,
                    removed_lines=entry.removed,
                    size_bytes=sizes.get(entry.path),
                    binary=entry.added is None,
                ),
            )
        )
    diffs = await _diffs(git, before, tree, [entry for entry, _ in listed if entry.diffable])
    files: list[ChangedFile] = []
    for entry, file in listed:
        diff = diffs.get(entry.path)
        if diff is not None and (size := _json_size(diff)) <= room:
            room -= size
            files.append(file.model_copy(update={"diff": diff}))
        else:
            files.append(file)
    return ChangeSummary(
        files=tuple(files),
        omitted_files=len(entries) - len(files),
        added_lines=sum(entry.added or 0 for entry in entries),
        removed_lines=sum(entry.removed or 0 for entry in entries),
        base_tree_id=base,
    )


def _diff_tree(*options: str) -> tuple[str, ...]:
    return ("diff-tree", "-r", "--no-renames", "--no-color", "--no-textconv", "--no-ext-diff", *options)


def _entries(output: bytes) -> list[_Entry]:
    """`--raw -z` gives `:modes ids status NUL path NUL` for each file, then `--numstat -z` gives `added TAB removed TAB path NUL`."""
    statuses: dict[bytes, Status] = {}
    entries: list[_Entry] = []
    fields = iter(output.split(b"\0"))
    for one in fields:
        if one.startswith(b":"):
            statuses[next(fields, b"")] = _STATUS.get(one.rpartition(b" ")[2][:1], "modified")
        elif one:
            added, removed, path = one.split(b"\t", 2)
            entries.append(_Entry(path, statuses.get(path, "modified"), _count(added), _count(removed)))
    return entries


def _count(field: bytes) -> int | None:
    return None if field == b"-" else int(field)


async def _diffs(git: Git, before: str, after: str, entries: Sequence[_Entry]) -> dict[bytes, str]:
    """A bounded unified diff for each entry; fewer where Git says more than is taken."""
    if not entries:
        return {}
    paths = [entry.path for entry in entries]
    try:
        patch = await git.run(
            *_diff_tree("--patch", "--unified=3"), before, after, "--", *paths, output_bytes_max=_PATCH_BYTES_MAX
        )
    except GitFailedError:
        return {}
    sections = (b"\n" + patch).split(b"\ndiff --git ")[1:]  # no line of a hunk begins so
    if len(sections) != len(paths):
        return {}
    return {
        path: text.cut_bytes(_body(section), _DIFF_BYTES_MAX)[0] for path, section in zip(paths, sections, strict=True)
    }


def _body(section: bytes) -> bytes:
    """From the `---` line on; empty where only a mode changed or the file is empty."""
    start = section.find(b"\n--- ")
    return b"" if start < 0 else section[start + 1 :]


def _json_size(shown: str) -> int:
    """At least as many bytes as `shown` takes in JSON: an escape takes six."""
    data = shown.encode("utf-8", "replace")
    return len(data) + sum(data.count(escaped) for escaped in _ESCAPED) * 5 + 16


_ESCAPED: Final = [bytes([byte]) for byte in (*range(32), ord('"'), ord("\\"))]
