"""Run by test_hub.py with HF_ENDPOINT set: trains two steps with checkpoints and pushes everything."""

import sys
from pathlib import Path

from datasets import Dataset

from conftest import build_model, build_tokenizer
from helpers import make_trainer


def main(output: Path) -> None:
    tokenizer = build_tokenizer()
    questions = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"capital of A{i}"}], "answers": [f"Paris{i}"]} for i in range(4)]
    )
    trainer = make_trainer(
        output, build_model(len(tokenizer)), tokenizer, questions, max_steps=2, context="memory",
        memory_threshold=0.25, save_strategy="steps", save_steps=1, push_to_hub=True, hub_model_id="me/policy",
        hub_token="hf_secret", log_completions=True, log_completions_hub_repo="me/completions",
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    print("the run has come to its end")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
