"""Which questions are asked when, what a partly right answer earns, and what the first steps say."""

import pytest
from datasets import Dataset
from transformers import TrainerCallback

from helpers import ScriptedMemPO, make_trainer
from mempo_trl.tasks.search import mempo_outcome_reward, partial_credit_reward
from mempo_trl.training.advice import advice
from mempo_trl.training.questions import by_difficulty
from test_trainer import generate_batch

# A curriculum


def test_rows_are_sorted_and_equal_ones_keep_their_order():
    rows = Dataset.from_dict({"hops": [3, 1, 2, 1], "name": ["a", "b", "c", "d"]})
    assert by_difficulty(rows, "hops")["name"] == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2, 2, 2], "is 2 in every row, so it orders nothing"),
        ([1, None, 2], "row 1 of the training dataset has None"),
        (["easy", "hard", "hard"], "row 0 of the training dataset has 'easy'"),
        ([1.0, 2.0, float("nan")], "row 2 of the training dataset has nan"),
        ([True, False, True], "row 0 of the training dataset has True"),
    ],
)
def test_columns_that_order_nothing_are_refused(values, message):
    with pytest.raises(ValueError, match=f"curriculum_column='hops'.*{message}"):
        by_difficulty(Dataset.from_dict({"hops": values}), "hops")


def test_a_missing_column_and_a_stream_are_refused_at_the_start(tmp_path, model, tokenizer, questions):
    with pytest.raises(ValueError, match=r"'hops' is not a column.*Set one of prompt, answers, question_id"):
        make_trainer(tmp_path, model, tokenizer, questions, curriculum_column="hops")
    with pytest.raises(ValueError, match="a stream cannot"):
        make_trainer(tmp_path, model, tokenizer, questions.to_iterable_dataset(), curriculum_column="hops")


class Asked(TrainerCallback):
    """The question ids of each step."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append([row["question_id"] for row in self.trainer.last_rollout.rows])


def test_training_asks_in_the_order_of_the_column(tmp_path, model, tokenizer, questions):
    rows = questions.add_column("hops", [4, 2, 3, 1])
    trainer = make_trainer(tmp_path, model, tokenizer, rows, curriculum_column="hops", max_steps=2)
    asked = Asked(trainer)
    trainer.add_callback(asked)
    trainer.train()
    assert asked.steps == [["3"] * 4 + ["1"] * 4, ["2"] * 4 + ["0"] * 4]
    logged = [entry["curriculum/hops"] for entry in trainer.state.log_history if "curriculum/hops" in entry]
    assert logged == [1.5, 3.5]


# Tied groups


class Tied:
    """A reward function that ties every group in its first calls."""

    __name__ = "tied"

    def __init__(self, calls):
        self.calls, self.called = calls, 0

    def __call__(self, completion_ids, **kwargs):
        self.called += 1
        return [0.5 if self.called <= self.calls else float(row) for row in range(len(completion_ids))]


class Counted(ScriptedMemPO):
    """Other turns in each draw."""

    draws = 0

    def _generate(self, *args, **kwargs):
        self.draws += 1
        return super()._generate(*args, **kwargs)

    def _text(self, rng, row):
        return super()._text(rng, f"{row}{self.draws}" if row != "" else "")


@pytest.mark.parametrize(("tied", "allowed", "redraws"), [(0, 3, 0), (2, 3, 2), (9, 3, 3), (9, 0, 0)])
def test_tied_batches_are_drawn_again_and_again_but_not_for_ever(
    tmp_path, model, tokenizer, questions, tied, allowed, redraws
):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, Counted, max_redraws=allowed)
    trainer.reward_funcs[0] = reward = Tied(tied)
    output = generate_batch(trainer)
    assert reward.called == redraws + 1
    assert trainer._metrics["train"]["rollout/redraws"] == ([float(redraws)] if allowed else [])
    batch = trainer.last_rollout
    for row, episode in enumerate(batch.episodes):  # what is trained on is the last draw, with its own advantages
        length = len(episode.completion_ids)
        assert output["completion_ids"][row, :length].tolist() == episode.completion_ids
    assert any(str(redraws + 1) in turn.text for episode in batch.episodes for turn in episode.turns[:1])
    assert (batch.outcome_advantages.abs().sum() > 0) == (tied <= redraws)


def test_a_negative_number_of_redraws_is_refused(tmp_path, model, tokenizer, questions):
    with pytest.raises(ValueError, match="max_redraws must be 0 or more, got -1"):
        make_trainer(tmp_path, model, tokenizer, questions, max_redraws=-1)


# Partial credit


def test_partial_credit_is_the_share_of_objectives_of_a_well_formed_episode():
    def episode(answer):
        return [{"role": "assistant", "content": answer}]

    completions = [
        episode("<answer>Paris; Rome</answer>"), episode("<answer>Paris; Lima</answer>"),
        episode("Paris; Lima <answer>Paris; Lima</answer>"), episode("<answer>Paris; Lima; Oslo</answer>"),
    ]  # fmt: skip
    answers = [["Paris", "Lima"]] * 4
    # A piece too many counts as an objective that is wrong: 2 of 3.
    assert partial_credit_reward(completions, answers) == pytest.approx([0.5, 1.0, 0.0, 2 / 3])
    assert mempo_outcome_reward(completions, answers) == [0.0, 1.0, 0.0, 0.0]


# Advice


def log(tied, std=0.1, closed=1.0, under_floor=0.0):
    return {
        "frac_reward_zero_std": tied, "reward": 0.0, "memory/reward_std": std, "memory/closed_fraction": closed,
        "memory/pools_under_floor": under_floor,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("history", "weight", "said"),
    [
        (
            [log(1.0), log(0.8)],
            1.0,
            "90% of groups tied, memory reward std 0.100. The outcome is silent: the memory adv",
        ),
        ([log(1.0)], 0.0, "Set memory_weight above 0"),
        ([log(1.0, under_floor=0.9)], 1.0, "and so are the memories"),
        ([log(1.0, closed=0.1)], 1.0, "Train a cold start first"),
        ([log(0.6)], 1.0, "in some steps"),
        ([log(0.2), {"loss": 1.0}], 1.0, "20% of groups tied, memory reward std 0.100. The outcome has a say in most"),
    ],
)
def test_the_first_steps_say_what_trains(history, weight, said):
    assert said in advice(history, weight)


def test_nothing_is_said_of_a_run_that_logs_nothing():
    assert advice([{"loss": 1.0}], 1.0) is None


def test_advice_is_given_once(tmp_path, model, tokenizer, questions, capsys, monkeypatch):
    monkeypatch.setattr("mempo_trl.training.advice.FIRST_STEPS", 2)
    make_trainer(tmp_path, model, tokenizer, questions, max_steps=3).train()
    assert capsys.readouterr().out.count("First 2 steps: reward ") == 1
