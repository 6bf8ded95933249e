"""Which forward gives the log-probs of turns: packed rows where the model's attention allows them, else padded ones."""

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.nn.functional import pad

from ..memory.scoring.engine import sharing_obstacle
from ..memory.scoring.inputs import inner_model, rope_switch, with_own_positions
from .by_turn import forward_by_turn, sees_everything
from .packed import TooLongError, TurnTokens, forward_packed, fused_values, pack_turns, unpadded

logger = logging.getLogger(__name__)

CHECKED_TRAJECTORIES = 2
EXACT, ROUNDED = (1e-4, 1e-3), (2e-2, 2e-1)  # how far log-probs and gradients may be off, in float32 and below

LogProbs = tuple[Tensor, Tensor | None, Tensor | None]
"""Log-probs (B, C), entropies (B, C) and an auxiliary loss, as TRL's forward gives them."""

Forward = Callable[[Any, Tensor, Tensor, int, int | None], LogProbs]
"""TRL's, from a model, ids (R, S), attention mask (R, S), the last tokens of a row to score, and rows of a batch."""


class _Batch(NamedTuple):
    """B trajectories, and how many of them are padded to each other."""

    input_ids: Tensor  # (B, P + C)
    attention_mask: Tensor  # (B, P + C)
    visible: Tensor  # (B, C)
    size: int | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.visible.size(0), self.visible.size(1)


def _layers(model: nn.Module) -> list[nn.Module]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def packing_obstacle(model: Any) -> str | None:
    """Why trajectories cannot be trained on in packed rows with this model; None if they can."""
    inner = inner_model(model)
    obstacle = sharing_obstacle(inner)
    if obstacle:
        return obstacle
    if getattr(inner.config.get_text_config(), "output_router_logits", False):
        return "its router's load-balancing loss counts the tokens of each trajectory's own row"
    if isinstance(model, torch._dynamo.OptimizedModule):
        return "it is compiled"
    if inner.is_gradient_checkpointing and not _layers(inner):
        return f"{type(inner).__name__} does not checkpoint its layers by transformers' GradientCheckpointingLayer"
    return None


class TurnLogps:
    """Log-probs and entropies of a batch's turns, by the rows that `logps` names: "packed", "padded" or "auto".

    "auto" packs where the model's attention allows it. In the first batch it compares log-probs and gradients of a few
    trajectories with those of padded rows. Where it cannot pack, fails or finds other values, it warns once and pads.

    Args:
        model: the policy.
        logps: one of `config.LOGPS`.
        max_tokens: tokens of a packed row, at most. One row is one forward.
        pad_token_id: the token of a forward that is only made because another rank makes one.
        equalize: the largest of the ranks' values.
        autocast: what a forward runs in.
        count: is told how many tokens are forwarded, padding left out.
        sharded: whether parameters are spread over processes, so that gradients cannot be compared.

    Attributes:
        packed: whether packed rows are in use.

    Raises:
        ValueError: "packed" was asked for, and the model does not allow it.
    """

    def __init__(
        self,
        model: Any,
        logps: str,
        max_tokens: int,
        pad_token_id: int,
        *,
        equalize: Callable[[int], int] = lambda count: count,
        autocast: Callable[[], AbstractContextManager[Any]],
        count: Callable[[int], None] = lambda tokens: None,
        sharded: bool = False,
    ) -> None:
        obstacle = None if logps == "padded" else packing_obstacle(model)
        if obstacle and logps == "packed":
            raise ValueError(f"logps='packed' cannot hold for this model: {obstacle}. Set it to 'padded'")
        if obstacle:
            logger.warning("logps='auto' pads the rows that this model is trained on: %s", obstacle)
        self.packed = logps != "padded" and obstacle is None
        self._checked = logps != "auto"
        self._max_tokens, self._pad_token_id, self._sharded = max_tokens, pad_token_id, sharded
        self._equalize, self._autocast, self._count = equalize, autocast, count

    def __call__(
        self,
        forward: Forward,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        batch_size: int | None,
        visible: Tensor | None,
    ) -> LogProbs:
        """Values of the turns' tokens, 0 on tool results: a ratio of two of them must not overflow where none counts.

        Args:
            forward: TRL's.
            model: the policy or its reference, or what wraps it for training.
            input_ids: prompts, padded left, then completions, padded right. Shape: (B, P + C).
            attention_mask: 1 on tokens, 0 on padding. Shape: (B, P + C).
            width: C.
            batch_size: trajectories that are padded to each other, see `forward_by_turn`.
            visible: see `visible_starts`; None if each token saw all that stands before it. Shape: (B, at most C).

        Raises:
            ValueError: one trajectory needs a longer row than `max_tokens`.
        """
        if visible is None:
            self._count(int(attention_mask.sum()))
            return forward(with_own_positions(model), input_ids, attention_mask, width, batch_size)
        visible = pad(visible, (0, width - visible.size(1)), value=-1)
        visible = visible.masked_fill(attention_mask[:, -width:] == 0, -1)
        batch = _Batch(input_ids, attention_mask, visible, batch_size)
        if self.packed and not self._checked:
            self._check(forward, model, batch)
        if not self.packed:
            return self._padded(forward, model, batch)
        rows = self._rows(batch)
        self._count(sum(len(row.ids) for row, _ in rows))
        return self._packed(model, rows, batch)

    def _padded(self, forward: Forward, model: Any, batch: _Batch) -> LogProbs:
        def rows(ids: Tensor, seen: Tensor, width: int, size: int | None = None) -> LogProbs:
            self._count(int(seen.sum()))
            values = forward(with_own_positions(model), ids, seen, width, size)
            long = seen.sum(dim=1, keepdim=True) > (rope_switch(model) or math.inf)  # (R, 1)
            crosses = rope_switch(model) is not None and self._equalize(int(long.any() and not long.all())) > 0
            if not crosses:
                return values
            # A long row gives the short ones other angles too: theirs are forwarded again, with one token of the long.
            last = torch.arange(ids.size(1), device=ids.device) == ids.size(1) - 1
            short = forward(with_own_positions(model), ids, torch.where(long, last.to(seen), seen), width, size)
            logps, entropies = (
                one if one is None or other is None else torch.where(long, one, other)
                for one, other in zip(values[:2], short[:2], strict=True)
            )
            assert logps is not None
            return logps, entropies, values[2]

        # Turns that were sampled on different sides of a switch cannot share a row, though they see all before them.
        if rope_switch(model) is None and sees_everything(batch.visible):
            *values, loss = rows(batch.input_ids, batch.attention_mask, batch.shape[1], batch.size)
            logps, entropies = (v if v is None else v.masked_fill(batch.visible < 0, 0.0) for v in values)
            assert logps is not None
            return logps, entropies, loss
        return forward_by_turn(
            rows, batch.input_ids, batch.attention_mask, batch.visible, batch.size, self._pad_token_id
        )

    def _rows(self, batch: _Batch) -> list[TurnTokens]:
        prompts, completions = unpadded(batch.input_ids, batch.attention_mask, batch.shape[1])
        try:
            return pack_turns(prompts, completions, batch.visible.tolist(), self._max_tokens)
        except TooLongError as error:
            raise ValueError(
                f"logps_max_tokens={self._max_tokens} is less than one trajectory and its prompt need, which is "
                f"{error.length} tokens. Set logps_max_tokens to {error.length} or more, lower max_completion_length, "
                "or set logps='padded'"
            ) from error

    def _packed(self, model: Any, rows: list[TurnTokens], batch: _Batch) -> LogProbs:
        def forward(*inputs: Any) -> tuple[Tensor, Tensor | None]:
            with self._autocast():
                return fused_values(*inputs)

        return *forward_packed(forward, model, rows, batch.shape, self._pad_token_id, self._equalize), None

    def _check(self, forward: Forward, model: Any, batch: _Batch) -> None:
        """Packs from now on, or pads if the shortest trajectories get other values in packed rows."""
        self._checked = True
        model = model if self._sharded else extract_model_from_parallel(model)
        chosen = batch.attention_mask.sum(dim=1).argsort()[:CHECKED_TRAJECTORIES]
        few = _Batch(batch.input_ids[chosen], batch.attention_mask[chosen], batch.visible[chosen], None)
        rows = self._rows(few)
        was_training = model.training
        model.eval()  # dropout draws other numbers in rows of another shape
        try:
            with torch.enable_grad():
                expected = self._values(model, self._padded(forward, model, few), few)
                gap = self._gap(model, lambda: self._values(model, self._packed(model, rows, few), few), expected)
        finally:
            model.train(was_training)
        self.packed = self._equalize(int(gap is not None)) == 0
        if gap is not None:
            logger.warning("logps='auto' pads the rows that this model is trained on from now on: %s", gap)

    def _gap(self, model: Any, packed: Callable[[], list[Tensor]], expected: list[Tensor]) -> str | None:
        """What is wrong with packed values; None if they are the expected ones."""
        try:
            values = packed()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what an attention does with arguments that it does not know is its own affair
            return f"a packed forward of this model fails with {type(error).__name__}: {error}"
        with self._autocast():
            rounded = torch.is_autocast_enabled(expected[0].device.type)
        rounded = rounded or any(parameter.dtype != torch.float32 for parameter in model.parameters())
        for name, value, other, tolerance in zip(
            ("log-probs", "gradients"), values, expected, ROUNDED if rounded else EXACT, strict=False
        ):
            gap = float((value - other).norm() / other.norm().clamp(min=1e-12))
            if not gap <= tolerance:
                return f"packed, it gives {name} that differ by {gap:.1e}, more than {tolerance:.0e}"
        return None

    def _values(self, model: Any, values: LogProbs, batch: _Batch) -> list[Tensor]:
        """The turns' log-probs, and unless sharded the gradient of their sum by what is trained in the first layer."""
        logps = values[0][batch.visible >= 0]
        layers = _layers(inner_model(model))
        trained = [p for p in (layers[0] if layers else model).parameters() if p.requires_grad]
        if self._sharded or not trained:
            return [logps.detach()]
        gradients = torch.autograd.grad(logps.sum(), trained, materialize_grads=True)
        return [logps.detach(), torch.cat([gradient.flatten() for gradient in gradients])]
