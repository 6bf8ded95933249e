"""Questions in their public formats, and what is refused."""

import hashlib
import importlib.util
import json

import pytest
from datasets import Dataset

from mempo_trl import memory_instructions
from mempo_trl.rollout.context import CONTEXTS
from mempo_trl.tasks.instructions import VISIBLE
from mempo_trl.tasks.search import (
    SYSTEM_PROMPT,
    Passage,
    build_prompt,
    compose_objectives,
    load_fanoutqa,
    load_hotpotqa,
    load_questions,
    validate_rows,
)
from mempo_trl.tasks.search.fanoutqa import fanoutqa_corpus, fanoutqa_rows
from mempo_trl.tasks.search.prompts import TAGS


def write_lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_prompt():
    prompt = build_prompt("Who?; Where?")
    assert prompt == [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "Who?; Where?"}]
    for tag in ("mem", "think", "tool_call", "answer"):
        assert f"<{tag}>" in SYSTEM_PROMPT
        assert f"</{tag}>" in SYSTEM_PROMPT


def test_the_prompt_is_the_one_that_the_packaged_model_was_trained_on():
    """Byte for byte: it is one token of its tokenizer."""
    assert hashlib.sha256(SYSTEM_PROMPT.encode()).hexdigest() == (
        "49e5f9ac3d178f3f707b9ab97523be3cc5dbd4bc40816921472677ad83f5f227"
    )


def test_any_task_can_ask_for_memories():
    assert set(VISIBLE) == set(CONTEXTS)
    for context in CONTEXTS:
        text = memory_instructions(context)
        assert "search" not in text
        assert all(f"<{tag}>" in text and f"</{tag}>" in text for tag in TAGS)
        assert ("taken away" in text) == (context == "memory")
    with pytest.raises(ValueError, match=r"context='half' is unknown\. Set one of memory, full"):
        memory_instructions("half")


def test_jsonl(tmp_path):
    own = [{"role": "user", "content": "Where is it?"}]
    rows = load_questions(
        write_lines(
            tmp_path / "q.jsonl",
            [
                {"question": "Who?", "answers": ["Ada"], "source": "x"},
                {"question": "Where?", "answers": ["Rome", "Oslo"], "question_id": 7, "prompt": own},
                {"id": "nq-3", "question": "When?", "golden_answers": ["1999", "in 1999"]},
            ],
        )
    ).to_list()
    assert [row["question_id"] for row in rows] == ["0", "7", "nq-3"]
    assert [row["answers"] for row in rows] == [["Ada"], ["Rome", "Oslo"], ["1999"]]
    assert [row["prompt"] for row in rows] == [build_prompt("Who?"), own, build_prompt("When?")]
    assert rows[0]["source"] == "x"
    assert rows[2]["aliases"] == [["in 1999"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answers": ["a"]}, "column 'question': expected a text, got None"),
        ({"question": " ", "answers": ["a"]}, "column 'question': the question is empty"),
        ({"question": "q"}, "expected 'question' and 'answers' (or 'golden_answers', 'answer'), got ['question']"),
        ({"question": "q", "golden_answers": "Paris"}, "column 'golden_answers': expected a list of right answers, "
         "got 'Paris'. Write ['Paris']"),
        ({"question": "q", "golden_answers": [{}]}, "column 'golden_answers': an answer must be a text, got {}"),
        ({"question": "q", "answers": []}, "column 'answers': expected a list"),
        ({"question": "q", "answers": "a"}, "column 'answers': expected a list with one text for each objective, got "
         "the text 'a'. Write ['a']"),
        ({"question": "q", "answers": [3]}, "column 'answers': expected a list"),
        ({"question": "q", "answers": ["a", None]}, "column 'answers': expected a list"),
        ({"question": "q", "answers": ["a", " "]}, "column 'answers': an answer is empty"),
        ({"question": "q", "answers": ["a; b", "c"]}, "column 'answers': one of several answers cannot contain ';'"),
        ({"question": "q", "answers": ["a"], "aliases": [["b"], ["c"]]}, "column 'aliases': expected 1 lists"),
        ({"question": "q", "answers": ["a"], "aliases": ["Sir B"]}, "column 'aliases': expected a list of texts for "
         "each objective, got ['Sir B']. Write [['Sir B']]"),
        ({"question": "q", "answers": ["a"], "aliases": "Sir B"}, "column 'aliases': expected a list of texts"),
        ({"question": "q", "answers": ["a"], "aliases": [[""]]}, "column 'aliases': an alias must be a text that is"),
        ({"question": "q", "answers": ["a", "b"], "aliases": [["x;y"], []]}, "column 'aliases': 'x;y' can never be"),
        ({"question": "q", "answers": ["a"], "prompt": "q"}, "column 'prompt': expected a list of messages"),
        ({"question": "q", "answers": ["a"], "prompt": []}, "column 'prompt': expected a list of messages"),
        ({"question": "q", "answers": ["a"], "prompt": [{"role": "user"}]}, "column 'prompt': a message needs"),
        ({"question": "q", "answers": ["a"], "question_id": 1.5}, "the question's id must be a text or a number"),
        ({"question": "q", "answers": ["\ud800"]}, "column 'answers': an answer is empty or not valid text"),
        ({"question": "q", "answers": ["a"], "note": "\ud800"}, "column 'note': '\\ud800' is not of the same type as"),
        ({"question": "q", "answers": ["a"], "level": {"x": 1}}, "column 'level': {'x': 1} is not of the same type as"),
        ({"question": "q", "answers": ["a"], "level": "hard"}, "column 'level': 'hard' is not of the same type as"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, row, message):
    first = {"question": "Who?", "answers": ["Ada"], "level": 1}
    path = write_lines(tmp_path / "q.jsonl", [first, first, row])
    with pytest.raises(ValueError) as error:
        load_questions(path)
    assert str(error.value).startswith(f"{path}, line 3")
    assert message in str(error.value)


def test_rows_of_any_origin_can_be_checked():
    validate_rows(Dataset.from_list([{"prompt": build_prompt("q"), "answers": ["a"]}]))
    with pytest.raises(ValueError, match="row 0, column 'prompt'"):
        validate_rows([{"answers": ["a"]}])
    with pytest.raises(ValueError, match=r"row 0, column 'answers': expected a list .* got None"):
        validate_rows([{"prompt": build_prompt("q")}])
    with pytest.raises(ValueError, match="no rows"):
        validate_rows([])


HOTPOT = [
    {
        "_id": "5a7a06935542990198eaf050",
        "answer": "1986",
        "question": "When did the magazine of Arthur's editor start?",
        "supporting_facts": [["Arthur", 0], ["First", 1], ["Arthur", 1], ["First", 9], ["Gone", 0]],
        "context": [
            ["Arthur", ["Arthur had an editor.", " It was Ada."]],
            ["First", ["First is a magazine.", " It started in 1986.", " It is big."]],
        ],
        "type": "bridge",
        "level": "hard",
    },
    {
        "_id": "2",
        "answer": "yes",
        "question": "Is First big?",
        "supporting_facts": [["First", 2]],
        "context": [
            ["First", ["First is a magazine.", " It started in 1986.", " It is big."]],
            ["Other", ["Nothing of note."]],
        ],
        "type": "comparison",
        "level": "easy",
    },
    {"_id": "3", "answer": "a; b", "question": "Which two?", "supporting_facts": [], "context": [["Third", ["Two."]]]},
]


def test_hotpotqa(tmp_path):
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps(HOTPOT), encoding="utf-8")
    questions, corpus = load_hotpotqa(path)
    assert corpus == [
        Passage("0", "Arthur", "Arthur had an editor. It was Ada."),
        Passage("1", "First", "First is a magazine. It started in 1986. It is big."),
        Passage("2", "Other", "Nothing of note."),
        Passage("3", "Third", "Two."),
    ]
    first, second, third = questions.to_list()
    assert third["answers"] == ["a; b"]  # one objective needs no splitting
    assert first["question_id"] == "5a7a06935542990198eaf050"
    assert first["answers"] == ["1986"]
    assert first["prompt"] == build_prompt(HOTPOT[0]["question"])
    assert first["decomposition"] == [
        {"query": "Arthur", "finding": "Arthur had an editor. It was Ada."},
        {"query": "First", "finding": "It started in 1986."},
    ]
    assert second["answers"] == ["yes"]


@pytest.mark.parametrize("change", [{"context": 1}, {"context": [["Title"]]}, {"supporting_facts": [["Title"]]}])
def test_a_file_that_is_not_hotpotqa_is_named(tmp_path, change):
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([HOTPOT[0], HOTPOT[1] | change]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"hotpot.json, item 1: column '(context|supporting_facts)': expected pairs"):
        load_hotpotqa(path)


def part(id, question, answer, page=None, parts=()):
    evidence = page and {"pageid": page[0], "revid": 1, "title": page[1], "url": ""}
    return {"id": id, "question": question, "answer": answer, "evidence": evidence, "decomposition": list(parts)}


FANOUT = [
    part(
        "q1",
        "How high are the two towers?",
        {"Ada Tower": 300.5, "Bo Tower": True},
        parts=[
            part("s1", "Which are the towers?", ["Ada Tower", "Bo Tower"], (1, "Towers")),
            part("s2", "How high is Ada Tower?", 300.5, (2, "Ada")),
            part("s3", "Is Bo Tower?", None, None, [part("s4", "Is Bo Tower high?", True, (2, "Ada"))]),
        ],
    ),
    part("q2", "Which are they?", ["x", "y"], parts=[part("s5", "Which?", "x; y", (3, "X"))]),
    part("q3", "How many?", 2, parts=[part("s6", "How many?", 2, (3, "X")), part("s7", "How many?", 2, (3, "X"))]),
]


def test_fanoutqa_subquestions():
    rows = fanoutqa_rows(FANOUT, "subquestion")
    assert [(row["question_id"], row["answers"]) for row in rows] == [
        ("s2", ["300.5"]),
        ("s4", ["yes"]),
        ("s5", ["x; y"]),
        ("s6", ["2"]),
        ("s7", ["2"]),
    ]
    assert rows[0]["decomposition"] == [{"query": "How high is Ada Tower?", "finding": "300.5"}]


def test_fanoutqa_corpus():
    assert fanoutqa_corpus(FANOUT) == [
        Passage("1", "Towers", "Which are the towers? Ada Tower, Bo Tower"),
        Passage("2", "Ada", "How high is Ada Tower? 300.5\nIs Bo Tower high? yes"),
        Passage("3", "X", "Which? x; y\nHow many? 2"),
    ]


def test_fanoutqa_questions():
    first, third = fanoutqa_rows(FANOUT, "question")  # the second's answers have no order to ask for
    assert first["question"] == (
        "How high are the two towers? Give one answer for each of these, in this order: Ada Tower, Bo Tower."
    )
    assert first["answers"] == ["300.5", "yes"]
    assert first["prompt"] == build_prompt(first["question"])
    assert first["decomposition"] == [
        {"query": "Which are the towers?", "finding": "Ada Tower, Bo Tower"},
        {"query": "How high is Ada Tower?", "finding": "300.5"},
        {"query": "Is Bo Tower high?", "finding": "yes"},
    ]
    assert (third["question"], third["answers"]) == ("How many?", ["2"])
    with pytest.raises(ValueError, match="level must be"):
        fanoutqa_rows(FANOUT, "answer")


def test_fanoutqa_without_the_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps fanoutqa"):
        load_fanoutqa()


def test_fanoutqa_of_the_package():
    if importlib.util.find_spec("fanoutqa") is None:
        pytest.skip("the package fanoutqa is not installed")
    questions, corpus = load_fanoutqa()
    titles = {passage.title: passage.text for passage in corpus}
    row = questions[0]
    assert row["question"] == "What is the batting hand of Pat Burrell?"
    assert row["answers"] == ["Right"]
    assert titles["Pat Burrell"] == "What is the batting hand of Pat Burrell? Right"
    assert len(corpus) == len(set(corpus))
    assert load_fanoutqa("question").corpus == corpus


def single(n, **columns):
    rows = [{"prompt": build_prompt(f"q{i}? "), "question_id": str(i), "answers": [f"a{i}"]} for i in range(n)]
    return Dataset.from_list([row | {name: make(i) for name, make in columns.items()} for i, row in enumerate(rows)])


def test_composing_uses_each_question_once():
    rows = compose_objectives(single(7), k=3, seed=0).to_list()
    assert len(rows) == 2
    ids = [id for row in rows for id in row["question_id"].split("+")]
    assert len(set(ids)) == 6
    for row in rows:
        parts = row["question_id"].split("+")
        assert row["answers"] == [f"a{i}" for i in parts]
        assert row["question"] == "; ".join(f"q{i}?" for i in parts)
        assert row["prompt"] == build_prompt(row["question"])


def test_composing_follows_the_seed():
    assert compose_objectives(single(20), 2, seed=1).to_list() == compose_objectives(single(20), 2, seed=1).to_list()
    assert compose_objectives(single(20), 2, seed=1).to_list() != compose_objectives(single(20), 2, seed=2).to_list()


def test_composing_joins_aliases_and_decompositions():
    dataset = single(
        2,
        aliases=lambda i: [[f"b{i}"]] if i else None,
        decomposition=lambda i: [{"query": f"s{i}", "finding": f"f{i}"}],
    )
    (row,) = compose_objectives(dataset, 2).to_list()
    first, second = row["question_id"].split("+")
    assert sorted(row["aliases"]) == [[], ["b1"]]
    assert row["aliases"][int(second == "1")] == ["b1"]
    assert [search["query"] for search in row["decomposition"]] == [f"s{first}", f"s{second}"]


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_fit_the_questions(k):
    with pytest.raises(ValueError, match=f"number of questions, 3; got {k}"):
        compose_objectives(single(3), k)


def test_only_single_questions_can_be_joined():
    with pytest.raises(ValueError, match="row 0 has 2 answers"):
        compose_objectives(compose_objectives(single(4), 2), 2)
