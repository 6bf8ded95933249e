"""One record of a question file in any of the public formats, read as a row and its paragraphs.

The keys of a record tell its format; `FORMATS` lists them. Nothing is iterated before its type is known, so that a text
is never taken for a list. Null is missing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ...files import parse_json
from ...text import is_blank
from .prompts import build_prompt
from .rows import Row

Paragraph = tuple[str, str]  # title, text


_GOLD = frozenset({"answers", "golden_answers", "reward_model", "answer"})


class Unanswerable(Exception):
    """A record without a usable answer. Its row is left out and counted; the message is the reason."""


class Parsed(NamedTuple):
    """What one record holds: a row that the trainer takes, and the paragraphs that came with the question."""

    row: Row
    paragraphs: list[Paragraph]


class Format(NamedTuple):
    """A public format: its name, the keys that tell it, and what reads a record into columns and paragraphs."""

    name: str
    keys: frozenset[str]
    read: Callable[[Row], tuple[Row, list[Paragraph]]]


def parse_record(record: Row, number: int) -> Parsed:
    """Reads one record. A question without an id is named `number`.

    Raises:
        `ValueError`: naming the column that is missing or of another type, and what to write.
        `Unanswerable`: the record is in order, but has no answer.
    """
    names = {_lower_first(name) for name in record}
    record = _without_nulls(record)
    question = _text(record, "question")
    if is_blank(question):
        raise ValueError("column 'question': the question is empty. Leave the row out, or write one")
    id = _id(record, number)
    if not _GOLD & record.keys() and names & {"answer", "golden_answers"}:
        raise Unanswerable("no answer")
    columns, paragraphs = _format(record).read(record)
    return Parsed({"prompt": build_prompt(question), "question": question, "question_id": id, **columns}, paragraphs)


def format_name(record: Row) -> str:
    """The name of the format that a record is in, as docs/data.md lists it."""
    return _format(_without_nulls(record)).name


def _lower_first(name: str) -> str:
    return name[:1].lower() + name[1:]


def _without_nulls(record: Row) -> Row:
    """The columns that have a value, under names that open in lower case, as those of TriviaQA's own files do not."""
    named = {_lower_first(key): value for key, value in record.items()} if "Question" in record else record
    return {key: value for key, value in named.items() if value is not None}


def _format(record: Row) -> Format:
    found = next((format for format in FORMATS if format.keys <= record.keys()), None)
    if found is None:
        raise ValueError(f"expected 'question' and 'answers' (or 'golden_answers', 'answer'), got {sorted(record)}")
    return found


# Formats. Each reads the columns beside the question and its id, and the paragraphs.


def _own(record: Row) -> tuple[Row, list[Paragraph]]:
    """One text for each objective; other columns stay as they are."""
    answers = record["answers"]
    if isinstance(answers, list) and answers and all(isinstance(group, list) for group in answers):
        return _gold(answers, "answers") | _others(record, "answers", "aliases"), []
    columns = {"answers": answers} | _others(record, "answers")
    if isinstance(record.get("aliases"), list):
        columns["aliases"] = [_present(group) for group in record["aliases"]]
    return columns, []


def _golden(record: Row) -> tuple[Row, list[Paragraph]]:
    return _gold(record["golden_answers"], "golden_answers") | _others(record, "golden_answers"), []


def _alternatives(record: Row) -> tuple[Row, list[Paragraph]]:
    return _gold(_list(record, "answers"), "answers"), []


def _verl(record: Row) -> tuple[Row, list[Paragraph]]:
    """Its `prompt` asks for other tags than ours, so it is built anew."""
    truth = _dict(record["reward_model"], "reward_model").get("ground_truth")
    target = truth.get("target") if isinstance(truth, dict) else truth
    columns = _others(record, "reward_model", "golden_answers", "answers", "aliases", "prompt")
    return _gold(target, "reward_model") | columns, []


def _squad(record: Row) -> tuple[Row, list[Paragraph]]:
    return _gold(_dict(record["answers"], "answers").get("text"), "answers"), []


def _triviaqa(record: Row) -> tuple[Row, list[Paragraph]]:
    answer = {key.lower(): value for key, value in _dict(record["answer"], "answer").items()}
    return _gold([answer.get("value"), *_listed(answer, "aliases")], "answer"), []


def _answer(record: Row) -> tuple[Row, list[Paragraph]]:
    answer = record["answer"]
    if isinstance(answer, dict):
        return _triviaqa(record)
    return _gold(answer if isinstance(answer, list) else [answer], "answer") | _others(record, "answer"), []


def _musique(record: Row) -> tuple[Row, list[Paragraph]]:
    paragraphs = [_dict(paragraph, "paragraphs") for paragraph in _list(record, "paragraphs")]
    texts = [(_text(paragraph, "title"), _text(paragraph, "paragraph_text")) for paragraph in paragraphs]
    if record.get("answerable") is False:
        raise Unanswerable("a question that its paragraphs do not answer")
    findings: list[str] = []
    searches = []
    for step in _list(record, "question_decomposition"):
        query, finding = _text(_dict(step, "question_decomposition"), "question"), _text(step, "answer")
        for number in range(len(findings), 0, -1):  # "#1" stands for what the first step found
            query = query.replace(f"#{number}", findings[number - 1])
        findings.append(finding)
        searches.append({"query": query.replace(" >> ", " "), "finding": finding})
    golds = [record.get("answer"), *_listed(record, "answer_aliases")]
    return _gold(golds, "answer") | {"decomposition": searches}, texts


def _hotpotqa(record: Row) -> tuple[Row, list[Paragraph]]:
    """HotpotQA and 2WikiMultihopQA, with pairs as in their own files or columns as on the Hub."""
    paragraphs: dict[str, list[str]] = {}
    for title, sentences in _pairs(record["context"], "context", "title", "sentences", "content"):
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(f"column 'context': expected a list of sentences, got {sentences!r:.200}")
        paragraphs[title] = sentences
    findings: dict[str, list[str]] = {}
    for title, number in _pairs(record["supporting_facts"], "supporting_facts", "title", "sent_id"):
        if not isinstance(number, int):
            raise ValueError(f"column 'supporting_facts': expected the number of a sentence, got {number!r:.200}")
        # A few facts of the public files point behind the last sentence.
        found = paragraphs.get(title, [])[number : number + 1]
        findings.setdefault(title, []).extend(sentence.strip() for sentence in found)
    searches = [{"query": title, "finding": " ".join(found)} for title, found in findings.items() if found]
    texts = [(title, "".join(sentences).strip()) for title, sentences in paragraphs.items()]
    return _gold([record.get("answer")], "answer") | {"decomposition": searches}, texts


FORMATS = (
    Format("HotpotQA, 2WikiMultihopQA", frozenset({"supporting_facts", "context"}), _hotpotqa),
    Format("MuSiQue", frozenset({"question_decomposition", "paragraphs"}), _musique),
    Format("Search-R1, MEM1 (verl)", frozenset({"reward_model"}), _verl),
    Format("FlashRAG, MEM1", frozenset({"golden_answers"}), _golden),
    Format("DPR", frozenset({"answers", "positive_ctxs"}), _alternatives),
    Format("SQuAD", frozenset({"answers", "context"}), _squad),
    Format("ours", frozenset({"answers"}), _own),
    Format("NQ-open, TriviaQA", frozenset({"answer"}), _answer),
)


# Typed access


def _gold(groups: Any, column: str) -> Row:
    """`answers` and `aliases` of all the right answers of one question, or of a list of them for each objective."""
    groups = _present(groups)
    if groups is None:
        raise Unanswerable("no answer")
    if not isinstance(groups, list):
        raise ValueError(
            f"column {column!r}: expected a list of right answers, got {groups!r:.200}. Write {[groups]!r:.200}"
        )
    if not groups or not all(isinstance(group, list) for group in groups):
        groups = [groups]
    groups = [_distinct([_scalar(answer, column) for answer in _present(group)]) for group in groups]
    if not all(groups):
        raise Unanswerable("no answer")
    return {"answers": [group[0] for group in groups], "aliases": [group[1:] for group in groups]}


def _distinct(answers: list[str]) -> list[str]:
    return list(dict.fromkeys(answer for answer in answers if not is_blank(answer)))


def _scalar(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str | int | float):
        raise ValueError(f"column {column!r}: an answer must be a text, got {value!r:.200}")
    return str(value)


def _present(values: Any) -> Any:
    """A list without what is missing (null, or pandas' NaN); anything else as it is."""
    return [v for v in values if v is not None and v == v] if isinstance(values, list) else values


def _others(record: Row, *used: str) -> Row:
    known = {"question", "question_id", "id", "_id", *used}
    return {key: value for key, value in record.items() if key not in known}


def _id(record: Row, number: int) -> str:
    value = next((record[key] for key in ("question_id", "questionId", "id", "_id") if key in record), number)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"the question's id must be a text or a number, got {value!r:.200}")
    return str(value)


def _text(record: Row, column: str) -> str:
    value = record.get(column)
    if not isinstance(value, str):
        raise ValueError(f"column {column!r}: expected a text, got {value!r:.200}")
    return value


def _list(record: Row, column: str) -> list[Any]:
    value = record.get(column)
    if not isinstance(value, list):
        raise ValueError(f"column {column!r}: expected a list, got {value!r:.200}")
    return value


def _listed(record: Row, column: str) -> list[Any]:
    """A list that may be missing."""
    return _list(record, column) if record.get(column) is not None else []


def _dict(value: Any, column: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"column {column!r}: expected an object, got {value!r:.200}")
    return value


def _pairs(value: Any, column: str, first: str, *second: str) -> list[tuple[str, Any]]:
    """Pairs in any public form: a list of pairs, an object of two lists, or either of them as JSON text."""
    if isinstance(value, str):
        value = parse_json(value)
    if isinstance(value, dict):
        name = next((name for name in second if name in value), second[0])
        left, right = _list(value, first), _list(value, name)
        value = [[*pair] for pair in zip(left, right, strict=False)] if len(left) == len(right) else None
    for pair in value if isinstance(value, list) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"column {column!r}: expected pairs with a title first, got {pair!r:.200}")
    return [(pair[0], pair[1]) for pair in value]
