"""A tokenizer and a model for the embedded world, built from scratch: 100K parameters, a token for a word."""

from pathlib import Path

import torch
from safetensors.torch import load_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from .world import (
    ANSWER_ACTION,
    BOLD,
    CITIES,
    FACT,
    FRIEND,
    MAX_OBJECTIVES,
    PEOPLE,
    QUESTION,
    SEARCH_ACTION,
    UNKNOWN,
    WorldEnvironment,
    world_rows,
)

MAX_POSITIONS = 2048
START, START_SEED = Path(__file__).with_name("cold_start.safetensors"), 0
_TAGS = ("mem", "think", "tool_call", "answer", "tool_response")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and one token for each word and each fixed string of the world; TRL's Qwen2.5 chat template.

    The system prompt with the tool's schema is one token, and so is all of a turn but its memory and its query: what is
    left to learn is what differs between episodes. Any other text is encoded byte by byte; all text round-trips.
    """
    from trl.chat_template_utils import add_response_schema, qwen2_5_chat_template

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _fixed_strings(tokenizer)])
    return add_response_schema(tokenizer)


def _fixed_strings(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """What becomes one token. The longest that fits wins, so no string may start with the newline after <|im_end|>."""
    (row,) = world_rows(1, objectives=1)
    rendered = tokenizer.apply_chat_template(
        row["prompt"], tools=[WorldEnvironment().search], add_generation_prompt=True, tokenize=False
    )
    header = rendered[: rendered.index(QUESTION) + len(QUESTION)]
    tags = [f"<{slash}{tag}>" for tag in _TAGS for slash in ("", "/")]
    chat = ["<|im_start|>assistant\n", "<|im_start|>user\n<tool_response>\n", "\n</tool_response>"]
    numbers = ["1. ", *(f"; {number}. " for number in range(2, MAX_OBJECTIVES + 1)), "; "]
    lives, friends = FACT.format(person="", city="\0", friend="").rstrip(".").split("\0")
    facts = ["(1) ", ". ", lives, friends, *(BOLD + lives).split("{}"), ": "]
    actions = [*SEARCH_ACTION.format(number="\0", person="\0").split("\0"), *ANSWER_ACTION.format(a="\0").split("\0")]
    return [header, *tags, *chat, *numbers, *facts, *actions, UNKNOWN, *PEOPLE, *(p + FRIEND for p in PEOPLE), *CITIES]


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen2ForCausalLM:
    """A Qwen2 model of 2 layers and 64 dimensions in fp32, with random weights that depend on `seed` alone."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        # With the usual 0.02 it takes three times as long to learn to copy a name from the question.
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def load_start() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """The packaged model, which `scripts/build_cold_start.py` built, and its tokenizer.

    The model searches, keeps a careless memory, and answers questions of 1 to 10 objectives in both contexts, often
    wrongly.
    """
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    load_model(model, START)
    return model.eval(), tokenizer
