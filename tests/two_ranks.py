"""Run by test_distributed.py on one process or, with torchrun, on two: trains two steps and saves what happened."""

import sys
from pathlib import Path

import torch
from datasets import Dataset

from conftest import build_model, build_tokenizer
from helpers import make_trainer


def main(output: Path, per_device: int, context: str) -> None:
    tokenizer = build_tokenizer()
    questions = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"capital of A{i}"}], "answers": [f"Paris{i}", "Lima"]}
            for i in range(4)
        ]
    )
    trainer = make_trainer(
        output, build_model(len(tokenizer)), tokenizer, questions, context=context, max_steps=2,
        per_device_train_batch_size=per_device, shuffle_dataset=False, learning_rate=1e-3,
    )  # fmt: skip
    calls = []
    generate = trainer._generate_single_turn

    def counted(prompt_ids, *args, **kwargs):
        calls.append(len(prompt_ids))
        return generate(prompt_ids, *args, **kwargs)

    trainer._generate_single_turn = counted
    forwards = []
    trainer.model.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    trainer.train()
    result = {
        "parameters": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
        "calls": calls,
        "forwards": len(forwards),
        "turns": [len(episode.turns) for episode in trainer.last_rollout.episodes],
        "logs": [log for log in trainer.state.log_history if "memory/reward_mean" in log],
        "own": [
            trainer._tokenizer.decode(episode.prompt_ids).count(str(row["prompt"][0]["content"]))
            for row, episode in zip(trainer.last_rollout.rows, trainer.last_rollout.episodes, strict=True)
        ],
    }
    torch.save(result, output / f"rank{trainer.accelerator.process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
