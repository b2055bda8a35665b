"""Browser sessions: a one-time link opens one, a cookie holds it. Only hashes are stored."""

from turnkeeper.kit.ids import digest, is_id, new_id, new_secret
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.store import users, web_sessions
from turnkeeper.store.tx import Database, Tx
from turnkeeper.wire.public import LoginLink

LINK_LIFETIME_S = 24 * 3600.0
SESSION_LIFETIME_S = 30 * 24 * 3600.0


async def create_link(db: Database, uid: str) -> str:
    """The secret of a link that opens one session, once, within a day."""
    secret = new_secret("tk_")

    async def work(tx: Tx) -> None:
        await web_sessions.insert(
            tx, session_id=new_id(), uid=uid, kind="link", secret_hash=digest(secret), lifetime_s=LINK_LIFETIME_S
        )

    await db.run("session.link", work)
    return secret


async def login_link(s: Services, uid: str) -> LoginLink | NotFound:
    """A fresh link for a user."""
    if not is_id(uid) or await s.db.read("user.get", lambda r: users.get_user(r, uid)) is None:
        return NotFound("user")
    return LoginLink(path=f"/login?token={await create_link(s.db, uid)}", expires_in_s=int(LINK_LIFETIME_S))


async def open_link(s: Services, secret: str) -> str | None:
    """Use up a link: the secret of the new session. None: the link is unknown, used or too old."""
    session = new_secret("tk_")

    async def work(tx: Tx) -> str | None:
        uid = await web_sessions.use_link(tx, digest(secret))
        if uid is None:
            return None
        await web_sessions.insert(
            tx, session_id=new_id(), uid=uid, kind="session", secret_hash=digest(session), lifetime_s=SESSION_LIFETIME_S
        )
        return session

    return await s.db.run("session.open", work)


async def owner_of_session(s: Services, secret: str) -> Owner | None:
    """The owner of a session that has not ended."""
    found = await s.db.read("auth.session", lambda r: web_sessions.find_owner(r, digest(secret)))
    return None if found is None else Owner(found.uid, found.name, found.role, found.language)


async def end_session(s: Services, secret: str) -> None:
    """End a session now (signing out)."""

    async def work(tx: Tx) -> None:
        await web_sessions.end(tx, digest(secret))

    await s.db.run("session.end", work)
