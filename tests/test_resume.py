"""A resumed run goes on as if it had never stopped, and never from a checkpoint that is not whole."""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState, modeling_utils
from trl import TrlParser

from conftest import build_model
from helpers import ScriptedMemPO, make_config, make_trainer
from mempo_trl import MemPOConfig
from mempo_trl.integrations.resume import MANIFEST, find_fault, last_checkpoint
from mempo_trl.traces import read_traces
from mempo_trl.training.callbacks import TraceCallback

# Four questions, two in a rollout of two steps: an epoch is four steps, and odd steps are in the middle of a rollout.
OPTIONS = {
    "max_steps": 8, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 2,
    "steps_per_generation": 4, "gradient_accumulation_steps": 2, "lr_scheduler_type": "constant",
}  # fmt: skip


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture
def run(tmp_path, tokenizer, questions):
    """Trains into a folder. The model of a resumed run starts elsewhere, so that all must come from the checkpoint."""

    def train(folder, resume=None, seed=None, prepare=lambda trainer: None, **options):
        model = build_model(len(tokenizer), seed=int(bool(resume)) if seed is None else seed)
        trainer = make_trainer(tmp_path / folder, model, tokenizer, questions, **{**OPTIONS, **options})
        prepare(trainer)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"context": "full"}, [1, 4, 7]),
        ({"context": "memory"}, [6]),
        ({"num_iterations": 2}, [5]),
        ({"shuffle_dataset": False}, [5]),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_a_resumed_run_has_the_losses_it_would_have_had(tmp_path, run, options, steps):
    whole = run("whole", **options)
    assert len(set(losses(whole))) > 2
    for step in steps:
        resumed = run("resumed", str(tmp_path / "whole" / f"checkpoint-{step}"), **options)
        assert losses(resumed) == losses(whole), step
        assert torch.equal(parameters(resumed.model), parameters(whole.model)), step


def test_the_rest_of_a_rollout_is_saved_only_where_there_is_one(tmp_path, run):
    run("out", max_steps=2)
    saved = [torch.load(tmp_path / "out" / f"checkpoint-{step}" / "rollout_0_of_1.pt") for step in (1, 2)]
    assert [state["_step"] for state in saved] == [2, 4]
    assert len(saved[0]["_buffered_inputs"]) == 4
    assert saved[1]["_buffered_inputs"] is None


def test_another_number_of_processes_goes_on_with_a_warning(tmp_path, run, caplog):
    run("out", max_steps=1)
    checkpoint = tmp_path / "out" / "checkpoint-1"
    (checkpoint / "rollout_0_of_1.pt").rename(checkpoint / "rollout_0_of_2.pt")
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["rollout_0_of_2.pt"] = manifest.pop("rollout_0_of_1.pt")
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    assert run("out", str(checkpoint), max_steps=2).state.global_step == 2
    assert "saved with a different number of processes" in caplog.text


@pytest.mark.parametrize("better", ["greater", "smaller"])
def test_the_best_checkpoint_by_a_metric_is_kept_and_loaded(tmp_path, tokenizer, questions, better):
    values = iter([0.2, 0.9, 0.1, 0.4])

    class Evaluated(ScriptedMemPO):
        """The metric is ours, the value from a list."""

        def log(self, logs, start_time=None):
            super().log(logs, start_time)
            if "eval_memory/reward_mean" in logs:
                logs["eval_memory/reward_mean"] = next(values)

    trainer = make_trainer(
        tmp_path, build_model(len(tokenizer)), tokenizer, questions, trainer_class=Evaluated,
        trainer_options={"eval_dataset": questions}, **{**OPTIONS, "max_steps": 4}, eval_strategy="steps", eval_steps=1,
        per_device_eval_batch_size=8, num_generations_eval=2, metric_for_best_model="memory/reward_mean",
        greater_is_better=better == "greater", load_best_model_at_end=True, save_total_limit=2,
    )  # fmt: skip
    trainer.train()
    best = tmp_path / f"checkpoint-{2 if better == 'greater' else 3}"
    assert trainer.state.best_model_checkpoint == str(best)
    assert sorted(tmp_path.glob("checkpoint-*")) == [best, tmp_path / "checkpoint-4"]
    saved = type(trainer.model).from_pretrained(best)
    assert torch.equal(parameters(trainer.model), parameters(saved))
    assert not torch.equal(parameters(saved), parameters(type(saved).from_pretrained(tmp_path / "checkpoint-4")))


# Saves that were cut short


def test_a_checkpoint_without_one_of_its_files_is_refused(tmp_path, run):
    run("out", max_steps=2)
    newest = tmp_path / "out" / "checkpoint-2"
    whole = tmp_path / "copy"
    shutil.copytree(newest, whole)
    names = [path.relative_to(newest).as_posix() for path in newest.rglob("*") if path.is_file()]
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} < set(names)
    for name in names:
        for damage in (Path.unlink, lambda path: os.truncate(path, path.stat().st_size // 2)):
            damage(newest / name)
            assert find_fault(newest) is not None, name
            assert last_checkpoint(str(tmp_path / "out")) == str(tmp_path / "out" / "checkpoint-1")
            shutil.copy(whole / name, newest / name)
    assert last_checkpoint(str(tmp_path / "out")) == str(newest)
    (newest / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"optimizer\.pt is missing.*resume_from_checkpoint=True"):
        run("out", str(newest))
    with pytest.raises(ValueError, match="has no complete checkpoint"):
        run("empty", True)


def test_a_later_run_mixes_nothing_of_an_earlier_one_into_its_checkpoint(tmp_path, run):
    run("out", max_steps=1)
    (tmp_path / "out" / "checkpoint-1" / "old.bin").write_text("of the earlier run")
    run("out", max_steps=1)
    assert not (tmp_path / "out" / "checkpoint-1" / "old.bin").exists()


UNINTERRUPTED: list[float] = []
MOMENTS = ["model.safetensors", "optimizer.pt", "rng_state.pth", "rollout_0_of_1.pt", MANIFEST, "trainer_state.json"]


def kill_in(moment, checkpoint=3):
    """Makes this process kill itself with half a file of a checkpoint written, or one of the first removed."""

    def die_after(write, index):
        def wrapped(*args, **kwargs):
            result = write(*args, **kwargs)
            path = str(args[index])
            if path.endswith(f"checkpoint-{checkpoint}/{moment}"):
                os.truncate(path, os.path.getsize(path) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    def remove(path, *args, **kwargs):
        if moment == "rotation" and Path(path).exists():
            (Path(path) / "optimizer.pt").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = die_after(torch.save, 1)
    modeling_utils.safe_save_file = die_after(modeling_utils.safe_save_file, 1)
    Path.write_text = die_after(Path.write_text, 0)
    TrainerState.save_to_json = die_after(TrainerState.save_to_json, 1)
    shutil.rmtree = remove


def run_until_killed(run, moment, checkpoint, **options):
    def killed():
        kill_in(moment, checkpoint)
        run("killed", **options)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("moment", [*MOMENTS, "rotation"])
def test_kill_during_a_save(tmp_path, run, moment):
    options = {"max_steps": 4, "save_total_limit": 2}

    run_until_killed(run, moment, 3, **options)
    folders = sorted((tmp_path / "killed").glob("checkpoint-*"))
    whole = [folder.name for folder in folders if find_fault(folder) is None]
    assert len(whole) == len(folders) - 1  # one was cut short
    if not UNINTERRUPTED:
        UNINTERRUPTED.extend(losses(run("uninterrupted", **options)))
    assert losses(run("killed", True, **options)) == UNINTERRUPTED
    assert find_fault(tmp_path / "killed" / "checkpoint-4") is None


@pytest.mark.parametrize("moment", ["model.safetensors", "trainer_state.json"])
def test_a_kill_in_the_very_first_save_starts_the_run_anew(tmp_path, run, moment, caplog):
    options = {"max_steps": 2}
    run_until_killed(run, moment, 1, **options)
    assert losses(run("killed", "True", seed=0, **options)) == losses(run("uninterrupted", **options))
    assert "its first save was interrupted. Starting from step 0" in caplog.text


def test_a_model_without_a_training_state_is_never_written_over(tmp_path, run):
    run("out", max_steps=1, save_only_model=True)
    with pytest.raises(ValueError, match="has no complete checkpoint"):
        run("out", True, max_steps=2)
    assert (tmp_path / "out" / "checkpoint-1" / "model.safetensors").is_file()
    run("out", False, max_steps=2)  # what the error advises


@pytest.mark.parametrize("word", ["True", "true"])
def test_the_word_that_a_shell_gives_is_the_switch(tmp_path, run, word):
    run("out", max_steps=1)
    (args,) = TrlParser((MemPOConfig,)).parse_args_and_config(
        ["--output_dir", str(tmp_path / "out"), "--use_cpu", "--bf16", "False", "--resume_from_checkpoint", word]
    )
    assert args.resume_from_checkpoint is True
    assert make_config(tmp_path, resume_from_checkpoint="False").resume_from_checkpoint is False
    assert run("out", word, max_steps=2).state.global_step == 2
    assert run("out", "False", max_steps=1).state.global_step == 1


# Traces of steps that are played again


def test_a_resumed_run_leaves_the_traces_that_it_would_have_left(tmp_path, run):
    def train(folder, resume=None, **options):
        def add_traces(trainer):
            trainer.add_callback(TraceCallback(trainer, tmp_path / f"{folder}.jsonl"))

        return run(folder, resume, prepare=add_traces, **options)

    train("whole")
    train("stopped", max_steps=7)
    with open(tmp_path / "stopped.jsonl", "a") as file:
        file.write('{"schema_version": 1, "step": 7, "que')  # a line that the kill cut short
    for checkpoint in (str(tmp_path / "stopped" / "checkpoint-4"), "True"):
        train("stopped", checkpoint)
        whole, stopped = (list(read_traces(tmp_path / f"{name}.jsonl")) for name in ("whole", "stopped"))
        assert [trace["step"] for trace in whole] == [step for step in (1, 3, 5, 7) for _ in range(8)]
        assert stopped == whole


def test_traces_of_a_run_that_starts_anew(tmp_path, run):
    path = tmp_path / "traces.jsonl"
    lines = [json.dumps({"step": step}) + "\n" for step in (None, None, 1, 2, None)]
    path.write_text("".join(lines))
    trainer = SimpleNamespace(resuming=False)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    TraceCallback(trainer, path).on_train_begin(None, state, None)
    assert path.read_text() == "".join(lines)  # a file may hold the traces of several runs
    trainer.resuming = True
    TraceCallback(trainer, path).on_train_begin(None, state, None)
    assert path.read_text() == "".join(lines[:2])
