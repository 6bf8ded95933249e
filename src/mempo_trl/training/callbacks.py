"""Callbacks of the recipe."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..traces.file import write_traces

if TYPE_CHECKING:
    from .trainer import MemPOTrainer


class TraceCallback(TrainerCallback):
    """Appends the episodes that were trained on to a trace file, which `mempo view` shows.

    When a run is resumed, the lines from the first later step on are removed, because those steps are played again.

    Args:
        trainer: where the episodes are from; the main process writes its own.
        path: a JSONL file, see `traces.file`.
        every: write every so many steps; 0 for never.
        episodes: at most so many of a batch; None for all.
    """

    def __init__(self, trainer: "MemPOTrainer", path: str | Path, every: int = 1, episodes: int | None = None) -> None:
        self.trainer = trainer
        self.path = Path(path)
        self.every = every
        self.episodes = episodes
        self._written: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Removes what a resumed run will write again."""
        if self.trainer.resuming and self.every and state.is_world_process_zero and self.path.exists():
            remove_later_steps(self.path, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Writes the last generation batch, once."""
        record = self.trainer.last_rollout
        if (
            record is None
            or record is self._written
            or not self.every
            or state.global_step % self.every
            or not state.is_world_process_zero
        ):
            return
        traces = record.traces(self.trainer._tokenizer, state.global_step, self.trainer.args)
        write_traces(self.path, traces[: self.episodes])
        self._written = record


def remove_later_steps(path: Path, step: int) -> None:
    """Cuts a trace file before its first line of a step after `step`."""
    with path.open("rb+") as file:
        start = 0
        for line in file:
            try:
                written = json.loads(line).get("step")
            except (ValueError, AttributeError, RecursionError):  # left to the reader, which says what is wrong with it
                written = None
            if written is not None and written > step:
                file.seek(start)
                file.truncate()
                return
            start += len(line)
