"""Tries the model with a few tokens at the start: its log-probs must not depend on padding, head or later tokens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..memory.scoring.inputs import inner_model, supported, with_own_positions
from ..memory.scoring.separate import evaluation_mode, last_token_logps

TOKENS, PADDING = 160, 5  # some attentions compress keys in windows of 128 tokens from the row's start
EXACT, ROUNDED = 1e-4, 5e-2  # how far log-probs may be off in float32 and below, relative to those beyond 1


def refuse_virtual_tokens(model: Any, peft_config: Any) -> None:
    """Raises ValueError for prompt, prefix and P-tuning, whose learned tokens stand before the padding of a row."""
    config: Any = peft_config or getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        kind = getattr(config.peft_type, "value", config.peft_type)
        raise ValueError(
            f"peft_config is {kind}, which puts virtual tokens before each row: padding would come between them and "
            "the prompt, and log-probs would be wrong. Set peft_config to one that changes weights, such as LoraConfig"
        )


def check_model(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Raises ValueError if a model's log-probs in padded rows, by TRL's head, are not those of one sequence alone.

    Costs three forwards of a few hundred tokens. The model's mode and the state of random generators stay as they were.
    A model whose weights are not all here (ZeRO-3, FSDP) is not tried.

    Args:
        model: with the head that TRL adds.
        tokenizer: of its ids.
        temperature: that this head divides logits by.
        autocast: what a forward runs in.
    """
    if any(parameter.is_meta or hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return
    trial = _Trial(model, tokenizer, temperature)
    with _undisturbed(model), autocast():
        fault = trial.fault(_tolerance(model))
    if fault is not None:
        inner = inner_model(model)
        raise ValueError(
            f"{inner.name_or_path or 'the model'} ({type(inner).__name__}) cannot be trained: {fault}. "
            "Choose a model of another family"
        )


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), evaluation_mode(model):
        yield


def _tolerance(model: nn.Module) -> float:
    device = next(model.parameters()).device.type
    rounded = torch.is_autocast_enabled(device) or any(p.dtype != torch.float32 for p in model.parameters())
    return ROUNDED if rounded or torch.get_float32_matmul_precision() != "highest" else EXACT


class _Trial:
    """A sequence, and ways to forward it that must give the same."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, temperature: float) -> None:
        config = inner_model(model).config.get_text_config()
        special = set(tokenizer.all_special_ids)
        ordinary = [token for token in range(min(config.vocab_size, len(tokenizer))) if token not in special]
        length = min(TOKENS, (getattr(config, "max_position_embeddings", None) or TOKENS + PADDING) - PADDING)
        tokens = [ordinary[7 * place % len(ordinary)] for place in range(2 * length + PADDING)]
        self._model, self._temperature, self._pad = model, temperature, tokenizer.pad_token_id
        self._row, others = tokens[:length], tokens[length:]
        self._half = length // 2
        # Padded to a longer row, as it is and with another end.
        self._rows = [others, self._row, self._row[: self._half] + others[self._half : length]]

    def fault(self, tolerance: float) -> str | None:
        """What is wrong with the model's log-probs; None for nothing."""
        try:
            return self._fault(tolerance)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what a model does with padding and positions is its own affair
            return f"a forward of padded rows fails with {type(error).__name__}: {error}"

    def _fault(self, tolerance: float) -> str | None:
        alone = self._alone(self._temperature)
        _, padded, other_end = self._fused(self._rows)
        if _gap(padded, alone) > tolerance:
            unpadded = self._fused([self._row])[0]
            gap = _gap(unpadded, alone)
            if gap > tolerance:
                return (
                    f"by TRL's fused head its log-probs differ by {gap:.1e} nats from those of its own head, which "
                    "scales or caps logits in a way that TRL does not know"
                )
            return f"padding on the left changes its log-probs by {_gap(padded, unpadded):.1e} nats"
        gap = _gap(other_end[: self._half - 1], alone[: self._half - 1])
        if gap > tolerance:
            return f"the log-probs of a token change by {gap:.1e} nats with the tokens after it"
        count = len(self._row) - self._half
        scored = last_token_logps(self._model, self._rows, count, self._pad)[1]
        gap = _gap(scored, self._alone(1.0)[-count:])
        if gap > tolerance:
            return f"the log-probs of a row's last tokens differ by {gap:.1e} nats where rows are padded"
        return None

    def _tensor(self, values: list[list[int]]) -> Tensor:
        return torch.tensor(values, device=next(self._model.parameters()).device)

    def _alone(self, temperature: float) -> Tensor:
        """By the model's own head, unpadded. Shape: (tokens - 1,)."""
        ids = self._tensor([self._row])
        inputs = supported(self._model, position_ids=self._tensor([list(range(len(self._row)))]), use_cache=False)
        logits = self._model(input_ids=ids, **inputs).logits[0, :-1].float() / temperature
        logps: Tensor = logits.log_softmax(dim=-1).gather(-1, ids[0, 1:].unsqueeze(-1)).squeeze(-1)
        return logps

    def _fused(self, rows: list[list[int]]) -> list[Tensor]:
        """As in training. Shapes: (tokens - 1,)."""
        width = max(map(len, rows))
        ids = self._tensor([[self._pad] * (width - len(row)) + row for row in rows])
        seen = self._tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        labels = ids.masked_fill(seen == 0, -100)
        forward = with_own_positions(self._model)
        logps = forward(input_ids=ids, attention_mask=seen, labels=labels, fused_lm_head=True).log_probs
        return [values[1 - len(row) :] for row, values in zip(rows, logps, strict=True)]


def _gap(values: Tensor, expected: Tensor) -> float:
    """The mean difference, relative to log-probs beyond 1; infinite for NaN."""
    gap = float(((values.float() - expected).abs() / expected.abs().clamp(min=1)).mean())
    return gap if gap == gap else torch.inf
