"""The parts of docs/results.md that look into memories: one that lost a fact, and the habits of all."""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ablation_labels import START, Labels
from ablation_run import Job
from ablation_scores import Cells, Run, example_of
from ablation_tables import table
from ablation_world import HABITS, memory_habits
from mempo_trl.memory.rewards import score_memories
from mempo_trl.tasks.world.world import CAREFUL, world_rows
from mempo_trl.traces.convert import written_episode


def example_section(runs: list[Run]) -> str:
    """What each rule says about one memory that lost a fact."""
    example = example_of(runs)
    if example is None:
        return ""
    rows = [[f"`{t}`", *(f"{math.exp(p):.3f}" for p in (full, mem))] for t, mem, full in example["tokens"]]
    about = (
        f"From the rollout of step {example['step']} of a MemPO run, trained in `full` context: the memory that lost "
        "most of what the history knew. The question is "
        f'"{example["question"]}" The gold answers are {", ".join(example["answers"])}. So far the searches showed:'
    )
    return "\n\n".join(
        [
            "## The published threshold, on one memory",
            about,
            "\n".join("- " + " ".join(result.split()) for result in example["tool_results"]),
            f"The model then wrote `{example['memory']}`. How likely each token of the gold answers is:",
            table(["token", "given the history", "given the memory"], rows),
            "A token is known where its probability is above 0.5. What follows from that:",
            table(["rule", "P(history)", "P(memory)", "memory reward"], _rules(example)),
            "Under `independent` and `both`, a fact that only the history knows is left out of P(memory), so losing it "
            "costs nothing. Under `independent`, a memory after which no token is known even gets P(memory) = 1. "
            "`either` keeps a token that one of them knows in both.",
        ]
    )


def _rules(example: dict[str, Any]) -> list[list[str]]:
    mem, full = (torch.tensor([[token[i] for token in example["tokens"]]]) for i in (1, 2))
    rules = {"no threshold": (None, "either"), **{f"`{m}`": (0.5, m) for m in ("either", "independent", "both")}}
    rows = []
    for label, (threshold, mode) in rules.items():
        score = score_memories(full, mem, torch.ones_like(mem), threshold, mode)
        numbers = (score.p_baseline.item(), score.p_mem.item(), score.reward.item())
        rows.append([label, *(f"{n:.3f}" for n in numbers[:2]), f"{numbers[2]:+.3f}"])
    return rows


def habits_section(cells: Cells, labels: Labels, assets: Path) -> str:
    """How often memories show a habit that could win a reward without being of use."""
    if not labels:
        return ""
    k, expert = cells.objectives(labels)[0], _faultless(cells.objectives(labels)[0])
    rows = [["an expert without faults", *(f"{share:.3f}" for share in expert.values()), "", "", ""]]
    if START in cells:
        rows.append(["before training", *(_shown_share(cells, START, k, habit) for habit in HABITS), "", "", "1"])
    for name, label in labels.items():
        first, last = (_length(cells[name], part) for part in (slice(0, 3), slice(-3, None)))
        shares = [_shown_share(cells, name, k, habit) for habit in HABITS]
        rows.append([label.page, *shares, f"{first:.1f}", f"{last:.1f}", str(len(cells[name]))])
    found = {habit: [_share(cells, name, k, habit) for name in labels] for habit in HABITS}
    beyond = {h: [share - expert[h] for share in found[h] if share is not None] for h in HABITS}
    more = {habit: max([0.0, *shares]) for habit, shares in beyond.items()}
    longer = max(_length(cells[name], slice(-3, None)) - _length(cells[name], slice(0, 3)) for name in labels)
    most = list(labels.values())[found["guesses"].index(max(found["guesses"]))].page
    return "\n\n".join(
        [
            "## Do memories cheat?",
            f"Shares of memories that guess a city are {min(found['guesses']):.3f} to {max(found['guesses']):.3f}, the "
            f"most with {most}. At most {more['copies']:.3f} more than an expert's copy the question, "
            f"{more['repeats']:.3f} more repeat a person, {more['grows']:.3f} more grow, and in training memories get "
            f"at most {max(longer, 0):.1f} tokens longer.",
            f"![Memories that guess, and their length]({assets}/habits.svg)",
            "A memory reward could be won by memories that copy the question, guess answers, repeat or grow. Shares of "
            f"the memories in `memory` context on {k} objectives, after training: those that name a person of the "
            "question whom no search has found, that hold a city which no search has shown, that have a person twice "
            "who was searched for once, and that have more notes than there were searches. A friend whose home is "
            "still to be found stands in a memory too, so an expert without faults does not have 0 everywhere. Length "
            "is in tokens, over the memories of the first and the last 3 steps of training. The first runs did not "
            "count repeats: (of 2) is the mean of two seeds.",
            table(["", *HABITS, "length, first", "length, last", "seeds"], rows),
        ]
    )


def _faultless(k: int) -> dict[str, float]:
    """The habits of the expert that forgets nothing and misreads nothing, on the questions of the tests."""
    rows = world_rows(Job("", 0).questions, k, Job("", 0).test_split)
    found = [habits for row in rows if (habits := memory_habits(row, written_episode(row, CAREFUL.trace(row), {})))]
    return {habit: fmean(habits[habit] for habits in found) for habit in HABITS}


def _share(cells: Cells, name: str, k: int, habit: str) -> float | None:
    scores = cells.scores(name, "memory", k, habit).values()  # the first runs have no "repeats"
    return fmean(scores) if scores else None


def _shown_share(cells: Cells, name: str, k: int, habit: str) -> str:
    share, seeds = _share(cells, name, k, habit), len(cells.scores(name, "memory", k, habit))
    few = f" (of {seeds})" if 0 < seeds < len(cells[name]) else ""
    return "-" if share is None else f"{share:.3f}{few}"


def _length(runs: list[Run], part: slice) -> float:
    values = [value for run in runs for value in run["curves"].get("memory_length", [])[part]]
    return fmean(value for value in values if value is not None)
