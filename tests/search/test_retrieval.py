"""BM25: what is found, in memory and from disk; and passages in their wire form."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from datasets import Dataset

from mempo_trl.tasks.search import BM25Retriever, Passage, exact_match, load_corpus
from mempo_trl.tasks.search.retrieval import best
from mempo_trl.tasks.search.words import passage_words, query_words

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


SCRIPTS = [
    Passage("zh", "东京塔", "东京塔是位于日本东京都的电视塔，高三百三十三米。"),
    Passage("ja", "富士山", "富士山は静岡県と山梨県にまたがる活火山で、ニンジャと黒猫がいる。"),
    Passage("th", "กรุงเทพมหานคร", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยตั้งอยู่บนแม่น้ำเจ้าพระยา"),
    Passage("ko", "서울", "서울은 대한민국의 수도이다."),
    Passage("fr", "E\u0301lyse\u0301e", "Le palais de l'E\u0301lyse\u0301e est a\u0300 Paris."),  # decomposed
    Passage("de", "Gießen", "Eine Stadt an der Lahn mit einer großen Straße."),
    Passage("wide", "ＡＢＣ", "Ｆｕｌｌ ｗｉｄｔｈ letters and ½ of the ﬁles."),
    Passage("hi", "दिल्ली", "दिल्ली भारत की राजधानी है।"),
    Passage("it", "It", "A novel of 1986 by Stephen King."),
    Passage("en", "Moon", "It is round."),
]


@pytest.mark.parametrize(
    ("query", "id"),
    [
        ("电视塔", "zh"),
        ("东京塔有多高？", "zh"),
        ("静岡県の火山", "ja"),
        ("ﾆﾝｼﾞｬ", "ja"),  # half width
        ("猫", "ja"),  # one character
        ("เมืองหลวง", "th"),
        ("แม่น้ำ", "th"),
        ("대한민국", "ko"),
        ("수도", "ko"),
        ("palais de l'\u00c9lys\u00e9e", "fr"),  # composed
        ("e\u0301lyse\u0301e", "fr"),
        ("GIESSEN", "de"),
        ("strasse", "de"),
        ("full width", "wide"),
        ("abc files", "wide"),
        ("राजधानी", "hi"),
        ("It", "it"),
        ("it?", "it"),
    ],
)
def test_every_script_is_found(tmp_path, query, id):
    built = BM25Retriever.build(SCRIPTS)
    built.save(tmp_path)
    assert found(built, query, 1) == found(BM25Retriever.load(tmp_path), query, 1) == [id]


def test_words():
    assert passage_words("The Seine, a river") == ["seine", "river"]
    assert passage_words("It was") == query_words("it WAS") == ["it", "was"]
    assert passage_words("東京 tower8塔") == ["東", "京", "東京", "tower8", "塔"]
    assert query_words("東京 tower8塔") == ["東京", "tower8", "塔"]
    assert query_words("") == query_words("?!…") == []


@pytest.mark.parametrize(("query", "gold"), [("É", "e\u0301"), ("ＡＢＣ", "abc"), ("Straße", "STRASSE"), ("ﬁn", "fin")])
def test_search_and_scoring_normalise_alike(query, gold):
    assert exact_match(query, gold) == 1.0
    assert query_words(query) == query_words(gold)


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


@pytest.mark.parametrize("passages", [[], [Passage("a", "", "")], [Passage("a", "?", "!")]])
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


STRAY = 'id\ttext\ttitle\n1\t"Stray quote\tA\n2\tPlain ""b"" text"\tB\n3\t"Said ""c"""\tC\n'
STRAY_PASSAGES = [
    Passage("1", "A", '"Stray quote'),
    Passage("2", "B", 'Plain ""b"" text"'),
    Passage("3", "C", 'Said "c"'),
]


@pytest.mark.parametrize(
    "change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text + "\n\n"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_stray_quote_swallows_nothing(tmp_path, change, pack):
    (tmp_path / "corpus").write_bytes(pack(change(STRAY).encode()))
    assert list(load_corpus(tmp_path / "corpus")) == STRAY_PASSAGES


@pytest.mark.parametrize(
    "change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text + "\n\n"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_json_passages_whatever_ends_their_lines(tmp_path, change, pack):
    text = "".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in STRAY_PASSAGES)
    (tmp_path / "corpus").write_bytes(pack(change(text).encode()))
    assert list(load_corpus(tmp_path / "corpus")) == STRAY_PASSAGES


def test_passages_in_parquet(tmp_path):
    rows = [{"id": i, "contents": p.contents} for i, p in enumerate(STRAY_PASSAGES)]
    Dataset.from_list(rows).to_parquet(tmp_path / "corpus")
    assert [p.text for p in load_corpus(tmp_path / "corpus")] == [p.text for p in STRAY_PASSAGES]


def test_a_passage_of_ten_million_characters(tmp_path):
    (tmp_path / "c.tsv").write_text("id\ttext\n1\t" + "x" * 10_000_000 + "\n2\ty\n")
    assert [len(passage.text) for passage in load_corpus(tmp_path / "c.tsv")] == [10_000_000, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id\ttext\n1\ta\n2\tb\tc\n", "line 3: expected 2 columns, got 3"),
        (b"id\ttext\n1\ta\n2\n", "line 3: expected 2 columns, got 1"),
        (b'{"text": "a"}\n\xff\n', "line 2: not UTF-8"),
        ("id\ttext\n".encode("utf-16"), "line 1: not UTF-8"),
        (gzip.compress(b'{"text": "a"}\n' * 1000, mtime=0)[:-10], "the gzip data is damaged"),
        (b"PAR1" + b"x" * 100, "row 0: the Parquet data cannot be read"),
        (b'{"text": "a"}\n' + b"[" * 100_000, "line 2: not valid JSON .nested more than 100"),
        (b'{"text": "a"}\n{"text": null}', r"line 2: a passage needs 'contents' or 'text', got \[\]"),
        (b'{"text": ["a"]}', "line 1: a passage needs"),
        (b'{"text": "a", "id": [1]}', r"line 1: 'id' must be a text or a number .*, got \[1\]"),
        (b'{"text": "a", "title": 3}', "'title' a text, got '?0'? and 3"),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(tmp_path, content, message):
    (tmp_path / "corpus").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        list(load_corpus(tmp_path / "corpus"))
    assert str(error.value).startswith(str(tmp_path / "corpus"))


def test_a_null_id_is_a_missing_one(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": null, "title": null, "text": "a"}\n{"_id": "x", "text": "b"}')
    assert list(load_corpus(tmp_path / "c.jsonl")) == [Passage("0", "", "a"), Passage("x", "", "b")]


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
