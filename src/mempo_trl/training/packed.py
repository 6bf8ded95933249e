"""Log-probs of the turns of a batch, each distinct token forwarded once: trajectories packed behind shared prompts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..memory.scoring.inputs import inner_model
from ..memory.scoring.packing import PackedRow, Places, dummy_row
from ..memory.scoring.shared import row_inputs, segment_attention_in


class Strand(NamedTuple):
    """A stretch of one completion that directly continues the prompt, and the tokens that see it from its start."""

    trajectory: int
    start: int
    ids: list[int]  # up to the last token of its last turn, which is only predicted
    scored: list[int]  # columns of the completion


class TurnTokens(NamedTuple):
    """A packed row, and where the values of its scored tokens belong.

    Attributes:
        row: the tokens.
        target: (trajectory, place in its completion) of each scored token.
    """

    row: PackedRow
    target: list[tuple[int, int]]


class TooLongError(ValueError):
    """A prompt and what one turn sees behind it are more than a row may hold."""

    def __init__(self, length: int, max_tokens: int) -> None:
        super().__init__(f"a trajectory needs a row of {length} tokens, more than the {max_tokens} allowed")
        self.length = length


# Log-probs and entropies (K,) of labels (K,) at places (K,) of a row; from a model, its arguments, places and labels.
Forward = Callable[[Any, dict[str, Any], Tensor, Tensor], tuple[Tensor, Tensor | None]]


def _strands(trajectory: int, completion: list[int], visible: Sequence[int]) -> list[Strand]:
    """One strand for each place from which turns see the completion. In "full" context that is one."""
    columns: dict[int, list[int]] = {}
    for column, start in enumerate(visible[: len(completion)]):
        if start >= 0:
            columns.setdefault(start, []).append(column)
    return [Strand(trajectory, start, completion[start : seen[-1]], seen) for start, seen in columns.items()]


def _add(packed: TurnTokens, prompt: Places, prompt_length: int, strand: Strand, completion: list[int]) -> None:
    places = packed.row.add(prompt, prompt_length, strand.ids)
    before = [prompt_length + column - strand.start - 1 for column in strand.scored]
    packed.row.score(places, before, [completion[column] for column in strand.scored])
    packed.target.extend((strand.trajectory, column) for column in strand.scored)


def pack_turns(
    prompt_ids: Sequence[list[int]],
    completion_ids: Sequence[list[int]],
    visible: Sequence[Sequence[int]],
    max_tokens: int,
) -> list[TurnTokens]:
    """Packs B trajectories into rows in which a prompt stands once and each turn sees what it was generated from.

    In "full" context a trajectory stands once behind its prompt. In "memory" context a turn stands once as what is
    scored, and once more as what the next turns see, unless the two are the same.

    Args:
        prompt_ids: for each trajectory, the prompt of turn 1.
        completion_ids: for each trajectory, turns and tool results.
        visible: for each trajectory and token, see `by_turn.visible_starts`.
        max_tokens: tokens of a row, at most.

    Raises:
        TooLongError: a prompt and one strand behind it are more than `max_tokens`.
    """
    if not len(prompt_ids) == len(completion_ids) == len(visible):
        raise ValueError(
            f"got {len(prompt_ids)} prompts, {len(completion_ids)} completions and {len(visible)} rows of visible "
            "starts, expected as many of each"
        )
    rows: list[TurnTokens] = []
    prompt: list[int] | None = None
    places = Places()
    for trajectory in sorted(range(len(prompt_ids)), key=lambda index: prompt_ids[index]):
        own_prompt, completion = prompt_ids[trajectory], completion_ids[trajectory]
        for strand in _strands(trajectory, completion, visible[trajectory]):
            length = len(strand.ids) + (0 if own_prompt == prompt else len(own_prompt))
            if not rows or len(rows[-1].row.ids) + length > max_tokens:
                rows.append(TurnTokens(PackedRow(), []))
                prompt, length = None, len(strand.ids) + len(own_prompt)
                if length > max_tokens:
                    raise TooLongError(length, max_tokens)
            if own_prompt != prompt:
                prompt, places = own_prompt, rows[-1].row.add((), 0, own_prompt)
            _add(rows[-1], places, len(own_prompt), strand, completion)
    return rows


def unpadded(input_ids: Tensor, attention_mask: Tensor, width: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of a padded batch. Shape: (B, P + C), with `width` C."""
    ids, seen = input_ids.tolist(), attention_mask.tolist()
    rows = [[(token, mark) for token, mark in zip(*row, strict=True)] for row in zip(ids, seen, strict=True)]
    return tuple(  # type: ignore[return-value]
        [[token for token, mark in row[part] if mark] for row in rows]
        for part in (slice(None, -width), slice(-width, None))
    )


def forward_packed(
    forward: Forward,
    model: Any,
    rows: Sequence[TurnTokens],
    shape: tuple[int, int],
    pad_token_id: int,
    equalize: Callable[[int], int] = lambda forwards: forwards,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies of the turns' tokens, 0 elsewhere. Shapes: (B, C).

    Args:
        forward: scores one row.
        model: a causal language model, or what wraps it for training.
        rows: see `pack_turns`.
        shape: B and C.
        pad_token_id: the token of a forward that is only made because another rank makes one.
        equalize: from the number of forwards here to the number to make, so that all ranks make as many.
    """
    backbone = inner_model(model)
    keep_segments(backbone)
    device = next(model.parameters()).device
    values: list[tuple[Tensor, Tensor | None]] = []
    with segment_attention_in(backbone):
        for row, _ in rows:
            values.append(forward(model, *row_inputs(row, device)))
        # Without a turn there is a forward too, so that the result depends on the model and every rank has a backward.
        for _ in range(max(equalize(len(rows)), 1) - len(rows)):
            logps, entropies = forward(model, *row_inputs(dummy_row(pad_token_id), device))
            values.append((logps[:0], None if entropies is None else entropies[:0]))
    places = [place for _, target in rows for place in target]
    targets = torch.tensor(places, dtype=torch.long, device=device).reshape(-1, 2)

    def scatter(parts: Sequence[Tensor]) -> Tensor:
        joined = torch.cat(list(parts))
        return joined.new_zeros(shape).index_put((targets[:, 0], targets[:, 1]), joined)

    entropies_of = [entropies for _, entropies in values if entropies is not None]
    return scatter([logps for logps, _ in values]), scatter(entropies_of) if entropies_of else None


@contextmanager
def _only_at(model: nn.Module, places: Tensor) -> Iterator[None]:
    """The head gets the hidden states at `places` alone, as (1, K, hidden size)."""

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, places]
        return output

    handle = inner_model(model).base_model.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


def fused_values(model: Any, inputs: dict[str, Any], places: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies by the head that TRL adds to a model, which never holds the logits of a whole row."""
    with _only_at(model, places):
        output = model(**inputs, shift_labels=labels.unsqueeze(0), fused_lm_head=True)
    return output.log_probs[0], None if output.entropy is None else output.entropy[0]


def fused_log_probs(model: Any, inputs: dict[str, Any], places: Tensor, labels: Tensor) -> Tensor:
    """The log-probs of `fused_values`."""
    return fused_values(model, inputs, places, labels)[0]


def keep_segments(model: nn.Module) -> None:
    """Lets gradient checkpointing compute a layer again after the forward of a packed row has ended.

    The backward runs the layers once more, when the model's attention has been switched back. From now on a module of
    this model that is given `segments` attends by them, whenever it runs.
    """
    if getattr(model, "_keeps_segments", False):
        return
    model._keeps_segments = True  # type: ignore[assignment]
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for module in layer.children():
                if hasattr(module, "config"):
                    _attend_by_segments(module)


def _attend_by_segments(module: nn.Module) -> None:
    switches: list[Any] = []

    def switch(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if "segments" in kwargs:
            switches.append(segment_attention_in(module))
            switches[-1].__enter__()

    def restore(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if "segments" in kwargs:
            switches.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(switch, with_kwargs=True)
    module.register_forward_hook(restore, with_kwargs=True, always_call=True)
