"""MemPO (Self-Memory Policy Optimization, arXiv 2603.00680) for TRL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_EXPORTS = {
    "MemPOConfig": "training.config",
    "MemPOTrainer": "training.trainer",
    "MemoryAgent": "inference.agent",
    "MemorySpan": "memory",
    "EncodedAnswer": "memory",
    "encode_answer": "memory",
    "find_memory_spans": "memory",
    "memory_advantages": "memory",
    "memory_instructions": "tasks.instructions",
    "memory_rewards": "memory",
    "score_answers": "memory",
    "token_advantages": "memory",
}
__all__ = [
    "EncodedAnswer",
    "MemPOConfig",
    "MemPOTrainer",
    "MemoryAgent",
    "MemorySpan",
    "encode_answer",
    "find_memory_spans",
    "memory_advantages",
    "memory_instructions",
    "memory_rewards",
    "score_answers",
    "token_advantages",
]

if TYPE_CHECKING:
    from .inference.agent import MemoryAgent
    from .memory import (
        EncodedAnswer,
        MemorySpan,
        encode_answer,
        find_memory_spans,
        memory_advantages,
        memory_rewards,
        score_answers,
        token_advantages,
    )
    from .tasks.instructions import memory_instructions
    from .training.config import MemPOConfig
    from .training.trainer import MemPOTrainer


def __getattr__(name: str) -> Any:
    # Lazy, so that `import mempo_trl` does not pay for torch, transformers and TRL.
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)
