"""Who is asking: owners by API key, hosts and workers by token. Only hashes are stored and looked up."""

from dataclasses import dataclass
from typing import Final

from turnkeeper.domain.errors import Language
from turnkeeper.kit.ids import digest, is_id
from turnkeeper.services.context import Services
from turnkeeper.store import attempts, host_tokens, keys, runs
from turnkeeper.store.attempts import TokenOwner
from turnkeeper.store.tx import Reader, Tx

REMEMBERED_MAX: Final = 131_072
"""Room for 100,000 live leases; some 0.4 KiB each, used only by as many attempts as there are."""


@dataclass(frozen=True)
class Owner:
    """An authenticated user. `key_id` None: by a browser's session."""

    uid: str
    name: str
    role: str
    language: str
    key_id: str | None = None

    @property
    def is_admin(self) -> bool:
        """Whether this user administers the installation."""
        return self.role == "admin"

    @property
    def tongue(self) -> Language:
        """The language that texts are written in for this user."""
        return Language(self.language)


@dataclass(frozen=True)
class Worker:
    """An authenticated worker: the attempt that its token belongs to."""

    attempt_id: str
    run_id: str
    host: str


@dataclass(frozen=True)
class UnknownToken:
    """401: no such token."""


@dataclass(frozen=True)
class OtherJob:
    """403: the token is another job's."""


@dataclass(frozen=True)
class NoSuchJob:
    """404: there is no such job."""


async def owner_of_key(s: Services, key: str) -> Owner | None:
    """The owner of an API key that is not revoked; its use is noted at most once a minute."""
    found = await s.db.read("auth.key", lambda r: keys.find_owner(r, digest(key)))
    if found is None:
        return None
    if found.stale_use:
        key_id = found.key_id

        async def touch(tx: Tx) -> int:
            return await keys.touch_key(tx, key_id)

        await s.db.run("auth.key_used", touch)
    return Owner(found.uid, found.name, found.role, found.language, found.key_id)


async def host_of_token(s: Services, token: str) -> str | None:
    """The host of a token that is not revoked."""
    return await s.db.read("auth.host", lambda r: host_tokens.find_host(r, digest(token)))


async def worker_of_token(s: Services, token: str, job: str) -> Worker | UnknownToken | OtherJob | NoSuchJob:
    """The attempt of a worker token, if it is one of that job.

    Whose token it is never changes from the attempt's acceptance on, so it is read once from then; whether the attempt
    may still do anything is decided under its locks, at every call.
    """
    hashed = digest(token)
    known = s.accepted_tokens.get(hashed)
    if known is not None and known.run_id == job:
        return Worker(known.attempt_id, known.run_id, known.host)

    async def look(reader: Reader) -> Worker | UnknownToken | OtherJob | NoSuchJob:
        found = await attempts.find_token(reader, hashed)
        if found is None:
            return UnknownToken()
        if found.accepted:
            _remember(s.accepted_tokens, hashed, found)
        if found.run_id == job:
            return Worker(found.attempt_id, found.run_id, found.host)
        exists = is_id(job) and await runs.get_run(reader, job) is not None
        return OtherJob() if exists else NoSuchJob()

    return await s.db.read("auth.worker", look)


def _remember(known: dict[bytes, TokenOwner], hashed: bytes, owner: TokenOwner) -> None:
    known[hashed] = owner
    while len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]
