"""Activation tokens (protocol 9): Ed25519-signed by the control plane, checked here against the public keys of the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from turnkeeper.wire.tokens import ACTIVATION_AUDIENCE, ALGORITHM, ActivationClaims

_TOKEN_CHARS_MAX: Final = 8192


@dataclass(frozen=True)
class Verified:
    """The claims of a token that the control plane signed. `expired`: its attempt's execution deadline has passed."""

    claims: ActivationClaims
    expired: bool


@dataclass(frozen=True)
class BadToken:
    """Not a token of ours for a manager; `why` names no part of it."""

    why: str


class TokenVerifier:
    """Holds the public keys. A PEM that is no Ed25519 key stops the start (ValueError)."""

    def __init__(self, public_keys: Mapping[str, str]) -> None:
        self._keys: dict[str, Ed25519PublicKey] = {}
        for kid, pem in public_keys.items():
            key = load_pem_public_key(pem.encode())
            if not isinstance(key, Ed25519PublicKey):
                raise ValueError(f"public key {kid!r} is no Ed25519 key")  # noqa: TRY004 - the text is wrong, not the type
            self._keys[kid] = key

    def verify(self, token: str) -> Verified | BadToken:
        """Check signature, audience and every claim. Whether it has expired is told apart: an expired one may still end."""
        if len(token) > _TOKEN_CHARS_MAX:
            return BadToken("it is too long")
        try:
            kid: object = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if key is None:
                return BadToken("its key is not known")
            try:
                payload, expired = self._decode(token, key, verify_exp=True), False
            except jwt.ExpiredSignatureError:
                payload, expired = self._decode(token, key, verify_exp=False), True
            return Verified(ActivationClaims.model_validate(payload), expired)
        except jwt.InvalidAudienceError:
            return BadToken("it is for somebody else")
        except (jwt.PyJWTError, ValidationError):
            return BadToken("it is not valid")

    @staticmethod
    def _decode(token: str, key: Ed25519PublicKey, *, verify_exp: bool) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            audience=ACTIVATION_AUDIENCE,
            options={"require": ["exp", "aud", "sub"], "verify_exp": verify_exp},
        )
