"""Questions in their public formats, as rows that the trainer takes; and single questions joined into harder ones.

A row has `prompt` (messages), `question`, `question_id` and `answers` (one gold answer for each objective). It may have
`aliases` (for each objective, other right answers) and `decomposition`: the searches that lead to the answers, each as
{"query", "finding"}, from which a cold start can be made.
"""

import importlib.util
import json
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .corpora import Passage, read_jsonl
from .prompts import SEPARATOR, build_prompt
from .rows import QuestionSet, Row, to_dataset

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def load_questions(path: str | Path) -> "Dataset":
    """Reads questions from a JSONL file, one object a line.

    `question` is needed, and one of `answers` (one gold answer for each objective) and `golden_answers` (FlashRAG's and
    Search-R1's: one objective, all its right answers). `question_id` or `id` defaults to the row. A `prompt` (messages)
    takes the place of the built one. Other columns stay as they are.

    Raises:
        `ValueError`: a row does not have what it needs; the message names row and column.
    """
    with open(path, encoding="utf-8") as file:
        rows = [_question_row(row, number, Path(path)) for number, row in read_jsonl(file, Path(path))]
    return to_dataset(rows)


def _question_row(source: Row, number: int, path: Path) -> Row:
    row = dict(source)
    golds = row.pop("golden_answers", None)
    if "answers" not in row and golds:
        row |= {"answers": golds[:1], "aliases": [golds[1:]]}
    if not isinstance(row.get("question"), str) or "answers" not in row:
        raise ValueError(f"{path}, line {number}: expected 'question' and 'answers', got {sorted(source)}")
    row["question_id"] = str(row.get("question_id", row.pop("id", number - 1)))
    return {"prompt": build_prompt(row["question"]), **row}


def load_hotpotqa(path: str | Path) -> QuestionSet:
    """Reads HotpotQA's JSON (`hotpot_train_v1.1.json`, `hotpot_dev_distractor_v1.json`).

    The paragraphs that come with the questions become the corpus, each once. `decomposition` searches the titles of the
    supporting paragraphs and finds the supporting sentences. Source: https://hotpotqa.github.io.

    Raises:
        `ValueError`: the file is no list of HotpotQA questions.
    """
    rows: list[Row] = []
    passages: dict[tuple[str, str], Passage] = {}
    for number, item in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        try:
            paragraphs = dict(item["context"])
            searches = _supporting(paragraphs, item["supporting_facts"])
            rows.append(_single(item["_id"], item["question"], item["answer"], searches))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: question {number} is not in HotpotQA's format ({error!r})") from error
        for title, sentences in paragraphs.items():
            text = "".join(sentences).strip()
            passages.setdefault((title, text), Passage(str(len(passages)), title, text))
    return QuestionSet(to_dataset(_answerable(rows)), list(passages.values()))


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
    items = json.loads(_fanoutqa_file().read_text(encoding="utf-8"))
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


def _supporting(paragraphs: dict[str, list[str]], facts: list[tuple[str, int]]) -> list[Row]:
    findings: dict[str, list[str]] = {}
    for title, i in facts:
        # A few facts of the public files point behind the last sentence.
        findings.setdefault(title, []).extend(sentence.strip() for sentence in paragraphs.get(title, [])[i : i + 1])
    return [{"query": title, "finding": " ".join(sentences)} for title, sentences in findings.items() if sentences]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(part)}" for name, part in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _single(id: str, question: str, answer: Any, decomposition: list[Row]) -> Row:
    # No answer where there is none of one part: such a row is dropped.
    answers = [] if isinstance(answer, list | dict) else [_text(answer)]
    return {"question_id": id, "question": question, "answers": answers, "decomposition": decomposition}


def _answerable(rows: list[Row]) -> list[Row]:
    kept = [row for row in rows if row["answers"] and all(a.strip() and ";" not in a for a in row["answers"])]
    if len(kept) < len(rows):
        dropped = len(rows) - len(kept)
        logger.info("left out %d of %d questions: no answer of one part, or a ';' in it", dropped, len(rows))
    return [{"prompt": build_prompt(row["question"]), **row} for row in kept]


def compose_objectives(dataset: "Dataset", k: int, seed: int = 0) -> "Dataset":
    """Joins `k` single questions into one row with `k` objectives: "q1; q2; ...", as the paper's training set is made.

    Questions are shuffled by `seed`; each is used once, and up to `k - 1` are left over.

    Args:
        dataset: rows with one answer each.
        k: objectives of a row, at least 1.
        seed: of the shuffle.

    Returns:
        Rows with `prompt`, `question`, `question_id` and `answers`, and `aliases` and `decomposition` if the dataset
        has them. The prompt is that of the first question, with all of them as its last message.

    Raises:
        `ValueError`: there are fewer than `k` questions, or a row has more than one answer.
    """
    rows: list[Row] = list(dataset)
    if not 1 <= k <= len(rows):
        raise ValueError(f"k must be between 1 and the number of questions, {len(rows)}; got {k}")
    for number, row in enumerate(rows):
        if len(row["answers"]) != 1:
            raise ValueError(f"row {number} has {len(row['answers'])} answers; only rows with one can be joined")
    random.Random(seed).shuffle(rows)
    return to_dataset([_join(rows[i : i + k]) for i in range(0, len(rows) - k + 1, k)])


def _join(rows: Sequence[Row]) -> Row:
    question = SEPARATOR.join(row["prompt"][-1]["content"].strip() for row in rows)
    joined: Row = {
        "prompt": [*rows[0]["prompt"][:-1], {"role": "user", "content": question}],
        "question": question,
        "question_id": "+".join(row["question_id"] for row in rows),
        "answers": [row["answers"][0] for row in rows],
    }
    if "aliases" in rows[0]:
        joined["aliases"] = [alias for row in rows for alias in row["aliases"] or [[]]]
    if "decomposition" in rows[0]:
        joined["decomposition"] = [search for row in rows for search in row["decomposition"] or []]
    return joined
