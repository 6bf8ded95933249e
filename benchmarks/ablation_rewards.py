"""Memory rewards of `ablations.py`: some memories are paid, the others stay out of the pool."""

from collections.abc import Callable, Mapping, Sequence

from mempo_trl.training.memory_functions import ANSWER_LIKELIHOOD, Memory, MemoryRewardFunc

SHORT = 14  # tokens of a memory with three notes; one of 4 objectives has 18 in the end


def _right(memory: Memory, outcomes: Sequence[float]) -> bool:
    return outcomes[memory.row] > 0


def _short(memory: Memory, outcomes: Sequence[float]) -> bool:
    return memory.span.end - memory.span.start <= SHORT


PAID: dict[str, Callable[[Memory, Sequence[float]], bool] | None] = {"all": None, "right": _right, "short": _short}


def memory_rewards(paid: str) -> tuple[list[MemoryRewardFunc | str] | None, list[float] | None]:
    """`memory_reward_funcs` and their weights that pay "all" memories, those of trajectories with the "right" answer,
    or "short" ones, of `SHORT` tokens at most."""
    rule = PAID[paid]
    if rule is None:
        return None, None

    def gated(
        memories: Sequence[Memory],
        rewards: Mapping[str, Sequence[float | None]],
        outcomes: Sequence[float],
        **kwargs: object,
    ) -> list[float | None]:
        values = zip(memories, rewards[ANSWER_LIKELIHOOD], strict=True)
        return [value if rule(memory, outcomes) else None for memory, value in values]

    return [ANSWER_LIKELIHOOD, gated], [0.0, 1.0]
