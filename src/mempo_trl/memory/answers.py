"""The gold answer as text, ids and a mask of the tokens that hold it, for any tokenizer."""

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


def _prefix_offsets(tokenizer: "PreTrainedTokenizerBase", ids: list[int], text: str) -> list[tuple[int, int]]:
    """Character ranges of tokens whose tokenizer gives no offsets: what each one adds to the decoded prefix."""
    offsets, start = [], 0
    for count in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        # A part of a character decodes to U+FFFD: the token covers the character it is a part of.
        end = len(prefix.rstrip("\ufffd"))
        offsets.append((start, max(end, start + 1)))
        start = end
    if prefix != text:
        raise ValueError(f"the tokenizer does not give back what it encodes, got {prefix!r}, expected {text!r}")
    return offsets


def _encode_with_offsets(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return ids, _prefix_offsets(tokenizer, ids, text)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets, covered = [], 0
    for start, end in encoding["offset_mapping"]:
        # Some tokenizers trim spaces from the offsets; the token still holds them.
        offsets.append((min(start, covered), end))
        covered = max(covered, end)
    return encoding["input_ids"], offsets


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
        ValueError: An answer is empty, one of several holds ";", or the template does not have `{a}` exactly once.

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
    mask = [any(start < last and first < end for first, last in ranges) for start, end in offsets]
    if not any(mask):
        raise ValueError(f"no token of {text!r} holds a character of {answers!r}: the tokenizer drops the answer")
    return EncodedAnswer(text, list(ids), mask)
