"""Run by test_distributed.py on two processes: trains through a fake vLLM server and saves what each rank got."""

import re
import sys
from pathlib import Path

import torch
from datasets import Dataset

from conftest import build_model, build_tokenizer
from fake_vllm import EchoClient, serve
from helpers import make_trainer
from mempo_trl import MemPOTrainer


def main(output: Path, per_device: int, context: str) -> None:
    tokenizer = build_tokenizer()
    questions = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"capital of A{i}"}], "answers": [f"Paris{i}"]} for i in range(4)]
    )
    trainer = make_trainer(
        output, build_model(len(tokenizer)), tokenizer, questions, MemPOTrainer, context=context, max_steps=2,
        per_device_train_batch_size=per_device, shuffle_dataset=False,
    )  # fmt: skip
    client = EchoClient(tokenizer)
    serve(trainer, client)
    rows, generate = [], trainer.vllm_generation.generate

    def counted(prompts, **options):
        rows.append(len(prompts))
        return generate(prompts, **options)

    trainer.vllm_generation.generate = counted
    episodes, rollout = [], trainer._tool_call_loop

    def kept(*args):
        result = rollout(*args)
        episodes.extend(trainer._batch.episodes)
        return result

    trainer._tool_call_loop = kept
    trainer.train()
    said = re.compile(r"<mem>q(\d+) m(\d+) t(\d+)</mem>")
    ratio = "sampling/importance_sampling_ratio/mean"
    torch.save(
        {
            "rows": rows,
            "client_calls": client.calls,
            "asked": [int(re.search(r"capital of A(\d+)", tokenizer.decode(e.prompt_ids))[1]) for e in episodes],
            "said": [said.findall(tokenizer.decode(e.completion_ids)) for e in episodes],
            "logprobs": [sorted(set(e.logprobs)) for e in episodes],
            "stop_reasons": [e.stop_reason for e in episodes],
            "sampling_ratio": [log[ratio] for log in trainer.state.log_history[:-1]],
        },
        output / f"rank{trainer.accelerator.process_index}.pt",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
