"""What a forward of a model is given besides its tokens: positions that start where each row's own tokens start."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def inner_model(model: nn.Module) -> Any:
    """The transformers model inside what wraps it for adapters or for several processes; else the model itself."""
    from transformers import PreTrainedModel

    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), model)


def supported(model: nn.Module, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that the model's forward names; a model without positions has no `position_ids`."""
    names = inspect.signature(inner_model(model).forward).parameters
    return {name: value for name, value in arguments.items() if name in names}


def own_positions(attention_mask: Tensor) -> Tensor:
    """The place of each token in its own sequence, whatever padding stands around it. Shape: (B, S) -> (B, S).

    Without them a model counts the padding on the left too, which shifts learned positions, and scales some rotary
    ones otherwise. Padding on the right repeats the last place, so that no place is beyond the sequence.
    """
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def with_own_positions(model: nn.Module) -> Callable[..., Any]:
    """The model's forward, given `own_positions` of the attention mask that it is called with."""

    def forward(*, attention_mask: Tensor, **inputs: Any) -> Any:
        positions = supported(model, position_ids=own_positions(attention_mask))
        return model(attention_mask=attention_mask, **positions, **inputs)

    return forward


def rope_switch(model: nn.Module) -> int | None:
    """The length from which a model turns all positions of a forward by other angles, if one of its rows is longer
    (longrope, dynamic NTK); None for most models."""
    config = getattr(inner_model(model), "config", None)
    if config is None:
        return None
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            return int(original or config.max_position_embeddings)
    return None
