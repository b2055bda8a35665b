"""Names that people choose for hosts and users, and the sentence that says what would be right.

Asked by the services, which refuse, and by the command line, which refuses the same before it asks anybody.
"""

import re
from typing import Final

HOST_NAME_RULE: Final = "a host's name is 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
USER_NAME_RULE: Final = (
    "a user's name is 1 to 63 letters, digits, '.', '_', '@' or '-', beginning with a letter or digit"
)

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def is_host_name(text: str) -> bool:
    """Whether `text` may name a host: `HOST_NAME_RULE`."""
    return _HOST_NAME.fullmatch(text) is not None


def is_user_name(text: str) -> bool:
    """Whether `text` may name a user: `USER_NAME_RULE`."""
    return _USER_NAME.fullmatch(text) is not None
