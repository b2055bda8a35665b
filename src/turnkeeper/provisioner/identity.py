"""Who calls: the control plane by its administrative token (K-01), or an attempt by a signed token (protocol, section 9)."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.ids import constant_time_equal, digest
from turnkeeper.wire.tokens import ALGORITHM, PROVISIONER_AUDIENCE, ProvisionerClaims

ADMIN_TOKEN_CHARACTERS_MIN: Final = 32
_VERIFIED_MAX: Final = 4096


@dataclass(frozen=True)
class Administrator:
    """The control plane: may do everything."""


@dataclass(frozen=True)
class Attempt:
    """One attempt: may do what its verbs say, in its own scope."""

    claims: ProvisionerClaims


@dataclass(frozen=True)
class Nobody:
    """No token, or none that is known or still valid. `why` names no value of it."""

    why: str


Caller = Administrator | Attempt | Nobody


class Callers:
    """Tells callers apart. Verified tokens are remembered until they expire: an attempt shows the same one at every call."""

    def __init__(self, admin_token: str, public_keys: Mapping[str, str], clock: Clock = system_clock) -> None:
        if len(admin_token) < ADMIN_TOKEN_CHARACTERS_MIN:
            raise SettingRefused(
                f"the provisioner's token (TURNKEEPER_PROVISIONER_TOKEN) has {len(admin_token)} characters; "
                f"it must have at least {ADMIN_TOKEN_CHARACTERS_MIN}"
            )
        self._admin = digest(admin_token)
        self._keys = {kid: _load(kid, pem) for kid, pem in public_keys.items()}
        self._clock = clock
        self._verified: OrderedDict[bytes, ProvisionerClaims] = OrderedDict()

    def identify(self, authorization: str | None) -> Caller:
        """Who sends this `Authorization` header."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return Nobody("a bearer token is needed")
        hashed = digest(token)
        if constant_time_equal(hashed, self._admin):  # of digests: tells neither the token nor its length
            return Administrator()
        claims = self._verified.get(hashed)
        if claims is None:
            claims = self._verify(token)
            if isinstance(claims, Nobody):
                return claims
            self._verified[hashed] = claims
            while len(self._verified) > _VERIFIED_MAX:
                self._verified.popitem(last=False)
        if claims.exp <= self._clock.utcnow().timestamp():
            self._verified.pop(hashed, None)
            return Nobody("the token has expired")
        return Attempt(claims)

    def _verify(self, token: str) -> ProvisionerClaims | Nobody:
        try:
            kid: object = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if key is None:
                return Nobody("the token is not known here")
            payload: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=PROVISIONER_AUDIENCE,
                options={"require": ["exp", "aud", "sub"], "verify_exp": False},
            )
            return ProvisionerClaims.model_validate(payload)
        except (jwt.InvalidTokenError, ValidationError):
            return Nobody("the token is not valid here")


def _load(kid: str, pem: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode("ascii"))
    except ValueError as error:
        raise SettingRefused(f"public signing key {kid!r} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SettingRefused(f"public signing key {kid!r} is not an Ed25519 key")
    return key
