"""The blocks of the documentation's pages, and a small model that stands in for the one that they name.

How a page is written, so that `test_docs.py` can run it:

- all ```python blocks of a page share one namespace and one temporary folder, and run in order;
- ```pycon blocks are doctests in the same namespace;
- `<!-- setup: ... -->` holds Python that runs before the block behind it, and that readers need not see;
- a ```bash block is checked against the parsers of what it calls (`docs_commands.py`); behind `<!-- run -->` its
  `mempo` commands are run;
- ```yaml blocks are options of training, ```json and ```jsonl blocks hold JSON.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import AddedToken
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo_trl.tasks.search import SearchEnvironment, build_prompt
from mempo_trl.tasks.world.model import build_tokenizer

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$"
    r"|<!-- setup:(?P<setup>.*?)-->|(?P<run><!-- run -->)",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block, or a hidden setup (language "setup"). `line` is where its first line of code stands, from 1."""

    language: str
    code: str
    line: int
    run: bool


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text, run = path.read_text("utf-8"), False
    for match in _BLOCK.finditer(text):
        if match["run"]:
            run = True
            continue
        language = "setup" if match["setup"] is not None else match["language"]
        code = match["setup"] if language == "setup" else match["code"]
        start = match.start("setup" if language == "setup" else "code")
        yield Block(language, textwrap.dedent(code).strip(" "), text.count("\n", 0, start) + 1, run)
        run = False


def commands(code: str) -> list[str]:
    """The commands of a bash block: continued lines joined, comments and the prompts of a shell left out."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def save_stand_in(folder: str) -> None:
    """A random model that ends its turns after a few tokens, with a tokenizer whose prompts are short."""
    tokenizer = build_tokenizer()
    rendered = tokenizer.apply_chat_template(
        build_prompt("\0"), tools=[SearchEnvironment(None).search], add_generation_prompt=True, tokenize=False
    )
    tokenizer.add_tokens(AddedToken(rendered[: rendered.index("\0")], normalized=False))
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight += 1.0
        model.lm_head.weight[tokenizer.eos_token_id] += 0.15
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
