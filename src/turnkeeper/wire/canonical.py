"""One JSON text for one value: what the SHA-256 of a run manifest is taken over (A-02).

Keys sorted by code point, no white space, UTF-8 without escapes that JSON does not ask for. Two parties that hold equal
values compute equal digests. Numbers are those that JSON has; NaN and the infinities are refused.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """The canonical text of an object. `ValueError` for a value that JSON does not have."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def canonical_sha256(value: Mapping[str, Any]) -> str:
    """The SHA-256 of the canonical text, in lower-case hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
