"""What docs/results.md is made of: tables and sentences with numbers from the runs of `ablations.py`."""

from collections.abc import Iterable, Sequence

from ablation_labels import START, Label, Labels
from ablation_scores import Cells, Difference, difference, estimate
from mempo_trl.evaluation.summary import Estimate
from mempo_trl.types import CONTEXTS

Pair = tuple[str, str, str]  # label, a cell, and the cell that it is compared with


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: Estimate, sign: str = "") -> str:
    """`0.81 [0.78, 0.84]`, or without the interval where its ends would read the same, as with one value.

    An end of a difference that would read as 0 gets a third digit: it decides the verdict.
    """
    mean, low, high = (format(round(value[name], 2) + 0.0, f"{sign}.2f") for name in ("mean", "low", "high"))
    if low == high:
        return mean
    ends = [
        f"{value[name]:{sign}.3f}" if sign and float(shown) == 0 else shown
        for name, shown in (("low", low), ("high", high))
    ]
    return f"{mean} [{', '.join(ends)}]"


def measured(cells: Cells, names: Iterable[str], contexts: Sequence[str]) -> list[tuple[str, str, str, int]]:
    """What tables show: heading, metric, context, objectives. F1 is there where EM leaves little to compare."""
    few, *many = cells.objectives(names)
    metrics = [
        ("EM", "all_correct", few),
        *((name, key, k) for k in many for name, key in (("EM", "all_correct"), ("F1", "f1"))),
    ]
    scores = [(f"{name}, `{context}`, {k}", key, context, k) for name, key, k in metrics for context in contexts]
    return [*scores, ("fidelity", "memory_fidelity", "memory", few)]


def scores_table(cells: Cells, labels: Labels, contexts: Sequence[str] = CONTEXTS, start: bool = True) -> str:
    """Scores at each number of objectives, and what the memory kept, one row for the start and for each cell."""
    if start and START in cells:
        labels = {START: Label("before training", ""), **labels}
    columns = measured(cells, labels, contexts)
    rows = [
        [
            label.page,
            *(shown(estimate(cells.scores(name, context, k, key).values())) for _, key, context, k in columns),
            str(len(cells[name])),
        ]
        for name, label in labels.items()
    ]
    return table(["", *(heading for heading, *_ in columns), "seeds"], rows)


def differences_table(cells: Cells, rows: Sequence[Pair]) -> str:
    columns = measured(cells, [name for _, *pair in rows for name in pair], CONTEXTS)
    lines = []
    for label, cell, other in rows:
        changes = [difference(cells, cell, other, context, k, key) for _, key, context, k in columns]
        lines.append([label, *(shown(c.change, "+") for c in changes), str(changes[0].seeds)])
    return table(["", *(heading for heading, *_ in columns), "seeds"], lines)


def change(cells: Cells, cell: str, other: str, context: str, k: int) -> tuple[str, Difference]:
    """What changes from `other` to `cell`: in exact match at the fewest objectives, in F1 at more."""
    few = cells.objectives([cell, other])[0]
    name, key = ("EM", "all_correct") if k == few else ("F1", "f1")
    return name, difference(cells, cell, other, context, k, key)


def sentence(cells: Cells, cell: str, other: str, context: str, k: int) -> str:
    """`EM +0.09 [+0.07, +0.11], higher`."""
    name, found = change(cells, cell, other, context, k)
    return f"{name} {shown(found.change, '+')}, {found.verdict}"


def compared(cells: Cells, pairs: Sequence[Pair], context: str, k: int) -> str:
    return "; ".join(f"{label}: {sentence(cells, cell, other, context, k)}" for label, cell, other in pairs)
