"""The words of a text as BM25 counts them, in any script, under the normalisation that answers are compared with."""

import re
import unicodedata
from functools import cache
from itertools import pairwise

from ...text import fold

# Scripts whose words are not told apart by spaces, and Korean, whose particles are joined to the words.
_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Tibetan, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese
    "\uac00-\ud7a3"  # Korean
)
_ASCII_WORD = re.compile(r"[a-z0-9_]+")


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A word, a part of one with or without spaces, and a character of a script without spaces, marks included."""
    # `\w` leaves out the marks that letters of many scripts are written with.
    marks = "".join(chr(i) for i in range(0x300, 0x20000) if unicodedata.category(chr(i))[0] == "M")
    character = f"[{_SPACELESS}][{marks}]*"
    return re.compile(rf"[\w{marks}]+"), re.compile(f"(?:{character})+|[^{_SPACELESS}]+"), re.compile(character)


@cache
def _stop_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


def passage_words(text: str) -> list[str]:
    """What a passage is found by: its words without stop words, or all of them if there are no others.

    A script without spaces gives each character and each pair of neighbours, so that both can be asked for.
    """
    return _without_stop_words(_words(text, single=True))


def query_words(text: str) -> list[str]:
    """What is looked for: as `passage_words`, but a script without spaces gives pairs alone where it has any."""
    return _without_stop_words(_words(text, single=False))


def _without_stop_words(words: list[str]) -> list[str]:
    return [word for word in words if word not in _stop_words()] or words


def _words(text: str, single: bool) -> list[str]:
    folded = fold(text)
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    word, part, character = _patterns()
    found = []
    for run in word.findall(folded):
        for piece in [run] if run.isascii() else part.findall(run):
            characters = character.findall(piece)
            if not characters:
                found.append(piece)
                continue
            if single or len(characters) == 1:
                found += characters
            found += [first + second for first, second in pairwise(characters)]
    return found
