"""FanOutQA's development set (arXiv 2402.14116): questions that fan out into many, with the pages that answer them."""

import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from ...files import parse_json
from ...text import is_blank
from .corpora import Passage
from .data import report_left_out
from .prompts import build_prompt
from .rows import QuestionSet, Row, to_dataset


def load_fanoutqa(level: Literal["subquestion", "question"] = "subquestion") -> QuestionSet:
    """Reads FanOutQA's development set from the PyPI package `fanoutqa` (its data file only; no network).

    The corpus has one passage for each Wikipedia page that the annotators used: its title, and the sub-questions that
    it answers with their answers. Source: arXiv 2402.14116.

    Args:
        level: `"subquestion"`: each sub-question with one answer is a row with one objective, for `compose_objectives`.
            `"question"`: each question with one answer, or with one answer for each of several names, is a row; it then
            asks for the answers in the order of the names.

    Raises:
        `ImportError`: the package is not installed.
    """
    items = parse_json(_fanoutqa_file().read_text(encoding="utf-8"))
    return QuestionSet(to_dataset(fanoutqa_rows(items, level)), fanoutqa_corpus(items))


def fanoutqa_rows(items: list[Row], level: str) -> list[Row]:
    """Rows of the objects in FanOutQA's file; `level` as in `load_fanoutqa`."""
    if level == "question":
        return _answerable([_fanoutqa_question(item) for item in items])
    if level != "subquestion":
        raise ValueError(f"level must be 'subquestion' or 'question', got {level!r}")
    leaves = [leaf for item in items for leaf in _leaves(item)]
    return _answerable([_single(leaf["id"], leaf["question"], leaf["answer"], _searches([leaf])) for leaf in leaves])


def fanoutqa_corpus(items: list[Row]) -> list[Passage]:
    """One passage for each page that the questions in FanOutQA's file rest on."""
    lines: dict[tuple[str, str], dict[str, None]] = {}  # a dict keeps the order and drops what was asked twice
    for leaf in (leaf for item in items for leaf in _leaves(item)):
        page = (str(leaf["evidence"]["pageid"]), leaf["evidence"]["title"])
        lines.setdefault(page, {})[f"{leaf['question']} {_text(leaf['answer'])}"] = None
    return [Passage(id, title, "\n".join(text)) for (id, title), text in lines.items()]


def _fanoutqa_file() -> Path:
    spec = importlib.util.find_spec("fanoutqa")  # importing it would need its own dependencies, which are many
    if spec is None or spec.origin is None:
        raise ImportError("load_fanoutqa needs the data file in the package fanoutqa: pip install --no-deps fanoutqa")
    return Path(spec.origin).parent / "data" / "fanout-final-dev.json"


def _leaves(item: Row) -> Iterator[Row]:
    for part in item["decomposition"]:
        if part["decomposition"]:
            yield from _leaves(part)
        else:
            yield part


def _fanoutqa_question(item: Row) -> Row:
    row = _single(item["id"], item["question"], item["answer"], _searches(_leaves(item)))
    if isinstance(item["answer"], dict):
        names = ", ".join(item["answer"])
        row["question"] = f"{item['question']} Give one answer for each of these, in this order: {names}."
        row["answers"] = [_text(value) for value in item["answer"].values()]
    return row


def _searches(leaves: Iterable[Row]) -> list[Row]:
    return [{"query": leaf["question"], "finding": _text(leaf["answer"])} for leaf in leaves]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)


def _single(id: str, question: str, answer: Any, decomposition: list[Row]) -> Row:
    # No answer where there is none of one part: such a row is dropped.
    answers = [] if isinstance(answer, list | dict) else [_text(answer)]
    return {"question_id": id, "question": question, "answers": answers, "decomposition": decomposition}


def _answerable(rows: list[Row]) -> list[Row]:
    problems = [_problem(row["answers"]) for row in rows]
    kept = [row for row, problem in zip(rows, problems, strict=True) if problem is None]
    report_left_out(Counter(filter(None, problems)), len(kept), "FanOutQA")
    return [{"prompt": build_prompt(row["question"]), **row} for row in kept]


def _problem(answers: list[str]) -> str | None:
    if not answers or any(map(is_blank, answers)):
        return "no single answer"
    return "a ';' in one of several answers" if len(answers) > 1 and any(";" in a for a in answers) else None
