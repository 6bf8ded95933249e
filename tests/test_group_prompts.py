"""A vLLM server gets each prompt of a group once, unless they differ."""

import itertools
import re

import pytest

from fake_vllm import serve
from helpers import make_trainer, search
from mempo_trl import MemPOTrainer
from mempo_trl.integrations.vllm_server import samples_for_each
from test_trainer import generate_batch


class VariantClient:
    """Answers with the variant that it reads in the prompt."""

    def __init__(self, tokenizer):
        self.tokenizer, self.calls = tokenizer, []

    def generate(self, prompts, features, n, max_tokens, **options):
        self.calls.append((len(prompts), n))
        texts = [f"<answer>{' '.join(re.findall(r'variant [0-9]+', self.tokenizer.decode(ids)))}</answer>"
                 for ids in prompts for _ in range(n)]  # fmt: skip
        turns = [[*self.tokenizer.encode(text), self.tokenizer.eos_token_id] for text in texts]
        return {"prompt_ids": prompts, "completion_ids": turns, "logprobs": [[[-0.1]] * len(turn) for turn in turns]}


def make_environment(observations):
    class Retrieved:
        """An environment whose `reset` adds a text to the prompt."""

        def reset(self, **row):
            return next(observations)

        def search(self, query: str) -> str:
            """Searches.

            Args:
                query: what to look for.
            """
            return query

    return Retrieved


@pytest.mark.parametrize("differ", [True, False])
def test_each_trajectory_answers_the_prompt_that_it_is_trained_on(tmp_path, model, tokenizer, questions, differ):
    numbers = itertools.count(1) if differ else itertools.repeat(7)
    environment = make_environment(f" variant {number}" for number in numbers)
    options = {"environment_factory": environment, "tools": [search][:0]}
    trainer = make_trainer(tmp_path, model, tokenizer, questions, MemPOTrainer, options)
    client = VariantClient(tokenizer)
    serve(trainer, client)
    generate_batch(trainer)
    assert client.calls == [(8, 1) if differ else (2, 4)]
    variants = []
    for episode in trainer.last_rollout.episodes:
        asked = re.findall(r"variant \d+", tokenizer.decode(episode.prompt_ids))
        assert asked == re.findall(r"variant \d+", tokenizer.decode(episode.completion_ids))
        variants += asked
    assert len(set(variants)) == (8 if differ else 1)


def test_samples_for_each():
    assert samples_for_each([[1], [1], [2], [2]], 2) == 2
    assert samples_for_each([[1], [1], [2], [3]], 2) == 1
    assert samples_for_each([[1], [2]], 1) == 1
