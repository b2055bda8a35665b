"""Frames of a snapshot walk, from the manager to the provisioner: a stream of `header JSON line` + exactly `size` raw bytes.

Paths are relative to the Workdir. A file name is bytes, not text: JSON carries `os.fsencode(path).decode("latin-1")`.
Only regular files and symbolic links are sent (a link's target is its content); `.git` directories, sockets, FIFOs and devices are not.
The last frame is `end`; a stream without it is no snapshot (D-08).
"""

from typing import Literal

from turnkeeper.wire.base import Answer

WALK_MEDIA_TYPE = "application/x-turnkeeper-walk"


class FileFrame(Answer):
    """Followed by `size` bytes."""

    t: Literal["file"] = "file"
    path: str
    mode: Literal["100644", "100755", "120000"]
    size: int


class EndFrame(Answer):
    """`why` is set where the walk gave up: too many files, too large, out of time, stopped, or not readable."""

    t: Literal["end"] = "end"
    files: int
    size_bytes: int
    skipped: int = 0
    why: str | None = None
