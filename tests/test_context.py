"""A trajectory of three turns, drawn:

column      0  1  2 | 3  4 | 5  6 | 7 | 8
token      10 11 12 |20 21 |30 31 |40 |50
written by  model 0 | tool | m. 1 |tool| m. 2
"""

import random

import pytest
import torch

from helpers import visible_context
from mempo_trl.memory.turns import find_turns
from mempo_trl.rollout.context import first_visible, visible_ids
from mempo_trl.training.by_turn import sees_everything, turn_rows, visible_starts
from mempo_trl.types import Episode, Turn

PROMPT = [1, 2]
IDS = [10, 11, 12, 20, 21, 30, 31, 40, 50]
MASK = [1, 1, 1, 0, 0, 1, 1, 0, 1]
TURNS = find_turns(MASK)


def played(prompt, ids, mask, context, context_turns=1):
    """The episode as a turn loop would have stored it."""
    bounds = find_turns(mask)
    nexts = ([start for start, _ in bounds[1:]] + [len(ids)])[: len(bounds)]
    turns: list[Turn] = []
    for (start, end), after in zip(bounds, nexts, strict=True):
        first = first_visible(turns, context, context_turns)
        turns.append(Turn("", first_visible=first, start=start, ids=ids[start:end], result_ids=ids[end:after]))
    return Episode(prompt_ids=prompt, turns=turns)


def seen(turn, context, context_turns=1):
    """What turn `turn` is generated from: all that stands before it is known, the rest is not there yet."""
    before = played(PROMPT, IDS[: TURNS[turn][0]], MASK[: TURNS[turn][0]], context, context_turns)
    return visible_ids(before, first_visible(before.turns, context, context_turns))


def test_literal_visible_contexts():
    assert [seen(turn, "full") for turn in range(3)] == [
        [1, 2],
        [1, 2, 10, 11, 12, 20, 21],
        [1, 2, 10, 11, 12, 20, 21, 30, 31, 40],
    ]
    assert [seen(turn, "memory") for turn in range(3)] == [
        [1, 2],
        [1, 2, 10, 11, 12, 20, 21],
        [1, 2, 30, 31, 40],
    ]
    assert seen(2, "memory", context_turns=2) == seen(2, "full")


def test_literal_rows():
    ids = torch.tensor([[0, 1, 2, *IDS], [3, 4, 5, 60, 61, 0, 0, 0, 0, 0, 0, 0]])
    attended = torch.tensor([[0] + [1] * 11, [1] * 5 + [0] * 7])
    visible = visible_starts([played(PROMPT, IDS, MASK, "memory"), played([3, 4, 5], [60, 61], [1, 1], "memory")])
    assert visible.tolist() == [[0, 0, 0, -1, -1, 0, 0, -1, 5], [0, 0, -1, -1, -1, -1, -1, -1, -1]]
    rows = turn_rows(ids, attended, visible, pad_token_id=0)
    assert rows.width == 3
    assert rows.input_ids.tolist() == [
        # context, padded left          turn, padded right
        [0, 0, 0, 0, 0, 1, 2,           10, 11, 12],
        [1, 2, 10, 11, 12, 20, 21,      30, 31, 0],
        [0, 0, 1, 2, 30, 31, 40,        50, 0, 0],
        [0, 0, 0, 0, 3, 4, 5,           60, 61, 0],
    ]  # fmt: skip
    assert rows.attention_mask.tolist() == [[int(token > 0) for token in row] for row in rows.input_ids.tolist()]
    values = torch.arange(12.0).reshape(4, 3)
    assert rows.scatter(values, (2, 9)).tolist() == [[0, 1, 2, 0, 0, 3, 4, 0, 6], [9, 10, 0, 0, 0, 0, 0, 0, 0]]


def random_trajectory(rng):
    mask = []
    for _ in range(rng.randint(1, 6)):
        mask += [1] * rng.randint(1, 5) + [0] * rng.randint(1, 5)
    mask = mask[: rng.choice([None, -1])] if mask[-1] == 0 else mask
    return [rng.randint(1, 99) for _ in range(rng.randint(1, 6))], [rng.randint(1, 99) for _ in mask], mask


@pytest.mark.parametrize("context_turns", [1, 2])
def test_rows_condition_on_what_generation_was_given(context_turns):
    rng = random.Random(0)
    for _ in range(50):
        batch = [random_trajectory(rng) for _ in range(3)]
        left, right = max(len(p) for p, _, _ in batch), max(len(c) for _, c, _ in batch)
        ids = torch.tensor([[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c, _ in batch])
        mask = torch.tensor([m + [0] * (right - len(m)) for _, _, m in batch])
        visible = visible_starts([played(*trajectory, "memory", context_turns) for trajectory in batch])
        rows = turn_rows(ids, (ids > 0).long(), visible, 0)
        expected = []
        for prompt, completion, marks in batch:
            for start, end in find_turns(marks):
                given = visible_context(prompt, completion[:start], marks[:start], "memory", context_turns)
                expected.append(given + completion[start:end])
        assert [[token for token in row if token] for row in rows.input_ids.tolist()] == expected
        completions = ids[:, left:]
        assert torch.equal(rows.scatter(rows.input_ids[:, -rows.width :], mask.shape), completions * mask)


def test_a_batch_without_turns_still_makes_a_row():
    rows = turn_rows(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 0]]), torch.full((1, 2), -1), 0)
    assert rows.input_ids.shape == (1, 2)
    values = torch.ones(1, 1, requires_grad=True)
    scattered = rows.scatter(values, (1, 2))
    assert scattered.tolist() == [[0, 0]]
    scattered.sum().backward()  # connected, so that every rank has a backward
    assert values.grad.tolist() == [[0]]


def test_what_needs_no_rows_of_its_own():
    assert sees_everything(visible_starts([played(PROMPT, IDS, MASK, "full")]))
    assert sees_everything(visible_starts([played(PROMPT, IDS[:7], MASK[:7], "memory")]))  # turn 2 sees turn 1
    assert not sees_everything(visible_starts([played(PROMPT, IDS, MASK, "memory")]))


def test_the_first_turn_that_is_seen():
    turns = [Turn(""), Turn("", compaction=True), Turn(""), Turn("", compaction=True), Turn("")]

    def firsts(*context):
        return [first_visible(turns[:number], *context) for number in range(6)]

    assert firsts("full") == [0, 0, 0, 0, 0, 0]
    assert firsts("memory") == [0, 0, 1, 2, 3, 4]
    assert firsts("memory", 2) == [0, 0, 0, 1, 2, 3]
    assert firsts("budget") == [0, 0, 1, 1, 3, 3]
