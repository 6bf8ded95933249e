"""The Hub: what a model card says of a run, and uploads whose failure loses nothing."""

import json
from concurrent.futures import Future
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import yaml
from accelerate.logging import get_logger
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..training.config import MemPOConfig

logger = get_logger(__name__)

# What says where a run was, not what it was.
_PLACES = ("output_dir", "run_name", "logging_dir", "report_to", "trackio_space_id", "resume_from_checkpoint")
# What this run did not choose; and what `--config` refuses beside steps_per_generation, from which it follows.
_NOISE = ("accelerator_config", "debug", "disable_tqdm", "generation_batch_size")


class HubTrainer(Trainer):
    """
    Mixed in before [`~trl.GRPOTrainer`]: model cards with configuration and results, and uploads that may fail.

    - An upload that fails, of a checkpoint or at the end, is a warning with the command that makes up for it. The run
      continues, and all that the upload would have sent is in `args.output_dir`.
    - The completions of `log_completions_hub_repo` are sent when training ends: TRL leaves the last to the exit of the
      process, where huggingface_hub can start no more threads.
    """

    commit_scheduler: Any = None  # TRL's, on the main process, with log_completions_hub_repo

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As in TRL, with the run's configuration and its last metrics."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            with open(Path(self.args.output_dir) / "README.md", "a", encoding="utf-8") as card:
                card.write(f"\n\n{configuration_section(self.args)}\n{results_section(self.state.log_history)}")

    def push_to_hub(self, commit_message: str | None = "End of training", blocking: bool = True, **kwargs: Any) -> Any:
        """As in [`~transformers.Trainer`], but None after an upload that failed."""
        upload = super().push_to_hub(commit_message, blocking=False, **kwargs)
        if upload is None or not blocking:
            return upload
        return None if self._warn_if_policy_failed(upload) else upload.result()

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        self._warn_of_failed()
        super()._push_from_checkpoint(checkpoint_folder)

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        self._warn_of_failed()
        scheduler = self.commit_scheduler
        if scheduler is not None:
            command = f"hf upload {scheduler.repo_id} {scheduler.folder_path} . --repo-type dataset"
            _warn_if_failed(scheduler.trigger(), f"datasets/{scheduler.repo_id}", f"the completions: {command}")

    def _warn_of_failed(self) -> None:
        """Says once what became of the checkpoints' uploads, which run in the background."""
        push = getattr(self, "push_in_progress", None)
        if push is not None:
            done = [job for job in push.jobs if job.done()]
            push.jobs = [job for job in push.jobs if job not in done]
            for job in done:
                self._warn_if_policy_failed(job)

    def _warn_if_policy_failed(self, upload: "Future[Any]") -> bool:
        command = f"hf upload {self.hub_model_id} {self.args.output_dir} . --exclude '{PREFIX_CHECKPOINT_DIR}-*'"
        return _warn_if_failed(upload, self.hub_model_id, f"all of the output folder but its checkpoints: {command}")


def _warn_if_failed(upload: "Future[Any]", repository: str, remedy: str) -> bool:
    error = upload.exception()
    if error is not None:
        logger.warning(
            f"an upload to {repository} failed: {error}\nNothing is lost: all that was to be sent is on disk. To send "
            f"{remedy}"
        )
    return error is not None


def configuration_section(args: MemPOConfig) -> str:
    """The options that are MemPO's own or differ from the defaults, as YAML that `--config` reads."""
    own = MemPOConfig.__annotations__
    options = json.loads(args.to_json_string())
    shown = {
        field.name: options[field.name]
        for field in fields(args)
        if field.name in options and field.name not in _PLACES + _NOISE
        if field.name in own or options[field.name] != _default(field)
    }
    return f"## Configuration\n\n```yaml\n{yaml.safe_dump(_without_tokens(shown), sort_keys=False)}```\n"


def _without_tokens(value: Any) -> Any:
    """`value` without the keys, at any depth, that name an access token."""
    if isinstance(value, list):
        return [_without_tokens(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_tokens(item) for key, item in value.items() if "token" not in str(key).split("_")}


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def results_section(log_history: list[dict[str, Any]]) -> str:
    """A table of the last value of each metric, and the step that it is from."""
    last = {name: (value, log["step"]) for log in log_history for name, value in log.items() if name not in _NO_METRICS}
    rows = [f"| {name} | {value:.4g} | {step} |" for name, (value, step) in sorted(last.items()) if value is not None]
    return "\n".join(["## Results", "", "| metric | last value | step |", "|---|---|---|", *rows, ""])


_NO_METRICS = ("step", "epoch", "total_flos")
