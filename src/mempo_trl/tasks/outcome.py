"""What an episode earns: TRL reward functions, called outside training as the trainer calls them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

RewardFunction = Callable[..., Sequence[float | None]]


class Played(Protocol):
    """What reward functions get of an episode."""

    prompt: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    environment: Any


def outcome_reward(
    row: dict[str, Any],
    episode: Played,
    reward_funcs: Sequence[RewardFunction],
    reward_weights: Sequence[float] | None = None,
) -> float:
    """The weighted sum of what reward functions return for one episode. None counts as nothing, as in TRL.

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
    return float(sum(reward * weight for reward, weight in weighted if reward is not None))
