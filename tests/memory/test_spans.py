import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, CanineTokenizer, PreTrainedTokenizerFast

from mempo_trl.memory import MemorySpan, find_memory_spans, find_turns
from mempo_trl.memory.spans import token_pieces


def encode_pieces(tokenizer, *texts_and_marks):
    """Encodes each text on its own, so that the edges between pieces are token edges."""
    ids, mask = [], []
    for text, mark in texts_and_marks:
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        mask += [mark] * len(piece)
    return ids, mask


def spanned(tokenizer, ids, mask):
    return [(s.turn, tokenizer.decode(ids[s.start : s.end])) for s in find_memory_spans(tokenizer, ids, mask)]


def test_turns_are_runs_of_ones():
    #            0  1  2  3  4  5  6  7
    assert find_turns([1, 1, 0, 0, 1, 0, 1, 1]) == [(0, 2), (4, 5), (6, 8)]
    assert find_turns([0, 0]) == find_turns([]) == []


def test_literal_spans_on_character_tokens():
    tokenizer = CanineTokenizer()  # one token a character
    #                       0     6     12
    ids, mask = encode_pieces(tokenizer, ("a<mem>f</mem>b", 1), ("tool", 0), ("<mem></mem>", 1))
    # turn 0: "a" then 12 characters; then "b", "tool"; turn 1 starts at 18
    assert find_memory_spans(tokenizer, ids, mask) == [MemorySpan(0, 1, 13), MemorySpan(1, 18, 29)]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("<mem>a</mem> x <mem>b</mem>", ["<mem>b</mem>"]),  # the last closed block counts
        ("<mem>a</mem> x <mem>b", ["<mem>a</mem>"]),  # the last block never closes
        ("<mem>a", []),
        ("a</mem>", []),
        ("<mem>a<mem>b</mem>", ["<mem>b</mem>"]),
        ("<mem>a</mem>b</mem>", ["<mem>a</mem>"]),
        ("< mem>a</mem>", []),
        ("<mem>é 日本 🤖</mem>", ["<mem>é 日本 🤖</mem>"]),
        ("🤖<mem>\n\n</mem>", ["<mem>\n\n</mem>"]),
    ],
)
@pytest.mark.parametrize("make", [ByT5Tokenizer, CanineTokenizer])
def test_which_block_is_the_memory(make, turn, expected):
    tokenizer = make()
    ids, mask = encode_pieces(tokenizer, (turn, 1))
    assert [text for _, text in spanned(tokenizer, ids, mask)] == expected


def test_tool_text_is_never_a_memory(tokenizer):
    ids, mask = encode_pieces(
        tokenizer, ("<mem>a", 1), ("</mem><mem>tool</mem>", 0), ("b</mem>", 1), ("<mem>x</mem>", 0)
    )
    # The first block opens in turn 0 and is closed by the tool; the second is closed in turn 1 without being opened.
    assert spanned(tokenizer, ids, mask) == []
    ids, mask = encode_pieces(tokenizer, ("q", 1), ("<mem>x</mem>", 0), ("<mem>c</mem>", 1))
    assert spanned(tokenizer, ids, mask) == [(1, "<mem>c</mem>")]


def test_a_token_across_the_edge_belongs_to_the_span(real_tokenizer):
    ids, mask = encode_pieces(real_tokenizer, ("x<mem>hi</mem><think>y</think>", 1))
    (span,) = find_memory_spans(real_tokenizer, ids, mask)
    text = real_tokenizer.decode(ids[span.start : span.end])
    # Both vocabularies merge "><": the edge token holds the closing tag's last character and the next tag's first.
    assert text == "<mem>hi</mem><"
    assert real_tokenizer.decode(ids[: span.start]) == "x"


ALPHABET = [
    "<mem>",
    "</mem>",
    "<think>",
    "</think>",
    " ",
    "\n",
    "é",
    "日本",
    "🤖",
    "👩‍💻",
    "Paris",
    "<",
    ">",
    "</",
    "a",
]


def brute_force(tokenizer, ids):
    """The last closed block, located by decoding every prefix."""
    text = tokenizer.decode(ids)
    close = -1
    opened = found = None
    for position in range(len(text)):
        if text.startswith("<mem>", position):
            opened = position
        if text.startswith("</mem>", position) and opened is not None:
            close, found, opened = position + 6, opened, None
    if found is None:
        return None
    prefix = [len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids) + 1)]
    first = max(n for n in range(len(ids)) if prefix[n] <= found)
    last = min(n for n in range(len(ids) + 1) if prefix[n] >= close)
    return first, last


def test_random_text_agrees_with_decoding_every_prefix(real_tokenizer):
    rng, found = random.Random(0), 0
    for _ in range(150):
        text = "".join(rng.choices(ALPHABET, k=rng.randint(1, 25)))
        ids = real_tokenizer.encode(text, add_special_tokens=False)
        expected = brute_force(real_tokenizer, ids)
        spans = find_memory_spans(real_tokenizer, ids, [1] * len(ids))
        assert [(s.start, s.end) for s in spans] == ([expected] if expected else []), text
        found += len(spans)
    assert found > 30


def test_pieces_join_to_the_text(real_tokenizer):
    text = "<mem>Paris\n\n is  here</mem><|im_end|>\n"
    ids = real_tokenizer.encode(text, add_special_tokens=False)
    assert "".join(token_pieces(real_tokenizer, ids)) == text


def test_a_vocabulary_that_marks_the_ends_of_words():
    """As GPT-1's: `mem></w>` is the end of a word, so a space follows it, but for the last."""
    tokens = ["<", "m", "e", ">", "/", "a", "<m", "e>", "me>", "a</w>", "></w>", "e></w>", "me></w>"]
    merges = [("m", "e></w>"), ("e", "></w>"), ("<", "m"), ("e", ">")]
    model = models.BPE({t: i for i, t in enumerate([*tokens, "me"])}, merges, end_of_word_suffix="</w>")
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.BPEDecoder("</w>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tokenizer.encode("a <mem>a</mem> a")
    assert "".join(token_pieces(tokenizer, ids)) == tokenizer.decode(ids)
    (span,) = find_memory_spans(tokenizer, ids, [1] * len(ids))
    assert tokenizer.decode(ids[span.start : span.end]).strip() == "<mem>a</mem>"


def test_ids_and_mask_must_be_parallel(tokenizer):
    with pytest.raises(ValueError, match="got 1 marks for 2 ids"):
        find_memory_spans(tokenizer, [1, 2], [1])
