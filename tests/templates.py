"""Small tokenizers with the chat templates that TRL ships: vocabulary of conftest, special tokens of the template."""

import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken
from trl import chat_template_utils

from conftest import build_tokenizer

FOLDER = Path(chat_template_utils.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
# The token that ends a document or an answer, where it is not <|im_end|>.
EOS = {
    "llama": "<|eot_id|>",
    "gemma": "<turn|>",
    "glm": "<|endoftext|>",
    "gptoss": "<|return|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "muse": "<|eot|>",
}
_SPECIAL = re.compile(r"<\|[^|<>{}\s]{1,30}\|>|<\|[a-z_]+>|<[a-z_]+\|>|<｜[^｜<>]{1,30}｜>")


def template_tokenizer(name: str):
    """A tokenizer of a few hundred tokens with the chat template `name` of TRL, which cannot read calls yet."""
    tokenizer = deepcopy(_base())
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    tokens = sorted({*_SPECIAL.findall(tokenizer.chat_template), "<|im_end|>", *EOS.values()})
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(token, special=True) for token in tokens]})
    tokenizer.eos_token = next((eos for start, eos in EOS.items() if name.startswith(start)), "<|im_end|>")
    tokenizer.response_template = None
    return tokenizer


_base = lru_cache(maxsize=1)(build_tokenizer)
