"""Checks compact JSON Web Signatures with Ed25519 (RFC 7515, RFC 8037), and nothing else of that family.

PyJWT signs them at the control plane, and is what this is tested against. A sandbox manager only ever checks one kind of
token, and importing PyJWT would cost each cold sandbox a tenth of a second for certificates, key sets and other
algorithms. There is no choice of algorithm here, hence none to be confused about.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_ALGORITHM: Final = "EdDSA"
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")


class BadSignatureError(Exception):
    """Not a token that one of the keys has signed. The text is one line without any part of it."""


def verified_payload(token: str, keys: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    """The object that was signed, by the key that the token's `kid` names among `keys`. `BadSignatureError` otherwise."""
    parts = token.split(".")
    if len(parts) != 3 or not all(_PART.fullmatch(part) for part in parts):
        raise BadSignatureError("it is not a signed token")
    header = _object(parts[0])
    if header.get("alg") != _ALGORITHM or "crit" in header or "b64" in header:
        raise BadSignatureError("it is signed in another way")
    kid = header.get("kid")
    key = keys.get(kid) if isinstance(kid, str) else None
    if key is None:
        raise BadSignatureError("its key is not known")
    try:
        key.verify(_bytes(parts[2]), f"{parts[0]}.{parts[1]}".encode())
    except InvalidSignature:
        raise BadSignatureError("its signature is wrong") from None
    return _object(parts[1])


def _bytes(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise BadSignatureError("it is not a signed token") from None


def _object(part: str) -> dict[str, Any]:
    try:
        value: object = json.loads(_bytes(part))
    except (ValueError, RecursionError):
        raise BadSignatureError("it holds no JSON object") from None
    if not isinstance(value, dict):
        raise BadSignatureError("it holds no JSON object")
    return cast("dict[str, Any]", value)
