"""A tokenizer and a model small enough to build in every test run, and a question set for them."""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.chat_template_utils import add_response_schema, qwen2_5_chat_template

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

# A folder with vocabularies of published models; tests that need one are skipped without it.
TOKENIZERS = Path(os.environ.get("MEMPO_TOKENIZERS", Path(__file__).resolve().parents[2] / "shared" / "tokenizers"))
CORPUS = [
    "<mem>the capital of France is Paris</mem><think>I need one more fact.</think>",
    '<tool_call>\n{"name": "search", "arguments": {"query": "capital of Peru"}}\n</tool_call>',
    "<answer>Paris; Lima</answer> <|im_start|>assistant user system tool_response",
    # Often, so that its lines become few tokens and prompts stay short.
    *([qwen2_5_chat_template.replace("\\n", "\n")] * 20),
    *(
        [
            '{"type": "function", "function": {"name": "search", "description": "Searches.", '
            '"parameters": {"type": "object", '
            '"properties": {"query": {"type": "string", "description": "what to look for."}}, "required": ["query"]}}}'
        ]
        * 20
    ),
]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of a few hundred tokens, with Qwen2.5's chat template."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\n|[^\n]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = qwen2_5_chat_template
    return add_response_schema(wrapped)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(params=["qwen2", "gpt-2"])
def real_tokenizer(request):
    """A vocabulary of a published model, where this machine has one."""
    path = TOKENIZERS / request.param
    if not path.exists():
        pytest.skip(f"no {request.param} vocabulary here")
    return AutoTokenizer.from_pretrained(path)


def build_model(vocab_size: int, kind: str = "qwen2", seed: int = 0, **overrides) -> torch.nn.Module:
    """A random model of 2 layers and 32 dimensions."""
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(vocab_size=vocab_size, **{**options, **overrides}))
    # Larger weights than at initialisation, so that probabilities differ from uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture
def model(tokenizer):
    return build_model(len(tokenizer))


@pytest.fixture
def questions() -> Dataset:
    """Four questions with two objectives each."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"capital of A{i}; capital of B{i}"}],
                "answers": [f"Paris{i}", f"Lima{i}"],
                "question_id": str(i),
            }
            for i in range(4)
        ]
    )
