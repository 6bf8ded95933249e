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


def measured(cells: Cells) -> list[tuple[str, str, str, int]]:
    """What tables show: heading, metric, context, objectives. F1 is there where EM leaves little to compare."""
    few, *many = cells.objectives()
    metrics = [("EM", "em", few), *((name, key, k) for k in many for name, key in (("EM", "em"), ("F1", "f1")))]
    scores = [(f"{name}, `{context}`, {k}", key, context, k) for name, key, k in metrics for context in CONTEXTS]
    return [*scores, ("fidelity", "memory_fidelity", "memory", few)]


def scores_table(cells: Cells, labels: dict[str, str]) -> str:
    """Scores in both contexts at each number of objectives, and what the memory kept, one row for each cell."""
    columns = measured(cells)
    rows = [
        [
            label,
            *(shown(estimate(cells.scores(name, context, k, key).values())) for _, key, context, k in columns),
            seeds(cells, name),
        ]
        for name, label in labels.items()
    ]
    return table(["", *(heading for heading, *_ in columns), "seeds"], rows)


def sentence(cells: Cells, cell: str, other: str, context: str, k: int) -> str:
    """What changes from `other` to `cell`: in exact match at the fewest objectives, in F1 at more."""
    name, key = ("EM", "em") if k == cells.objectives()[0] else ("F1", "f1")
    found = difference(cells, cell, other, context, k, key)
    return f"{name} {found.verdict} ({shown(found.change, '+')}, {found.seeds} seeds)"


def differences_table(cells: Cells, rows: Sequence[tuple[str, str, str]]) -> str:
    columns = measured(cells)
    lines = []
    for label, cell, other in rows:
        changes = [difference(cells, cell, other, context, k, key) for _, key, context, k in columns]
        lines.append([label, *(shown(c.change, "+") for c in changes), str(changes[0].seeds)])
    return table(["", *(heading for heading, *_ in columns), "seeds"], lines)
