"""What each plot draws, read off its axes; that the files are pictures; and the errors."""

import builtins
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mempo_trl.report import plots
from mempo_trl.report.plots import plot_context_tokens, plot_objectives, plot_training
from report.sample_traces import make_traces

pytest.importorskip("matplotlib")

LOG = [
    {"step": 1, "loss": 0.1, "reward": 0.2, "memory/reward_mean": -0.3, "memory/p_mem_mean": 0.4},
    {"step": 2, "loss": 0.1, "reward": 0.6, "memory/reward_mean": float("nan"), "memory/p_baseline_mean": 0.7},
    {"step": 2, "eval/full/all_correct": 0.5, "eval_memory_em": 0.25, "eval_reward": 0.9, "train_runtime": 3.0},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Filled by a plot: {title: {label: points}}."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    original = plots._figure

    @contextmanager
    def figure(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with original(*args, **kwargs) as axes:
            yield axes
            for axis in filter(lambda axis: axis.axison, axes):
                handles, labels = axis.get_legend_handles_labels()
                lines = [handle.lines[0] if hasattr(handle, "lines") else handle for handle in handles]
                curves = [list(zip(*map(list, line.get_data()), strict=True)) for line in lines]
                found[axis.get_title("left")] = dict(zip(labels, curves, strict=True))

    monkeypatch.setattr(plots, "_figure", figure)
    return found


def test_training_draws_only_the_panels_that_have_data(tmp_path: Path, drawn: dict[str, Any]) -> None:
    plot_training(LOG, tmp_path / "a.png")
    assert drawn == {
        "Reward": {"reward": [(1, 0.2), (2, 0.6)]},
        "Exact match": {"full context": [(2, 0.5)], "memory context": [(2, 0.25)]},
        "Memory reward": {"memory reward": [(1, -0.3)]},
        "Answer probability": {"given the history": [(2, 0.7)], "given the memory": [(1, 0.4)]},
    }
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_training_reads_the_trainer_s_state_file(tmp_path: Path, drawn: dict[str, Any]) -> None:
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"global_step": 2, "log_history": LOG}))
    plot_training(state, tmp_path / "new" / "a.svg")
    from_file = dict(drawn)
    plot_training(LOG, tmp_path / "b.svg")
    assert from_file == drawn
    assert (tmp_path / "new" / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<svg" in (tmp_path / "b.svg").read_text()


def test_training_takes_named_series(tmp_path: Path, drawn: dict[str, Any]) -> None:
    series = {"eval full em": [(0, 0.1), (50, 0.8)], "memory fidelity": [(0, 0.7)], "unknown": [(0, 1.0)]}
    plot_training(series, tmp_path / "a.png")
    assert drawn == {
        "Exact match": {"full context": [(0, 0.1), (50, 0.8)]},
        "Memory quality": {"gold facts kept": [(0, 0.7)]},
    }


def test_a_long_run_is_smoothed(tmp_path: Path, drawn: dict[str, Any]) -> None:
    plot_training([{"step": step, "reward": float(step % 2)} for step in range(100)], tmp_path / "a.png")
    values = [value for _, value in drawn["Reward"]["reward"]]
    assert values[50] == pytest.approx(4 / 9)  # steps 46 to 54: 1 at four odd steps, 0 at five even ones
    assert len(values) == 100


def test_context_tokens_are_means_by_turn_and_context(tmp_path: Path, drawn: dict[str, Any]) -> None:
    full, memory = list(make_traces(16)), list(make_traces(16, seed=1, context="memory"))
    plot_context_tokens(chain(full, memory), tmp_path / "a.png")
    [curves] = drawn.values()
    third = [trace["turns"][2]["context_tokens"] for trace in full]
    assert curves["full context"][2] == (3, pytest.approx(sum(third) / 16))
    assert curves["memory context"][3][1] < curves["full context"][3][1]


def test_objectives_are_sorted_and_keep_their_names(tmp_path: Path, drawn: dict[str, Any]) -> None:
    scores = [
        {"name": "memory", "objectives": 4, "f1": 0.5, "f1_interval": (0.4, 0.6)},
        {"name": "memory", "objectives": 2, "f1": 0.7, "f1_interval": None},
        {"name": "full", "objectives": 2, "f1": 0.6, "f1_interval": (0.5, 0.65)},
    ]
    plot_objectives(scores, tmp_path / "a.png")  # type: ignore[arg-type]
    assert drawn == {"F1 by number of objectives": {"memory": [(2, 0.7), (4, 0.5)], "full": [(2, 0.6)]}}


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found the metrics \\['loss'\\]"):
        plot_training([{"loss": 0.1}], tmp_path / "a.png")
    with pytest.raises(ValueError, match="no trace to plot"):
        plot_context_tokens([], tmp_path / "a.png")
    with pytest.raises(ValueError, match="no score to plot"):
        plot_objectives([], tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"cannot save a plot as 'a\.pdf': name a \.png or \.svg"):
        plot_training(LOG, tmp_path / "a.pdf")


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r'pip install "mempo-trl\[plots\]"'):
        plot_training(LOG, tmp_path / "a.png")
