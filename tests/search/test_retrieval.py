"""BM25: what is found, in memory and from disk; and passages in their wire form."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mempo_trl.tasks.search import BM25Retriever, Passage, load_corpus
from mempo_trl.tasks.search.retrieval import best

CORPUS = [
    Passage("a", "Apollo 8", "Three men flew round the Moon."),
    Passage("b", "Apollo 11", "Two men walked on the Moon."),
    Passage("c", "Paris", "The capital of France lies on the Seine."),
    Passage("d", "", "Lima is the capital of Peru."),
    Passage("e", "Blank", ""),
]


def found(retriever, query, k):
    return [passage.id for passage in retriever.search([query], k)[0]]


@pytest.fixture(params=["built", "mapped", "loaded"])
def retriever(request, tmp_path):
    built = BM25Retriever.build(CORPUS)
    if request.param == "built":
        return built
    built.save(tmp_path / "new" / "index")
    return BM25Retriever.load(tmp_path / "new" / "index", mmap=request.param == "mapped")


def test_the_best_passage_is_first(retriever):
    assert found(retriever, "capital of Peru", 1) == ["d"]
    assert found(retriever, "Which river does PARIS lie on, the Seine?", 1) == ["c"]
    assert found(retriever, "moon", 5) == ["b", "a"]  # the shorter one first


def test_titles_and_single_characters_count(retriever):
    assert found(retriever, "Apollo 8", 2) == ["a", "b"]


def test_passages_come_back_whole_with_a_score(retriever):
    (passage,) = retriever.search(["Peru"], 1)[0]
    assert passage._replace(score=0.0) == CORPUS[3]
    # Lucene's BM25: idf = ln(1 + (5 - 1 + 0.5) / (1 + 0.5)) = ln 4. Without stop words the passages have 7, 6, 5, 3 and
    # 1 words, 4.4 in the mean, and this one 3: tf = 1 / (1 + 1.5 (0.25 + 0.75 * 3 / 4.4)).
    assert passage.score == pytest.approx(1.38629 / (1 + 1.5 * (0.25 + 0.75 * 3 / 4.4)), rel=1e-4)


def test_k_beyond_the_corpus_is_no_error(retriever):
    assert sorted(found(retriever, "capital moon", 100)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("query", ["zebra", "", "the of", "?!"])
def test_no_common_word_means_no_passage(retriever, query):
    assert retriever.search([query], 3) == [[]]


def test_a_batch_is_its_queries_one_by_one(retriever):
    queries = ["Peru", "zebra", "Apollo 11", "x " * 5_000 + "Seine"]
    assert retriever.search(queries, 2) == [retriever.search([query], 2)[0] for query in queries]
    assert retriever.search([], 2) == []


def test_many_threads_read_the_right_passages(retriever):
    queries = ["Peru", "Seine", "walked", "flew"] * 50
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda query: found(retriever, query, 1), queries))
    assert ids == [["d"], ["c"], ["b"], ["a"]] * 50


@pytest.mark.parametrize("k", [0, -1])
def test_k_must_be_positive(retriever, k):
    with pytest.raises(ValueError, match="k must be at least 1"):
        retriever.search(["Peru"], k)


@pytest.mark.parametrize("passages", [[], [Passage("a", "", "")], [Passage("a", "The", "?")]])
def test_an_empty_corpus_is_refused_at_the_start(passages):
    with pytest.raises(ValueError, match="corpus"):
        BM25Retriever.build(passages)


def test_a_directory_without_index_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="BM25Retriever"):
        BM25Retriever.load(tmp_path)


def test_index_and_passages_must_fit():
    built = BM25Retriever.build(CORPUS)
    with pytest.raises(ValueError, match="got 4 passages for 5"):
        BM25Retriever(built._index, CORPUS[:4])


def test_odd_text_survives_the_disk(tmp_path):
    passages = [Passage("a", 'A "quote"', "one\ntwo\u2028three\x85 é 🙂 \ud800"), Passage("b", "", "after it")]
    BM25Retriever.build(passages).save(tmp_path)
    loaded = BM25Retriever.load(tmp_path)
    assert [loaded.search([word], 1)[0][0]._replace(score=0.0) for word in ("three", "after")] == passages


@pytest.mark.parametrize("size", [1, 5, 1023, 1024, 1025, 10_000])
@pytest.mark.parametrize("k", [1, 3, 10, 20_000])
def test_the_best_are_those_of_a_full_sort(size, k):
    generator = np.random.default_rng(size + k)
    for positive in (0.0, 0.001, 0.5, 1.0):
        # Few different values, so that many are equal.
        scores = (generator.integers(1, 20, size) * (generator.random(size) < positive)).astype(np.float32)
        expected = sorted((i for i in range(size) if scores[i] > 0), key=lambda i: (-scores[i], i))[:k]
        assert best(scores, k).tolist() == expected


def test_contents_round_trip():
    assert CORPUS[0].contents == '"Apollo 8"\nThree men flew round the Moon.'
    for passage in CORPUS:
        assert Passage.from_contents(passage.id, passage.contents) == passage
    assert Passage.from_contents("x", "only text") == Passage("x", "", "only text")
    assert Passage.from_contents("x", "Title\nline 1\nline 2") == Passage("x", "Title", "line 1\nline 2")


def test_corpora_in_their_public_formats(tmp_path):
    jsonl, tsv, gz = tmp_path / "c.jsonl", tmp_path / "psgs_w100.tsv", tmp_path / "psgs_w100.tsv.gz"
    rows = [{"id": "a", "contents": CORPUS[0].contents}, {"title": "Paris", "text": "Capital."}, {"text": "No title."}]
    jsonl.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    expected = [CORPUS[0], Passage("1", "Paris", "Capital."), Passage("2", "", "No title.")]
    assert list(load_corpus(jsonl)) == expected

    tsv.write_text('id\ttext\ttitle\n1\t"Said ""yes"" twice"\tAaron\n2\tPlain\tBen\n', encoding="utf-8")
    expected = [Passage("1", "Aaron", 'Said "yes" twice'), Passage("2", "Ben", "Plain")]
    assert list(load_corpus(tsv)) == expected
    gz.write_bytes(gzip.compress(tsv.read_bytes()))
    assert list(load_corpus(gz)) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.txt", "some text", "line 1: not valid JSON"),
        ("c.jsonl", '{"id": 1, "text": "a"}\n{"id": 2}', "line 2: a passage needs 'contents' or 'text'"),
        ("c.jsonl", '{"text": "a"}\n{"te', "line 2: not valid JSON"),
        ("c.jsonl", "[1]", "item 0: expected an object, got int"),
        ("c.tsv", "1\tsome text\tTitle\n2\tmore\tOther\n", "line 1: expected a header with id, text, title"),
    ],
)
def test_a_broken_corpus_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        list(load_corpus(tmp_path / name))
    assert name in str(error.value)
