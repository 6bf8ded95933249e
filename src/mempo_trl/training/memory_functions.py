"""Rewards of memories by functions, in the manner of TRL's `reward_funcs`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..memory import MemorySpan
from ..types import Episode

ANSWER_LIKELIHOOD = "answer_likelihood"
"""Names the built-in function: how much more likely the memory makes the gold answer (method.md, section 3)."""

MemoryRewardFunc = Callable[..., Sequence[float | None]]
"""Called once a batch with keywords: `memories` (a list of `Memory`), `episodes`, `prompts`, `rewards` (what the
functions before it gave, by name), `outcomes` (the episodes' rewards), and each column of the dataset, a list with a
value for each episode. Returns a number for each memory, or None where it has nothing to say."""


class Memory(NamedTuple):
    """A closed memory of turn 2 or later.

    Attributes:
        row: the number of its episode in the batch.
        turn: the number of its turn, from 0.
        text: without its tags.
        span: its tokens, counted in the completion, tags included.
    """

    row: int
    turn: int
    text: str
    span: MemorySpan


class MemoryRewards:
    """The weighted sum of memory reward functions.

    Args:
        funcs: functions, or `"answer_likelihood"` for the built-in one, which is the default.
        weights: one for each; default: 1 for all. A function of weight 0 is called, for those behind it, and left out
            of the sum.

    Raises:
        ValueError: a name is unknown, or the weights are not as many as the functions.
    """

    def __init__(
        self,
        funcs: MemoryRewardFunc | str | Sequence[MemoryRewardFunc | str] | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        if funcs is None or isinstance(funcs, str) or callable(funcs):
            funcs = [ANSWER_LIKELIHOOD if funcs is None else funcs]
        unknown = [func for func in funcs if not callable(func) and func != ANSWER_LIKELIHOOD]
        if unknown or not funcs:
            raise ValueError(
                f"memory_reward_funcs takes functions and the name {ANSWER_LIKELIHOOD!r}: got {unknown or funcs!r}"
            )
        if weights is not None and len(weights) != len(funcs):
            raise ValueError(
                f"memory_reward_weights has {len(weights)} weights for {len(funcs)} memory_reward_funcs: give one each"
            )
        self.funcs = {func if isinstance(func, str) else func.__name__: func for func in funcs}
        if len(self.funcs) < len(funcs):
            raise ValueError(f"memory_reward_funcs must have different names: got {list(self.funcs)} for {len(funcs)}")
        self.weights = dict(zip(self.funcs, [1.0] * len(funcs) if weights is None else weights, strict=True))

    @property
    def needs_answers(self) -> bool:
        """Whether gold answers are scored."""
        return ANSWER_LIKELIHOOD in self.funcs

    def __call__(
        self,
        memories: Sequence[Memory],
        likelihood: Sequence[float | None],
        episodes: Sequence[Episode],
        columns: Mapping[str, Any],
    ) -> dict[str, list[float | None]]:
        """What each function gives, by name. Length of each: M.

        Args:
            memories: of the batch. Length M.
            likelihood: what the built-in function gives. Length M.
            episodes: of the batch. Length B.
            columns: more keywords for the functions.

        Raises:
            ValueError: a function returned another number of values.
        """
        rewards: dict[str, list[float | None]] = {}
        for name, func in self.funcs.items():
            if isinstance(func, str):
                rewards[name] = list(likelihood)
                continue
            values = list(func(memories=memories, episodes=episodes, rewards=dict(rewards), **columns))
            if len(values) != len(memories):
                raise ValueError(f"{name} returned {len(values)} rewards for {len(memories)} memories")
            rewards[name] = values
        return rewards

    def total(self, rewards: Mapping[str, Sequence[float | None]], index: int) -> float | None:
        """The weighted sum of what was said about one memory; None where nothing was."""
        said = [self.weights[name] * value for name, values in rewards.items()
                if self.weights[name] and (value := values[index]) is not None]  # fmt: skip
        return sum(said) if said else None
