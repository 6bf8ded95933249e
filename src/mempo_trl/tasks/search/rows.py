"""Rows of a training set: what they must hold, and how they become a dataset."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .corpora import Passage

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]


class QuestionSet(NamedTuple):
    """Questions and the passages that answer them."""

    questions: "Dataset"
    corpus: list[Passage]


def to_dataset(rows: list[Row]) -> "Dataset":
    """Checks rows (see `validate_rows`) and makes a dataset of them."""
    from datasets import Dataset

    validate_rows(rows)
    # `from_list` would take the columns of the first row and drop the others'.
    columns = dict.fromkeys(name for row in rows for name in row)
    return Dataset.from_list([columns | row for row in rows])


def validate_rows(rows: Iterable[Row]) -> None:
    """Checks that rows can be trained on.

    Raises:
        `ValueError`: naming row and column: `prompt` is no list of messages; `answers` is no list of texts, is empty,
            or has an answer that is empty or holds ";", which separates answers; `aliases` does not fit `answers`.
    """
    count = 0
    for number, row in enumerate(rows):
        count += 1
        _check_prompt(row, number)
        _check_answers(row, number)
    if not count:
        raise ValueError("the dataset has no rows")


def _check_prompt(row: Row, number: int) -> None:
    prompt = row.get("prompt")
    if not isinstance(prompt, list) or not prompt or not all(isinstance(m, dict) and "role" in m for m in prompt):
        raise ValueError(
            f"row {number}, column 'prompt': expected a list of messages, got {prompt!r}. Use build_prompt"
        )


def _check_answers(row: Row, number: int) -> None:
    answers, where = row.get("answers"), f"row {number}, column 'answers'"
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{where}: expected a list with one text for each objective, got {answers!r}")
    for answer in answers:
        if not answer.strip():
            raise ValueError(f"{where}: an answer is empty. Leave the row out, or give the answer")
        if ";" in answer:
            raise ValueError(f"{where}: {answer!r} holds ';', which separates answers. Split it, or write it without")
    aliases = row.get("aliases")
    if aliases is not None and (not isinstance(aliases, list) or len(aliases) != len(answers)):
        raise ValueError(f"row {number}, column 'aliases': expected {len(answers)} lists, got {aliases!r}")
