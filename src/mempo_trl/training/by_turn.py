"""A batch of trajectories cut into one row for each turn, so that a token is scored under what its turn saw."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..memory.turns import find_turns
from ..types import Episode


def visible_starts(episodes: Sequence[Episode], device: torch.device | None = None) -> Tensor:
    """Where in the completion the context of each token's turn starts; -1 on tool results and padding. Shape: (B, C).

    One number for each token is all that the loss needs to know of what the policy saw: a token of a turn with the
    value v was sampled after the prompt and the completion's tokens from v on.
    """
    rows = []
    for episode in episodes:
        row: list[int] = []
        for number, turn in enumerate(episode.turns):
            row += [episode.visible_start(number)] * (turn.end - turn.start) + [-1] * len(turn.result_ids)
        rows.append(torch.tensor(row, dtype=torch.long, device=device))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def sees_everything(visible: Tensor) -> bool:
    """True if every token was sampled after all that stands before it: one row for each trajectory will do."""
    return not bool((visible > 0).any())


class TurnRows(NamedTuple):
    """A batch cut into one row for each turn: `[visible context | turn]`, context padded left, turn padded right."""

    input_ids: Tensor  # (R, V + W)
    attention_mask: Tensor  # (R, V + W)
    width: int  # W: tokens of the longest turn
    source: Tensor  # (K, 2) row and column in (R, W) of each turn token
    target: Tensor  # (K, 2) its row and column in (B, C)

    def scatter(self, values: Tensor, shape: tuple[int, int]) -> Tensor:
        """Puts per-token values of the rows back where their tokens stand: (R, W) -> (B, C), 0 elsewhere."""
        picked = values[self.source[:, 0], self.source[:, 1]]
        return values.new_zeros(shape).index_put((self.target[:, 0], self.target[:, 1]), picked)


def turn_rows(input_ids: Tensor, attention_mask: Tensor, visible: Tensor, pad_token_id: int) -> TurnRows:
    """Cuts trajectories into the rows that the "memory" context conditions on.

    Args:
        input_ids: prompt, padded left, then completion, padded right. Shape: (B, P + C).
        attention_mask: 1 on tokens, 0 on padding. Shape: (B, P + C).
        visible: see `visible_starts`. Shape: (B, C).
        pad_token_id: what fills a row.

    Returns:
        One row for each turn of each trajectory; one masked row where there is none, so that a forward can be made.
    """
    prompt_width = input_ids.size(1) - visible.size(1)
    contexts: list[list[int]] = []
    texts: list[list[int]] = []
    target: list[tuple[int, int]] = []
    ids, attended, firsts = input_ids.tolist(), attention_mask.tolist(), visible.tolist()
    for row, row_ids in enumerate(ids):
        prompt = [i for i, seen in zip(row_ids[:prompt_width], attended[row][:prompt_width], strict=True) if seen]
        for start, end in find_turns([first >= 0 for first in firsts[row]]):
            first = firsts[row][start]
            contexts.append(prompt + row_ids[prompt_width + first : prompt_width + start])
            texts.append(row_ids[prompt_width + start : prompt_width + end])
            target.extend((row, column) for column in range(start, end))
    if not texts:
        contexts, texts, lengths = [[pad_token_id]], [[pad_token_id]], [0]
    else:
        lengths = [len(text) for text in texts]
    left, width = max(map(len, contexts)), max(map(len, texts))
    rows = [
        [pad_token_id] * (left - len(c)) + c + t + [pad_token_id] * (width - len(t))
        for c, t in zip(contexts, texts, strict=True)
    ]
    seen = [
        [0] * (left - len(c)) + [1] * (len(c) + len(t)) + [0] * (width - len(t))
        for c, t in zip(contexts, texts, strict=True)
    ]
    source = [(row, column) for row, length in enumerate(lengths) for column in range(length)]

    def tensor(values: Sequence[Sequence[int]], columns: int) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=input_ids.device).reshape(-1, columns)

    return TurnRows(tensor(rows, left + width), tensor(seen, left + width), width, tensor(source, 2), tensor(target, 2))


# Log-probs and entropies (R, W) of the last W tokens of rows, and a loss of the batch; from ids, attention mask and W.
Forward = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor | None, Tensor | None]]


def forward_by_turn(
    forward: Forward,
    input_ids: Tensor,
    attention_mask: Tensor,
    visible: Tensor,
    batch_size: int | None,
    pad_token_id: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Values of each turn's tokens under what was visible when it was written.

    Args:
        forward: scores rows; either of its last two results may be None.
        input_ids: see `turn_rows`. Shape: (B, P + C).
        attention_mask: see `turn_rows`. Shape: (B, P + C).
        visible: see `visible_starts`. Shape: (B, C).
        batch_size: trajectories whose rows go into one forward; None for all of them. How many turns they have plays no
            part, so that all ranks make as many forwards.
        pad_token_id: what fills a row.

    Returns:
        Log-probs (B, C), entropies (B, C) or None, the mean of the losses or None.
    """
    scattered: list[list[Tensor]] = [[], []]
    losses = []
    size = batch_size or len(input_ids)
    for ids, seen, starts in zip(*(t.split(size) for t in (input_ids, attention_mask, visible)), strict=True):
        rows = turn_rows(ids, seen, starts, pad_token_id)
        *values, loss = forward(rows.input_ids, rows.attention_mask, rows.width)
        for parts, value in zip(scattered, values, strict=True):
            if value is not None:
                parts.append(rows.scatter(value, (starts.size(0), starts.size(1))))
        if loss is not None:
            losses.append(loss)
    logps, entropies = (torch.cat(parts) if parts else None for parts in scattered)
    assert logps is not None
    return logps, entropies, torch.stack(losses).mean() if losses else None
