"""`POST jobs/<job>/manifest`: the record of what is about to run, stored once (A-02)."""

from typing import Any, cast

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.text import clean_json
from turnkeeper.services.answers import Invalid, Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.leased import LEASE_REFUSED, lock_leased, run_leased
from turnkeeper.store import runs
from turnkeeper.store.guards import is_held
from turnkeeper.store.tx import Tx
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.worker import Manifest, ManifestAnswer


async def record_manifest(s: Services, worker: Worker, request: Manifest) -> ManifestAnswer | Refused | Invalid:
    """The digest of the manifest that is stored: of the first, whatever came later."""
    manifest = cast("dict[str, Any]", clean_json(request.manifest))
    try:
        computed = canonical_sha256(manifest)
    except ValueError:
        computed = ""
    if computed != request.sha256:
        return Invalid(
            ProblemCode.BAD_REQUEST, "sha256", "it must be the SHA-256 over the canonical JSON of the manifest"
        )

    async def work(tx: Tx) -> ManifestAnswer | Refused:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        if await runs.record_manifest(tx, leased.lease, manifest, computed):
            return ManifestAnswer(sha256=computed)
        stored = await runs.manifest_sha256(tx, worker.run_id)
        if stored is None or not await is_held(tx, leased.lease):
            return LEASE_REFUSED
        return ManifestAnswer(sha256=stored)

    return await run_leased(s, "manifest", work)
