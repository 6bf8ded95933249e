"""What the cells of `ablations.py` are called on the page and on the axes of its figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Label(NamedTuple):
    """Attributes: page: in tables and sentences. axis: under a dot."""

    page: str
    axis: str


Labels = Mapping[str, Label]

START = "start"
ARMS = {
    "grpo-full": Label("GRPO, trained in `full`", "GRPO\nfull"),
    "mempo-full": Label("MemPO, trained in `full`", "MemPO\nfull"),
    "grpo-memory": Label("GRPO, trained in `memory`", "GRPO\nmemory"),
    "mempo-memory": Label("MemPO, trained in `memory`", "MemPO\nmemory"),
}
THRESHOLDS = {
    "threshold-none": Label("no threshold (the paper's formula)", "none"),
    "mempo-full": Label("`either`", "either"),
    "threshold-independent": Label("`independent` (the published code)", "independent\n(published)"),
    "threshold-both": Label("`both`", "both"),
}
BASELINES = {
    "mempo-memory": Label("`history`", "history"),
    "baseline-visible": Label("`visible`", "visible"),
    "baseline-none": Label("`none`", "none"),
}
SPARSE = {"six-grpo": Label("GRPO", "GRPO"), "six-mempo": Label("MemPO", "MemPO")}
HORIZON = {"few-grpo": Label("GRPO", "GRPO"), "few-mempo": Label("MemPO", "MemPO")}
NOISE = {
    "grpo-full": Label("0 %, GRPO", "GRPO\n0 %"),
    "mempo-full": Label("0 %, MemPO", "MemPO\n0 %"),
    "noise-10-grpo": Label("10 %, GRPO", "GRPO\n10 %"),
    "noise-10-mempo": Label("10 %, MemPO", "MemPO\n10 %"),
    "noise-30-grpo": Label("30 %, GRPO", "GRPO\n30 %"),
    "noise-30-mempo": Label("30 %, MemPO", "MemPO\n30 %"),
}
OPTIONS = {
    "mempo-full": Label("reference", "reference"),
    "weight-0.3": Label("`memory_weight` 0.3", "weight\n0.3"),
    "pool-turn": Label("`memory_pool` `turn`", "pool\nturn"),
    "floor-0.1": Label("`memory_std_floor` 0.1", "floor\n0.1"),
    "temperature-0.7": Label("`temperature` 0.7 (also in the tests)", "temp.\n0.7"),
    "beta-0.001": Label("`beta` 0.001", "beta\n0.001"),
    "paid-right": Label("memory rewards only for right answers", "right\nonly"),
    "paid-short": Label("memory rewards only for short memories", "short\nonly"),
}


def present(cells: Mapping[str, Any], labels: Labels, *needed: str) -> dict[str, Label]:
    """The labels of the cells that have runs; none where fewer than two have, or one that is needed has none."""
    found = {name: label for name, label in labels.items() if name in cells}
    return found if len(found) > 1 and set(needed) <= cells.keys() else {}
