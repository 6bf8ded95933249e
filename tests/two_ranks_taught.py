"""Run on two processes: the taught model generates for itself, or a vLLM server that is there already does."""

import sys
from pathlib import Path

import pytest
import torch

from taught import build_taught
from vllm_process import DIFFERENCE, VLLMProcess, logs_of


def main(output: Path, context: str, weights: str, start: Path, port: int = 0, served: str = "") -> None:
    options = {"context": context, "per_device_train_batch_size": 4}
    if served:
        server = VLLMProcess(Path(served), port)
        server.transfer(pytest.MonkeyPatch())
        options |= server.options
    trainer = build_taught(output, start, weights, **options)
    trainer.train()
    result = {
        "differences": logs_of(trainer, DIFFERENCE),
        "turns": [len(episode.turns) for episode in trainer.last_rollout.episodes],
        "trained": torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad]),
    }
    torch.save(result, output / f"rank{trainer.accelerator.process_index}.pt")


if __name__ == "__main__":
    output, context, weights, start, *server = sys.argv[1:]
    main(Path(output), context, weights, Path(start), *(int(value) if value.isdigit() else value for value in server))
