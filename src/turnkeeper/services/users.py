"""Users: owners and administrators, and the language that they read."""

from turnkeeper.domain.errors import InvariantViolation, ProblemCode
from turnkeeper.domain.names import USER_NAME_RULE, is_user_name
from turnkeeper.kit.ids import new_id
from turnkeeper.services.answers import Conflict, Invalid, Mismatch
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.idempotency import IdempotencyKey, once
from turnkeeper.store import users as statements
from turnkeeper.store.tx import Tx
from turnkeeper.store.users import UserRow
from turnkeeper.wire.public import Me, MePatch, NewUser


def me_of(row: UserRow) -> Me:
    """A user as the API shows one."""
    return Me.model_validate({"uid": row.uid, "name": row.name, "role": row.role, "language": row.language})


async def create_user(
    s: Services, admin: Owner, request: NewUser, idem: IdempotencyKey | None = None
) -> Me | Invalid | Conflict | Mismatch:
    """A new user without any key."""
    if not is_user_name(request.name):
        return Invalid(ProblemCode.BAD_REQUEST, "name", USER_NAME_RULE)

    async def work(tx: Tx) -> Me | Conflict | Mismatch:
        return await once(tx, admin.uid, idem, Me, lambda: _create(tx, request))

    return await s.db.run("user.create", work)


async def _create(tx: Tx, request: NewUser) -> Me | Conflict:
    row = await statements.insert_user(
        tx, uid=new_id(), name=request.name, role=request.role, language=request.language
    )
    if row is None:
        return Conflict(ProblemCode.CONFLICT, f"there is a user {request.name!r} already; choose another name")
    return me_of(row)


async def list_users(s: Services) -> list[Me]:
    """All of them, by name."""
    return [me_of(row) for row in await s.db.read("user.list", statements.list_users)]


async def me(s: Services, owner: Owner) -> Me:
    """The one who asks."""
    row = await s.db.read("user.get", lambda r: statements.get_user(r, owner.uid))
    if row is None:
        raise InvariantViolation(f"user {owner.uid} is authenticated and does not exist")
    return me_of(row)


async def set_language(s: Services, owner: Owner, request: MePatch) -> Me:
    """Choose the language of every sentence that is written for this owner from now on."""

    async def work(tx: Tx) -> None:
        await statements.set_language(tx, owner.uid, request.language)

    await s.db.run("user.language", work)
    return await me(s, owner)
