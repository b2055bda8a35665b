"""In which language somebody is answered: the owner's setting, and before we know the owner, what the browser asks for."""

from starlette.types import Scope

from turnkeeper.domain.errors import Language

_KEY = "turnkeeper.language"


def set_language(scope: Scope, language: Language) -> None:
    """Remember the owner's setting for whatever this request is answered."""
    scope.setdefault("state", {})[_KEY] = language  # shared by the copies of a scope that routers make


def language_of(scope: Scope) -> Language:
    """The owner's setting, else the first of the browser's languages that we speak, else English."""
    known = scope.get("state", {}).get(_KEY)
    if isinstance(known, Language):
        return known
    header = next((v for k, v in scope.get("headers", ()) if k == b"accept-language"), b"").decode("latin-1")
    for part in header.split(",")[:10]:
        code = part.split(";", 1)[0].strip().lower()[:2]
        if code in {"en", "zh"}:
            return Language(code)
    return Language.EN
