"""The shared engine: answer log-probabilities with every shared prefix forwarded once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention

from .packing import PackedRow, Segment, Trajectories, dummy_row
from .separate import AnswerContext, empty_scores, evaluation_mode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "mempo_shared_prefixes"
# Log-probs (K,) of labels (K,) at places (K,) of a row, from a model, its arguments, the places and the labels.
LogProbs = Callable[["PreTrainedModel", dict[str, Any], Tensor, Tensor], Tensor]
HEAD_ROWS = 1024  # positions whose logits are held in float32 at once


class SegmentAttention:
    """Attention of one segment of a row, by what stands in its context."""

    def __init__(self, segment: Segment, device: torch.device) -> None:
        context, self._own = segment
        places = list(chain(*context, self._own))
        contiguous = places[-1] - places[0] == len(places) - 1
        self._keys = slice(places[0], places[-1] + 1) if contiguous else torch.tensor(places, device=device)
        # Behind a short context the queries of the context are computed again: a causal square costs half of a mask.
        self._square = 2 * len(self._own) > len(places)
        self._mask: Tensor | None = None

    def _additive_mask(self, like: Tensor, keys: int) -> Tensor:
        """0 where a token of the segment may look, -inf behind it. Shape: (own tokens, keys)."""
        if self._mask is None or self._mask.dtype != like.dtype:
            own = len(self._own)
            self._mask = like.new_full((own, keys), -torch.inf).triu(keys - own + 1)
        return self._mask

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, dropout: float) -> Tensor:
        """Shapes: as `select` returns them; the result is (heads, own tokens, D)."""
        groups = query.size(0) // key.size(0)
        attended = scaled_dot_product_attention(
            query.unflatten(0, (-1, groups)),
            key.unsqueeze(1).expand(-1, groups, -1, -1),
            value.unsqueeze(1).expand(-1, groups, -1, -1),
            attn_mask=None if self._square else self._additive_mask(query, key.size(1)),
            dropout_p=dropout,
            is_causal=self._square,
            scale=scaling,
        )
        return attended.flatten(0, 1)[:, -len(self._own) :]

    def places(self) -> tuple[Any, Any]:
        """Which tokens of the row are queries, and which are keys and values."""
        return self._keys if self._square else slice(self._own.start, self._own.stop), self._keys

    def select(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The row's (heads, S, D) at the places of this segment."""
        queries, keys = self.places()
        return query[:, queries], key[:, keys], value[:, keys]

    @property
    def length(self) -> int:
        """Its own tokens."""
        return len(self._own)


class _AttendedRow(torch.autograd.Function):
    """All segments of a row. The gradients of the shared keys are added up in place.

    By itself, autograd would fill a gradient of the whole row with zeros for each segment, and keep the keys and values
    that each segment sees. Here only the row's are kept, and the backward attends to them once more.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Sequence[SegmentAttention], scaling: float | None
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.segments, ctx.scaling = segments, scaling
        device = query.device.type
        ctx.autocast = {
            "device_type": device, "enabled": torch.is_autocast_enabled(device),
            "dtype": torch.get_autocast_dtype(device),
        }  # fmt: skip
        return torch.cat([s(*s.select(query, key, value), scaling, 0.0) for s in segments], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        row = ctx.saved_tensors
        total = [torch.zeros_like(tensor) for tensor in row]
        for segment, own in zip(ctx.segments, gradient.split([s.length for s in ctx.segments], dim=1), strict=True):
            parts = [part.detach().requires_grad_() for part in segment.select(*row)]
            with torch.enable_grad(), torch.autocast(**ctx.autocast):
                attended = segment(*parts, ctx.scaling, 0.0)
            queries, keys = segment.places()
            for into, places, part in zip(
                total, (queries, keys, keys), torch.autograd.grad(attended, parts, own), strict=True
            ):
                into[:, places] += part  # no place stands twice in a segment
        return *total, None, None


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Sequence[SegmentAttention],
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention for transformers' `AttentionInterface`: one row, (1, heads, S, D) -> (1, S, heads, D)."""
    row = query[0], key[0], value[0]
    if dropout:  # drawn anew in each pass, so that autograd has to keep what it drew
        attended = torch.cat([segment(*segment.select(*row), scaling, dropout) for segment in segments], dim=1)
    else:
        attended = _AttendedRow.apply(*row, segments, scaling)  # type: ignore[no-untyped-call]
    return attended.transpose(0, 1).unsqueeze(0), None


@contextmanager
def segment_attention_in(model: "PreTrainedModel") -> Iterator[None]:
    """Switches the model's attention to `segment_attention`, which needs no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, segment_attention)
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def head_log_probs(model: "PreTrainedModel", inputs: dict[str, Any], places: Tensor, labels: Tensor) -> Tensor:
    """Log-probs of the labels, with only their places through the LM head. Shape: (K,), (K,) -> (K,)."""
    logits = model(**inputs, use_cache=False, logits_to_keep=places).logits[0]  # (K, V)
    chunks = zip(logits.split(HEAD_ROWS), labels.split(HEAD_ROWS), strict=True)
    return torch.cat([-cross_entropy(rows.float(), targets, reduction="none") for rows, targets in chunks])


def row_inputs(row: PackedRow, device: torch.device) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A model's arguments for the row, and the places and labels of its scored tokens. Shapes: (1, S), (K,), (K,)."""
    ids, positions = (torch.tensor([values], device=device) for values in (row.ids, row.positions))
    segments = [SegmentAttention(segment, device) for segment in row.segments]
    places, labels = (torch.tensor(values, dtype=torch.long, device=device) for values in (row.places, row.labels))
    return {"input_ids": ids, "position_ids": positions, "segments": segments}, places, labels


@dataclass
class CompletionLogps:
    """Asks the pass over the trajectories for their own log-probs too, and holds them after.

    Attributes:
        log_probs: the head that gives them, and the answers' as well.
        rows: log p of the completion tokens of each trajectory; empty until then.
    """

    log_probs: LogProbs
    rows: dict[int, Tensor] = field(default_factory=dict)

    def padded(self, width: int) -> Tensor:
        """All trajectories, zeros behind a shorter completion. Shape: (B, width)."""
        return torch.stack([pad(self.rows[row], (0, width - len(self.rows[row]))) for row in range(len(self.rows))])


def score_answers_shared(
    model: "PreTrainedModel",
    prompt_ids: Sequence[list[int]],
    completion_ids: Sequence[list[int]],
    answer_ids: Sequence[list[int]],
    contexts: Sequence[AnswerContext],
    *,
    pad_token_id: int,
    max_tokens: int = 32768,
    equalize: Callable[[int], int] = lambda forwards: forwards,
    completions: CompletionLogps | None = None,
) -> Tensor:
    """`score_answers`, each prompt and each trajectory forwarded once (`memory_scoring="shared"`).

    A trajectory is forwarded as far as its last context, or as a whole if `completions` wants its log-probs; an answer
    branches off it where its context ends, a memory and its answer off the prompt. Arguments and result as for
    `score_answers`.

    Args:
        completions: if given, receives the log-probs of the completions from the same pass.
    """
    work = Trajectories(prompt_ids, completion_ids, answer_ids, contexts, completions is not None)
    rows = list(work.pack(max_tokens))
    log_probs = head_log_probs if completions is None else completions.log_probs
    scores = empty_scores(model, prompt_ids, completion_ids, answer_ids, contexts)
    others = equalize(len(rows)) - len(rows)  # before the forwards: where one fails, ranks have asked as often
    with evaluation_mode(model), segment_attention_in(model):
        for row in rows:
            logps = log_probs(model, *row_inputs(row, scores.device))  # (K,)
            for index, scored in row.answers.items():
                scores[index, : len(scored)] = logps[scored.start : scored.stop]
            if completions is not None:
                completions.rows.update((r, logps[s.start : s.stop]) for r, s in row.completions.items())
        for _ in range(others):
            log_probs(model, *row_inputs(dummy_row(pad_token_id), scores.device))
    return scores
