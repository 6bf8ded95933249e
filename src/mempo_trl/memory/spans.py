"""Where the turns and the `<mem>` blocks of a trajectory lie, as ranges of token ids."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from .turns import find_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEMORY_TAG = re.compile("</?mem>")


class MemorySpan(NamedTuple):
    """A closed `<mem>` block, tags included.

    Attributes:
        turn: the turn that it stands in, from 0.
        start: its first token, counted in the completion.
        end: the token behind its last one.
    """

    turn: int
    start: int
    end: int


class TokenPieces(dict[int, str]):
    """The text that each token id adds to a decoded text, worked out once for each id.

    An id is decoded behind an anchor token, since some decoders drop the space in front of a text. A token that holds
    part of a multi-byte character has `\\ufffd` in its place, so a piece is exact where it is ASCII, as tags are.

    Few vocabularies (those that mark the ends of words) give an id another text behind another id. Theirs are worked
    out for each pair.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._anchor_text = self._decode(self._anchor)
        self._pairs: dict[tuple[int, int], str] = {}
        probe = tokenizer.encode("<mem>ab c</mem> d", add_special_tokens=False)
        self._by_pair = "".join(map(self.__getitem__, probe)).lstrip() != self._decode(probe).lstrip()

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def __missing__(self, token_id: int) -> str:
        self[token_id] = piece = self._decode([*self._anchor, token_id]).removeprefix(self._anchor_text)
        return piece

    def of(self, ids: Sequence[int]) -> list[str]:
        """The pieces of a text, which join to it."""
        if not self._by_pair or not ids:
            return [self[token_id] for token_id in ids]
        return [self._decode([ids[0]]), *map(self._behind, ids, ids[1:])]

    def _behind(self, before: int, token_id: int) -> str:
        pair = (before, token_id)
        if pair not in self._pairs:
            self._pairs[pair] = self._decode([*pair]).removeprefix(self._decode([before]))
        return self._pairs[pair]


_pieces_of = lru_cache(maxsize=8)(TokenPieces)


def token_pieces(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int]) -> list[str]:
    """The text that each id adds: joined, they are the decoded text (see `TokenPieces`)."""
    return _pieces_of(tokenizer).of(ids)


def _last_closed_block(text: str) -> tuple[int, int] | None:
    """Characters `[start, end)` of the last `<mem>` that is followed by its `</mem>`, the tags included."""
    block, opened = None, None
    for tag in MEMORY_TAG.finditer(text):
        if tag[0] == "<mem>":
            opened = tag.start()
        elif opened is not None:
            block, opened = (opened, tag.end()), None
    return block


def find_memory_spans(
    tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], trainable_mask: Sequence[int]
) -> list[MemorySpan]:
    """Finds the memory of each turn on the sampled ids themselves: nothing is encoded again.

    A turn is a run of ones in `trainable_mask`. Only a block that is closed in the turn that opened it is a memory, and
    the last such block of a turn counts. What a tool returned (zeros) never is one. A token that holds characters on
    both sides of a tag's edge belongs to the span. Linear in C.

    Args:
        tokenizer: Any tokenizer with `decode`, fast or slow.
        ids: Token ids of the completion: turns and tool results. Length C.
        trainable_mask: 1 for tokens that the model wrote, 0 for tool results. Length C.

    Returns:
        At most one span for each turn, in order.

    Source: method.md, sections 1 and 5.
    """
    if len(ids) != len(trainable_mask):
        raise ValueError(f"ids and trainable_mask must be parallel: got {len(trainable_mask)} marks for {len(ids)} ids")
    return memory_spans(tokenizer, ids, find_turns(trainable_mask))


def memory_spans(
    tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], turns: Sequence[tuple[int, int]]
) -> list[MemorySpan]:
    """`find_memory_spans` for turns whose token ranges in `ids` are known."""
    spans = []
    for turn, (start, end) in enumerate(turns):
        pieces = token_pieces(tokenizer, ids[start:end])
        block = _last_closed_block("".join(pieces))
        if block is not None:
            ends = list(accumulate(map(len, pieces)))
            first, last = bisect_right(ends, block[0]), bisect_left(ends, block[1])
            spans.append(MemorySpan(turn, start + first, start + last + 1))
    return spans
