"""The cold start of the embedded world: a tiny model learns from an expert's traces until it can search.

It learns the expert's turns in both contexts (method.md, section 6), careless memories included. It also learns to
answer straight after a memory and after a history, as the memory reward asks it to (section 3): a model that has never
seen these contexts gives a P that means nothing.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from . import tiny
from .memory.answers import encode_answer
from .rollout import tool_suffix_ids
from .search import world
from .search.prompts import build_prompt
from .search.rows import Row
from .search.world import PEOPLE, QUESTION, Expert, WorldEnvironment, numbered, world_rows

IGNORED = -100
WARMUP_STEPS = 20
_MARK = "\0"
OnStep = Callable[[int, float], None]  # the step, from 1, and its loss


@dataclass(frozen=True)
class Recipe:
    """How the cold start is trained.

    Attributes:
        objectives: people asked for in each question.
        traces: expert episodes that examples are drawn from.
        steps: optimizer steps; the learning rates fall linearly to 0.
        full: examples of a step that are whole episodes.
        memory: such of one turn in memory context.
        answer_full: such of an answer after a history.
        answer_memory: such of an answer after a memory.
        matrix_lr: Muon's learning rate, for the weight matrices.
        other_lr: AdamW's, for embeddings, norms and biases.
        query_probability: least mean probability of the right query, in each context, on unseen episodes.
        attempts: seeds that are tried until one reaches it.
    """

    objectives: int = 4
    traces: int = 3000
    steps: int = 600
    full: int = 10
    memory: int = 10
    answer_full: int = 10
    answer_memory: int = 16
    matrix_lr: float = 0.02
    other_lr: float = 4e-3
    query_probability: float = 0.95
    attempts: int = 3


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
    """What episodes teach, by kind, as in `Recipe`."""

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
        result = tool_suffix_ids(tokenizer, [{"role": "tool", "name": "search", "content": _MARK}])
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
    cache_dir: str | Path,
    seed: int = 0,
    recipe: Recipe | None = None,
    expert: Expert | None = None,
    on_step: OnStep = lambda step, loss: None,
) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """The tiny model after the cold start, trained here or found in the cache.

    Args:
        cache_dir: where it is kept, under a name that depends on all that it depends on.
        seed: of the weights and the order of examples.
        recipe: how it is trained.
        expert: who is learned from.
        on_step: called after each step, of each attempt.

    Returns:
        The model, in eval mode, and its tokenizer.

    Raises:
        `RuntimeError`: no attempt learned to search.
    """
    recipe, expert = recipe or Recipe(), expert or Expert()
    tokenizer = tiny.build_tokenizer()
    path = Path(cache_dir) / f"cold-start-{_fingerprint(seed, recipe, expert)}"
    if not (path / "config.json").exists():
        model = _learn(tokenizer, seed, recipe, expert, on_step)
        tokenizer.save_pretrained(path)
        model.save_pretrained(path)
    return Qwen2ForCausalLM.from_pretrained(path), tokenizer


def _fingerprint(*settings: object) -> str:
    sources = [Path(module.__file__ or "").read_text("utf-8") for module in (world, tiny)] + [
        Path(__file__).read_text()
    ]
    key = repr((settings, sources, torch.__version__, transformers.__version__))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _learn(
    tokenizer: PreTrainedTokenizerFast, seed: int, recipe: Recipe, expert: Expert, on_step: OnStep
) -> Qwen2ForCausalLM:
    """Trains with one seed after the other until the model knows what to search for."""
    encoder = TraceEncoder(tokenizer)
    taught, unseen = (
        encoder.examples(world_rows(count, recipe.objectives, split), expert)
        for split, count in (("cold start", recipe.traces), ("cold start gate", 64))
    )
    reached = []
    for attempt in range(recipe.attempts):
        model = tiny.build_model(tokenizer, seed + 1000 * attempt)
        fit(model, taught, recipe, seed, on_step)
        reached.append(min(query_probability(model, tokenizer, e) for e in (unseen.full, unseen.memory)))
        if reached[-1] >= recipe.query_probability:
            return model
    raise RuntimeError(
        f"the cold start did not learn to search: the right query has a probability of {reached}, and "
        f"{recipe.query_probability} is asked for. Set another seed, or more steps"
    )


def fit(
    model: Qwen2ForCausalLM,
    examples: Examples,
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
    schedules = [LambdaLR(o, lambda s: min(1.0, (s + 1) / WARMUP_STEPS) * (1 - s / recipe.steps)) for o in optimizers]
    model.train()
    for step in range(1, recipe.steps + 1):
        loss = _batch_loss(model, examples, recipe, rng)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        on_step(step, loss.item())
    model.eval()


def _batch_loss(model: Qwen2ForCausalLM, examples: Examples, recipe: Recipe, rng: random.Random) -> Tensor:
    """Mean loss of the tokens that count. Long and short examples are forwarded apart: less padding."""
    drawn = {kind: rng.choices(getattr(examples, kind), k=getattr(recipe, kind)) for kind in Examples._fields}
    parts = [
        token_losses(model, batch)
        for batch in (drawn["full"] + drawn["answer_full"], drawn["memory"] + drawn["answer_memory"])
        if batch
    ]
    return torch.cat([losses for losses, _ in parts]).mean()


def token_losses(model: Qwen2ForCausalLM, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the tokens that count, and these tokens. Shape of each: (K,)."""
    ids = pad_sequence([torch.tensor(e.ids) for e in examples], batch_first=True)  # (B, L)
    labels = pad_sequence([torch.tensor(e.labels) for e in examples], batch_first=True, padding_value=IGNORED)[:, 1:]
    # Padded right, and causal: what counts sees no padding.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    counted = labels != IGNORED
    return cross_entropy(model.lm_head(hidden[counted]), labels[counted], reduction="none"), labels[counted]


@torch.no_grad()
def query_probability(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    """Mean probability of the person that the expert searches for next. In [0, 1]."""
    losses, tokens = token_losses(model, examples)
    people = torch.tensor(tokenizer.convert_tokens_to_ids(list(PEOPLE)))
    return losses[torch.isin(tokens, people)].neg().exp().mean().item()
