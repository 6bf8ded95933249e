"""Log-probabilities of the gold answer after the contexts that a memory is scored by."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .inputs import rope_switch, supported, with_own_positions


class AnswerContext(NamedTuple):
    """A context to score the answer in: a trajectory's prompt, then a range of its completion's tokens.

    A memory alone is its span. Everything before turn t is `[0, start of turn t)`.

    Attributes:
        row: the trajectory.
        start: first token of the range.
        end: the token behind its last one.
    """

    row: int
    start: int
    end: int


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off and no gradient inside; the model is as it was after."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _batches(lengths: Sequence[int], max_tokens: int, switch: int | None = None) -> list[list[int]]:
    """Indices in batches of at most `max_tokens` tokens, padding included, longest rows first; one row at least.

    A row shorter than half of its batch's longest starts a new one: a memory is not padded to a history. Rows on the
    two sides of a model's `rope_switch` are not forwarded together either.
    """
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        crosses = switch is not None and lengths[index] <= switch < width
        if not batches or crosses or (len(batches[-1]) + 1) * width > max_tokens or 2 * lengths[index] < width:
            batches.append([])
            width = lengths[index]
        batches[-1].append(index)
    return batches


def last_token_logps(model: nn.Module, rows: list[list[int]], count: int, pad_token_id: int) -> Tensor:
    """log p of the last `count` tokens of each row, given what stands before them. Shape: (len(rows), count)."""
    device = next(model.parameters()).device
    width = max(map(len, rows))
    input_ids = torch.tensor([[pad_token_id] * (width - len(row)) + row for row in rows], device=device)  # (b, S)
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    logits = with_own_positions(model)(
        input_ids=input_ids, attention_mask=seen, **supported(model, use_cache=False, logits_to_keep=count + 1)
    ).logits[:, -count - 1 : -1]  # (b, count, V); some models give the logits of the whole row
    labels = input_ids[:, -count:].unsqueeze(-1)
    return logits.float().log_softmax(dim=-1).gather(-1, labels).squeeze(-1)


def empty_scores(
    model: nn.Module,
    prompt_ids: Sequence[list[int]],
    completion_ids: Sequence[list[int]],
    answer_ids: Sequence[list[int]],
    contexts: Sequence[AnswerContext],
) -> Tensor:
    """Zeros for the answers of N contexts, after a check that the lists are parallel. Shape: (N, L)."""
    if not len(prompt_ids) == len(completion_ids) == len(answer_ids):
        raise ValueError(
            f"got {len(prompt_ids)} prompts, {len(completion_ids)} completions and {len(answer_ids)} answers, expected "
            "as many of each"
        )
    length = max((len(answer_ids[context.row]) for context in contexts), default=0)
    return torch.zeros(len(contexts), length, device=next(model.parameters()).device)


def score_answers(
    model: nn.Module,
    prompt_ids: Sequence[list[int]],
    completion_ids: Sequence[list[int]],
    answer_ids: Sequence[list[int]],
    contexts: Sequence[AnswerContext],
    *,
    pad_token_id: int,
    max_tokens: int = 32768,
    equalize: Callable[[int], int] = lambda batches: batches,
) -> Tensor:
    """Scores each trajectory's answer text after each context, one sequence for each (`memory_scoring="separate"`).

    At temperature 1, in evaluation mode (restored after), without gradient, only the answer's positions through the LM
    head. Contexts are joined from ids that were sampled or rendered.

    Args:
        model: a causal language model.
        prompt_ids: for each trajectory, the prompt of turn 1, ending with the assistant header.
        completion_ids: for each trajectory, turns and tool results.
        answer_ids: for each trajectory, the ids of its answer text (`EncodedAnswer.ids`).
        contexts: N contexts, in any order.
        pad_token_id: what fills a row; it is masked.
        max_tokens: at most so many tokens in one forward, padding included (one row is always allowed).
        equalize: from the number of forwards here to the number to make, so that all ranks make as many.

    Returns:
        log p of the answer tokens, natural log, float32, zeros behind a shorter answer. Shape: (N, L).

    Source: method.md, section 3.
    """
    scores = empty_scores(model, prompt_ids, completion_ids, answer_ids, contexts)
    rows = [prompt_ids[c.row] + completion_ids[c.row][c.start : c.end] + answer_ids[c.row] for c in contexts]
    batches = _batches([len(row) for row in rows], max_tokens, rope_switch(model))
    with evaluation_mode(model):
        for batch in batches:
            counts = [len(answer_ids[contexts[index].row]) for index in batch]
            logps = last_token_logps(model, [rows[index] for index in batch], max(counts), pad_token_id)
            for index, count, row_logps in zip(batch, counts, logps, strict=True):
                scores[index, :count] = row_logps[-count:]
        for _ in range(equalize(len(batches)) - len(batches)):
            last_token_logps(model, [[pad_token_id] * 2], 1, pad_token_id)
    return scores
