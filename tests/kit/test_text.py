"""Bytes that hurt (F10)."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.kit.text import (
    JSON_DEPTH_MAX,
    TOO_DEEP,
    IncrementalDecoder,
    TextJoiner,
    clean,
    clean_json,
    cut,
    cut_bytes,
    decode,
    join_surrogates,
    size,
    tail,
)

anything = st.text(alphabet=st.characters(categories=None) | st.sampled_from("\0\ud800\udfff😀é"))


@given(anything)
def test_clean_text_is_storable_and_valid_text_unchanged(text: str) -> None:
    """Case: F10. What PostgreSQL and UTF-8 take stays byte for byte; each bad character becomes one mark."""
    result = clean(text)
    assert len(result) == len(text)
    assert "\0" not in result
    result.encode("utf-8")
    for before, after in zip(text, result, strict=True):
        bad = before == "\0" or "\ud800" <= before <= "\udfff"
        assert after == ("\ufffd" if bad else before)
    assert clean(result) == result


@given(st.binary())
def test_decode_takes_any_bytes(data: bytes) -> None:
    """Case: F10. Invalid UTF-8 and NUL are marked; valid text is unchanged."""
    result = decode(data)
    assert "\0" not in result
    result.encode("utf-8")
    try:
        valid = data.decode("utf-8")
    except UnicodeDecodeError:
        assert "\ufffd" in result
    else:
        assert result == valid.replace("\0", "\ufffd")


@given(anything, st.integers(40, 200))
def test_cut_never_splits_a_character(text: str, max_bytes: int) -> None:
    """Case: F10. Within the limit, marker included; a prefix of the clean text; the original size told."""
    result, original = cut(text, max_bytes)
    data = clean(text).encode("utf-8")
    assert len(result.encode("utf-8")) <= max_bytes
    if original is None:
        assert result == clean(text)
        assert len(data) <= max_bytes
    else:
        assert original == len(data) == size(text) > max_bytes
        marker = f"… [cut: {original} bytes]"
        assert result.endswith(marker)
        kept = result.removesuffix(marker).encode("utf-8")
        assert data.startswith(kept)
        assert len(kept) > max_bytes - len(marker.encode("utf-8")) - 4, "at most one character less than fits"


def test_an_emoji_over_the_limit() -> None:
    """Case: F10. An emoji that lies over the limit is left out as a whole."""
    marker = "… [cut: 204 bytes]"
    for shift in range(5):
        text = "a" * (96 + shift) + "😀" * 27
        text = text[: 96 + shift] + "😀" * ((204 - 96 - shift) // 4) + "b" * ((204 - 96 - shift) % 4)
        result, original = cut(text, 96 + shift + 2 + len(marker.encode("utf-8")))
        assert (result, original) == ("a" * (96 + shift) + marker, 204)


def test_cut_needs_room_for_its_marker() -> None:
    """A limit that cannot hold the marker is the caller's mistake; a text that fits needs none."""
    assert cut("abc", 3) == ("abc", None)
    for function in (lambda: cut("abcd" * 9, 3), lambda: cut_bytes(b"abcd" * 9, 3)):
        with pytest.raises(ValueError, match="no room"):
            function()


def test_cut_bytes_tells_the_size_of_what_came() -> None:
    """Also where the marks make the text longer than the bytes were."""
    assert cut_bytes(b"abc", 100) == ("abc", None)
    text, original = cut_bytes(b"\xff" * 90, 100)
    assert original == 90
    assert len(text.encode("utf-8")) <= 100
    assert text.endswith("… [cut: 90 bytes]")


@given(st.text(max_size=50), st.integers(0, 60))
def test_tail_begins_at_a_whole_character(text: str, max_bytes: int) -> None:
    """The last bytes of an agent's stderr, without half a character in front."""
    clean_text = text.replace("\0", "")
    result = tail(clean_text.encode("utf-8"), max_bytes)
    assert clean_text.endswith(result)
    assert len(result.encode("utf-8")) <= max_bytes


def test_tail_of_broken_bytes_ends() -> None:
    """A run of continuation bytes is no character: it is marked, not skipped for ever."""
    assert tail(b"a" + b"\x80" * 10, 8) == "\ufffd" * 5
    assert tail(b"", 8) == ""
    assert tail(b"ab", 0) == ""


def test_json_values() -> None:
    """Case: F10. JSON `\\u0000` and lone surrogates, in values and keys, and numbers that JSON does not have."""
    value = json.loads(
        '{"a\\u0000": ["x\\ud800", {"k": NaN, "i": Infinity, "n": 1.5, "b": true, "z": null}], "ok": "😀"}'
    )
    cleaned = clean_json(value)
    assert cleaned == {
        "a\ufffd": ["x\ufffd", {"k": "nan", "i": "inf", "n": 1.5, "b": True, "z": None}],
        "ok": "😀",
    }
    json.dumps(cleaned, ensure_ascii=False, allow_nan=False).encode("utf-8")


def test_keys_that_become_equal_are_kept_apart() -> None:
    """No value is lost by cleaning its key."""
    assert clean_json(dict(zip(("a\0", "a\ud800", "a\ufffd"), (1, 2, 3), strict=True))) == {
        "a\ufffd": 1,
        "a\ufffd\ufffd": 2,
        "a\ufffd\ufffd\ufffd": 3,
    }


def test_deep_values_end_in_a_marker() -> None:
    """Neither a recursion error nor a document that the database refuses."""
    value: object = "x"
    for _ in range(900):
        value = [value]
    cleaned = clean_json(value)
    for _ in range(JSON_DEPTH_MAX):
        assert isinstance(cleaned, list)
        (cleaned,) = cleaned  # pyright: ignore[reportUnknownVariableType]
    assert cleaned == TOO_DEEP


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything, inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_any_json_value_becomes_storable(value: object) -> None:
    """Case: F10."""
    text = json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    assert "\\u0000" not in text


@given(st.text(alphabet="a😀é项\0", max_size=30), st.lists(st.integers(0, 200), max_size=10))
def test_bytes_in_pieces(text: str, cuts: list[int]) -> None:
    """Case: F10. An emoji split over two writes arrives whole, wherever the cut is."""
    data = text.encode("utf-8")
    edges = [0, *sorted(min(edge, len(data)) for edge in cuts), len(data)]
    decoder = IncrementalDecoder()
    parts = [decoder.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(parts) + decoder.feed(b"", final=True) == text.replace("\0", "\ufffd")


def test_bytes_that_end_in_the_middle_of_a_character() -> None:
    """What never came is marked at the end."""
    decoder = IncrementalDecoder()
    assert decoder.feed("é😀".encode()[:4]) == "é"
    assert decoder.feed(b"", final=True) == "\ufffd"


def test_surrogate_halves_in_two_chunks() -> None:
    """Case: F10. `\\ud83d` at the end of one JSON chunk, `\\ude00` at the beginning of the next: one emoji."""
    joiner = TextJoiner()
    assert joiner.feed("a\ud83d") == "a"
    assert joiner.feed("\ude00b") == "😀b"
    assert joiner.feed("\ude00") == "\ufffd"
    assert joiner.feed("x\ud83d") == "x"
    assert joiner.feed("") == ""
    assert joiner.feed("y") == "\ufffdy"
    assert joiner.feed("\ud83d") == ""
    assert joiner.flush() == "\ufffd"
    assert joiner.flush() == ""


@given(anything)
def test_joining_changes_no_valid_text(text: str) -> None:
    """Pairs become characters; everything else stays."""
    joined = join_surrogates(text)
    assert not any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in itertools.pairwise(joined))
    if clean(text).replace("\ufffd", "") == text:
        assert joined == text


def test_nan_is_a_value_of_its_own() -> None:
    """A guard for the oracle above: Python's parser does accept NaN."""
    assert math.isnan(json.loads("NaN"))
