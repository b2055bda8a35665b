"""Signs the tokens of protocol section 9: Ed25519 JWTs for the provisioner and for sandbox managers.

The same claims give the same token: Ed25519 draws nothing, and the claims hold no time of issue. So a request that is
repeated because its reply was lost gets the very same answer.
"""

import base64
import hashlib

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.wire.tokens import ALGORITHM, ActivationClaims, ProvisionerClaims


class Signer:
    """Holds the private key. Its repr shows the key id alone."""

    def __init__(self, private_pem: bytes) -> None:
        try:
            key = load_pem_private_key(private_pem, password=None)
        except (ValueError, TypeError):
            raise SettingRefused("the signing key is no PEM private key; it must be an Ed25519 one") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise SettingRefused("the signing key is of another kind; it must be an Ed25519 private key")
        self._key = key
        public = key.public_key()
        raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.kid = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()[:12]).decode()
        self.public_pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def __repr__(self) -> str:
        return f"Signer(kid={self.kid!r})"

    def provisioner_token(self, claims: ProvisionerClaims) -> str:
        """A token for the provisioner."""
        return self._sign(claims.model_dump(mode="json"))

    def activation_token(self, claims: ActivationClaims) -> str:
        """A token for one activation at one exact sandbox manager."""
        return self._sign(claims.model_dump(mode="json"))

    def _sign(self, claims: dict[str, object]) -> str:
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"kid": self.kid})


def new_private_pem() -> bytes:
    """A fresh key, for the file that `turnkeeper up` keeps (mode 0600)."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
