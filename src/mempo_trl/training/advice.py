"""What the first steps say about a run: whether the outcome trains it, or the memory advantage, or neither."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

FIRST_STEPS = 20
SILENT = 0.8  # share of tied groups from which on the outcome trains next to nothing


class AdviceCallback(TrainerCallback):
    """Prints `advice` once, at the first log from step `FIRST_STEPS` on."""

    def __init__(self, memory_weight: float) -> None:
        self.memory_weight = memory_weight
        self._given = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reads the log history, which this log is the last entry of."""
        if self._given or state.global_step < FIRST_STEPS:
            return
        self._given = True
        text = advice(state.log_history, self.memory_weight)
        if text and state.is_world_process_zero:
            tqdm.write(text)


def advice(history: list[dict[str, Any]], memory_weight: float) -> str | None:
    """One line from the metrics of a run's first steps; None if nothing was logged.

    Args:
        history: the trainer's log history.
        memory_weight: of the run.
    """
    means = {name: _mean(history, name) for name in ("frac_reward_zero_std", "memory/reward_std", "reward")}
    tied, spread, reward = means.values()
    if tied is None:
        return None
    facts = [f"reward {reward:.2f}", f"{tied:.0%} of groups tied"]
    if spread is not None:
        facts.append(f"memory reward std {spread:.3f}")
    return f"First {FIRST_STEPS} steps: {', '.join(facts)}. {_verdict(history, tied, memory_weight)}"


def _verdict(history: list[dict[str, Any]], tied: float, memory_weight: float) -> str:
    closed, under_floor = _mean(history, "memory/closed_fraction"), _mean(history, "memory/pools_under_floor")
    if closed is not None and closed < 0.5:
        return "Most turns write no memory, so there is none to train. Train a cold start first (mempo sft)."
    if tied < SILENT:
        return "The outcome has a say in most steps." if tied < 0.5 else "The outcome has a say in some steps."
    if memory_weight == 0:
        return "The outcome is silent. Set memory_weight above 0, ask easier questions, or give partial credit."
    if under_floor is not None and under_floor > 0.5:
        return "The outcome is silent, and so are the memories. Ask easier questions, or train a longer cold start."
    return "The outcome is silent: the memory advantage is what trains the policy."


def _mean(history: list[Mapping[str, Any]] | list[dict[str, Any]], name: str) -> float | None:
    values = [entry[name] for entry in history if entry.get(name) is not None and entry[name] == entry[name]]
    return fmean(values) if values else None
