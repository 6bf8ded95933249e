"""Questions in their public formats, as rows that the trainer takes; and single questions joined into harder ones.

A row has `prompt` (messages), `question`, `question_id` and `answers` (one gold answer for each objective). It may have
`aliases` (for each objective, other right answers) and `decomposition`: the searches that lead to the answers, each as
{"query", "finding"}, from which a cold start can be made.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import read_records
from .corpora import Passage
from .formats import Unanswerable, parse_record
from .prompts import SEPARATOR
from .rows import QuestionSet, Row, to_dataset

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def load_questions(source: "str | Path | Iterable[Row]") -> "Dataset":
    """Reads questions in any of the formats that docs/data.md lists.

    Args:
        source: a file (JSON lines, a JSON list or Parquet), or records, such as a split of a dataset of the Hub.

    Raises:
        `ValueError`: a row does not have what it needs; the message names row and column.
    """
    return load_question_set(source).questions


def load_question_set(source: "str | Path | Iterable[Row]") -> QuestionSet:
    """`load_questions`, together with the paragraphs that come with the questions, each once. Some formats have none.

    Rows without an answer are left out, and a warning counts them by reason.
    """
    if isinstance(source, str | Path):
        name, records = str(source), read_records(source)
    else:
        name, records = "the questions", ((f"row {number}", row) for number, row in enumerate(source))
    rows: list[Row] = []
    places: list[str] = []
    left_out: Counter[str] = Counter()
    passages: dict[tuple[str, str], Passage] = {}
    for number, (where, record) in enumerate(records):
        try:
            row, paragraphs = parse_record(record, number)
        except Unanswerable as reason:
            left_out[str(reason)] += 1
            continue
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        rows.append(row)
        places.append(where)
        for title, text in paragraphs:
            passages.setdefault((title, text), Passage(str(len(passages)), title, text))
    report_left_out(left_out, len(rows), name)
    return QuestionSet(to_dataset(rows, places), list(passages.values()))


def load_hotpotqa(path: str | Path) -> QuestionSet:
    """Reads HotpotQA's JSON (`hotpot_train_v1.1.json`, `hotpot_dev_distractor_v1.json`).

    The paragraphs that come with the questions become the corpus, each once. `decomposition` searches the titles of the
    supporting paragraphs and finds the supporting sentences. Source: https://hotpotqa.github.io.

    Raises:
        `ValueError`: the file is not a list of HotpotQA questions.
    """
    found = load_question_set(path)
    if not found.corpus:
        raise ValueError(f"{path}: not HotpotQA's questions, since no paragraphs come with them. Use load_questions")
    return found


def report_left_out(reasons: Counter[str], kept: int, name: str) -> None:
    """Warns of questions that were left out, with the count of each reason."""
    if reasons.total():
        counts = ", ".join(f"{count} with {reason}" for reason, count in reasons.items() if count)
        logger.warning("left out %d of %d questions of %s: %s", reasons.total(), reasons.total() + kept, name, counts)


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
    for number, row in enumerate(rows):
        if len(row["answers"]) != 1:
            raise ValueError(f"row {number} has {len(row['answers'])} answers; only rows with one can be joined")
        _check_prompt(row, rows[0], number)
    if k > 1:
        kept = [row for row in rows if ";" not in row["answers"][0]]
        report_left_out(Counter({"a ';' in the answer": len(rows) - len(kept)}), len(kept), "those to be joined")
        rows = kept
    if not 1 <= k <= len(rows):
        raise ValueError(f"k must be between 1 and the number of questions, {len(rows)}; got {k}")
    random.Random(seed).shuffle(rows)
    return to_dataset([_join(rows[i : i + k]) for i in range(0, len(rows) - k + 1, k)])


def _check_prompt(row: Row, first: Row, number: int) -> None:
    """A joined prompt can only be made of prompts that hold a question alone, below the same system message."""
    *above, last = row["prompt"]
    if row.get("question") is not None and last["content"].strip() != row["question"].strip():
        raise ValueError(
            f"row {number}, column 'prompt': it ends with more than the question, so questions cannot be joined in it. "
            "Leave the column out when you load the questions, or put the instructions into the system message"
        )
    if above != first["prompt"][:-1]:
        raise ValueError(f"row {number}, column 'prompt': it differs from row 0's above the question. Join them apart")


def _join(rows: Sequence[Row]) -> Row:
    question = SEPARATOR.join(row["prompt"][-1]["content"].strip() for row in rows)
    joined: Row = {
        "prompt": [*rows[0]["prompt"][:-1], {"role": "user", "content": question}],
        "question": question,
        "question_id": "+".join(row["question_id"] for row in rows),
        "answers": [row["answers"][0] for row in rows],
    }
    if "aliases" in rows[0]:
        joined["aliases"] = [_aliases(row, len(rows)) for row in rows]
    if "decomposition" in rows[0]:
        joined["decomposition"] = [search for row in rows for search in row["decomposition"] or []]
    return joined


def _aliases(row: Row, k: int) -> list[str]:
    """Those of the row's one answer that can be right among `k`."""
    (aliases,) = row["aliases"] or [None]
    return [alias for alias in aliases or [] if k == 1 or ";" not in alias]
