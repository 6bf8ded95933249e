"""Scores of trajectories, and the evaluation around a training run."""

import pytest
from datasets import Dataset

from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.evaluation.evaluation import evaluate
from mempo_trl.evaluation.scores import (
    ANSWER_METRICS,
    METRICS,
    mean_scores,
    memory_fidelity,
    score_episode,
    trace_scores,
)
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling
from mempo_trl.tasks.search.rewards import mempo_outcome_reward
from mempo_trl.tasks.world import model as tiny
from mempo_trl.tasks.world.world import WorldEnvironment, world_rows
from mempo_trl.traces.file import read_traces
from mempo_trl.types import Episode, Turn, TurnLimits


def trajectory(*turns):
    """Turns of 10 tokens each, after contexts of 100, 200, ... tokens."""
    played = [Turn(text, context_tokens=100 * number, turn_tokens=10) for number, text in enumerate(turns, start=1)]
    return Episode([{"role": "user", "content": "?"}], turns=played, stop_reason="done")


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


CALL = '<tool_call>{"name": "search", "arguments": {"query": "q"}}</tool_call>'


def test_the_scores_of_an_episode():
    """Two turns: 100 + 10 and 200 + 10 tokens; both answers right; the memory holds the first."""
    episode = trajectory(CALL, "<mem>1. Oslo</mem><answer>Oslo; Lima</answer>")
    assert score_episode({"answers": ["Oslo", "Lima"]}, episode) == {
        "exact_match": 1.0, "all_correct": 1.0, "f1": 1.0, "memory_fidelity": 0.5, "exact_match_sum": 2.0,
        "f1_sum": 2.0, "well_formed": 1.0, "reward": 1.0, "total_tokens": 320, "peak_tokens": 210, "turns": 2,
        "tool_calls": 0,
    }  # fmt: skip


def test_one_right_objective_of_two():
    scores = score_episode({"answers": ["Oslo", "Lima"]}, trajectory("<mem>Oslo Lima</mem><answer>Oslo; Rome</answer>"))
    assert (scores["exact_match"], scores["all_correct"], scores["exact_match_sum"]) == (0.5, 0.0, 1.0)
    assert (scores["f1"], scores["memory_fidelity"], scores["reward"]) == (0.5, 1.0, 0.0)


def test_right_in_the_wrong_format_is_not_rewarded():
    scores = score_episode({"answers": ["Oslo"]}, trajectory("Sure! <answer>Oslo</answer>"))
    assert (scores["all_correct"], scores["well_formed"], scores["reward"]) == (1.0, 0.0, 0.0)


def test_an_episode_without_answer_and_memory_scores_nothing():
    scores = score_episode({"answers": ["Oslo"]}, trajectory("<mem>Oslo", "hm"))
    assert {name: scores[name] for name in ANSWER_METRICS} == dict.fromkeys(ANSWER_METRICS, 0.0)
    assert (scores["total_tokens"], scores["turns"]) == (320, 2)


def test_without_gold_answers_there_are_the_other_scores():
    def length(completions, **kwargs):
        return [float(len(completion)) for completion in completions]

    for row in ({}, {"answers": []}, {"answers": None}):
        scores = score_episode(row, trajectory("a", "b"), (length,))
        assert list(scores) == [name for name in METRICS if name not in ANSWER_METRICS]
        assert scores["reward"] == 2.0


def test_the_reward_is_the_weighted_sum_of_the_task_s_own():
    def level(prompts, completions, level, environments, **kwargs):
        return [level[0] if prompts[0][0]["content"] == "?" and environments == [None] else -1]

    def nothing(completions, **kwargs):
        return [None]

    scores = score_episode({"answers": ["a"], "level": 3}, trajectory("a"), (level, nothing), [0.5, 1.0])
    assert scores["reward"] == 1.5


def test_the_last_closed_memory_counts():
    lost = trajectory("<mem>Oslo</mem><tool_call>{}</tool_call>", "<mem>unknown</mem><answer>Oslo</answer>")
    assert score_episode({"answers": ["Oslo"]}, lost)["memory_fidelity"] == 0.0
    unclosed = trajectory("<mem>Oslo</mem><tool_call>{}</tool_call>", "<mem>unkn")
    assert score_episode({"answers": ["Oslo"]}, unclosed)["memory_fidelity"] == 1.0


def test_means_are_over_all_episodes():
    row = {"answers": ["Oslo"]}
    right, wrong = trajectory("<mem>Oslo</mem><answer>Oslo</answer>"), trajectory("a", "b")
    means = mean_scores([score_episode(row, episode) for episode in (right, wrong)])
    assert list(means) == list(METRICS)
    assert (means["all_correct"], means["memory_fidelity"], means["total_tokens"]) == (0.5, 0.5, (110 + 320) / 2)
    with pytest.raises(ValueError, match="no question was played"):
        mean_scores([])


# Scores of traces

TURN = {"tokens": [], "context_tokens": 10, "tool_calls": [], "tool_results": []}
LINE = {
    "question_id": "q",
    "messages": [{"role": "user", "content": "?"}],
    "stop_reason": "finished",
    "answers": ["New York", "Lima"],
    "reward": None,
    "rewards": {},
    "total_tokens": 30,
    "peak_tokens": 20,
    "turns": [
        TURN | {"text": f"<mem>NYC</mem>{CALL}", "tool_results": ["r"]},
        TURN | {"text": "<mem>1. Lima</mem><answer>NYC; Lima</answer>"},
    ],
}


def test_a_trace_of_any_command_has_scores():
    scores = trace_scores(LINE)
    assert list(scores) == list(METRICS)
    assert (scores["exact_match"], scores["memory_fidelity"], scores["well_formed"]) == (0.5, 0.5, 1.0)
    assert (scores["reward"], scores["turns"], scores["tool_calls"]) == (0.0, 2, 1)
    assert trace_scores(LINE | {"reward": 7.0, "rewards": {"mine": 7.0}})["reward"] == 7.0


def test_what_was_scored_with_aliases_is_kept():
    stored = {"exact_match": 1.0, "all_correct": 1.0, "f1": 1.0, "memory_fidelity": 1.0, "well_formed": 1.0}
    scores = trace_scores(LINE | {"reward": 1.0, "rewards": stored})
    assert stored | {"reward": 1.0} == {name: scores[name] for name in (*stored, "reward")}


@pytest.mark.parametrize(("well_formed", "reward"), [(1.0, 1.0), (0.0, 0.0)])
def test_a_trace_of_an_old_evaluation(well_formed, reward):
    """It had no all_correct and no memory fidelity, and the mean exact match as its reward."""
    stored = {"exact_match": 1.0, "f1": 1.0, "exact_match_sum": 2.0, "f1_sum": 2.0, "well_formed": well_formed}
    scores = trace_scores(LINE | {"reward": 1.0, "rewards": stored})
    assert (scores["all_correct"], scores["memory_fidelity"], scores["reward"]) == (1.0, 0.5, reward)


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
    scores = evaluate(agent, rows, concurrency=2, traces=tmp_path / "t.jsonl", on_episode=seen.append)
    traces = list(read_traces(tmp_path / "t.jsonl"))
    assert [trace["question_id"] for trace in traces] == [row["question_id"] for row in rows]
    assert [trace["question_id"] for trace in seen] == [row["question_id"] for row in rows]
    # The file alone gives the same scores.
    assert [trace_scores(trace) for trace in traces] == scores
    assert evaluate(agent, rows, concurrency=2) == scores


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
    history = [entry for entry in trainer.state.log_history if "eval/full/all_correct" in entry]
    assert [entry["step"] for entry in history] == [0, 1, 2]
    assert {f"eval/{context}/{name}" for context in ("full", "memory") for name in METRICS} <= history[0].keys()
    # The metrics of the training steps stay with the training steps.
    rewards = [entry["step"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards == [1, 2]
    # Before and after, 3 questions in 2 contexts; the evaluation in between is not written.
    assert [trace["context"] for trace in read_traces(traces)] == (["full"] * 3 + ["memory"] * 3) * 2
    result = callback.result()
    assert list(result) == ["before", "after"]
    assert list(result["after"]["memory"]) == list(METRICS)
    assert result["after"]["full"]["total_tokens"] == round(history[-1]["eval/full/total_tokens"], 4)


def test_an_evaluation_changes_nothing_in_training(trainer):
    trainer.add_callback(EvaluationCallback(trainer, WorldEnvironment, []))
    trainer.train()
    without = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(without) == 2
    assert not [entry for entry in trainer.state.log_history if "eval/full/all_correct" in entry]
