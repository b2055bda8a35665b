"""Signed tokens, checked against those of PyJWT and against everything that is none."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from turnkeeper.kit.jws import BadSignatureError, verified_payload

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key()
KEYS = {"k1": PUBLIC}
CLAIMS = {"sub": "x", "n": 2**60, "text": "世界 . \u0000", "list": [1, None], "exp": 1}


def encoded(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: object, payload: object, key: Ed25519PrivateKey = KEY) -> str:
    text = f"{encoded(header)}.{encoded(payload)}"
    return f"{text}.{encoded(key.sign(text.encode()))}"


HEADER: dict[str, Any] = {"alg": "EdDSA", "kid": "k1", "typ": "JWT"}


def test_what_pyjwt_signs_is_read() -> None:
    token = jwt.encode(CLAIMS, KEY, algorithm="EdDSA", headers={"kid": "k1"})
    assert verified_payload(token, KEYS) == CLAIMS
    assert verified_payload(signed(HEADER, CLAIMS), KEYS) == CLAIMS
    other = Ed25519PrivateKey.generate()
    assert verified_payload(signed({**HEADER, "kid": "k2"}, {}, other), {**KEYS, "k2": other.public_key()}) == {}


def test_every_changed_character_is_seen() -> None:
    """But in the unused bits of the last one, which change no byte."""
    token = signed(HEADER, CLAIMS)
    for place, character in enumerate(token[:-1]):
        changed = token[:place] + ("A" if character != "A" else "B") + token[place + 1 :]
        with pytest.raises(BadSignatureError):
            verified_payload(changed, KEYS)


PUBLIC_TEXT = PUBLIC.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
GOOD = signed(HEADER, CLAIMS)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c",
        f"{GOOD}.",
        f".{GOOD}",
        f"{GOOD}=",
        f" {GOOD}",
        f"{GOOD}\n",
        GOOD.rpartition(".")[0],
        GOOD.rpartition(".")[0] + ".",
        GOOD.replace(".", "..", 1),
        GOOD + "世",
        jwt.encode(CLAIMS, "", algorithm="none", headers={"kid": "k1"}),
        jwt.encode(CLAIMS, PUBLIC_TEXT, algorithm="HS256", headers={"kid": "k1"}),
        jwt.encode(CLAIMS, KEY, algorithm="EdDSA"),
        signed({**HEADER, "alg": "none"}, CLAIMS),
        signed({**HEADER, "alg": "HS256"}, CLAIMS),
        signed({**HEADER, "alg": "Ed25519"}, CLAIMS),
        signed({**HEADER, "alg": ["EdDSA"]}, CLAIMS),
        signed({**HEADER, "kid": "k2"}, CLAIMS),
        signed({**HEADER, "kid": None}, CLAIMS),
        signed({**HEADER, "kid": ["k1"]}, CLAIMS),
        signed({**HEADER, "crit": ["exp"]}, CLAIMS),
        signed({**HEADER, "b64": False}, CLAIMS),
        signed(HEADER, CLAIMS, Ed25519PrivateKey.generate()),
        signed(HEADER, [CLAIMS]),
        signed(HEADER, "text"),
        signed(HEADER, b"{"),
        signed(HEADER, b"\xff\xfe"),
        signed(HEADER, b"[" * 100_000),
        signed([HEADER], CLAIMS),
        signed(b"not json", CLAIMS),
    ],
)  # fmt: skip
def test_what_is_no_token_of_ours(token: str) -> None:
    """Nothing but `BadSignatureError`, whose text holds no part of the token."""
    with pytest.raises(BadSignatureError) as refused:
        verified_payload(token, KEYS)
    assert len(str(refused.value)) < 40
