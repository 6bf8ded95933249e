"""Builds the model that the package ships: a tiny model learns from an expert's traces until it can search.

    python scripts/build_cold_start.py cold_start.safetensors

builds it again in about 20 minutes on one CPU core.

The model learns the expert's turns in both contexts (method.md, section 6), including the careless memories. It also
learns to answer straight after a memory and straight after a history, because the memory reward scores the answer there
(section 3): the probabilities of a model that has never seen these contexts would mean nothing.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from mempo_trl.memory.answers import encode_answer
from mempo_trl.rollout.chat_format import ChatFormat
from mempo_trl.tasks.search.prompts import build_prompt
from mempo_trl.tasks.search.rows import Row
from mempo_trl.tasks.world import model as tiny
from mempo_trl.tasks.world.world import QUESTION, Expert, WorldEnvironment, numbered, world_rows

IGNORED = -100
WARMUP_STEPS = 20
_MARK = "\0"
OnStep = Callable[[int, float], None]  # the step, from 1, and its loss


class Phase(NamedTuple):
    """A part of the training.

    Attributes:
        steps: how many.
        weights: how often questions are drawn, by number of objectives, in the order of `Recipe.objectives`.
        batches: of a step: how many examples of which kind are forwarded together.
    """

    steps: int
    weights: tuple[int, ...]
    batches: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        phases: what a step sees. Over all of their steps the learning rates fall linearly to 0.
        matrix_lr: Muon's learning rate, for the weight matrices.
        other_lr: AdamW's, for embeddings, norms and biases.
        objectives: people asked for in a question.
        traces: expert episodes for each number of objectives.
    """

    phases: tuple[Phase, ...]
    matrix_lr: float = 0.02
    other_lr: float = 4e-3
    objectives: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10)
    traces: int = 600


_TURNS, _FEW, _MANY = (2, 4, 4, 4, 3, 3, 2, 1), (3, 5, 5, 5, 3, 3, 2, 2), (1, 2, 2, 3, 3, 4, 5, 5)
RECIPES = (
    # Single turns first: what is to be looked up stands near by, and is learned much faster than from whole episodes.
    Recipe(
        (
            Phase(450, _TURNS, ({"memory": 32},)),
            Phase(450, _TURNS, ({"memory": 32}, {"answer_memory": 16})),
            Phase(2100, _FEW, ({"memory": 24, "answer_memory": 12}, {"full": 3, "answer_full": 3})),
        )
    ),
    # Then longer questions.
    Recipe(
        (Phase(2000, _MANY, ({"memory": 24, "answer_memory": 12}, {"full": 2, "answer_full": 2})),),
        matrix_lr=0.01,
        other_lr=2e-3,
    ),
)


class Example(NamedTuple):
    """One sequence. `labels` are the ids where the loss counts and -100 elsewhere. Both of length L."""

    ids: list[int]
    labels: list[int]

    def then(self, ids: list[int], counts: bool | Iterable[bool]) -> "Example":
        """This sequence with `ids` behind it, which count in the loss, or do not, all together or one by one."""
        marks = [counts] * len(ids) if isinstance(counts, bool) else counts
        labels = [token if mark else IGNORED for token, mark in zip(ids, marks, strict=True)]
        return Example(self.ids + ids, self.labels + labels)


class Examples(NamedTuple):
    """What episodes of one number of objectives teach.

    Attributes:
        full: whole episodes.
        memory: one turn in memory context.
        answer_full: an answer after a history.
        answer_memory: an answer after a memory.
    """

    full: list[Example]
    memory: list[Example]
    answer_full: list[Example]
    answer_memory: list[Example]


class TraceEncoder:
    """Gives a trace of the world the ids that the turn loop gives it: prompt, turns as sampled, rendered tool results.

    The chat template is rendered once, around a mark; no token of the tiny tokenizer straddles the edges of what takes
    the mark's place.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._memory_end = tokenizer.convert_tokens_to_ids("</mem>")
        prompt = tokenizer.apply_chat_template(
            build_prompt(QUESTION + _MARK),
            tools=[WorldEnvironment().search],
            add_generation_prompt=True,
            return_dict=False,
        )
        result = ChatFormat(tokenizer).suffix_ids([{"role": "tool", "name": "search", "content": _MARK}])
        self._prompt, self._result = self._around_mark(prompt), self._around_mark(result)

    def _around_mark(self, ids: list[int]) -> tuple[list[int], list[int]]:
        at = ids.index(*self.tokenizer.encode(_MARK))
        return ids[:at], ids[at + 1 :]

    def prompt(self, row: Row) -> list[int]:
        """The ids of a row's prompt, with the assistant's header."""
        before, after = self._prompt
        return before + self.tokenizer.encode(numbered(row["people"])) + after

    def turn(self, text: str) -> list[int]:
        """The ids of a turn, with the end token."""
        return self.tokenizer.encode(text + self.tokenizer.eos_token)

    def tool_result(self, text: str) -> list[int]:
        """The ids between a turn and the next."""
        before, after = self._result
        return before + self.tokenizer.encode(text) + after

    def examples(self, rows: Iterable[Row], expert: Expert) -> Examples:
        """What the expert's episodes on `rows` teach."""
        examples = Examples([], [], [], [])
        for row in rows:
            self._add_episode(examples, row, expert)
        return examples

    def _add_episode(self, examples: Examples, row: Row, expert: Expert) -> None:
        prompt = Example([], []).then(self.prompt(row), False)
        answer = encode_answer(self.tokenizer, row["answers"])
        turns, results = self._episode(expert.trace(row, "full"))
        whole = prompt.then(turns[0], True)
        for result, turn in zip(results, turns[1:], strict=True):
            memory = turn[: turn.index(self._memory_end) + 1]
            whole = whole.then(result, False)
            examples.answer_full.append(Example(whole.ids, [IGNORED] * len(whole.ids)).then(answer.ids, answer.mask))
            examples.answer_memory.append(prompt.then(memory, False).then(answer.ids, answer.mask))
            whole = whole.then(turn, True)
        examples.full.append(whole)
        turns, results = self._episode(expert.trace(row, "memory"))
        for before, result, turn in zip(turns, results, turns[1:], strict=False):
            examples.memory.append(prompt.then(before, False).then(result, False).then(turn, True))

    def _episode(self, messages: list[dict[str, Any]]) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of the turns, and of the tool results between them."""
        turns = [self.turn(m["content"]) for m in messages if m["role"] == "assistant"]
        return turns, [self.tool_result(m["content"]) for m in messages if m["role"] == "tool"]


def cold_start(
    seed: int = 0, recipes: Iterable[Recipe] = RECIPES, on_step: OnStep = lambda step, loss: None
) -> Qwen2ForCausalLM:
    """Trains a tiny model from random weights. Everything depends on `seed` and `recipes` alone.

    Args:
        seed: of the weights and the order of examples.
        recipes: how it is trained, one after the other.
        on_step: called after each step of each recipe.

    Returns:
        The model, in eval mode.
    """
    tokenizer = tiny.build_tokenizer()
    model = tiny.build_model(tokenizer, seed)
    encoder = TraceEncoder(tokenizer)
    for recipe in recipes:
        fit(model, teach(encoder, recipe), recipe, seed, on_step)
    return model


def teach(encoder: TraceEncoder, recipe: Recipe) -> list[Examples]:
    """What the expert's episodes teach, for each number of objectives."""
    return [encoder.examples(world_rows(recipe.traces, k, "cold start"), Expert()) for k in recipe.objectives]


def fit(
    model: Qwen2ForCausalLM,
    examples: list[Examples],
    recipe: Recipe,
    seed: int = 0,
    on_step: OnStep = lambda step, loss: None,
) -> None:
    """Trains `model` in place: Muon for weight matrices, AdamW for the rest; AdamW alone is far slower here."""
    rng = random.Random(seed)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    steps = [phase for phase in recipe.phases for _ in range(phase.steps)]
    schedules = [LambdaLR(o, lambda s: min(1.0, (s + 1) / WARMUP_STEPS) * (1 - s / len(steps))) for o in optimizers]
    model.train()
    for step, phase in enumerate(steps, start=1):
        batches = [_draw(examples, phase, batch, rng) for batch in phase.batches]
        loss = torch.cat([token_losses(model, batch)[0] for batch in batches]).mean()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        on_step(step, loss.item())
    model.eval()


def _draw(examples: list[Examples], phase: Phase, batch: dict[str, int], rng: random.Random) -> list[Example]:
    """The examples of a batch. Those with a history are of one number of objectives: of about one length."""

    def pool() -> Examples:
        return rng.choices(examples, phase.weights)[0]

    drawn = []
    for kind, count in batch.items():
        shared = pool() if kind.endswith("full") else None
        drawn += [rng.choice(getattr(shared or pool(), kind)) for _ in range(count)]
    return drawn


def token_losses(model: Qwen2ForCausalLM, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the tokens that count, and these tokens. Shape of each: (K,)."""
    ids = pad_sequence([torch.tensor(e.ids) for e in examples], batch_first=True)  # (B, L)
    labels = pad_sequence([torch.tensor(e.labels) for e in examples], batch_first=True, padding_value=IGNORED)[:, 1:]
    # Padded right, and causal: what counts sees no padding.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    counted = labels != IGNORED
    return cross_entropy(model.lm_head(hidden[counted]), labels[counted], reduction="none"), labels[counted]


def main() -> None:
    """Makes the weights that the package ships, and beside them a record: seed, losses of the first steps, SHA-256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="file for the weights; the record is beside it, as .json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    losses: list[float] = []

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 100 == 0:
            print(f"step {step}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)

    model = cold_start(tiny.START_SEED, RECIPES, on_step)
    save_model(model, arguments.output)
    record = {
        "seed": tiny.START_SEED,
        "first_losses": [round(loss, 4) for loss in losses[:5]],
        "sha256": hashlib.sha256(arguments.output.read_bytes()).hexdigest(),
    }
    arguments.output.with_suffix(".json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
