"""Writes docs/configuration.md from the fields and the docstring of `MemPOConfig`.

python scripts/generate_configuration.py
"""

import inspect
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from mempo_trl import MemPOConfig

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

<!-- Made by scripts/generate_configuration.py from the docstring of MemPOConfig. Change that, and run the script. -->

`MemPOConfig` is TRL's [`GRPOConfig`](https://huggingface.co/docs/trl/grpo_trainer#trl.GRPOConfig) with the options
below. Every option of `GRPOConfig` and of `TrainingArguments` is there too.

In Python:

```python
from mempo_trl import MemPOConfig

args = MemPOConfig("outputs/policy", context="memory", memory_weight=0.5)
```

In a YAML file, for `mempo train --config train.yaml`:

```yaml
dataset: world
output_dir: outputs/policy
context: memory
memory_weight: 0.5
```

On the command line an option is `--memory_weight 0.5`, and it wins over the file.

TRL trains in bfloat16 by default, and transformers refuses that on a machine without a GPU. There, set
`bf16: false`.
"""
DIFFERENCES = """\
## Defaults that differ from TRL's

| Option | Here | TRL | Why |
|---|---|---|---|
"""
REASONS = {
    "num_generations": "The paper's group size, G.",
    "per_device_train_batch_size": "Holds one group of 16.",
    "max_completion_length": "It counts the whole episode here: all turns and all tool results.",
    "beta": "The paper has a KL term and gives no value. Systems near it use 0.001. TRL then keeps a reference model.",
    "loss_type": "The paper's mean: over the tokens of a trajectory first, then over the group.",
    "use_bias_correction_kl": "The paper's KL term is the plain k3 estimate. TRL multiplies it by the importance "
    "ratio, which changes its gradient, also where the ratio is 1.",
    "vllm_importance_sampling_mode": "`sequence_mask` can drop a long trajectory as a whole. Token level bounds each "
    "token's ratio.",
}


def groups() -> dict[str, dict[str, str]]:
    """The docstring's options, name to text, under the titles that it gives them."""
    _, *sections = re.split(r"^ *> Parameters that control ", inspect.getdoc(MemPOConfig) or "", flags=re.MULTILINE)
    found = {}
    for section in sections:
        title, _, body = section.partition("\n")
        entries = re.findall(r"^ *(\w+) \([^\n]*\):\n((?: {8}.*\n?)+)", body, re.MULTILINE)
        found[title.strip()] = {name: " ".join(text.split()) for name, text in entries}
    return found


def default(option: Field) -> str:
    value: Any = option.default if option.default is not MISSING else None
    return f"`{value!r}`"


def evidence(option: Field) -> str:
    """Links to the tables of docs/results.md that the field's help names: 'Which threshold?'."""
    titles = re.findall(r"'([A-Z][^']*\?)'", option.metadata["help"])
    links = [f"[{title}](results.md#{title.lower().replace(' ', '-').rstrip('?')})" for title in titles]
    return f" Results: {', '.join(links)}" if links else ""


def group_section(title: str, texts: dict[str, str], options: dict[str, Field]) -> str:
    """One title and its table."""
    lines = [f"## {title[0].upper() + title[1:]}", "", "| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, text in texts.items():
        # Not the field's own `type`: transformers' argument parser writes into that.
        kind: Any = inspect.get_annotations(MemPOConfig)[name]
        kind = kind.__name__ if isinstance(kind, type) else str(kind)
        choices = options[name].metadata.get("choices")
        kind = " or ".join(f"`{part}`" for part in ([f'"{choice}"' for choice in choices or ()] or kind.split(" | ")))
        # The default template has line breaks, which a table cannot show.
        value = "[see the text](method.md#the-answers-text)" if name == "answer_template" else default(options[name])
        lines.append(f"| `{name}` | {kind} | {value} | {text}{evidence(options[name])} |")
    return "\n".join(lines) + "\n"


def differences() -> str:
    """The table of defaults that are not TRL's; each needs its reason."""
    theirs = {option.name: option for option in fields(GRPOConfig)}
    differing = [o for o in fields(MemPOConfig) if o.name in theirs and o.default != theirs[o.name].default]
    names = {option.name for option in differing}
    if names != REASONS.keys():
        raise ValueError(f"REASONS must name the defaults that differ: got {sorted(REASONS)}, expected {sorted(names)}")
    rows = [
        f"| `{o.name}` | {default(o)} | {default(theirs[o.name])} | {REASONS[o.name]}{evidence(o)} |" for o in differing
    ]
    return DIFFERENCES + "\n".join(rows) + "\n"


def page() -> str:
    """The page's text.

    Raises:
        ValueError: an option has no entry in the docstring, or the other way round; or a default has no reason.
    """
    options, inherited = {o.name: o for o in fields(MemPOConfig)}, {o.name for o in fields(GRPOConfig)}
    described = groups()
    names = {name for texts in described.values() for name in texts}
    if names != options.keys() - inherited:
        raise ValueError(f"the docstring and the fields differ: {sorted(names ^ (options.keys() - inherited))}")
    sections = [group_section(title, texts, options) for title, texts in described.items()]
    tail = "What cannot work is refused when the configuration is made: see [Troubleshooting](troubleshooting.md).\n"
    return "\n".join([HEAD, *sections, differences(), tail])


if __name__ == "__main__":
    OUTPUT.write_text(page(), "utf-8")
    print(OUTPUT)
