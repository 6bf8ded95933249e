# /// script
# requires-python = ">=3.11"
# dependencies = ["mempo-trl[plots]"]
# ///
"""
Train an agent that writes its own memory, with MemPO, and show what it gained.

Without arguments: the package's tiny model in its embedded world, on a laptop's CPU, in a few minutes.
```bash
python examples/train_mempo.py
python examples/train_mempo.py --memory_weight 0 --context full --output_dir outputs/grpo  # plain GRPO
```

Any model and data:
```bash
accelerate launch --config_file examples/accelerate/zero3.yaml examples/train_mempo.py \
    --config examples/configs/qwen2.5_7b_paper.yaml
```
The output folder gets the policy, `training.png` and `traces.jsonl` (for `mempo view`). The last line that is printed
is one JSON object: scores before and after training, in both contexts.
"""

import json
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from transformers import ProgressCallback
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config

from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.report.plots import plot_training
from mempo_trl.smollm2 import smollm2_policy
from mempo_trl.tasks.search import SearchEnvironment, mempo_outcome_reward
from mempo_trl.tasks.task import open_retriever, open_task
from mempo_trl.tasks.world.model import load_start
from mempo_trl.tasks.world.world import WorldEnvironment, world_rows
from mempo_trl.training.callbacks import TraceCallback


@dataclass
class MemPOScriptArguments(ScriptArguments):
    """What is trained on, and how it is evaluated."""

    dataset: str = field(
        default="world",
        metadata={"help": "world, fanoutqa, a HotpotQA file (.json) or a question file (.jsonl); or set dataset_name."},
    )
    corpus: str | None = field(
        default=None, metadata={"help": "Index folder, corpus file or URL of a search server. Default: the dataset's."}
    )
    passages: int = field(default=3, metadata={"help": "Passages that a search finds."})
    objectives: int | None = field(
        default=None, metadata={"help": "Questions that are joined into one. Default: as they come."}
    )
    eval_questions: int = field(
        default=128, metadata={"help": "Questions that are kept for the evaluation; 0 for no evaluation."}
    )
    eval_every: int = field(default=10, metadata={"help": "Steps between two evaluations during training; 0 for none."})
    trace_every: int = field(default=20, metadata={"help": "Steps between two batches in the trace file; 0 for none."})


class QuietProgress(ProgressCallback):
    """A progress bar with the reward, in place of a line for each step."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.training_bar is not None and "reward" in logs:
            self.training_bar.set_postfix(reward=f"{logs['reward']:.3f}")


def load_questions(script_args, training_args):
    """The environment factory, and questions for training and for the evaluation, which share none."""
    held_out, k, seed = script_args.eval_questions, script_args.objectives, training_args.seed
    if script_args.dataset_name is not None:
        splits = load_dataset(script_args.dataset_name, script_args.dataset_config)
        if script_args.corpus is None:
            raise ValueError(f"{script_args.dataset_name} has no corpus of its own. Name one with --corpus")
        factory = partial(SearchEnvironment, open_retriever(script_args.corpus), top_k=script_args.passages)
        test = splits[script_args.dataset_test_split].shuffle(seed).take(held_out) if held_out else []
        return factory, splits[script_args.dataset_train_split], list(test)
    if script_args.dataset == "world":
        k, steps, turns = k or 4, training_args.max_steps, training_args.max_turns
        if steps <= 0:
            raise ValueError(f"the embedded world needs max_steps, got {steps}: it has no end of questions. Set it")
        if turns < 2 * k + 1:
            raise ValueError(f"{k} objectives can take {2 * k + 1} turns, got max_turns {turns}. Set it to {2 * k + 2}")
        questions = training_args.generation_batch_size // training_args.num_generations * steps
        return WorldEnvironment, world_rows(questions, k, seed=seed), world_rows(held_out, k, "eval")
    task = open_task(script_args.dataset, script_args.corpus, script_args.passages)
    rows = task.rows(k, seed=seed)
    return task.environment_factory, rows[held_out:], rows[:held_out]


def load_model(script_args, training_args, model_args):
    """The model to train, or its name, and its tokenizer if the name does not lead to it."""
    name = model_args.model_name_or_path
    if name is not None:
        init = {"revision": model_args.model_revision, "attn_implementation": model_args.attn_implementation}
        training_args.model_init_kwargs = {**init, "dtype": model_args.dtype, **(training_args.model_init_kwargs or {})}
        with training_args.main_process_first():
            return smollm2_policy() if name == "smollm2" else name, None
    if script_args.dataset != "world":
        raise ValueError("The tiny model knows the embedded world alone. Name a model with --model_name_or_path")
    torch.set_num_threads(1)  # more are of no use to so small a model, and wait for each other beside other programs
    return load_start()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not any(argument.split("=")[0] == "--config" for argument in arguments):
        arguments = ["--config", str(Path(__file__).parent / "configs" / "world.yaml"), *arguments]
    parser = TrlParser((MemPOScriptArguments, MemPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config(arguments)

    environment_factory, train_rows, eval_rows = load_questions(script_args, training_args)
    model, tokenizer = load_model(script_args, training_args, model_args)
    trainer = MemPOTrainer(
        model,
        mempo_outcome_reward,
        training_args,
        Dataset.from_list(train_rows) if isinstance(train_rows, list) else train_rows,
        processing_class=tokenizer,
        environment_factory=environment_factory,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    output = Path(training_args.output_dir)
    traces = output / "traces.jsonl"
    if not training_args.resume_from_checkpoint and trainer.accelerator.is_main_process:
        traces.unlink(missing_ok=True)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(QuietProgress)
    trainer.add_callback(TraceCallback(trainer, traces, script_args.trace_every))
    evaluation = EvaluationCallback(trainer, environment_factory, eval_rows, script_args.eval_every, traces=traces)
    trainer.add_callback(evaluation)

    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    trainer.save_state()
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name or script_args.dataset)

    if trainer.accelerator.is_main_process:
        plot_training(trainer.state.log_history, output / "training.png")
        print(f"{output}: the policy, training.png, traces.jsonl")
        print(json.dumps(evaluation.result()))
