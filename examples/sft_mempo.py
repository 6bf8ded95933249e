"""The cold start: teach a model the turns of an expert before MemPO trains it.

    mempo traces world traces.jsonl --count 2000 --objectives 2
    python examples/sft_mempo.py --traces traces.jsonl --context memory \
        --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --output_dir outputs/cold-start --num_train_epochs 1

TRL's `SFTTrainer` on the rows of `mempo_trl.sft.demonstrations.sft_rows`: token ids exactly as the turn loop has them,
one row for each turn under the context that it will see, and the loss on the turns alone. All options of `SFTConfig`
and `ModelConfig` can be set, also in a YAML file (`--config`); LoRA with `--use_peft`. On several GPUs: `accelerate
launch examples/sft_mempo.py ...`. It is what `mempo sft` runs; the code is in `mempo_trl/sft/fine_tune.py`.
"""

from mempo_trl.cli.training import script_main

if __name__ == "__main__":
    script_main("sft")
