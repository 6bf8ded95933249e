import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, CanineTokenizer, PreTrainedTokenizerFast

from mempo_trl.memory import ANSWER_TEMPLATE, encode_answer


def masked_text(tokenizer, encoded):
    return [tokenizer.decode([token]) for token, mark in zip(encoded.ids, encoded.mask, strict=True) if mark]


def test_literal_mask_on_character_tokens():
    encoded = encode_answer(CanineTokenizer(), ["ab", "c"], template="<{a}>")
    assert encoded.text == "<ab; c>"
    #                        <      a     b     ;      ' '    c     >
    assert encoded.mask == [False, True, True, False, False, True, False]


def test_the_default_text_is_the_method_s():
    encoded = encode_answer(CanineTokenizer(), ["a1", "a2"])
    assert encoded.text == (
        "\n<think>\nI have sufficient information to provide the final answers.\n</think>\n<answer>\na1; a2\n</answer>"
    )
    assert len(encoded.ids) == len(encoded.mask) == len(encoded.text)


def test_real_vocabularies_mask_the_answers_alone(real_tokenizer):
    encoded = encode_answer(real_tokenizer, ["New  York", "Lima"])
    assert "".join(masked_text(real_tokenizer, encoded)) == "New  York Lima"
    assert real_tokenizer.decode(encoded.ids) == encoded.text


def test_multi_byte_characters_split_over_tokens(real_tokenizer):
    encoded = encode_answer(real_tokenizer, ["日𓀀"])
    kept = [token for token, mark in zip(encoded.ids, encoded.mask, strict=True) if mark]
    assert real_tokenizer.decode(kept) == "日𓀀"
    assert len(kept) > 2  # the characters are split


def test_slow_tokenizer_with_split_characters():
    tokenizer = ByT5Tokenizer()  # one token a byte
    encoded = encode_answer(tokenizer, ["é日"], template="é{a}é")
    #                        é(2 bytes)     é(2)        日(3)             é(2)
    assert encoded.mask == [False, False, True, True, True, True, True, False, False]


def wrap(tokens, post_processor=None):
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges_for(tokens)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if post_processor:
        tokenizer.post_processor = post_processor
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def merges_for(tokens):
    return [(t[:-1], t[-1]) for t in tokens if len(t) > 1]


def test_a_token_that_straddles_the_edge_counts():
    tokenizer = wrap(["<", ">", "a", "b", "b>", "Ġ"])
    encoded = encode_answer(tokenizer, ["ab"], template="<{a}>")
    assert masked_text(tokenizer, encoded) == ["a", "b>"]


def test_closing_tag_split_in_any_way_is_not_masked():
    tokenizer = wrap(["<", "/", "</", ">", "a", "x", "/x", "Ġ"])
    encoded = encode_answer(tokenizer, ["a"], template="<x>{a}</x>")
    assert masked_text(tokenizer, encoded) == ["a"]


def test_spaces_trimmed_from_offsets_still_count():
    tokenizer = wrap(["<", ">", "a", "b", "Ġ", "Ġb"], processors.ByteLevel(trim_offsets=True))
    offsets = tokenizer("<a  b>", return_offsets_mapping=True)["offset_mapping"]
    assert offsets[2][0] == offsets[2][1]  # the token of the first space has lost its range
    encoded = encode_answer(tokenizer, ["a  b"], template="<{a}>")
    assert masked_text(tokenizer, encoded) == ["a", " ", " b"]


@pytest.mark.parametrize(
    ("answers", "message"),
    [([], "expected a list"), ("Paris", r"Write \['Paris'\]"), ([""], "is empty"), (["a", "  "], "is empty"),
     (["a\u200b", "\u200b\ufeff"], "is empty"), (["\ud800"], "not valid text"), (["a;b", "c"], "cannot contain ';'"),
     ([None], "expected a list")],
)  # fmt: skip
def test_answers_that_cannot_be_scored(tokenizer, answers, message):
    with pytest.raises(ValueError, match=message):
        encode_answer(tokenizer, answers)


def test_one_answer_may_hold_a_semicolon(tokenizer):
    encoded = encode_answer(tokenizer, ["a; b"], template="<{a}>")
    assert encoded.text == "<a; b>"
    assert "".join(masked_text(tokenizer, encoded)) == "a; b"


@pytest.mark.parametrize("template", ["no place", "{a}{a}"])
def test_template_needs_one_place(tokenizer, template):
    with pytest.raises(ValueError, match="exactly once"):
        encode_answer(tokenizer, ["a"], template)


def test_braces_in_answer_and_template(tokenizer):
    assert encode_answer(tokenizer, ["{a}"], "{{a}}").text == "{{a}}"
    assert ANSWER_TEMPLATE.count("{a}") == 1
