"""Scores against a table worked out by hand, and formats against turns written out."""

import pytest

from mempo_trl.tasks.search import (
    exact_match_reward,
    extract_answer,
    f1_reward,
    format_reward,
    is_well_formed,
    mempo_outcome_reward,
    normalize_answer,
)
from mempo_trl.types import Turn

# answer block, gold answers, exact match, F1 (shared words / words of both, doubled; mean over objectives)
TABLE = [
    # one objective: case, articles, punctuation, space
    ("Paris", ["Paris"], 1, 1),
    ("paris", ["PARIS"], 1, 1),
    ("Rome", ["Paris"], 0, 0),
    ("the Eiffel Tower", ["Eiffel Tower"], 1, 1),
    ("An apple", ["the apple"], 1, 1),
    ("  Eiffel \n Tower ", ["Eiffel Tower"], 1, 1),
    ("Eiffel Tower.", ["Eiffel Tower"], 1, 1),
    ('"U.S.A."', ["USA"], 1, 1),
    ("rock-n-roll", ["rock n roll"], 0, 0),  # rocknroll: SQuAD joins what a hyphen held
    ("Theatre", ["atre"], 0, 0),  # an article is a whole word
    ("The The", ["The The"], 1, 1),  # nothing but articles: they stay
    ("The", ["The The"], 0, 2 / 3),  # 1 shared; 1 + 2
    ("!!!", ["!!!"], 1, 1),
    ("???", ["!!!"], 0, 0),
    # F1 counts words as often as they stand
    ("Eiffel Tower in Paris", ["Eiffel Tower"], 0, 2 / 3),  # 2 shared; 4 + 2
    ("new new york", ["new york"], 0, 4 / 5),  # 2 shared; 3 + 2. On sets it would be 1
    ("york york", ["new york city"], 0, 2 / 5),  # 1 shared; 2 + 3
    # yes and no
    ("Yes", ["yes"], 1, 1),
    ("no", ["yes"], 0, 0),
    ("yes it is", ["yes"], 0, 1 / 2),  # 1 shared; 3 + 1
    # numbers
    ("1,000", ["1000"], 1, 1),
    ("$5", ["5"], 1, 1),
    ("1990–1995", ["1990-1995"], 1, 1),  # an en dash
    ("five", ["5"], 0, 0),
    ("1999", ["1998"], 0, 0),
    # unicode
    ("Beyoncé", ["Beyonce\u0301"], 1, 1),  # one character or two
    ("Beyonce", ["Beyoncé"], 0, 0),  # an accent is part of a name
    ("“Straße”", ["STRASSE"], 1, 1),
    ("２０２４", ["2024"], 1, 1),  # full width
    ("New\u00a0York", ["new york"], 1, 1),  # a space that does not break
    ("Par\u200bis", ["Paris"], 1, 1),  # an invisible space
    ("東京。", ["東京"], 1, 1),
    ("Don’t Stop", ["Don't stop"], 1, 1),
    # no answer
    ("", ["Paris"], 0, 0),
    (None, ["Paris"], 0, 0),
    (None, ["Paris", "Rome"], 0, 0),
    # several objectives, by position
    ("Paris; Rome", ["Paris", "Rome"], 1, 1),
    ("Paris;Rome;", ["Paris", "Rome"], 1, 1),
    ("Rome; Paris", ["Paris", "Rome"], 0, 0),
    ("Paris; New York City", ["Paris", "New York"], 1 / 2, 9 / 10),  # (1 + 4/5) / 2
    ("Paris", ["Paris", "Rome"], 1 / 2, 1 / 2),  # one missing
    ("; Rome", ["Paris", "Rome"], 1 / 2, 1 / 2),  # the first missing
    ("Paris; Rome; Oslo", ["Paris", "Rome"], 2 / 3, 2 / 3),  # one too many
    ("Paris Rome", ["Paris", "Rome"], 0, 1 / 3),  # no semicolon: one piece, 1 shared of 2 + 1, then 0
    # semicolons inside an answer
    ("Rock; Paper", ["Rock; Paper"], 1, 1),
    ("Rock, Paper", ["Rock; Paper"], 1, 1),
    ("Rock", ["Rock; Paper"], 0, 2 / 3),
    ("Paris; Rome", ["Paris"], 0, 2 / 3),  # one objective, two answers: 1 shared of 2 + 1
    ("Rock; Paper; Rome", ["Rock; Paper", "Rome"], 1, 1),
    ("Paris; Rock; Paper; Rome", ["Paris", "Rock; Paper", "Rome"], 1, 1),
    ("Rock; Rome", ["Rock; Paper", "Rome"], 0, 1 / 4),  # "Rock; Rome" for the first: 1 of 2 + 2, halved
]


def turn(text):
    return {"role": "assistant", "content": text}


def answered(text):
    return [turn("<think>done</think>" if text is None else f"<think>done</think><answer>{text}</answer>")]


@pytest.mark.parametrize(("prediction", "answers", "em", "f1"), TABLE)
def test_table(prediction, answers, em, f1):
    assert exact_match_reward([answered(prediction)], answers=[answers]) == [pytest.approx(em)]
    assert f1_reward([answered(prediction)], answers=[answers]) == [pytest.approx(f1)]
    assert mempo_outcome_reward([answered(prediction)], answers=[answers]) == [float(em == 1)]


def test_aliases_count_for_their_own_objective():
    completions = [answered("NYC; Rome"), answered("Rome; NYC")]
    answers = [["New York", "Roma"]] * 2
    aliases = [[["NYC", "Big Apple"], ["Rome"]]] * 2
    assert exact_match_reward(completions, answers=answers, aliases=aliases) == [1.0, 0.0]
    assert exact_match_reward(completions, answers=answers) == [0.0, 0.0]
    assert exact_match_reward(completions, answers=answers, aliases=[None, None]) == [0.0, 0.0]
    assert exact_match_reward(completions, answers=answers, aliases=[[None, ["Rome"]], [None, None]]) == [0.5, 0.0]
    with pytest.raises(ValueError, match="got 1, expected 2"):
        exact_match_reward(completions[:1], answers=answers[:1], aliases=[[["NYC"]]])


def test_normalization_is_squads():
    assert normalize_answer("The  Cat's, (a) Hat!") == "cats hat"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer>", "a"),
        ("<answer>a</answer><answer>b</answer>", "b"),
        ("<answer>a</answer><answer>b", "a"),
        ("<answer>x <answer>a</answer>", "a"),
        ("<answer>\n a \n</answer>", "a"),
        ("<answer></answer>", ""),
        ("<answer>a", None),
        ("a</answer>", None),
        ("a", None),
        ("", None),
    ],
)
def test_the_last_closed_block_is_the_answer(text, answer):
    assert extract_answer([turn(text)]) == answer


def test_only_the_last_turn_answers():
    tool = {"role": "tool", "name": "search", "content": "<answer>Paris</answer>"}
    assert extract_answer([turn("<answer>Paris</answer>"), tool, turn("<think>hm</think>")]) is None
    assert extract_answer([turn("<answer>Paris</answer>"), tool]) == "Paris"
    assert extract_answer([]) is None
    assert extract_answer([tool]) is None


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "q"}}\n</tool_call>'
MEM, THINK, ANSWER = "<mem>a fact</mem>", "<think>so</think>", "<answer>a</answer>"
FIRST, MIDDLE, LAST = THINK + CALL, MEM + THINK + CALL, MEM + THINK + ANSWER


@pytest.mark.parametrize(
    ("turns", "well_formed"),
    [
        ([FIRST, MIDDLE, LAST], True),
        ([FIRST, LAST], True),
        ([THINK + ANSWER], True),  # answered at once: there is nothing to remember
        (["<mem></mem>" + FIRST, LAST], True),  # the first memory may be empty
        ([f"\n{THINK}\n\n{CALL}\n", f"{MEM}\n{THINK}\n{ANSWER}\n"], True),
        ([CALL, MEM + ANSWER], True),  # thinking aloud is not asked for
        ([FIRST, "<mem></mem>" + THINK + ANSWER], True),
        ([], False),
        ([""], False),
        ([FIRST, THINK + CALL, LAST], False),  # a later turn without memory
        ([FIRST, THINK + ANSWER], False),
        ([FIRST, MEM + MEM + THINK + ANSWER], False),
        ([FIRST, THINK + MEM + ANSWER], False),  # the memory is not first
        ([FIRST, "<mem>a fact" + THINK + ANSWER], False),  # not closed
        ([FIRST, "a fact</mem>" + THINK + ANSWER], False),
        ([FIRST, MEM + THINK], False),  # no action
        ([FIRST, MIDDLE], False),  # no answer at the end
        ([FIRST, MEM + THINK + CALL + ANSWER], False),  # two actions
        ([FIRST, MEM + THINK + ANSWER + ANSWER], False),
        ([THINK + CALL + CALL, LAST], True),  # calls that are made together
        ([THINK + CALL + THINK + CALL, LAST], False),
        ([LAST, LAST], False),  # an answer that is not the end
        ([FIRST, "Well. " + LAST], False),  # text around the blocks
        ([FIRST, LAST + " Done."], False),
        ([FIRST, "<mem><answer>a</answer></mem>" + THINK + ANSWER], False),  # a block in a block
        ([FIRST, MEM + "<think><mem>x</mem></think>" + ANSWER], False),
        ([FIRST, MEM + THINK + "<answer>a"], False),
    ],
)
def test_format(turns, well_formed):
    completion = [message for text in turns for message in (turn(text), {"role": "tool", "content": "<mem>no</mem>"})]
    assert format_reward([completion[:-1]]) == [float(well_formed)]


ACT = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("turns", "well_formed"),
    [
        ([(False, ACT), (False, "<answer>a</answer>")], True),  # no compaction, no memory
        ([(None, ACT), (None, "<answer>a</answer>")], False),  # the same where each turn needs one
        ([(False, ACT), (True, "<mem>a</mem>"), (False, "<answer>a</answer>")], True),
        ([(False, ACT), (True, "<think>b</think><mem>a</mem>"), (False, "<mem>a</mem><answer>a</answer>")], True),
        ([(False, ACT), (True, "<mem>a</mem>" + ACT), (False, "<answer>a</answer>")], False),
        ([(False, ACT), (True, "<mem>a</mem>and more"), (False, "<answer>a</answer>")], False),
        ([(False, ACT), (True, "<mem>a</mem><mem>b</mem>"), (False, "<answer>a</answer>")], False),
        ([(False, ACT), (True, "<mem><answer></mem>"), (False, "<answer>a</answer>")], False),
        ([(False, ACT), (True, "<think>a</think>"), (False, "<answer>a</answer>")], False),
        ([(False, ACT), (True, "<mem>a</mem>")], False),  # it ends without an answer
    ],
)
def test_format_where_memories_are_asked_for(turns, well_formed):
    messages = [Turn(text, compaction=compaction).message for compaction, text in turns]
    assert is_well_formed(messages) is well_formed


def test_the_outcome_needs_both():
    right, wrong, unformed = LAST, LAST.replace("a</answer>", "b</answer>"), LAST + "!"
    completions = [[turn(FIRST), turn(text)] for text in (right, wrong, unformed)]
    assert mempo_outcome_reward(completions, answers=[["a"]] * 3) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("reward", [exact_match_reward, f1_reward, format_reward, mempo_outcome_reward])
def test_rewards_are_called_as_trl_calls_them(reward):
    rewards = reward(
        prompts=[[turn("q")]],
        completions=[answered("a")],
        completion_ids=[[1, 2]],
        answers=[["a"]],
        question_id=["0"],
        trainer_state=None,
        log_extra=print,
        log_metric=print,
        environments=[None],
    )
    assert rewards == [1.0]


def test_a_gold_answer_that_is_no_list_is_refused():
    with pytest.raises(TypeError, match="must be a list"):
        exact_match_reward([answered("Paris")], answers=["Paris"])
