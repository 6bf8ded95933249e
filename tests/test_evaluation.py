"""Scores of trajectories, and the evaluation around a training run."""

import pytest
from datasets import Dataset

from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.evaluation.evaluation import (
    Evaluation,
    QuestionScore,
    evaluate,
    memory_fidelity,
    score_trajectory,
)
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling
from mempo_trl.inference.trajectory import Trajectory, TurnTokens
from mempo_trl.rollout.context import CONTEXTS
from mempo_trl.rollout.loop import TurnLimits
from mempo_trl.tasks.search.rewards import mempo_outcome_reward
from mempo_trl.tasks.world import model as tiny
from mempo_trl.tasks.world.world import WorldEnvironment, world_rows
from mempo_trl.traces.file import read_traces

NAMES = ["em", "f1", "memory_fidelity", "total_tokens", "peak_tokens"]


def trajectory(*turns):
    """Turns of 10 tokens each, after contexts of 100, 200, ... tokens."""
    messages = [{"role": "assistant", "content": turn} for turn in turns]
    tokens = [TurnTokens(100 * number, 10) for number in range(1, len(turns) + 1)]
    return Trajectory([{"role": "user", "content": "?"}], messages=messages, turn_tokens=tokens, stop_reason="done")


@pytest.mark.parametrize(
    ("memory", "answers", "aliases", "expected"),
    [
        ("1. Oslo; 2. unknown", ["Oslo", "Lima"], None, 0.5),
        ("The capital is OSLO.", ["oslo"], None, 1.0),
        ("Romeo", ["Rome"], None, 0.0),  # whole words
        ("New York City", ["York City"], None, 1.0),
        ("NYC; Lima", ["New York", "Lima"], [["NYC"], []], 1.0),
        ("", ["Oslo"], None, 0.0),
    ],
)
def test_memory_fidelity_is_the_share_of_answers_that_it_holds(memory, answers, aliases, expected):
    assert memory_fidelity(memory, answers, aliases) == expected


def test_a_question_is_right_if_every_objective_is():
    row = {"answers": ["Oslo", "Lima"]}
    right = trajectory("<tool_call>{}</tool_call>", "<mem>1. Oslo</mem><answer>Oslo; Lima</answer>")
    assert score_trajectory(row, right) == QuestionScore(2, 1.0, 1.0, 0.5, 110 + 210, 210)
    half = trajectory("<mem>Oslo Lima</mem><answer>Oslo; Rome</answer>")
    assert score_trajectory(row, half) == QuestionScore(2, 0.0, 0.5, 1.0, 110, 110)


def test_a_trajectory_without_answer_and_memory_scores_nothing():
    assert score_trajectory({"answers": ["Oslo"]}, trajectory("<mem>Oslo", "hm")) == QuestionScore(
        1, 0.0, 0.0, 0.0, 320, 210
    )


def test_the_last_closed_memory_counts():
    lost = trajectory("<mem>Oslo</mem><tool_call>{}</tool_call>", "<mem>unknown</mem><answer>Oslo</answer>")
    assert score_trajectory({"answers": ["Oslo"]}, lost).memory_fidelity == 0.0
    unclosed = trajectory("<mem>Oslo</mem><tool_call>{}</tool_call>", "<mem>unkn")
    assert score_trajectory({"answers": ["Oslo"]}, unclosed).memory_fidelity == 1.0


def test_means_are_over_all_questions():
    scores = [QuestionScore(1, 1.0, 1.0, 1.0, 100, 50), QuestionScore(1, 0.0, 0.5, 0.0, 300, 250)]
    assert Evaluation.of(scores) == Evaluation(0.5, 0.75, 0.5, 200, 150)
    with pytest.raises(ValueError, match="no question was played"):
        Evaluation.of([])


def test_evaluation_plays_each_question_once(tmp_path):
    tokenizer = tiny.build_tokenizer()
    agent = MemoryAgent(
        tiny.build_model(tokenizer),
        tokenizer,
        environment_factory=WorldEnvironment,
        limits=TurnLimits(max_turns=2),
        sampling=Sampling(max_turn_length=8),
    )
    rows, seen = world_rows(5), []
    scores = evaluate(agent, rows, tokenizer, batch_size=2, traces=tmp_path / "t.jsonl", on_question=seen.append)
    assert len(scores) == 5
    assert seen == scores
    traces = list(read_traces(tmp_path / "t.jsonl"))
    assert [trace["question_id"] for trace in traces] == [row["question_id"] for row in rows]
    assert [trace["total_tokens"] for trace in traces] == [score.total_tokens for score in scores]
    assert evaluate(agent, rows, tokenizer, batch_size=2) == scores


@pytest.fixture
def trainer(tmp_path):
    tokenizer = tiny.build_tokenizer()
    config = MemPOConfig(
        str(tmp_path), num_generations=2, per_device_train_batch_size=2, max_steps=2, max_turns=2, max_turn_length=8,
        max_completion_length=64, bf16=False, activation_checkpointing=False, save_strategy="no", report_to="none",
        logging_steps=1, disable_tqdm=True, beta=0.0,
    )  # fmt: skip
    return MemPOTrainer(
        tiny.build_model(tokenizer), mempo_outcome_reward, config, Dataset.from_list(world_rows(2)),
        processing_class=tokenizer, environment_factory=WorldEnvironment,
    )  # fmt: skip


def test_the_callback_evaluates_before_during_and_after(trainer, tmp_path):
    traces = tmp_path / "traces.jsonl"
    rows = world_rows(3, split="eval")
    callback = EvaluationCallback(trainer, WorldEnvironment, rows, every=1, between=1, traces=traces)
    trainer.add_callback(callback)
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "eval/full/em" in entry]
    assert [entry["step"] for entry in history] == [0, 1, 2]
    assert {f"eval/{context}/{name}" for context in CONTEXTS for name in NAMES} <= history[0].keys()
    # The metrics of the training steps stay with the training steps.
    rewards = [entry["step"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards == [1, 2]
    # Before and after, 3 questions in 2 contexts; the evaluation in between is not written.
    assert [trace["context"] for trace in read_traces(traces)] == (["full"] * 3 + ["memory"] * 3) * 2
    result = callback.result()
    assert list(result) == ["before", "after"]
    assert list(result["after"]["memory"]) == NAMES
    assert result["after"]["full"]["total_tokens"] == round(history[-1]["eval/full/total_tokens"], 4)


def test_an_evaluation_changes_nothing_in_training(trainer):
    trainer.add_callback(EvaluationCallback(trainer, WorldEnvironment, []))
    trainer.train()
    without = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(without) == 2
    assert not [entry for entry in trainer.state.log_history if "eval/full/em" in entry]
