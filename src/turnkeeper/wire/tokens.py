"""Signed tokens (protocol 9): Ed25519 JWTs. The control plane signs; provisioner and sandbox managers hold public keys, by `kid`.

`aud` keeps the two kinds apart: a token for the provisioner never opens a manager. Both are valid until the attempt's
execution deadline (`exp`), and both name the attempt and its lease generation.
"""

from typing import Literal

from turnkeeper.wire.base import Answer, Id

ALGORITHM = "EdDSA"
PROVISIONER_AUDIENCE = "turnkeeper-provisioner"
ACTIVATION_AUDIENCE = "turnkeeper-sandbox"

ProvisionerVerb = Literal["ensure", "touch", "proxy", "snapshot"]


class ProvisionerClaims(Answer):
    """What one attempt may ask of the provisioner, in its own scope only. `sub` is the run."""

    aud: Literal["turnkeeper-provisioner"] = PROVISIONER_AUDIENCE
    sub: Id
    attempt: Id
    lease_generation: int
    uid: Id
    scope: Id
    verbs: tuple[ProvisionerVerb, ...]
    exp: int


class ActivationClaims(Answer):
    """One activation of one membership at one exact manager (D-03). `sub` is the run; recovery's takes name the run that it concludes."""

    aud: Literal["turnkeeper-sandbox"] = ACTIVATION_AUDIENCE
    sub: Id
    attempt: Id
    lease_generation: int
    membership: Id
    activation: Id
    fence: int
    generation: str
    boot_id: str
    purpose: Literal["turn", "recovery"] = "turn"
    exp: int
