"""An agent definition as TOML, the form in which it is added."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from turnkeeper.cli.output import escaped

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(definition: Mapping[str, Any]) -> str:
    """Lines of `name = value`, tables last. What `tomllib` reads of it is `definition`."""
    lines = [f"{_key(name)} = {_value(value)}" for name, value in definition.items() if not isinstance(value, Mapping)]
    for name, value in definition.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(key)} = {_value(one)}" for key, one in cast("Mapping[str, Any]", value).items()]
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a basic string of TOML, but for DEL, which JSON takes as it is. What a terminal would obey is escaped
    # too: replaced by a sign, as other output is, it would be read again as another text.
    return escaped(json.dumps(text, ensure_ascii=False))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in pairs) + " }"
    if isinstance(value, list | tuple):
        items = [_value(one) for one in cast("list[Any]", value)]
        if sum(map(len, items)) > 90:
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    return json.dumps(value)
