"""The parts of docs/results.md that look into memories: one that lost a fact, and the habits of all."""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ablation_scores import Cells, Run, before, example_of
from ablation_tables import table
from ablation_world import HABITS
from mempo_trl.memory.rewards import score_memories


def example_section(runs: list[Run]) -> str:
    """What each rule says about one memory that lost a fact."""
    example = example_of(runs)
    if example is None:
        return ""
    rows = [[f"`{t}`", *(f"{math.exp(p):.3f}" for p in (full, mem))] for t, mem, full in example["tokens"]]
    about = (
        f"From step {example['step']} of a MemPO run, trained in `full` context. The question is "
        f'"{example["question"]}" The gold answers are {", ".join(example["answers"])}. So far the searches showed:'
    )
    return "\n\n".join(
        [
            "### The published threshold, on one memory",
            about,
            "\n".join("- " + " ".join(result.split()) for result in example["tool_results"]),
            f"The model then wrote `{example['memory']}`. How likely each token of the gold answers is:",
            table(["token", "given the history", "given the memory"], rows),
            "A token is known where its probability is above 0.5. What follows from that:",
            table(["rule", "P(history)", "P(memory)", "memory reward"], _rules(example)),
            "Under `independent` and `both`, a fact that only the history knows is left out of P(memory), so losing it "
            "costs nothing. `either` keeps it in both.",
        ]
    )


def _rules(example: dict[str, Any]) -> list[list[str]]:
    mem, full = (torch.tensor([[token[i] for token in example["tokens"]]]) for i in (1, 2))
    rules = {"no threshold": (None, "either"), **{f"`{m}`": (0.5, m) for m in ("either", "independent", "both")}}
    rows = []
    for label, (threshold, mode) in rules.items():
        score = score_memories(full, mem, torch.ones_like(mem), threshold, mode)
        numbers = (score.p_full.item(), score.p_mem.item(), score.reward.item())
        rows.append([label, *(f"{n:.3f}" for n in numbers[:2]), f"{numbers[2]:+.3f}"])
    return rows


def habits_section(cells: Cells, labels: dict[str, str], assets: Path) -> str:
    """How often memories show a habit that could win a reward without being of use."""
    k = cells.objectives(labels)[0]
    shares = {name: {habit: _share(cells, name, k, habit) for habit in HABITS} for name in labels}
    lengths = {name: [_length(cells[name], part) for part in (slice(0, 3), slice(-3, None))] for name in labels}
    rows = [
        [
            label,
            *("-" if share is None else f"{share:.3f}" for share in shares[name].values()),
            *(f"{length:.1f}" for length in lengths[name]),
        ]
        for name, label in labels.items()
    ]
    runs = [run for name in labels for run in cells[name]]
    start = ", ".join(f"{before(runs, 'memory', k, habit):.3f} {habit}" for habit in HABITS[:2])
    most = ", ".join(
        f"{max(share for by in shares.values() if (share := by[habit]) is not None):.3f} {habit}"
        for habit in HABITS[:2]
    )
    longest = max(last for _, last in lengths.values())
    return "\n\n".join(
        [
            "### Do memories cheat?",
            f"Before training, the shares of memories with a bad habit are {start}; after it, they are at most {most} "
            f"in any arm. In the last steps of training, memories have {longest:.1f} tokens at most on average; what "
            "no reward for long ones changes stands under [What did not matter?](#what-did-not-matter).",
            f"![Memories that guess, and their length]({assets}/habits.svg)",
            "A memory reward could be won by memories that copy the question, guess answers, repeat or grow. Shares of "
            f"the memories in `memory` context at {k} objectives, after training: those that name a person of the "
            "question whom no search has found (a friend who is asked for too counts as one), that hold a city which "
            "no search has shown, that have a person twice who was searched for once, and that have more notes than "
            "there were searches. Length is in tokens, over the memories of the first and the last 3 steps of "
            "training.",
            table(["", *HABITS, "length, first", "length, last"], rows),
        ]
    )


def _share(cells: Cells, name: str, k: int, habit: str) -> float | None:
    scores = cells.scores(name, "memory", k, habit)  # the first runs have no "repeats"
    return fmean(scores.values()) if scores else None


def _length(runs: list[Run], part: slice) -> float:
    return fmean(fmean(values) for run in runs if (values := run["curves"].get("memory_length", [])[part]))
