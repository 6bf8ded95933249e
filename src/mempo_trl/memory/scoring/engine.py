"""Which engine scores the answers: the shared one where the model's attention allows it, else the separate one."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .inputs import rope_switch
from .separate import AnswerContext, score_answers
from .shared import CompletionLogps, score_answers_shared

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

SCORINGS: tuple[str, ...] = ("auto", "shared", "separate")
CHECKED_CONTEXTS = 4


def sharing_obstacle(model: "PreTrainedModel") -> str | None:
    """Why sequences cannot share their prefixes in this model; None if they can."""
    config = model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        return "it has recurrent layers, whose state cannot be branched"
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        return f"it has layers of type {', '.join(sorted(others))}"
    if getattr(config, "sliding_window", None):
        return f"it attends to a sliding window of {config.sliding_window} tokens"
    if rope_switch(model) is not None:
        return f"it turns positions by other angles where a row is longer than {rope_switch(model)} tokens"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{type(model).__name__} does not take its attention from transformers' AttentionInterface"
    return None


class AnswerScorer:
    """Scores answers by the engine that `memory_scoring` names: "shared", "separate", or "auto".

    "auto" is the shared engine where the model's attention allows it. In the first batch it compares a few values with
    the separate one. Where it cannot share, fails, or the values differ, it warns once and scores separately.

    Attributes:
        shared: whether the shared engine is in use.

    Raises:
        ValueError: "shared" was asked for, and the model's attention does not allow it.
    """

    def __init__(self, model: "PreTrainedModel", scoring: str = "auto") -> None:
        obstacle = None if scoring == "separate" else sharing_obstacle(model)
        if obstacle and scoring == "shared":
            raise ValueError(f"memory_scoring='shared' cannot hold for this model: {obstacle}. Set it to 'separate'")
        if obstacle:
            logger.warning("memory_scoring='auto' scores one sequence for each context with this model: %s", obstacle)
        self.shared = scoring != "separate" and obstacle is None
        self._checked = scoring != "auto"

    def __call__(
        self,
        model: "PreTrainedModel",
        prompt_ids: Sequence[list[int]],
        completion_ids: Sequence[list[int]],
        answer_ids: Sequence[list[int]],
        contexts: Sequence[AnswerContext],
        *,
        pad_token_id: int,
        max_tokens: int = 32768,
        equalize: Callable[[int], int] = lambda count: count,
        completions: CompletionLogps | None = None,
    ) -> Tensor:
        """As `score_answers_shared`; `completions` stays empty if the answers were scored separately.

        Args:
            equalize: the largest of the ranks' values.
        """
        separate = partial(
            score_answers, model, prompt_ids, completion_ids, answer_ids,
            pad_token_id=pad_token_id, max_tokens=max_tokens, equalize=equalize,
        )  # fmt: skip
        if not self.shared:
            return separate(contexts)
        shared = partial(
            score_answers_shared, model, prompt_ids, completion_ids, answer_ids, contexts,
            pad_token_id=pad_token_id, max_tokens=max_tokens, equalize=equalize, completions=completions,
        )  # fmt: skip
        if self._checked:
            return shared()
        self._checked = equalize(len(contexts)) > 0
        scores, fault = _checked_scores(shared, contexts, separate, _tolerance(model))
        self.shared = equalize(int(fault is not None)) == 0
        if fault is not None:
            logger.warning("memory_scoring='auto' scores one sequence for each context from now on: %s", fault)
        if self.shared and scores is not None:
            return scores
        if completions is not None:
            completions.rows.clear()
        return separate(contexts)


def _checked_scores(
    shared: Callable[[], Tensor],
    contexts: Sequence[AnswerContext],
    separate: Callable[[Sequence[AnswerContext]], Tensor],
    tolerance: float,
) -> tuple[Tensor | None, str | None]:
    """The shared engine's log-probs, and what is wrong with them: the separate one's for a few contexts are others,
    relative to those beyond 1, or there are none."""
    try:
        scores, fault = shared(), None
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # what an attention does with arguments that it does not know is its own affair
        scores, fault = None, f"with shared prefixes this model fails with {type(error).__name__}: {error}"
    chosen = list(range(0, len(contexts), max(len(contexts) // CHECKED_CONTEXTS, 1)))[:CHECKED_CONTEXTS]
    expected = separate([contexts[index] for index in chosen])
    if scores is None or not chosen:
        return scores, fault
    gap = float(((scores[chosen, : expected.size(1)] - expected).abs() / expected.abs().clamp(min=1)).mean())
    if not gap <= tolerance:
        fault = f"with shared prefixes this model gives log-probs that differ by {gap:.1e}, more than {tolerance:.0e}"
    return scores, fault


def _tolerance(model: "PreTrainedModel") -> float:
    """Batching alone changes log-probs in bfloat16 by 1e-2."""
    exact = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    autocast = torch.is_autocast_enabled(next(model.parameters()).device.type)
    return 1e-4 if exact and not autocast else 1e-2
