"""A task of your own, whose tool is not search: from rows to an evaluated policy.

    python examples/own_task.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --output_dir outputs/shop --max_steps 99

All options of `MemPOConfig` and of TRL's `ModelConfig` can be set. Every `mempo` command can also use the rows, the
environment and the reward by their import paths, without the last part of this file:

    mempo eval --model outputs/shop --dataset own_task:questions --environment_factory own_task:PriceList \\
        --reward_funcs own_task:closeness
"""

import json
import random

from datasets import Dataset
from trl import ModelConfig, TrlParser

from mempo_trl import MemPOConfig, MemPOTrainer, memory_instructions
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.tasks.search import extract_answer

THINGS = ("lamp", "chair", "table", "shelf", "clock", "rug", "mirror", "vase")
TASK = "You add up what things cost in a shop. Ask for one price a turn."
ANSWER = "The answer is the sum, in digits: <answer>42</answer>"
SYSTEM = f"{TASK}\n\n{memory_instructions(context='memory')}\n\n{ANSWER}"


def questions(count: int = 1_000, seed: int = 0) -> list[dict]:
    """Rows: a prompt, the gold answers, and what the environment needs."""
    rows = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        prices, wanted = {thing: rng.randint(1, 99) for thing in THINGS}, rng.sample(THINGS, 3)
        asked = {"role": "user", "content": f"What do a {wanted[0]}, a {wanted[1]} and a {wanted[2]} cost together?"}
        answers = [str(sum(prices[thing] for thing in wanted))]
        prompt = [{"role": "system", "content": SYSTEM}, asked]
        rows.append({"prompt": prompt, "answers": answers, "prices": json.dumps(prices)})
    return rows


class PriceList:
    """The tools of one episode are the public methods of its environment."""

    def reset(self, prices: str, **row) -> None:
        self._prices = json.loads(prices)

    def price(self, thing: str) -> str:
        """
        Look up what one thing costs in this shop.

        Args:
            thing: Its name.
        """
        return f"A {thing} costs {self._prices[thing]}."


def closeness(completions: list, answers: list, **columns) -> list[float]:
    """A TRL reward function: 1 for the right sum, less the further the answer is from it."""
    rewards = []
    for completion, (gold,) in zip(completions, answers, strict=True):
        answer = extract_answer(completion) or ""
        rewards.append(1 / (1 + abs(int(answer) - int(gold))) if answer.isdecimal() else 0.0)
    return rewards


if __name__ == "__main__":
    config, model = TrlParser((MemPOConfig, ModelConfig)).parse_args_and_config()
    trainer = MemPOTrainer(
        model.model_name_or_path, closeness, config, Dataset.from_list(questions()), environment_factory=PriceList
    )
    evaluation = EvaluationCallback(trainer, PriceList, questions(32, seed=1), reward_funcs=[closeness])
    trainer.add_callback(evaluation)
    trainer.train()
    trainer.save_model()
    print(json.dumps(evaluation.result()))
