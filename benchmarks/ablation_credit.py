"""The part of docs/results.md that `benchmarks/plans/credit.md` plans: where the memory advantage pays."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

from ablation_scores import Cells, Difference, Run, difference, estimate
from ablation_tables import shown, table
from mempo_trl.report.plots import STYLE

SETTINGS = ("k4-g8", "k6-g8", "k8-g8", "k10-g8", "k6-g4", "k6-g16")
SEEDS = 8
ALPHA = 0.05
WORTH = 0.03  # of F1: an interval that ends below it leaves no gain worth having


class Setting(NamedTuple):
    """One row of the grid: a number of objectives and a group size, with the runs that are there.

    Attributes:
        name: as in the plan.
        objectives: trained and tested.
        seeds: that both arms have.
        tied: share of tied groups of the run at learning rate 0; None while it is not there.
        f1: MemPO - GRPO, and so on.
        p: of the paired t test of F1; NaN with one seed.
    """

    name: str
    objectives: int
    seeds: list[int]
    tied: float | None
    f1: Difference
    all_correct: Difference
    fidelity: Difference
    p: float


def settings(cells: Cells) -> list[Setting]:
    """The settings that have a seed with both arms, in the order of the plan."""
    return [_setting(cells, name) for name in SETTINGS if _seeds(cells, name)]


def _seeds(cells: Cells, name: str) -> list[int]:
    arms = [{run["job"]["seed"] for run in cells.get(f"credit-{name}-{arm}", [])} for arm in ("grpo", "mempo")]
    return sorted(arms[0] & arms[1])


def _setting(cells: Cells, name: str) -> Setting:
    mempo, grpo = f"credit-{name}-mempo", f"credit-{name}-grpo"
    k, seeds = int(name[1 : name.index("-")]), _seeds(cells, name)
    f1, all_correct, fidelity = (
        difference(cells, mempo, grpo, "memory", k, metric) for metric in ("f1", "all_correct", "memory_fidelity")
    )
    scores = [cells.scores(cell, "memory", k, "f1") for cell in (mempo, grpo)]
    p = float(ttest_rel(*([arm[seed] for seed in seeds] for arm in scores)).pvalue) if len(seeds) > 1 else float("nan")
    start = cells.get(f"credit-{name}-start")
    tied = fmean(share for share in start[0]["curves"]["tied"] if share is not None) if start else None
    return Setting(name, k, seeds, tied, f1, all_correct, fidelity, p)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order of `values`."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(np.argsort(values)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(setting: Setting, p: float) -> str:
    """What the plan says about a setting with all its seeds, given its adjusted p value."""
    if p < ALPHA:
        return "yes" if setting.f1.change["mean"] > 0 else "harm"
    return "no gain worth having" if setting.f1.change["high"] < WORTH else "undecided"


def first_reward(run: Run) -> int | None:
    """The first step with a reward above 0; None without one."""
    return next((step for step, reward in enumerate(run["curves"]["reward"], start=1) if reward), None)


def _first_rewards(runs: Sequence[Run]) -> str:
    """The median step, and how many runs have none."""
    steps = [first_reward(run) for run in runs]
    middle = median(101 if step is None else step for step in steps)
    without = steps.count(None)
    return ("over 100" if middle > 100 else f"{middle:g}") + (f" ({without} without)" if without else "")


def credit_section(cells: Cells, assets: Path) -> str:
    """The table and the figure; a verdict for each setting once every seed is there; nothing without a pair of runs."""
    found = settings(cells)
    if not found:
        return ""
    complete = len(found) == len(SETTINGS) and all(len(setting.seeds) == SEEDS for setting in found)
    verdicts = _verdicts(found) if complete else {}
    rows = [_row(cells, setting, verdicts.get(setting.name, "")) for setting in found]
    head = ["setting", "tied at the start", "F1, GRPO", "F1, MemPO", "F1, difference", "EM, difference",
            "fidelity, difference", "first reward, GRPO", "MemPO", "seeds"]  # fmt: skip
    return "\n\n".join(
        [
            "## Where does the memory advantage pay?",
            "GRPO and MemPO, trained and tested in `memory` context at each number of objectives (k) and group size "
            "(G), 100 steps of 32 episodes. The hypotheses, the tests and what counts as yes or no were written down "
            "before the first run: `benchmarks/plans/credit.md`, commit `0747a9a`.",
            _summary(found, complete),
            table([*head, "verdict"] if complete else head, rows),
            "Tied is the share of groups whose episodes all have the same reward, so that GRPO learns nothing from "
            "them, measured with learning rate 0. First reward is the median of the first step with a reward above 0.",
            f"![Gain in F1 against the share of tied groups]({assets}/credit.svg)",
        ]
    )


def _row(cells: Cells, setting: Setting, found: str) -> list[str]:
    arms = [f"credit-{setting.name}-{arm}" for arm in ("grpo", "mempo")]
    f1 = [shown(estimate(cells.scores(arm, "memory", setting.objectives, "f1").values())) for arm in arms]
    changes = [shown(d.change, "+") for d in (setting.f1, setting.all_correct, setting.fidelity)]
    tied = "" if setting.tied is None else f"{setting.tied:.2f}"
    rewards = [_first_rewards(cells[arm]) for arm in arms]
    row = [f"`{setting.name}`", tied, *f1, *changes, *rewards, str(len(setting.seeds))]
    return [*row, found] if found else row


def _verdicts(found: Sequence[Setting]) -> dict[str, str]:
    adjusted = holm([setting.p for setting in found])
    return {s.name: f"{verdict(s, p)} (p {p:.3f})" for s, p in zip(found, adjusted, strict=True)}


def _summary(found: Sequence[Setting], complete: bool) -> str:
    if not complete:
        played = sum(len(setting.seeds) for setting in found)
        return (
            f"**The grid is not complete**: {played} of {SEEDS * len(SETTINGS)} pairs of runs have been played. The "
            "plan gives no verdict before all are there, and the table shows what there is."
        )
    verdicts = {s.name: verdict(s, p) for s, p in zip(found, holm([s.p for s in found]), strict=True)}
    silent = [name for name in ("k8-g8", "k10-g8") if verdicts[name] == "yes"]
    if len(silent) == 2:
        return "**The memory advantage learns while the outcome is silent**: F1 is higher at 8 and at 10 objectives."
    if silent:
        return f"Where the outcome is silent, F1 is higher in `{silent[0]}` alone."
    undecided = any(verdicts[name] == "undecided" for name in ("k8-g8", "k10-g8"))
    return f"That the memory advantage learns while the outcome is silent is {'undecided' if undecided else 'refuted'}."


def credit_figure(found: Sequence[Setting]) -> Figure:
    """The gain in F1 against the share of tied groups at the start, a point for each setting."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), facecolor="white", layout="constrained")
        axes = figure.subplots()
        for setting in found:
            if setting.tied is None:
                continue
            change = setting.f1.change
            reach = [[change["mean"] - change["low"]], [change["high"] - change["mean"]]]
            axes.errorbar([setting.tied], [change["mean"]], yerr=reach, fmt="o", color="#009E73", capsize=3)
            axes.annotate(setting.name, (setting.tied, change["mean"]), xytext=(6, 4), textcoords="offset points")
        axes.axhline(0, color="#3a4149", linewidth=0.8)
        axes.set(xlabel="share of tied groups at the start", ylabel="F1, MemPO - GRPO", xlim=(0, 1.12))
        return figure
