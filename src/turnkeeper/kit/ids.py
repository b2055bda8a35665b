"""Ids, secrets and jitter: everything that is drawn."""

import hashlib
import hmac
import os
import random
import re
import secrets
import threading
import time
from typing import Final

_SECRET_BYTES: Final = 32
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_COUNTER_MAX: Final = 0xFFF

_lock = threading.Lock()
_last_ms = 0
_last_counter = 0


def new_id() -> str:
    """A UUIDv7 (RFC 9562) in canonical lower case; within a process each is greater than the one before.

    The 12 bits after the version are a counter within the millisecond, started at random in its lower half. A full
    counter, or a wall clock that went back, moves on from the last millisecond used instead of waiting.
    """
    global _last_ms, _last_counter
    now_ms = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    with _lock:
        if now_ms > _last_ms:
            _last_ms, _last_counter = now_ms, (tail >> 64) & (_COUNTER_MAX >> 1)
        elif _last_counter < _COUNTER_MAX:
            _last_counter += 1
        else:
            _last_ms, _last_counter = _last_ms + 1, (tail >> 64) & (_COUNTER_MAX >> 1)
        ms, counter = _last_ms, _last_counter
    value = (ms << 80) | (0x7 << 76) | (counter << 64) | (0b10 << 62) | (tail & ((1 << 62) - 1))
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_id(text: str) -> bool:
    """Whether `text` is exactly what `new_id` writes. Nothing else is ever used as an id (F14)."""
    return _ID.fullmatch(text) is not None


def new_secret(prefix: str) -> str:
    """`prefix` and 32 random bytes in URL-safe base64. The prefix lets the log find a secret by itself."""
    return prefix + secrets.token_urlsafe(_SECRET_BYTES)


def digest(secret: str) -> bytes:
    """The SHA-256 (32 bytes) that is stored in place of a secret. Enough because secrets are long and random."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def constant_time_equal(a: str | bytes, b: str | bytes) -> bool:
    """Compare two secrets without telling by time where they differ."""
    return hmac.compare_digest(_as_bytes(a), _as_bytes(b))


def jitter(low: float, high: float) -> float:
    """A number drawn evenly from `low` to `high`, to keep many waiters apart. Not for secrets."""
    return random.uniform(low, high)  # noqa: S311 - spreads load; nothing depends on its being unpredictable


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
