"""The embedded world: same everywhere, new in every episode, and an expert who is as careless as it is told to be."""

import subprocess
import sys

import pytest

from mempo_trl.search.rewards import exact_match_reward, extract_answer, is_well_formed
from mempo_trl.search.rows import validate_rows
from mempo_trl.search.world import CITIES, PEOPLE, UNKNOWN, Expert, WorldEnvironment, WorldRetriever, world_rows

CAREFUL = Expert(forget_often=0.0, forget_rarely=0.0, misread=0.0)


def last_memory(messages):
    return messages[-1]["content"].split("<mem>")[1].split("</mem>")[0]


def test_rows_are_those_of_a_dataset():
    rows = world_rows(50, objectives=4)
    validate_rows(rows)
    assert {len(row["answers"]) for row in rows} == {len(set(row["people"])) for row in rows} == {4}
    assert rows[0]["prompt"][1]["content"].endswith("1. {}; 2. {}; 3. {}; 4. {}".format(*rows[0]["people"]))


def test_the_world_is_the_same_in_every_process():
    code = (
        "from mempo_trl.search.world import Expert, world_rows; row = world_rows(3)[2]; "
        "print(row['people'], Expert().trace(row)[-1]['content'])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    row = world_rows(3)[2]
    assert runs == {f"{row['people']} {Expert().trace(row)[-1]['content']}\n"}


def test_splits_and_seeds_share_no_episode():
    groups = [world_rows(200, split=split, seed=seed) for split in ("train", "eval") for seed in (0, 1)]
    ids = [row["question_id"] for rows in groups for row in rows]
    assert len(set(ids)) == len(ids) == 800


def test_a_name_says_nothing_about_the_city():
    """Who lives where is drawn anew in every episode: each person is seen in nearly every city."""
    rows = world_rows(3000, objectives=4)
    homes = {person: set() for person in PEOPLE}
    for row in rows:
        for person, city in zip(row["people"], row["answers"], strict=True):
            homes[person].add(city)
    # 300 draws of 24 cities for each person: a given one is missed with probability (23/24)^300 = 3e-6.
    assert {len(cities) for cities in homes.values()} == {len(CITIES)}


def test_what_is_searched_for_comes_first_and_is_true():
    (row,) = world_rows(1)
    environment = WorldEnvironment()
    environment.reset(**row)
    for person, city in zip(row["people"], row["answers"], strict=True):
        first, second = environment.search(person).split("\n\n")
        assert first == f"(1) {person} lives in {city}."
        assert person not in second


def test_environments_of_two_episodes_are_apart():
    first, second = (row for row in world_rows(2))
    one, other = WorldEnvironment(), WorldEnvironment()
    one.reset(**first)
    other.reset(**second)
    before = one.search("Anna Omar")
    assert before == one.search("Anna Omar") != other.search("Anna Omar")


def test_a_query_without_a_name_finds_distractors_only():
    (found,) = WorldRetriever("train-0-4-0").search(["Atlantis"], 3)
    assert [passage.score for passage in found] == [0.0] * 3
    assert len({passage.id for passage in found}) == 3


def test_k_is_clamped_to_the_world():
    (found,) = WorldRetriever("train-0-4-0").search(["Anna"], 1000)
    assert len(found) == len(PEOPLE)


def test_a_careful_expert_is_right():
    rows = world_rows(20, objectives=3)
    traces = [CAREFUL.trace(row) for row in rows]
    assert exact_match_reward(traces, [row["answers"] for row in rows]) == [1.0] * 20
    assert all(is_well_formed(trace) for trace in traces)
    assert [message["role"] for message in traces[0]] == ["assistant", "tool"] * 3 + ["assistant"]


def test_an_expert_forgets_and_misreads_at_its_rates():
    rows = world_rows(1000, objectives=4)
    facts = [
        (city, note)
        for row in rows
        for city, entry in zip(row["answers"], last_memory(Expert(0.5, 0.1, 0.06).trace(row)).split("; "), strict=True)
        for note in [entry.split(". ")[1]]
    ]
    often = [note for city, note in facts if CITIES.index(city) < len(CITIES) // 2]
    rarely = [note for city, note in facts if CITIES.index(city) >= len(CITIES) // 2]
    # About 2000 facts each: three standard errors are 0.034 for a rate of 0.5 and 0.021 for 0.1.
    assert often.count(UNKNOWN) / len(often) == pytest.approx(0.5, abs=0.034)
    assert rarely.count(UNKNOWN) / len(rarely) == pytest.approx(0.1, abs=0.021)
    wrong = [note for city, note in facts if note not in (UNKNOWN, city)]
    # A distractor's city is the right one by chance in one of 24 cases.
    assert len(wrong) / len(facts) == pytest.approx(0.06 * 23 / 24, abs=0.012)


def test_an_expert_guesses_what_its_memory_lost():
    forgetful = Expert(forget_often=1.0, forget_rarely=1.0, misread=0.0)
    for row in world_rows(20):
        messages = forgetful.trace(row)
        assert last_memory(messages) == "1. unknown; 2. unknown; 3. unknown; 4. unknown"
        assert all(city in CITIES for city in extract_answer(messages).split("; "))


def test_an_expert_who_sees_the_history_reads_off_what_its_memory_lost():
    """The two contexts differ in the last answer alone."""
    forgetful = Expert(forget_often=1.0, forget_rarely=1.0, misread=0.0, look_back=1.0)
    for row in world_rows(20):
        full, memory = (forgetful.trace(row, context) for context in ("full", "memory"))
        assert extract_answer(full).split("; ") == row["answers"] != extract_answer(memory).split("; ")
        assert full[:-1] == memory[:-1]
        assert last_memory(full) == last_memory(memory)


@pytest.mark.parametrize("objectives", [0, 11])
def test_a_number_of_objectives_out_of_range_is_refused(objectives):
    with pytest.raises(ValueError, match=f"objectives must be 1 to 10, got {objectives}"):
        world_rows(1, objectives=objectives)
