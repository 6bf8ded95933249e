"""`mempo train`: `MemPOTrainer` on a question set and a corpus."""

from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset

from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.task import open_task
from ..training.callbacks import TraceCallback
from ..training.config import MemPOConfig
from ..training.trainer import MemPOTrainer
from .training import TrainArguments

if TYPE_CHECKING:
    from trl import ModelConfig


def train(script: TrainArguments, config: MemPOConfig, model: "ModelConfig") -> None:
    """Trains, and saves the policy, its tokenizer, traces and the log to `config.output_dir`."""
    from trl import get_peft_config, get_quantization_config

    task = open_task(script.questions, script.corpus, script.passages)
    init = {"revision": model.model_revision, "attn_implementation": model.attn_implementation, "dtype": model.dtype}
    config.model_init_kwargs = {**init, **(config.model_init_kwargs or {})}
    trainer = MemPOTrainer(
        model.model_name_or_path,
        mempo_outcome_reward,
        config,
        Dataset.from_list(task.rows(script.objectives, script.count, config.seed)),
        environment_factory=task.environment_factory,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    trainer.add_callback(TraceCallback(trainer, Path(config.output_dir) / "traces.jsonl", script.trace_every))
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
    trainer.save_model(config.output_dir)
    trainer.save_state()  # trainer_state.json, for mempo plot
