"""What a question's row must hold, checked wherever rows come in: by the loaders and by the trainer."""

from collections.abc import Mapping
from typing import Any

from .text import is_blank, valid_unicode


def check_row(row: Mapping[str, Any], where: str, answers_column: str | None = "answers") -> list[str]:
    """Checks a row before anything is trained on it, and returns its gold answers.

    Args:
        row: with `prompt`, a list of messages; the gold answers, one text for each objective; and, if it has any,
            `aliases`: for each objective a list of other right answers, or None.
        where: names the row in an error.
        answers_column: the column of the gold answers; None if none are needed, which gives an empty list.

    Raises:
        `ValueError`: a column is missing or of another form. The message names row and column, and what to write.
    """
    _check_prompt(row.get("prompt"), f"{where}, column 'prompt'")
    if answers_column is None:
        return []
    try:
        answers = check_answers(row.get(answers_column))
    except ValueError as error:
        raise ValueError(f"{where}, column {answers_column!r}: {error}") from error
    if row.get("aliases") is not None:
        _check_aliases(row["aliases"], answers, f"{where}, column 'aliases'")
    return answers


def check_answers(answers: object) -> list[str]:
    """Returns the gold answers of one question, or raises ValueError saying what is wrong with them."""
    if isinstance(answers, str):
        raise ValueError(
            f"expected a list with one text for each objective, got the text {answers!r}. Write [{answers!r}]"
        )
    if not isinstance(answers, (list, tuple)) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"expected a list with one text for each objective, got {answers!r:.200}")
    for answer in answers:
        if is_blank(answer) or answer != valid_unicode(answer):
            raise ValueError(
                f"an answer is empty or not valid text, got {answer!r}. Leave the row out, or give the answer"
            )
        if len(answers) > 1 and ";" in answer:
            raise ValueError(
                f"one of several answers cannot contain ';', which separates them: got {answer!r}. Write it without, "
                "or split it into two objectives"
            )
    return [answer.strip() for answer in answers]


def _check_prompt(prompt: Any, where: str) -> None:
    if not isinstance(prompt, list) or not prompt or not all(isinstance(message, dict) for message in prompt):
        raise ValueError(
            f"{where}: expected a list of messages, got {prompt!r:.200}. Write "
            '[{"role": "user", "content": ...}], or use mempo_trl.tasks.search.build_prompt'
        )
    for message in prompt:
        content = message.get("content") or ("" if message.get("tool_calls") else message.get("content"))
        if not isinstance(message.get("role"), str) or not isinstance(content, str):
            raise ValueError(f"{where}: a message needs a 'role' and a 'content' that are text, got {message!r:.200}")


def _check_aliases(aliases: Any, answers: list[str], where: str) -> None:
    if not isinstance(aliases, list) or not all(group is None or isinstance(group, list) for group in aliases):
        flat = isinstance(aliases, list) and all(isinstance(alias, str) for alias in aliases)
        advice = f" Write {[aliases]!r:.200}" if flat and len(answers) == 1 else ""
        raise ValueError(f"{where}: expected a list of texts for each objective, got {aliases!r:.200}.{advice}")
    if len(aliases) != len(answers):
        raise ValueError(f"{where}: expected {len(answers)} lists, one for each answer, got {len(aliases)}")
    for alias in (alias for group in aliases for alias in group or []):
        if not isinstance(alias, str) or is_blank(alias):
            raise ValueError(f"{where}: an alias must be a text that is not empty, got {alias!r}. Leave it out")
        if len(answers) > 1 and ";" in alias:
            raise ValueError(f"{where}: {alias!r} can never be right, since ';' stands between answers. Leave it out")
