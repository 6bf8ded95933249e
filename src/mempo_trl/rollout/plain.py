"""One rule for every text that is not ours, where it is rendered: no text may open or close a turn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..text import escape, valid_unicode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# An instruction names these, whatever kind of token a vocabulary makes of them.
_TAGS = {f"<{slash}{name}>" for name in ("mem", "think", "tool_call", "answer") for slash in ("", "/")}


class PlainText:
    """Makes texts plain: valid Unicode, in which the tokenizer finds no special token.

    It holds for questions, for what `reset` adds to them, and for tool results. A special token in a text is escaped,
    and the rest of the text stays as it is; where that is not enough, since the tokenizer reads look-alikes as special
    tokens too, all of the text is escaped.

    Args:
        tokenizer: its special tokens are those that its configuration marks as such, without the unknown token.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        special = {id: token.content for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special = {id: text for id, text in special.items() if id != tokenizer.unk_token_id and text not in _TAGS}

    def __call__(self, text: str) -> str:
        """`text`, made plain."""
        return self.encoded(text)[0]

    def encoded(self, text: str) -> tuple[str, list[int]]:
        """`text`, made plain, and its ids."""
        text = valid_unicode(text)
        ids = self._encode(text)
        found = [self._special[id] for id in set(ids) & self._special.keys()]
        if found:
            for token in sorted(found, key=len, reverse=True):
                text = text.replace(token, escape(token))
            ids = self._encode(text)
        if not self._special.keys().isdisjoint(ids):
            text = escape(text)
            ids = self._encode(text)
        return text, ids

    def messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages whose `content`, a text or a list of parts with texts, is plain."""
        return [{**message, "content": self._content(message.get("content"))} for message in messages]

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self(content)
        if isinstance(content, list):
            return [{**part, "text": self(part["text"])} if "text" in part else part for part in content]
        return content  # None, of a message that holds tool calls alone

    def special_in(self, text: str) -> list[str]:
        """The special tokens that the tokenizer finds in `text`."""
        return [self._special[id] for id in self._encode(valid_unicode(text)) if id in self._special]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids
