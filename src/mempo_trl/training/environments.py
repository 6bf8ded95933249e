"""The environments that TRL's trainer keeps and resets for one episode after the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..types import Episode


def check_environments(
    factories: Mapping[str | None, Callable[[], Any]], pools: Mapping[str | None, list[Any]]
) -> None:
    """Raises ValueError if a factory gives the same environment twice, which trajectories would then share.

    Args:
        factories: by the environment's name.
        pools: the environments that were made so far, at least one for each name; what is made here is added.
    """
    for name, factory in factories.items():
        environment = factory()
        if any(environment is other for other in pools[name]):
            raise ValueError(
                f"environment_factory gave the same {type(environment).__name__} twice, so that all trajectories would "
                "share what it holds. Make a new one in each call"
            )
        pools[name].append(environment)


def replace_environments(
    environments: list[Any], pools: Mapping[str | None, list[Any]], episodes: Sequence[Episode]
) -> None:
    """Puts the environments that episodes ended with in the place of those that they began with, see `leave_behind`.

    Args:
        environments: of the batch, which reward functions read. Length B.
        pools: by name, those that are reset for later episodes.
        episodes: of the batch. Length B.
    """
    for row, (environment, episode) in enumerate(zip(environments, episodes, strict=True)):
        if episode.environment is not environment:
            environments[row] = episode.environment
            for pool in pools.values():
                pool[:] = [episode.environment if other is environment else other for other in pool]
