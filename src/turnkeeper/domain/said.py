"""A sentence in the languages that owners may choose.

It is its English text, so that whoever knows nothing of languages (logs, workers, operators) reads that; whoever answers an
owner asks `in_language`. Composed with other text it is plain English again, which is right where only operators read it.
"""

from typing import Self

from turnkeeper.domain.errors import Language


class Said(str):
    """An English sentence with its Chinese one."""

    __slots__ = ("zh",)

    zh: str

    def __new__(cls, en: str, zh: str) -> Self:
        """The same facts in both."""
        said = super().__new__(cls, en)
        said.zh = zh
        return said


def in_language(text: str, language: Language) -> str:
    """`text` for a reader of `language`, where it was said in it."""
    return text.zh if language is Language.ZH and isinstance(text, Said) else text


_THINGS = {
    "agent": "智能体",
    "conversation": "对话",
    "run": "运行",
    "user": "用户",
    "key": "密钥",
    "host token": "主机令牌",
}


def no_such(what: str) -> str:
    """There is none, for whoever asks."""
    english = f"there is no such {what}"
    return Said(english, f"找不到该{_THINGS[what]}") if what in _THINGS else english
