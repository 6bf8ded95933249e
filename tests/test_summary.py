import pytest

from mempo_trl.evaluation.scores import ANSWER_METRICS, METRICS
from mempo_trl.evaluation.summary import bootstrap, compare, summarize

TURN = {
    "text": "",
    "tokens": [],
    "context_tokens": 0,
    "tool_calls": [],
    "memory": None,
    "memory_text": None,
    "p_mem": None,
    "tool_results": [],
}


def episode(question, exact, context="memory", stop_reason="done", peak=50, turns=(), seed=0, sample=0, k=2):
    rewards = dict.fromkeys(ANSWER_METRICS, exact) | {"exact_match_sum": k * exact, "f1_sum": k * exact}
    return {
        "question_id": question,
        "messages": [],
        "seed": seed,
        "sample": sample,
        "context": context,
        "answers": ["a"] * k,
        "stop_reason": stop_reason,
        "reward": float(exact == 1.0),
        "rewards": rewards,
        "total_tokens": 2 * peak,
        "peak_tokens": peak,
        "prompt_tokens": 10,
        "turns": [{**TURN, **turn} for turn in turns] or [TURN],
    }


def test_samples_are_averaged_within_their_question():
    """Question a: 1, 1, 1; question b: 0. Mean of the questions 0.5, of the episodes 0.75."""
    (score,) = summarize([*(episode("a", 1.0, sample=i) for i in range(3)), episode("b", 0.0)])
    assert (score["questions"], score["episodes"]) == (2, 4)
    assert score["exact_match"] == {"mean": 0.5, "low": 0.0, "high": 1.0}
    assert score["exact_match_sum"]["mean"] == 1.0
    assert summarize([episode("a", 0.5)])[0]["all_correct"]["mean"] == 0.0  # one of two objectives is not enough
    assert score["by_question"]["0/a"]["exact_match"] == 1.0


def test_groups_and_their_order():
    traces = [episode("a", 1.0, "memory", k=10), episode("a", 1.0, "full", k=2), episode("a", 1.0, "memory", k=2)]
    assert [(s["context"], s["objectives"]) for s in summarize(traces)] == [("full", 2), ("memory", 2), ("memory", 10)]


def test_the_same_question_of_two_seeds_is_two():
    (score,) = summarize([episode("a", 1.0, seed=0), episode("a", 0.0, seed=1)])
    assert score["questions"] == 2


def test_peak_tokens_of_all_and_as_mem1_averages_them():
    """Peaks 40 and 80 with a right answer, 180 without. All: 100; MEM1: without the prompt's 10, (30 + 70) / 2 = 50."""
    (score,) = summarize([episode("a", 1.0, peak=40), episode("b", 0.5, peak=80), episode("c", 0.0, peak=180)])
    assert score["peak_tokens"]["mean"] == 100
    assert score["mem1_peak_tokens"] == 50
    (none_right,) = summarize([episode("a", 0.0)])
    assert none_right["mem1_peak_tokens"] is None


def test_errors_are_no_episodes_of_the_policy():
    (score,) = summarize([episode("a", 1.0), episode("b", 0.0, stop_reason="error")])
    assert (score["episodes"], score["stop_reasons"]) == (1, {"done": 1})
    assert summarize([episode("b", 0.0, stop_reason="error")]) == []


def test_memories_by_length_and_by_turn():
    first = [TURN, {"memory": [0, 10], "memory_text": "x" * 30, "p_mem": 0.2, "tool_results": ["r"]}]
    second = [TURN, {"memory": [2, 8], "memory_text": "x" * 10, "p_mem": 0.4}, {"p_mem": 0.9, "memory_text": "y"}]
    (score,) = summarize([episode("a", 1.0, turns=first), episode("b", 1.0, turns=second)])
    assert score["memory_tokens"] == 8
    assert score["memory_characters"] == pytest.approx((30 + 10 + 1) / 3)
    assert score["answer_probability"] == [None, pytest.approx(0.3), 0.9]
    assert (score["turns"]["mean"], score["tool_calls"]["mean"]) == (2.5, 0.5)


def test_bootstrap_is_the_same_each_time_and_holds_the_mean():
    rows = [{"x": float(i % 2), "y": 3.0} for i in range(100)]
    first = bootstrap(rows)
    assert first == bootstrap(rows)
    assert first["x"]["mean"] == 0.5
    # The standard error is 0.05: 95 % lie within 0.098 of the mean.
    assert first["x"]["low"] == pytest.approx(0.402, abs=0.015)
    assert first["x"]["high"] == pytest.approx(0.598, abs=0.015)
    assert first["y"] == {"mean": 3.0, "low": 3.0, "high": 3.0}


def test_nothing_to_average():
    with pytest.raises(ValueError, match="got no rows"):
        bootstrap([])


def test_compare_takes_what_both_have():
    first = summarize([episode("a", 0.0), episode("b", 1.0), episode("c", 1.0, "full")])
    second = summarize([episode("a", 1.0), episode("b", 1.0), episode("d", 0.0)])
    differences = compare(first, second)
    assert [d.metric for d in differences] == list(METRICS)
    exact = differences[METRICS.index("exact_match")]
    assert (exact.context, exact.objectives, exact.questions) == ("memory", 2, 2)
    assert (exact.first, exact.second, exact.change["mean"]) == (0.5, 1.0, 0.5)


def test_a_paired_change_is_sure_where_the_means_are_not():
    """Each question 0.1 better, while questions differ by up to 0.9: the change is exactly 0.1."""
    first = summarize([episode(str(i), i / 10) for i in range(10)])
    second = summarize([episode(str(i), i / 10 + 0.1) for i in range(10)])
    change = compare(first, second)[METRICS.index("exact_match")].change
    assert change == {name: pytest.approx(0.1) for name in ("mean", "low", "high")}
    assert first[0]["exact_match"]["high"] > second[0]["exact_match"]["low"]


def test_nothing_in_common_is_refused():
    with pytest.raises(ValueError, match="same questions, objectives, contexts and seeds"):
        compare(summarize([episode("a", 1.0)]), summarize([episode("b", 1.0)]))
