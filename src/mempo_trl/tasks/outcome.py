"""What an episode earns: TRL reward functions, called outside training as the trainer calls them."""

from collections.abc import Callable, Sequence
from typing import Any

from ..types import Episode

RewardFunction = Callable[..., Sequence[float | None]]


def outcome_reward(
    row: dict[str, Any],
    episode: Episode,
    reward_funcs: Sequence[RewardFunction],
    reward_weights: Sequence[float] | None = None,
) -> float:
    """The weighted sum of what reward functions return for one episode, as in training.

    None counts as nothing. If the environment has a `get_reward`, what it returns is added.

    Args:
        row: the dataset's row; its columns are arguments of the functions, as in training.
        episode: what was played.
        reward_funcs: TRL reward functions.
        reward_weights: one for each function; default: 1.
    """
    columns = {name: [value] for name, value in row.items() if name not in ("prompt", "completion")}
    batch = {"prompts": [episode.prompt], "completions": [episode.messages], "environments": [episode.environment]}
    rewards = [function(**batch, **columns)[0] for function in reward_funcs]
    weighted = zip(rewards, reward_weights or [1.0] * len(rewards), strict=True)
    own = episode.environment.get_reward() if has_reward(episode.environment) else None
    return float(sum(reward * weight for reward, weight in (*weighted, (own, 1.0)) if reward is not None))


def has_reward(environment: Any) -> bool:
    """Whether an environment computes a reward itself, as in TRL."""
    return callable(getattr(environment, "get_reward", None))
