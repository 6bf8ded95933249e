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
        f"This memory comes from step {example['step']} of a MemPO run in `full` context. Of all memories in that "
        f'step, it lost most of what the history knew. The question is "{example["question"]}", and the gold answers '
        f"are {', '.join(example['answers'])}. The searches so far returned:"
    )
    return "\n\n".join(
        [
            "## The published threshold, on one memory",
            about,
            "\n".join("- " + " ".join(result.split()) for result in example["tool_results"]),
            f"The model then wrote `{example['memory']}`. The tokens of the gold answers have these probabilities:",
            table(["token", "after the history", "after the memory"], rows),
            "With a threshold of 0.5, the rules give this memory different rewards:",
            table(["rule", "P(history)", "P(memory)", "memory reward"], _rules(example)),
            "**Only `either` and no threshold make the memory pay for the facts that it lost.** Under `independent` "
            "and `both`, a token that only the history predicts is left out of P(memory), so losing it costs nothing. "
            "Under `independent`, a memory after which no token passes the threshold even gets P(memory) = 1.",
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


HABIT_TEXTS = {
    "copies": "name a person of the question whom no search has found yet",
    "guesses": "contain a city that no search has shown",
    "repeats": "contain a person twice who was searched for once",
    "grows": "contain more notes than there were searches",
}


def habits_section(cells: Cells, labels: Labels, assets: Path) -> str:
    """How often memories show a habit that could win a reward without being of use."""
    if not labels:
        return ""
    k = cells.objectives(labels)[0]
    expert = _faultless(k)
    return "\n\n".join(
        [
            "## Do memories cheat?",
            _habits_takeaway(cells, labels, k, expert),
            f"![Memories that guess, and their length]({assets}/habits.svg)",
            "A memory could win reward without being useful if it copied the question, guessed answers, repeated "
            "itself or grew. These are the habits, with their shares of the memories in `memory` context on "
            f"{k} objectives:",
            table(["habit", "memories that"], [[habit, HABIT_TEXTS[habit]] for habit in HABITS]),
            table(["", *HABITS, "length, first", "length, last", "seeds"], _habit_rows(cells, labels, k, expert)),
            "A memory may also name a friend whose home is still to be found, so an expert without faults is not at 0 "
            "everywhere. Length is in tokens, over the memories of the first and the last 3 steps of training. The "
            "first runs did not count repeats, so (of 2) marks the mean of two seeds.",
        ]
    )


def _habits_takeaway(cells: Cells, labels: Labels, k: int, expert: dict[str, float]) -> str:
    """The habit that grew most, against the model before training where that was measured, else against the expert."""
    shares = {h: [s for name in labels if (s := _share(cells, name, k, h)) is not None] for h in HABITS}
    start = {h: _share(cells, START, k, h) if START in cells else None for h in HABITS}
    usual = {h: expert[h] if value is None else value for h, value in start.items()}
    more = {h: max(values) - usual[h] for h, values in shares.items() if values}
    habit = max(more, key=lambda h: more[h])
    longer = max(_length(cells[name], slice(-3, None)) - _length(cells[name], slice(0, 3)) for name in labels)
    return (
        f"**No arm shows any of these habits in more than {max(more[habit], 0):.3f} of its memories beyond the share "
        f"before training (the largest change is in `{habit}`), and memories get at most {max(longer, 0):.1f} tokens "
        "longer during training.**"
    )


def _habit_rows(cells: Cells, labels: Labels, k: int, expert: dict[str, float]) -> list[list[str]]:
    rows = [["an expert without faults", *(f"{share:.3f}" for share in expert.values()), "", "", ""]]
    if START in cells:
        rows.append(["before training", *(_shown_share(cells, START, k, habit) for habit in HABITS), "", "", "1"])
    for name, label in labels.items():
        first, last = (_length(cells[name], part) for part in (slice(0, 3), slice(-3, None)))
        shares = [_shown_share(cells, name, k, habit) for habit in HABITS]
        rows.append([label.page, *shares, f"{first:.1f}", f"{last:.1f}", str(len(cells[name]))])
    return rows


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
