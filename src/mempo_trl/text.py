"""Text from outside, made fit to be encoded."""

import unicodedata

# Every special token and tag in use opens with one of these: <mem>, <|im_end|>, <｜User｜>, </s>, [INST], [PAD7]. The
# look-alikes behind the first of each kind become it under the Unicode normalisation (NFKC) of some tokenizers.
_ESCAPED = {"<＜﹤": "&lt;", ">＞﹥": "&gt;", "[［﹇": "(", "]］﹈": ")"}
_ESCAPES = str.maketrans({character: safe for characters, safe in _ESCAPED.items() for character in characters})


def valid_unicode(text: str) -> str:
    """`text` with "?" for lone surrogates, which JSON can name (\\ud800) and no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def fold(text: str) -> str:
    """`text` in the form in which texts are compared: compatibility forms unified (NFKC), without case."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def is_blank(text: str) -> bool:
    """Whether nothing in `text` can be seen: spaces, control characters, zero-width marks."""
    return all(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") for character in text)


def escape(text: str) -> str:
    """Makes `text` unable to open or close a tag, or to be encoded as a special token, in any common vocabulary.

    `<` and `>` become `&lt;` and `&gt;`, square brackets become round ones, and what is not valid Unicode becomes `?`.
    """
    return valid_unicode(text.translate(_ESCAPES))
