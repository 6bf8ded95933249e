"""Exact match, F1 and format, as scalar cores and as TRL reward functions.

Answers are compared as SQuAD does (lower case; no punctuation, articles or extra spaces; F1 on multisets of words), one
objective at a time, by position. The reward of MemPO (arXiv 2603.00680, section 3) is 1 for a trajectory that is right
in every objective and well-formed, else 0.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...parts import Part, in_order, split_blocks
from ...text import fold
from .prompts import ANSWER_TAG, TAGS

Message = dict[str, Any]
Metric = Callable[[str, str], float]

_ARTICLES = frozenset({"a", "an", "the"})
_ANSWER = re.compile(rf"<{ANSWER_TAG}>((?:(?!<{ANSWER_TAG}>).)*?)</{ANSWER_TAG}>", re.DOTALL)
_ANSWER_ALONE = re.compile(rf"\s*<{ANSWER_TAG}>(.*)</{ANSWER_TAG}>\s*", re.DOTALL)
_ANY_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>")


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation, for any script: case folded, without punctuation, articles and extra spaces.

    Compatibility forms are unified first (NFKC), and every Unicode punctuation mark is dropped, not just ASCII's. A
    text of nothing but articles and punctuation keeps them, so that "The The" and "!!!" can be answers.
    """
    folded = fold(text)
    words = "".join(character for character in folded if not _is_punctuation(character)).split()
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(folded.split())


def _is_punctuation(character: str) -> bool:
    category = unicodedata.category(character)
    # Cf are invisible: zero-width spaces, marks of direction.
    return character in string.punctuation or category.startswith("P") or category == "Cf"


def exact_match(prediction: str, answer: str) -> float:
    """1.0 if both are the same after normalisation, else 0.0. One objective."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """Harmonic mean of word precision and recall, on multisets, after normalisation. One objective. In [0, 1]."""
    predicted, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    shared = (Counter(predicted) & Counter(gold)).total()
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


def split_answer(prediction: str, answers: Sequence[str]) -> list[str]:
    """Cuts an answer block at its semicolons into one text for each objective, by position.

    With one objective nothing is cut. A gold answer that holds semicolons takes as many pieces as it has itself. The
    result is shorter than `answers` if pieces are missing, and longer if there are too many; empty pieces at the end
    are dropped.
    """
    if len(answers) == 1:
        return [prediction]
    pieces = prediction.split(";")
    while pieces and not pieces[-1].strip():
        pieces.pop()
    texts = []
    for answer in answers:
        count = answer.count(";") + 1
        if pieces:
            texts.append(";".join(pieces[:count]))
        pieces = pieces[count:]
    return texts + pieces


def objective_scores(
    prediction: str | None,
    answers: Sequence[str],
    metric: Metric,
    aliases: Sequence[Sequence[str]] | None = None,
) -> list[float]:
    """Scores each objective of one answer block.

    Args:
        prediction: what stands in the answer block; `None` if there is none, which scores 0.
        answers: one gold answer for each objective.
        metric: `exact_match` or `f1_score`.
        aliases: for each objective, other texts that are as good as the gold answer; the best one counts.

    Returns:
        One score for each objective, and a 0.0 for each piece too many, so that the mean is never helped by adding
        guesses. Length: at least `len(answers)`.
    """
    if aliases is not None and len(aliases) != len(answers):
        raise ValueError(f"aliases must have one list for each answer: got {len(aliases)}, expected {len(answers)}")
    if isinstance(answers, str) or any(isinstance(group, str) for group in aliases or ()):
        raise TypeError(f"answers and each group of aliases must be lists of texts; got {answers!r} and {aliases!r}")
    texts = [] if prediction is None else split_answer(prediction, answers)
    scores = [0.0] * max(len(answers), len(texts))
    for i, (text, answer) in enumerate(zip(texts, answers, strict=False)):
        golds = [answer, *((aliases[i] or ()) if aliases else ())]
        scores[i] = max(metric(text, gold) for gold in golds)
    return scores


def extract_answer(completion: Sequence[Message]) -> str | None:
    """Text of the last closed answer block of the last assistant message, or `None` if it has none."""
    turns = _turns(completion)
    blocks = _ANSWER.findall(turns[-1]) if turns else []
    return blocks[-1].strip() if blocks else None


def is_well_formed(completion: Sequence[Message]) -> bool:
    """Whether each turn of a trajectory has MemPO's format: parts, in order, and only white space between them.

    A turn is a memory, then at most thoughts, then calls, or in the last turn one `<answer>` block. In the first turn
    the memory is optional. In "budget" context it is optional in all turns but the compactions, which are a memory and
    at most thoughts. A block holds no other block's tag. The parts are those that the turn loop read, with the syntax
    of the model's own chat template (see `mempo_trl.parts`); a message without them has its calls between `<tool_call>`
    tags.
    """
    turns = [message for message in completion if message["role"] == "assistant"]
    return bool(turns) and all(
        _is_turn(_parts(turn), turn.get("compaction"), first=number == 0, last=number == len(turns) - 1)
        for number, turn in enumerate(turns)
    )


def _is_turn(parts: Sequence[Part], compaction: bool | None, first: bool, last: bool) -> bool:
    if compaction:
        kinds = [part.kind for part in parts if part.kind not in ("thought", "opened")]
        return not last and kinds == ["memory"] and not _quote_tags(part.text for part in parts)
    # `compaction` is False where a memory is asked for in other turns alone.
    return in_order(parts, first=first or compaction is False) and _holds_its_own(parts, last)


def _parts(message: Message) -> list[Part]:
    return message["parts"] if "parts" in message else split_blocks(message["content"] or "")


def _holds_its_own(parts: Sequence[Part], last: bool) -> bool:
    """Whether the last turn answers, the others call, and no part holds another one's tag."""
    *before, action = parts
    if last:
        found = _ANSWER_ALONE.fullmatch(action.text) if action.kind == "text" else None
        texts = [found[1] if found else f"<{ANSWER_TAG}>"]
    else:
        texts = [] if action.kind == "call" else [f"<{ANSWER_TAG}>"]
    texts += [part.text for part in before if part.kind != "call"]
    return not _quote_tags(texts)


def _quote_tags(texts: Iterable[str]) -> bool:
    return any(map(_ANY_TAG.search, texts))


def _turns(completion: Sequence[Message]) -> list[str]:
    return [message["content"] or "" for message in completion if message["role"] == "assistant"]


def _mean_scores(
    completions: list[list[Message]],
    answers: list[list[str]],
    metric: Metric,
    aliases: list[list[list[str]] | None] | None,
) -> list[float]:
    means = []
    rows = aliases if aliases is not None else [None] * len(completions)
    for completion, golds, others in zip(completions, answers, rows, strict=True):
        if isinstance(golds, str):
            raise TypeError(f"each row of answers must be a list, one text for each objective; got {golds!r}")
        scores = objective_scores(extract_answer(completion), golds, metric, others)
        means.append(sum(scores) / len(scores))
    return means


def exact_match_reward(
    completions: list[list[Message]],
    answers: list[list[str]],
    aliases: list[list[list[str]] | None] | None = None,
    **kwargs: Any,
) -> list[float]:
    """TRL reward function: share of objectives answered exactly, in [0, 1].

    Args:
        completions (`list[list[dict]]`):
            Messages of each rollout. An assistant message's `content` is the whole text of its turn.
        answers (`list[list[str]]`):
            Gold answers of each rollout, one for each objective.
        aliases (`list[list[list[str]]]`, *optional*):
            For each rollout and objective, other right answers.
        **kwargs:
            The trainer's other arguments; not used.
    """
    return _mean_scores(completions, answers, exact_match, aliases)


def f1_reward(
    completions: list[list[Message]],
    answers: list[list[str]],
    aliases: list[list[list[str]] | None] | None = None,
    **kwargs: Any,
) -> list[float]:
    """TRL reward function: mean F1 over the objectives, in [0, 1]. Arguments as in `exact_match_reward`."""
    return _mean_scores(completions, answers, f1_score, aliases)


def format_reward(completions: list[list[Message]], **kwargs: Any) -> list[float]:
    """TRL reward function: 1.0 if every turn has MemPO's format (see `is_well_formed`), else 0.0."""
    return [float(is_well_formed(completion)) for completion in completions]


def mempo_outcome_reward(
    completions: list[list[Message]],
    answers: list[list[str]],
    aliases: list[list[list[str]] | None] | None = None,
    **kwargs: Any,
) -> list[float]:
    """TRL reward function of MemPO: 1.0 if every objective is answered exactly and the format is right, else 0.0.

    Arguments as in `exact_match_reward`.
    """
    right = exact_match_reward(completions, answers, aliases)
    formed = format_reward(completions)
    return [float(r == 1.0 and f == 1.0) for r, f in zip(right, formed, strict=True)]


def partial_credit_reward(
    completions: list[list[Message]],
    answers: list[list[str]],
    aliases: list[list[list[str]] | None] | None = None,
    **kwargs: Any,
) -> list[float]:
    """TRL reward function: the share of objectives answered exactly where the format is right, else 0.0.

    `mempo_outcome_reward` with credit for some of the objectives. Arguments as in `exact_match_reward`.
    """
    right = exact_match_reward(completions, answers, aliases)
    return [r * f for r, f in zip(right, format_reward(completions), strict=True)]
