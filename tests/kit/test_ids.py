"""Ids, secrets, jitter."""

import threading
import uuid

import pytest

from turnkeeper.kit import ids


def test_ids_are_uuids_of_version_7_in_canonical_form() -> None:
    """Architecture, section 3: ids are UUIDv7."""
    for _ in range(100):
        text = ids.new_id()
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)
        assert ids.is_id(text)


def test_ids_grow_within_a_process_and_never_repeat() -> None:
    """Twenty thousand in a row, many per millisecond, sorted as text and as UUID."""
    made = [ids.new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_threads_never_repeat_and_grow_within_each() -> None:
    """The counter is shared under a lock."""
    made: list[list[str]] = [[] for _ in range(4)]

    def draw(own: list[str]) -> None:
        own.extend(ids.new_id() for _ in range(2000))

    threads = [threading.Thread(target=draw, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(own == sorted(own) for own in made)
    assert len({text for own in made for text in own}) == 8000


def test_a_wall_clock_that_goes_back_does_not_turn_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case: F12. Ids keep growing also when the clock is set back and the counter is full."""
    last = ids.new_id()
    moment = (ids.time.time_ns() // 1_000_000 - 60_000) * 1_000_000
    monkeypatch.setattr(ids.time, "time_ns", lambda: moment)
    for _ in range(10_000):
        following = ids.new_id()
        assert following > last
        last = following


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "019AA8A0-0000-7000-8000-000000000000",
        "019aa8a0-0000-4000-8000-000000000000",
        "019aa8a0-0000-7000-c000-000000000000",
        "019aa8a0-0000-7000-8000-000000000000\n",
        "{019aa8a0-0000-7000-8000-000000000000}",
        "019aa8a000007000800000000000000a",
        "019aa8a0-0000-7000-8000-00000000000/",
        "٠19aa8a0-0000-7000-8000-000000000000",
    ],
)
def test_other_texts_are_no_ids(text: str) -> None:
    """Case: F14. Only what we write is an id."""
    assert not ids.is_id(text)


def test_secrets() -> None:
    """Prefix, 32 random bytes, URL-safe; stored only as a digest; compared without telling where they differ."""
    made = {ids.new_secret("tkw_") for _ in range(1000)}
    assert len(made) == 1000
    assert all(secret.startswith("tkw_") and len(secret) == 4 + 43 for secret in made)
    assert all(secret.replace("-", "").replace("_", "").isalnum() for secret in made)
    secret = made.pop()
    assert len(ids.digest(secret)) == 32
    assert ids.digest("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert ids.constant_time_equal(secret, secret)
    assert ids.constant_time_equal(b"x", "x")
    assert not ids.constant_time_equal(secret, secret[:-1])
    assert not ids.constant_time_equal("é", "e")
    assert not ids.constant_time_equal("\ud800", "x"), "a broken header is refused, not a traceback"


def test_jitter_stays_within_its_bounds() -> None:
    """Both ends included."""
    values = [ids.jitter(0.5, 1.5) for _ in range(1000)]
    assert all(0.5 <= value <= 1.5 for value in values)
    assert len(set(values)) > 900
    assert ids.jitter(2, 2) == 2
