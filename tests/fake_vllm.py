"""TRL's vLLM server mode without vLLM: its real `VLLMGeneration.generate` over a client that answers by the prompt."""

import re

from trl.generation.vllm_generation import VLLMGeneration

from helpers import tool_call


def episode_length(question: int, member: int) -> int:
    """How many turns a trajectory has: ragged within a group and between groups."""
    return 1 + (3 * question + 2 * member) % 5


class EchoClient:
    """Answers a prompt with the question, group member and turn that it reads in it, so that a mix-up shows.

    A prompt without a turn gets the first turns of members 0..n-1, any other the next turn of its own member. Each
    token's log-prob is -(question + 1) / 10.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.calls = []  # rows and completions for each

    def generate(self, prompts, features, n, max_tokens, **options):
        self.calls.append((len(prompts), n))
        turns, logprobs = [], []
        for ids in prompts:
            text = self.tokenizer.decode(ids)
            question = re.search(r"capital of A(\d+)", text)
            question = int(question[1]) if question else None  # None: a row that only makes the numbers equal
            for index in range(n):
                turn = self._turn(text, question, index)
                turns.append([*self.tokenizer.encode(turn), self.tokenizer.eos_token_id][:max_tokens])
                logprobs.append([[-((question or 0) + 1) / 10]] * len(turns[-1]))
        return {"prompt_ids": prompts, "completion_ids": turns, "logprobs": logprobs}

    def _turn(self, text, question, index):
        if question is None:
            return "<answer>filler</answer>"
        past = re.findall(r"q(\d+) m(\d+) t(\d+)", text)
        question, member, turn = map(int, past[-1]) if past else (question, index, 0)
        words = f"q{question} m{member} t{turn + 1}"
        last = turn + 1 == episode_length(question, member)
        return f"<mem>{words}</mem>" + (f"<answer>{words}</answer>" if last else tool_call(words))

    def reset_prefix_cache(self):
        pass


def serve(trainer, client) -> None:
    """Makes a trainer generate through `client`, in server mode, as if it had been built with `use_vllm=True`."""
    args = trainer.args
    backend = object.__new__(VLLMGeneration)
    vars(backend).update(
        mode="server", accelerator=trainer.accelerator, vllm_client=client, temperature=args.temperature,
        top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, repetition_penalty=args.repetition_penalty,
        max_completion_length=args.max_turn_length, logprobs=0, structured_outputs_regex=None, generation_kwargs={},
        sync_weights=lambda: None,
    )  # fmt: skip
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, backend, -1
