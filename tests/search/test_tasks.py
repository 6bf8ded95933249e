import json

import pytest

from mempo_trl.tasks.search import BM25Retriever, HTTPRetriever, Passage, SearchEnvironment
from mempo_trl.tasks.task import open_retriever, open_task
from mempo_trl.tasks.world.world import WorldEnvironment


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text("id\ttext\ttitle\n1\tIts capital is Paris.\tFrance\n2\tIts capital is Lima.\tPeru\n")
    return str(path)


def question_file(tmp_path, answers):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"q{i}", "answers": golds} for i, golds in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_embedded_world_is_its_own_corpus():
    task = open_task("world")
    rows = task.rows(3, 5, seed=1)
    assert [len(row["answers"]) for row in rows] == [3] * 5
    assert rows == task.rows(3, 5, seed=1) != task.rows(3, 5, seed=2)
    environment = task.environment_factory()
    assert isinstance(environment, WorldEnvironment)
    environment.reset(**rows[0])
    assert rows[0]["answers"][0] in environment.search(rows[0]["people"][0])


def test_a_question_file_with_a_corpus(tmp_path, corpus):
    task = open_task(question_file(tmp_path, [["a"], ["b"], ["c"]]), corpus, top_k=1)
    rows = task.rows()
    assert sorted(row["question_id"] for row in rows) == ["0", "1", "2"]
    assert len(task.rows(count=2)) == 2
    environment = task.environment_factory()
    assert isinstance(environment, SearchEnvironment)
    assert environment.search("France") == "(1) France\nIts capital is Paris."


def test_single_questions_are_joined(tmp_path, corpus):
    task = open_task(question_file(tmp_path, [["a"], ["b"], ["c"], ["d"], ["e"]]), corpus)
    rows = task.rows(objectives=2, seed=3)
    assert [len(row["answers"]) for row in rows] == [2, 2]
    assert len({answer for row in rows for answer in row["answers"]}) == 4
    with pytest.raises(ValueError, match="no question has 6 objectives, and too few have one"):
        task.rows(objectives=6)


def test_questions_that_have_the_objectives_are_taken_as_they_are(tmp_path, corpus):
    task = open_task(question_file(tmp_path, [["a"], ["b", "c"], ["d"], ["e", "f"]]), corpus)
    assert sorted(row["answers"] for row in task.rows(objectives=2)) == [["b", "c"], ["e", "f"]]
    assert sorted(row["answers"] for row in task.rows(objectives=1)) == [["a"], ["d"]]
    assert len(task.rows()) == 4


def test_hotpotqa_brings_its_corpus_along(tmp_path):
    item = {
        "_id": "5a",
        "question": "Where was Ada born?",
        "answer": "London",
        "supporting_facts": [["Ada Lovelace", 0]],
        "context": [["Ada Lovelace", ["Ada was born in London."]], ["Peru", ["Its capital is Lima."]]],
    }
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([item]))
    task = open_task(str(path))
    (row,) = task.rows()
    assert row["decomposition"] == [{"query": "Ada Lovelace", "finding": "Ada was born in London."}]
    assert "Lima" in task.environment_factory().search("capital of Peru")


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("odd", "dataset 'odd' is unknown: no such file. Give world"),
        ("a.jsonl", "a.jsonl comes without a corpus. Set --corpus"),
    ],
)
def test_what_cannot_be_opened(tmp_path, monkeypatch, questions, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"question": "q", "answers": ["a"]}')
    with pytest.raises(ValueError, match=message):
        open_task(questions)


def test_retrievers_by_name(tmp_path, corpus):
    BM25Retriever.build([Passage("0", "Chile", "Santiago")]).save(tmp_path / "index")
    assert open_retriever(str(tmp_path / "index")).search(["Chile"], 1)[0][0].id == "0"
    assert open_retriever(corpus).search(["Peru"], 1)[0][0].id == "2"
    assert isinstance(open_retriever("http://127.0.0.1:1"), HTTPRetriever)
    with pytest.raises(FileNotFoundError):
        open_retriever(str(tmp_path / "none.jsonl"))
