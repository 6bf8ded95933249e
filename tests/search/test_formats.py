"""Public question formats, told by their content: each has a file in `fixtures`, odd rows included."""

import gzip
import json
import logging
from pathlib import Path

import pytest
from datasets import Dataset

from mempo_trl.files import read_records
from mempo_trl.tasks.search import compose_objectives, load_hotpotqa, load_question_set, load_questions
from mempo_trl.tasks.search.formats import format_name
from mempo_trl.tasks.search.prompts import build_prompt

FIXTURES = Path(__file__).parent / "fixtures"
SHELLEY = ("Mary Shelley", ["Shelley"])
CHICAGO = [("tc_1", [("Chicago", ["Chi-Town"])])]
HOTPOT = [("5a7a", [("1986", [])]), ("7", [("a; b", [])])]
WIKI = [("8813", [("Małgorzata Braunek", [])])]
# The file, its format, how many paragraphs come along, the rows that are kept (id, each answer with its aliases), and
# what is said of the others.
CASES = [
    ("ours.jsonl", "ours", 0,
     [("0", [("Ridley Scott", ["Sir Ridley Scott"])]), ("1", [("Michael Mann", []), ("1995", [])]),
      ("2", [("Nostromo; seven", [])])], None),
    ("flashrag.jsonl", "FlashRAG, MEM1", 0, [("test_0", [("Wilhelm Conrad Röntgen", ["Röntgen"])])],
     "left out 2 of 3 questions of {path}: 2 with no answer"),
    ("search_r1.jsonl", "Search-R1, MEM1 (verl)", 0, [("train_0", [SHELLEY]), ("train_1", [("1818", [])])],
     "left out 1 of 3 questions of {path}: 1 with no answer"),
    ("mem1.jsonl", "Search-R1, MEM1 (verl)", 0, [("m_0", [SHELLEY, ("1818", [])])], "left out 1 of 2"),
    ("mem1_answers.jsonl", "FlashRAG, MEM1", 0, [("5", [SHELLEY, ("1818", [])])], "left out 1 of 2"),
    ("hotpotqa.json", "HotpotQA, 2WikiMultihopQA", 2, HOTPOT, "left out 1 of 3"),
    ("hotpotqa_hub.jsonl", "HotpotQA, 2WikiMultihopQA", 2, HOTPOT, "left out 1 of 3"),
    ("2wikimultihopqa.json", "HotpotQA, 2WikiMultihopQA", 2, WIKI, "left out 1 of 2"),
    ("2wikimultihopqa_hub.jsonl", "HotpotQA, 2WikiMultihopQA", 2, WIKI, "left out 1 of 2"),
    ("musique.jsonl", "MuSiQue", 2, [("2hop__1_2", [("Miquette Giraudy", ["Giraudy"])])],
     "1 with a question that its paragraphs do not answer"),
    ("nq_open.jsonl", "NQ-open, TriviaQA", 0,
     [("0", [("Fernie Alpine Resort", [])]), ("1", [("Neither vessel", ["neither"])])], "left out 1 of 3"),
    ("triviaqa.json", "NQ-open, TriviaQA", 0, CHICAGO, "left out 1 of 2"),
    ("triviaqa_hub.jsonl", "NQ-open, TriviaQA", 0, CHICAGO, "left out 1 of 2"),
    ("dpr.jsonl", "DPR", 0, [("0", [("The Band", ["Band"])])], "left out 1 of 2"),
    ("squad.jsonl", "SQuAD", 0, [("56be", [("Normandy", ["in Normandy"])])], "left out 1 of 2"),
    ("answer.jsonl", "NQ-open, TriviaQA", 0, [("0", [("4", [])]), ("1", [("yes", [])])], "left out 1 of 3"),
]  # fmt: skip


def gold(row):
    aliases = row.get("aliases") or [None] * len(row["answers"])
    return row["question_id"], [(answer, group or []) for answer, group in zip(row["answers"], aliases, strict=True)]


def check(path, case, caplog):
    paragraphs, rows, message = case[2:]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        questions, corpus = load_question_set(path)
    assert [gold(row) for row in questions] == rows
    assert all(row["prompt"] == build_prompt(row["question"]) for row in questions)
    assert len(corpus) == paragraphs
    assert (message.format(path=path) in caplog.text) if message else not caplog.records


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_format_is_told_by_its_content(case, tmp_path, caplog):
    path = FIXTURES / case[0]
    check(path, case, caplog)
    renamed = tmp_path / "questions"
    renamed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")))
    check(renamed, case, caplog)


# A list of pairs holds texts and numbers, which Parquet has no type for.
TABLES = [case for case in CASES if case[0] not in ("hotpotqa.json", "2wikimultihopqa.json", "triviaqa.json")]


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case[0])
def test_a_format_in_parquet(case, tmp_path, caplog):
    records = [record for _, record in read_records(FIXTURES / case[0])]
    if case[0] == "answer.jsonl":  # one type a column
        records = [
            {**record, "answer": None if record["answer"] is None else str(record["answer"])} for record in records
        ]
        case = (*case[:3], [("0", [("4", [])]), ("1", [("True", [])])], case[4])
    columns = dict.fromkeys(name for record in records for name in record)
    Dataset.from_list([{name: record.get(name) for name in columns} for record in records]).to_parquet(
        tmp_path / "data"
    )
    check(tmp_path / "data", case, caplog)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_docs_list_the_format(case):
    table = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    name = format_name(next(read_records(FIXTURES / case[0]))[1])
    assert name == case[1]
    assert f"`{case[0]}`" in table


def test_records_of_the_hub_are_read_like_files():
    records = [record for _, record in read_records(FIXTURES / "hotpotqa_hub.jsonl")]
    assert [gold(row) for row in load_questions(Dataset.from_list(records))] == HOTPOT


def test_searches_that_lead_to_the_answer():
    (row,) = load_questions(FIXTURES / "musique.jsonl")
    assert row["decomposition"] == [
        {"query": "Green performer", "finding": "Steve Hillage"},
        {"query": "Steve Hillage spouse", "finding": "Miquette Giraudy"},
    ]
    expected = [
        {"query": "Arthur", "finding": "Arthur had an editor."},
        {"query": "First", "finding": "It started in 1986."},
    ]
    for name in ("hotpotqa.json", "hotpotqa_hub.jsonl"):
        assert load_questions(FIXTURES / name)[0]["decomposition"] == expected


def test_composing_rows_of_search_r1_asks_once():
    (row,) = compose_objectives(load_questions(FIXTURES / "search_r1.jsonl"), 2)
    assert row["prompt"] == build_prompt(row["question"])
    assert "<search>" not in json.dumps(row["prompt"])
    shelley = row["answers"].index("Mary Shelley")
    assert row["aliases"][shelley] == ["Shelley"]
    assert row["aliases"][1 - shelley] == []


def test_composing_leaves_out_what_cannot_be_split(tmp_path, caplog):
    rows = [{"question": q, "golden_answers": golds} for q, golds in
            [("a?", ["1; 2"]), ("b?", ["3", "4; 5"]), ("c?", ["6"])]]  # fmt: skip
    (row,) = compose_objectives(load_questions(rows), 2)
    assert sorted(row["answers"]) == ["3", "6"]
    assert row["aliases"] == [[], []]  # "4; 5" could never be right
    assert "left out 1 of 3 questions of those to be joined: 1 with a ';' in the answer" in caplog.text
    assert len(compose_objectives(load_questions(rows), 1)) == 3


def test_prompts_that_hold_more_than_the_question_are_not_joined():
    prompt = [{"role": "user", "content": "Use <search>. Question: a?"}]
    rows = load_questions(
        [{"question": "a?", "answers": ["1"], "prompt": prompt}, {"question": "b?", "answers": ["2"]}]
    )
    with pytest.raises(
        ValueError, match=r"row 0, column 'prompt': it ends with more than the question.*Leave the column"
    ):
        compose_objectives(rows, 2)
    compose_objectives(rows.remove_columns("prompt").map(lambda row: {"prompt": build_prompt(row["question"])}), 2)
    prompt = build_prompt("a?", "Another system prompt.")
    rows = load_questions(
        [{"question": "b?", "answers": ["2"]}, {"question": "a?", "answers": ["1"], "prompt": prompt}]
    )
    with pytest.raises(ValueError, match="row 1, column 'prompt': it differs from row 0's"):
        compose_objectives(rows, 2)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "q", "answer": {"value": "a", "aliases": "b"}}, "column 'aliases': expected a list, got 'b'"),
        ({"question": "q", "answer": [["a"], "b"]}, "column 'answer': an answer must be a text, got ['a']"),
        ({"question": "q", "reward_model": "x"}, "column 'reward_model': expected an object, got 'x'"),
        ({"question": "q", "reward_model": {"ground_truth": {"target": "Paris"}}}, "got 'Paris'. Write ['Paris']"),
        ({"question": "q", "answer": "a", "supporting_facts": "[", "context": []}, "Expecting value"),
        ({"question": "q", "answer": "a", "supporting_facts": [], "context": "Paris"}, "Expecting value"),
        ({"question": "q", "answer": "a", "supporting_facts": [], "context": ["ab"]}, "expected pairs"),
        (
            {"question": "q", "answer": "a", "supporting_facts": [], "context": [["a", "b"]]},
            "list of sentences, got 'b'",
        ),
        ({"question": "q", "answer": "a", "paragraphs": "x", "question_decomposition": []}, "'paragraphs': expected a"),
    ],
)
def test_a_text_is_never_iterated(record, message):
    with pytest.raises(ValueError) as error:
        load_questions([{"question": "q", "answers": ["a"]}, record])
    assert str(error.value).startswith("row 1: ")
    assert message in str(error.value)


def test_nothing_left_is_refused(caplog):
    with pytest.raises(ValueError, match="no rows"):
        load_questions([{"question": "q", "answer": None}])
    with pytest.raises(ValueError, match="no paragraphs come with them"):
        load_hotpotqa(FIXTURES / "nq_open.jsonl")
