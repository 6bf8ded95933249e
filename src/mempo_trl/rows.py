"""What a question's row must hold, checked wherever rows come in: by the loaders and by the trainer."""

from collections.abc import Mapping
from typing import Any

from .memory.answers import ANSWER_SEPARATOR, check_answers
from .text import is_blank


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
        if len(answers) > 1 and ANSWER_SEPARATOR.strip() in alias:
            raise ValueError(f"{where}: {alias!r} can never be right, since ';' stands between answers. Leave it out")
