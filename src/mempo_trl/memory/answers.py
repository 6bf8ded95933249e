"""The gold answer as text, ids and a mask of the tokens that hold it, for any tokenizer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..rows import check_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER_SEPARATOR = "; "
ANSWER_TEMPLATE = (
    "\n<think>\nI have sufficient information to provide the final answers.\n</think>\n<answer>\n{a}\n</answer>"
)


class EncodedAnswer(NamedTuple):
    """The answer text that is scored. `mask[l]` is True where token `l` holds a character of an answer. Length L."""

    text: str
    ids: list[int]
    mask: list[bool]


def _decode(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _prefix_offsets(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> list[tuple[int, int]]:
    """Character ranges of tokens in the decoded text: what each one adds to the decoded prefix."""
    offsets, start = [], 0
    for count in range(1, len(ids) + 1):
        # A part of a character decodes to U+FFFD: the token covers the character it is a part of.
        end = len(_decode(tokenizer, ids[:count]).rstrip("\ufffd"))
        offsets.append((start, max(end, start + 1)))
        start = end
    return offsets


def _encode_with_offsets(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoded = _decode(tokenizer, ids)
        if decoded != text:
            raise ValueError(f"the tokenizer does not give back what it encodes, got {decoded!r}, expected {text!r}")
        return ids, _prefix_offsets(tokenizer, ids)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets, covered = [], 0
    for start, end in encoding["offset_mapping"]:
        # Some tokenizers trim spaces from the offsets; the token still holds them.
        offsets.append((min(start, covered), end))
        covered = max(covered, end)
    return encoding["input_ids"], offsets


def _overlapping(offsets: Sequence[tuple[int, int]], first: int, last: int) -> list[int]:
    """The tokens that hold a character of `[first, last)`."""
    return [token for token, (start, end) in enumerate(offsets) if start < last and first < end]


def _gives_back(tokenizer: "PreTrainedTokenizerBase", ids: list[int], written: str) -> bool:
    """Whether the tokens hold a text, and the first and the last of them are needed for it."""
    return written in _decode(tokenizer, ids) and not any(
        written in _decode(tokenizer, part) for part in (ids[1:], ids[:-1])
    )


def _answer_tokens(
    tokenizer: "PreTrainedTokenizerBase",
    text: str,
    ids: list[int],
    offsets: Sequence[tuple[int, int]],
    ranges: Sequence[tuple[int, int]],
) -> set[int]:
    """The tokens of the answers at `ranges` of the text.

    A tokenizer that normalises (NFC, lower case) can give offsets that are off by a character. They are trusted where
    the tokens give the answer back, as the tokenizer writes it. Else the answer is found in the decoded text.
    """

    def written(part: str) -> str:
        return _decode(tokenizer, tokenizer.encode(part, add_special_tokens=False))

    tokens: set[int] = set()
    for first, last in ranges:
        answer = written(text[first:last]).strip()
        found = _overlapping(offsets, first, last)
        if not _gives_back(tokenizer, [ids[token] for token in found], answer):
            end = len(written(text[:last]))
            decoded = _decode(tokenizer, ids)
            found = _overlapping(_prefix_offsets(tokenizer, ids), end - len(answer), end)
            if not answer or decoded[:end] != written(text[:last]) or decoded[end - len(answer) : end] != answer:
                raise ValueError(
                    f"the tokens of the answer {text[first:last]!r} cannot be told from those around it: the tokenizer "
                    f"gives the text back as {decoded!r}. Write the answer as the tokenizer does, or leave the row out"
                )
        tokens.update(found)
    return tokens


def encode_answer(
    tokenizer: "PreTrainedTokenizerBase", answers: list[str], template: str = ANSWER_TEMPLATE
) -> EncodedAnswer:
    """Encodes the gold answers in the text whose probability is the memory reward.

    The mask comes from character offsets, so it holds for any vocabulary: a token that overlaps an answer's characters
    counts, one that straddles its edge too, a separator does not.

    Args:
        tokenizer: Any tokenizer, fast or slow.
        answers: One gold answer for each objective, in order.
        template: The text around the answers, with `{a}` once where they go.

    Raises:
        ValueError: An answer is empty, one of several holds ";", its tokens cannot be told from those around it, or the
            template does not have `{a}` exactly once.

    Source: method.md, section 3; the published code counts tokens from the end, which holds for some vocabularies.
    """
    answers = check_answers(answers)
    if template.count("{a}") != 1:
        raise ValueError(f"answer_template must contain {{a}} exactly once, where the answers go: got {template!r}")
    before, after = template.split("{a}")
    ranges, position = [], len(before)
    for answer in answers:
        ranges.append((position, position + len(answer)))
        position += len(answer) + len(ANSWER_SEPARATOR)
    text = before + ANSWER_SEPARATOR.join(answers) + after
    ids, offsets = _encode_with_offsets(tokenizer, text)
    tokens = _answer_tokens(tokenizer, text, ids, offsets, ranges)
    mask = [token in tokens for token in range(len(ids))]
    return EncodedAnswer(text, list(ids), mask)
