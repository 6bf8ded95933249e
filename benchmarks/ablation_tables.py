"""What docs/results.md is made of: tables and sentences with numbers from the runs of `ablations.py`."""

from collections.abc import Iterable, Sequence

from ablation_labels import START, Label, Labels
from ablation_scores import HIGHER, LOWER, SAME, TESTED_IN, Cells, Difference, difference, estimate
from mempo_trl.evaluation.summary import Estimate

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


def scores_table(cells: Cells, labels: Labels, contexts: Sequence[str] = TESTED_IN, start: bool = True) -> str:
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


def differences_table(cells: Cells, rows: Sequence[Pair], contexts: Sequence[str] = TESTED_IN) -> str:
    """What changes in each row, seed by seed: clear differences are bold."""
    columns = compared(cells, rows, contexts)
    lines = []
    for label, cell, other in rows:
        changes = [difference(cells, cell, other, context, k, key) for _, key, context, k in columns]
        lines.append([label, *map(_marked, changes), str(changes[0].seeds)])
    return table(["", *(heading for heading, *_ in columns), "seeds"], lines)


def compared(cells: Cells, rows: Sequence[Pair], contexts: Sequence[str]) -> list[tuple[str, str, str, int]]:
    """The columns of a table of differences: exact match at the fewest objectives, F1 at more."""
    columns = measured(cells, [name for _, *pair in rows for name in pair], contexts)
    few = columns[0][3]
    return [column for column in columns if column[1] != "all_correct" or column[3] == few]


def _marked(found: Difference) -> str:
    said = shown(found.change, "+")
    return f"**{said}**" if found.verdict in (HIGHER, LOWER) else said


def change(cells: Cells, cell: str, other: str, context: str, k: int) -> Difference:
    """What changes from `other` to `cell`: in exact match at the fewest objectives, in F1 at more."""
    few = cells.objectives([cell, other])[0]
    return difference(cells, cell, other, context, k, "all_correct" if k == few else "f1")


def takeaway(subject: str, found: Iterable[tuple[str, Difference]]) -> str:
    """One sentence for several differences, each with what it is a difference of, such as "with `both`"."""
    places: dict[str, list[str]] = {}
    for place, result in found:
        places.setdefault(result.verdict, []).append(place)
    order = [verdict for verdict in (HIGHER, LOWER, SAME) if verdict in places]
    order += [verdict for verdict in places if verdict not in order]
    words = {HIGHER: "higher", LOWER: "lower", SAME: "not clearly different"}
    parts = [f"{words.get(v, v.replace('no verdict', 'without a verdict'))} {listed(places[v])}" for v in order]
    return f"**{subject} is {listed(parts, ', and ')}.**"


def by_objectives(cells: Cells, pairs: Sequence[Pair], before: str = "") -> list[tuple[str, Difference]]:
    """What a takeaway says on each pair in `memory` context: numbers of objectives with one verdict share a place."""
    ks = cells.objectives([name for _, *pair in pairs for name in pair])
    found = []
    for label, *pair in pairs:
        verdicts: dict[str, list[tuple[int, Difference]]] = {}
        for k in ks:
            result = change(cells, *pair, "memory", k)
            verdicts.setdefault(result.verdict, []).append((k, result))
        found += [
            (f"{before}{label} ({listed([str(k) for k, _ in r])} objectives)", r[0][1]) for r in verdicts.values()
        ]
    return found


def listed(words: Sequence[str], last: str = " and ") -> str:
    """`a, b and c`."""
    *first, end = words
    return last.join([", ".join(first), end] if first else [end])
