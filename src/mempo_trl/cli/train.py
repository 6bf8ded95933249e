"""`mempo train`. `main` is the program that `examples/train_mempo.py` shows; a test holds the two together."""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset, load_dataset
from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..evaluation.callback import EvaluationCallback
from ..tasks.search.environment import SearchEnvironment
from ..tasks.search.rows import Row
from ..tasks.task import WORLD, Task, import_object, import_reward_funcs, open_retriever, open_task
from ..tasks.world.model import load_start
from ..tasks.world.world import WorldEnvironment, world_rows
from ..training.callbacks import TraceCallback
from ..training.config import MemPOConfig
from ..training.trainer import MemPOTrainer
from .arguments import TrainArguments
from .parsing import ScriptParser

WORLD_OPTIONS = Path(__file__).parents[1] / "tasks" / "world" / "world.yaml"


def main(script_args: TrainArguments, training_args: MemPOConfig, model_args: ModelConfig) -> None:
    """Trains a policy, evaluates it, and saves it with its traces to `training_args.output_dir`."""
    task = open_training_task(script_args, training_args)
    model, tokenizer = load_policy(script_args, training_args, model_args)
    trainer = MemPOTrainer(
        model,
        task.reward_funcs,
        training_args,
        task.train_dataset,
        processing_class=tokenizer,
        environment_factory=task.environment_factory,
        memory_reward_funcs=task.memory_reward_funcs,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    traces = Path(training_args.output_dir) / "traces.jsonl"
    if not training_args.resume_from_checkpoint and trainer.accelerator.is_main_process:
        traces.unlink(missing_ok=True)
    evaluation = EvaluationCallback(
        trainer,
        task.environment_factory,
        task.eval_rows,
        script_args.eval_every,
        traces=traces,
        reward_funcs=task.reward_funcs,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(QuietProgress)
    trainer.add_callback(TraceCallback(trainer, traces, script_args.trace_every))
    trainer.add_callback(evaluation)

    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    trainer.save_state()  # trainer_state.json, for mempo plot
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name or script_args.dataset)
    report(trainer, evaluation)


def parse_options(argv: Sequence[str], **parser_options: Any) -> tuple[TrainArguments, MemPOConfig, ModelConfig]:
    """Reads options and the YAML file of `--config`. The embedded world and its own model start from `world.yaml`.

    Args:
        argv: the words of a command line.
        **parser_options: of `TrlParser`, such as `prog`.
    """
    parser = ScriptParser((TrainArguments, MemPOConfig, ModelConfig), **parser_options)
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("config", "dataset", "dataset_name", "model_name_or_path"):
        named.add_argument(f"--{option}", f"--{option.replace('_', '-')}")
    options, _ = named.parse_known_args(argv)
    others = (options.config, options.dataset_name, options.model_name_or_path)
    if options.dataset in (None, WORLD) and others == (None, None, None):
        argv = ["--config", str(WORLD_OPTIONS), *argv]
    return parser.parse_args_and_config(argv)


class TrainingTask(NamedTuple):
    """What a policy is trained and evaluated on. The two sets of questions share none."""

    environment_factory: Callable[[], Any]
    reward_funcs: list[Callable[..., Any]]
    memory_reward_funcs: list[Callable[..., Any] | str] | None
    train_dataset: Dataset
    eval_rows: list[Row]


def open_training_task(script_args: TrainArguments, training_args: MemPOConfig) -> TrainingTask:
    """Opens what the options name.

    Raises:
        `ValueError`: something is not there, or the questions do not suffice.
    """
    factory = import_object(script_args.environment_factory) if script_args.environment_factory else None
    if script_args.dataset_name is not None:
        factory, train, rows = _hub_questions(script_args, training_args, factory)
    elif script_args.dataset == WORLD:
        factory, (train, rows) = factory or WorldEnvironment, _world_questions(script_args, training_args)
    else:
        task = open_task(script_args.dataset, script_args.corpus, script_args.passages, factory)
        factory, (train, rows) = task.environment_factory, _split(task, script_args, training_args.seed)
    reward_funcs = import_reward_funcs(script_args.reward_funcs, factory)
    names = script_args.memory_reward_funcs
    memories = None if names is None else [import_object(name) if ":" in name else name for name in names]
    return TrainingTask(factory, reward_funcs, memories, train, rows)


def _hub_questions(script: TrainArguments, config: MemPOConfig, factory: Any) -> tuple[Any, Dataset, list[Row]]:
    assert script.dataset_name is not None
    if factory is None:
        if script.corpus is None:
            raise ValueError(f"{script.dataset_name} comes without a corpus. Set --corpus")
        factory = partial(SearchEnvironment, open_retriever(script.corpus), top_k=script.passages)
    splits = load_dataset(script.dataset_name, script.dataset_config)
    held_out = script.eval_questions
    test = splits[script.dataset_test_split].shuffle(config.seed).take(held_out) if held_out else []
    train = splits[script.dataset_train_split]
    return factory, train if script.count is None else train.shuffle(config.seed).take(script.count), list(test)


def _world_questions(script: TrainArguments, config: MemPOConfig) -> tuple[Dataset, list[Row]]:
    k, count, turns = script.objectives or 4, script.count, config.max_turns
    if count is None:
        if config.max_steps <= 0:
            steps = config.max_steps
            raise ValueError(f"the embedded world needs max_steps, got {steps}: its questions have no end. Set it")
        count = config.generation_batch_size // config.num_generations * config.max_steps
    if turns < 2 * k + 1:
        raise ValueError(f"{k} objectives can take {2 * k + 1} turns, got max_turns {turns}. Set it to {2 * k + 2}")
    return Dataset.from_list(world_rows(count, k, seed=config.seed)), world_rows(script.eval_questions, k, "eval")


def _split(task: Task, script: TrainArguments, seed: int) -> tuple[Dataset, list[Row]]:
    rows, held_out = task.rows(script.objectives, seed=seed), script.eval_questions
    train = rows[held_out:][: script.count]
    if not train:
        raise ValueError(
            f"{script.dataset} has {len(rows)} questions, and eval_questions={held_out} and count={script.count} leave "
            "none to train on. Set them lower and higher"
        )
    return Dataset.from_list(train), rows[:held_out]


def load_policy(script_args: TrainArguments, training_args: MemPOConfig, model_args: ModelConfig) -> tuple[Any, Any]:
    """The model to train, or its name, and its tokenizer if the name does not lead to it."""
    name = model_args.model_name_or_path
    if name is not None:
        init = {"revision": model_args.model_revision, "attn_implementation": model_args.attn_implementation}
        training_args.model_init_kwargs = {**init, "dtype": model_args.dtype, **(training_args.model_init_kwargs or {})}
        return name, None
    if script_args.dataset != WORLD:
        raise ValueError("The tiny model knows the embedded world alone. Name a model with --model_name_or_path")
    torch.set_num_threads(1)  # more are of no use to so small a model, and wait for each other beside other programs
    return load_start()


class QuietProgress(ProgressCallback):
    """A progress bar with the reward, in place of a line for each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None and "reward" in logs:
            self.training_bar.set_postfix(reward=f"{logs['reward']:.3f}")


def report(trainer: MemPOTrainer, evaluation: EvaluationCallback) -> None:
    """Prints the scores before and after as one JSON object; draws training curves where matplotlib is installed."""
    if not trainer.accelerator.is_main_process:
        return
    output, files = Path(trainer.args.output_dir), "the policy, trainer_state.json, traces.jsonl"
    if find_spec("matplotlib"):
        from ..report.plots import plot_training

        plot_training(trainer.state.log_history, output / "training.png")
        files += ", training.png"
    print(f"{output}: {files}")
    print(json.dumps(evaluation.result()))
