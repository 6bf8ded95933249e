import copy
import unicodedata

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
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


def normalising(normalizer, tokens=()):
    """One token a character, and some more, after a normalizer."""
    alphabet = [chr(code) for code in range(32, 127)] + ["\n", "é", "ị", "Å", "\u0301"]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate([*alphabet, *tokens])}, merges_for(list(tokens))))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("answer", ["cafe\u0301", "A\u030angstro", "i\u0323", "e\u0301e\u0301", "plain"])
@pytest.mark.parametrize("around", ["<answer>\n{a}\n</answer>", "{a}", "é {a} é", "e\u0301{a}\n"])
def test_a_tokenizer_that_composes_letters_and_marks(answer, around):
    tokenizer = normalising(normalizers.NFC())
    encoded = encode_answer(tokenizer, [answer], around)
    assert "".join(masked_text(tokenizer, encoded)) == unicodedata.normalize("NFC", answer)
    several = encode_answer(tokenizer, [answer, "b", answer], around)
    assert "".join(masked_text(tokenizer, several)) == unicodedata.normalize("NFC", answer + "b" + answer)


@pytest.mark.parametrize("answer", ["Paris", "İstanbul".replace("İ", "I\u0307")])
def test_a_tokenizer_that_lowers_case(answer):
    tokenizer = normalising(
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    )
    encoded = encode_answer(tokenizer, [answer], "<Answer>{a}\n</Answer>")
    assert "".join(masked_text(tokenizer, encoded)) in ("paris", "istanbul")


def test_offsets_that_point_elsewhere_are_not_trusted(tokenizer):
    """One too far, as some normalizers leave them: the newline behind the answer would be scored."""

    class Shifted(type(tokenizer)):
        def __call__(self, *args, **kwargs):
            encoding = super().__call__(*args, **kwargs)
            if kwargs.get("return_offsets_mapping"):
                encoding["offset_mapping"] = [(max(s - 1, 0), max(e - 1, 0)) for s, e in encoding["offset_mapping"]]
            return encoding

    shifted = copy.copy(tokenizer)
    shifted.__class__ = Shifted
    assert encode_answer(shifted, ["Quito"]) == encode_answer(tokenizer, ["Quito"])


def test_an_answer_that_cannot_be_located_is_named():
    """The mark composes with what stands before the answer."""
    with pytest.raises(ValueError, match="tokens of the answer '\u0301x' cannot be told from"):
        encode_answer(normalising(normalizers.NFC()), ["\u0301x"], "e{a}")
