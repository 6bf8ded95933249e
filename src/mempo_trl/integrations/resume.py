"""Checkpoints that resume exactly, and only where their save came to its end."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

logger = get_logger(__name__)

MANIFEST = "manifest.json"
# What GRPOTrainer keeps between steps and does not save: the micro-batches that a rollout was cut into, which of them
# is next, and the controller of the entropy bonus, which TRL writes when the checkpoint already counts as saved.
STATE = ("_step", "_buffered_inputs", "entropy_coef", "_last_world_entropy")


class ResumableTrainer(Trainer):
    """
    Mixed in before [`~trl.GRPOTrainer`]: a resumed run has the losses that it would have had.

    - The rest of a rollout is saved with each checkpoint, for each process, and used up after a resume.
    - Later epochs keep their order: the sampler's own generator is brought to the checkpoint's epoch.
    - A manifest lists what each checkpoint holds. A checkpoint whose save or removal was interrupted is never resumed
      from: `resume_from_checkpoint=True` passes over it, its own path is answered with an error.
    """

    _train_sampler: Any = ()  # a stream has none
    resuming = False  # whether `train` continues a run, be it from its beginning

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in [`~transformers.Trainer`]; True stands for the last complete checkpoint of `args.output_dir`."""
        checkpoint = resume_path(resume_from_checkpoint, self.args.output_dir)
        self.resuming = bool(read_switch(resume_from_checkpoint))
        return super().train(checkpoint, *args, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> "Sampler[int]":
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Nothing that an earlier run left under this name may be taken for a part of the new checkpoint.
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        # The last that every process saves: only the trainer's state follows, written by one of them.
        super()._save_rng_state(output_dir)
        state = {name: getattr(self, name) for name in STATE}
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            state["_buffered_inputs"] = None  # used up: the next step generates
        torch.save(state, self._rollout_file(output_dir))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_manifest(Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = self._rollout_file(checkpoint)
        if os.path.isfile(path):
            for name, value in torch.load(path, map_location=self.args.device, weights_only=True).items():
                setattr(self, name, value)
        else:
            logger.warning(
                f"{checkpoint} was saved with a different number of processes; resuming, but the run will not be "
                "reproduced exactly"
            )
        # An epoch takes one permutation from the sampler's generator, which starts from its seed again.
        for _ in range(int(self.state.epoch or 0)):
            next(iter(self._train_sampler), None)

    def _rollout_file(self, checkpoint: str) -> str:
        return os.path.join(checkpoint, f"rollout_{self.args.process_index}_of_{self.args.world_size}.pt")


def read_switch(value: str | bool | None) -> str | bool | None:
    """`value` with the words for true and false, which is how a shell gives them, as the values that they stand for."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def resume_path(checkpoint: str | bool | None, output_dir: str) -> str | None:
    """
    The checkpoint to resume from, or None to start from step 0.

    Args:
        checkpoint: a checkpoint's folder, True for the last complete one of `output_dir`, None or False for none. The
            words "true" and "false" are read as True and False.
        output_dir: where the run saves its checkpoints. If the run was stopped in its very first save, so that nothing
            but that is there, it starts from step 0, with a warning.

    Raises:
        ValueError: if the checkpoint is not complete, or `output_dir` has none that is.
    """
    checkpoint = read_switch(checkpoint)
    if not checkpoint:
        return None
    if checkpoint is True:
        last = last_checkpoint(output_dir)
        if last is not None:
            return last
        folders = sort_checkpoints(output_dir)
        if not folders or any(_has_state(Path(folder)) for folder in folders):
            raise ValueError(f"{output_dir} has no complete checkpoint. Set resume_from_checkpoint=False to start anew")
        logger.warning(f"{output_dir} has no complete checkpoint: its first save was interrupted. Starting from step 0")
        return None
    fault = find_fault(Path(checkpoint))
    if fault is not None:
        raise ValueError(
            f"{checkpoint} cannot be resumed from: {fault}. Set resume_from_checkpoint=True for the last complete "
            "checkpoint of output_dir, or pass this folder as the model, to start a run from its weights"
        )
    return checkpoint


def last_checkpoint(output_dir: str) -> str | None:
    """The complete checkpoint of `output_dir` with the most steps, or None. Those cut short are passed over."""
    for checkpoint in reversed(sort_checkpoints(output_dir)):
        fault = find_fault(Path(checkpoint))
        if fault is None:
            return checkpoint
        logger.warning(f"{checkpoint} is passed over: {fault}")
    return None


def write_manifest(checkpoint: Path) -> None:
    """Lists the checkpoint's files and their sizes in bytes."""
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}
    (checkpoint / MANIFEST).write_text(json.dumps(sizes))


def _has_state(checkpoint: Path) -> bool:
    """Whether the checkpoint's last file, the trainer's state, is whole."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return True


def find_fault(checkpoint: Path) -> str | None:
    """What keeps a checkpoint from being complete, or None."""
    if not _has_state(checkpoint):
        return "its save was interrupted"
    if not (checkpoint / MANIFEST).is_file():
        return f"it has no {MANIFEST}: it holds the model alone (save_only_model=True), or another program saved it"
    try:
        sizes = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return "its save was interrupted"
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, expected {size}"
    return None
