"""Activation tokens (protocol 9): Ed25519-signed by the control plane, checked here against the public keys of the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.jws import BadSignatureError, verified_payload
from turnkeeper.wire.tokens import ACTIVATION_AUDIENCE, ActivationClaims

_TOKEN_CHARS_MAX: Final = 8192
_KNOWN_MAX: Final = 64


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

    def __init__(self, public_keys: Mapping[str, str], clock: Clock = system_clock) -> None:
        self._clock = clock
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._known: dict[str, ActivationClaims] = {}  # a worker shows the same token with each of its calls
        for kid, pem in public_keys.items():
            key = load_pem_public_key(pem.encode())
            if not isinstance(key, Ed25519PublicKey):
                raise ValueError(f"public key {kid!r} is no Ed25519 key")  # noqa: TRY004 - the text is wrong, not the type
            self._keys[kid] = key

    def verify(self, token: str) -> Verified | BadToken:
        """Check signature, audience and every claim. Whether it has expired is told apart: an expired one may still end."""
        claims = self._known.get(token)
        if claims is None:
            checked = self._check(token)
            if isinstance(checked, BadToken):
                return checked
            claims = checked
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[token] = claims
        return Verified(claims, expired=claims.exp <= self._clock.utcnow().timestamp())

    def _check(self, token: str) -> ActivationClaims | BadToken:
        if len(token) > _TOKEN_CHARS_MAX:
            return BadToken("it is too long")
        try:
            payload = verified_payload(token, self._keys)
        except BadSignatureError as error:
            return BadToken(str(error))
        if payload.get("aud") != ACTIVATION_AUDIENCE:
            return BadToken("it is for somebody else")
        try:
            return ActivationClaims.model_validate(payload)
        except ValidationError:
            return BadToken("it is not valid")
