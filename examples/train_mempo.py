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

A task of your own needs no change here: name its rows, its environment and its reward by their import paths.
```bash
python examples/train_mempo.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \
    --dataset my_task:questions --environment_factory my_task:Environment --reward_funcs my_task:reward
```
The output folder gets the policy, `training.png` and `traces.jsonl` (for `mempo view`). The last line that is printed
is one JSON object: scores before and after training, in both contexts. `mempo train` runs the same `main`.
"""

import sys
from pathlib import Path

from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.cli.arguments import TrainArguments
from mempo_trl.cli.train import QuietProgress, load_policy, open_training_task, parse_options, report
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.training.callbacks import TraceCallback


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


if __name__ == "__main__":
    main(*parse_options(sys.argv[1:]))
