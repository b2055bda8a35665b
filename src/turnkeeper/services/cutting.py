"""Keeping one event within its limit: the longest texts in it are cut, with a marker, and the rest is kept (architecture 5)."""

import json
from typing import Any, Final, cast

from turnkeeper.kit.text import clean_json, cut

_TEXT_BYTES_MIN: Final = 256


def json_bytes(value: Any) -> int:
    """How many bytes a value takes as JSON without white space."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def fit(data: dict[str, Any], max_bytes: int) -> tuple[dict[str, Any], int | None, int]:
    """Clean `data` and cut it down to `max_bytes` of JSON.

    Returns the data, the original size in bytes where something was cut (else None), and the size that is stored.
    """
    data = cast("dict[str, Any]", clean_json(data))
    size = original = json_bytes(data)
    while size > max_bytes:
        place = _longest(data)
        if place is None:
            data = {"cut": True, "text": cut(json.dumps(data, ensure_ascii=False), max_bytes // 4)[0]}
            return data, original, json_bytes(data)
        holder, key, text = place
        bytes_now = len(text.encode("utf-8"))
        # JSON escapes may double a text or more; half of it always makes progress.
        holder[key] = cut(text, max(_TEXT_BYTES_MIN, min(bytes_now - (size - max_bytes), bytes_now // 2)))[0]
        size = json_bytes(data)
    return data, (original if original > max_bytes else None), size


def _longest(value: Any) -> tuple[Any, Any, str] | None:
    """The place of the longest text that can still be cut, however deep it lies."""
    best: tuple[Any, Any, str] | None = None
    stack: list[Any] = [value]
    while stack:
        holder = stack.pop()
        for key, item in _items(holder):
            if isinstance(item, dict | list):
                stack.append(item)
            elif isinstance(item, str) and len(item) > _TEXT_BYTES_MIN and (best is None or len(item) > len(best[2])):
                best = (holder, key, item)
    return best


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return list(cast("dict[str, Any]", holder).items())
    return list(enumerate(cast("list[Any]", holder)))
