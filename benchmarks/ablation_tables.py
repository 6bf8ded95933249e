"""What docs/results.md is made of: tables and sentences with numbers from the runs of `ablations.py`."""

from collections.abc import Iterable, Sequence

from ablation_scores import Cells, difference, estimate
from mempo_trl.context import CONTEXTS
from mempo_trl.summary import Estimate


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: Estimate, sign: str = "") -> str:
    """`0.81 [0.78, 0.84]`, or without the interval where its ends would read the same, as with one value."""
    numbers = [format(round(value[name], 2) + 0.0, f"{sign}.2f") for name in ("mean", "low", "high")]
    return numbers[0] if numbers[1] == numbers[2] else f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


def present(cells: Cells, labels: dict[str, str]) -> dict[str, str]:
    return {name: label for name, label in labels.items() if name in cells}


def seeds(cells: Cells, name: str) -> str:
    return str(len(cells[name]))


def scores_table(cells: Cells, labels: dict[str, str]) -> str:
    """Exact match in both contexts at each number of objectives, and what the memory kept, one row for each cell."""
    tests = [(k, context) for k in cells.objectives() for context in CONTEXTS]
    head = ["", *(f"EM, `{context}`, {k}" for k, context in tests), "fidelity", "seeds"]
    rows = [
        [
            label,
            *(shown(estimate(cells.scores(name, context, k).values())) for k, context in tests),
            shown(estimate(cells.scores(name, "memory", cells.objectives()[0], "memory_fidelity").values())),
            seeds(cells, name),
        ]
        for name, label in labels.items()
    ]
    return table(head, rows)


def sentence(cells: Cells, cell: str, other: str, context: str, k: int) -> str:
    """What changes in exact match from `other` to `cell`."""
    found = difference(cells, cell, other, context, k)
    return f"{found.verdict} ({shown(found.change, '+')}, {found.seeds} seeds)"


def differences_table(cells: Cells, rows: Sequence[tuple[str, str, str]]) -> str:
    tests = [(k, context) for k in cells.objectives() for context in CONTEXTS]
    head = ["", *(f"EM, `{context}`, {k}" for k, context in tests), "fidelity", "seeds"]
    lines = []
    for label, cell, other in rows:
        changes = [difference(cells, cell, other, context, k) for k, context in tests]
        kept = difference(cells, cell, other, "memory", cells.objectives()[0], "memory_fidelity")
        lines.append([label, *(shown(c.change, "+") for c in [*changes, kept]), str(kept.seeds)])
    return table(head, lines)
