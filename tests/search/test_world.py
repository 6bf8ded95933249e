"""The embedded world: same everywhere, new in every episode, and an expert who is as careless as it is told to be."""

import subprocess
import sys

import pytest

from mempo_trl.tasks.search.rewards import exact_match_reward, extract_answer, is_well_formed
from mempo_trl.tasks.search.rows import validate_rows
from mempo_trl.tasks.world.world import (
    BOLD,
    CAREFUL,
    CITIES,
    FRIEND,
    PEOPLE,
    PEOPLE_IN_A_PASSAGE,
    UNKNOWN,
    Expert,
    WorldEnvironment,
    WorldRetriever,
    city_of,
    friend_of,
    searches,
    world_rows,
)


def last_memory(messages):
    return messages[-1]["content"].split("<mem>")[1].split("</mem>")[0]


def notes(messages):
    """The cities in the last memory."""
    return [entry.split(": ")[1] for entry in last_memory(messages).split("; ")]


def test_rows_are_those_of_a_dataset():
    rows = world_rows(50, objectives=4)
    validate_rows(rows)
    assert {len(row["answers"]) for row in rows} == {len(set(row["people"])) for row in rows} == {4}
    assert rows[0]["prompt"][1]["content"].endswith("1. {}; 2. {}; 3. {}; 4. {}".format(*rows[0]["people"]))


def test_the_world_is_the_same_in_every_process():
    code = (
        "from mempo_trl.tasks.world.world import Expert, world_rows; row = world_rows(3)[2]; "
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


def test_half_of_the_people_are_somebody_s_friend():
    rows = world_rows(500, objectives=4)
    people = [(row["question_id"], *pair) for row in rows for pair in zip(row["people"], row["answers"], strict=True)]
    friends = [who for _, who, _ in people if who.endswith(FRIEND)]
    assert len(friends) / len(people) == pytest.approx(0.5, abs=0.034)  # three standard errors
    for question_id, who, city in people:
        last = friend_of(question_id, who.removesuffix(FRIEND)) if who.endswith(FRIEND) else who
        assert city == city_of(question_id, last)
        name = who.removesuffix(FRIEND)
        assert searches(question_id, who) == ([name, last] if who.endswith(FRIEND) else [who])


def test_a_name_says_nothing_about_the_city():
    """Who lives where is drawn anew in every episode: each person is seen in every city."""
    homes = {person: {city_of(f"train-0-4-{n}", person) for n in range(300)} for person in PEOPLE}
    # A given city is missed in 300 draws with probability (23/24)^300 = 3e-6.
    assert {len(cities) for cities in homes.values()} == {len(CITIES)}


def test_a_passage_tells_the_truth_about_the_person_searched_for_and_others():
    """The person's place among the others says nothing; the name is in bold."""
    places = set()
    for row in world_rows(30, objectives=1):
        environment = WorldEnvironment()
        environment.reset(**row)
        for person in searches(row["question_id"], row["people"][0]):
            result = environment.search(person)
            city, friend = city_of(row["question_id"], person), friend_of(row["question_id"], person)
            assert f"{BOLD.format(person)} lives in {city} and is friends with {friend}." in result
            assert result.count(" lives in ") in (1, PEOPLE_IN_A_PASSAGE)  # one of 40 people is left over
            assert result.count("**") == 2
            places.add(result[: result.index("**")].count(" lives in "))
    assert places == {0, 1, 2}


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
    assert not any("**" in passage.text for passage in found)


def test_k_is_clamped_to_the_world():
    (found,) = WorldRetriever("train-0-4-0").search(["Anna"], 1000)
    assert len(found) == -(-len(PEOPLE) // PEOPLE_IN_A_PASSAGE)


def test_a_careful_expert_is_right():
    rows = world_rows(20, objectives=3)
    traces = [CAREFUL.trace(row) for row in rows]
    assert exact_match_reward(traces, [row["answers"] for row in rows]) == [1.0] * 20
    assert all(is_well_formed(trace) for trace in traces)
    hops = sum(len(searches(rows[0]["question_id"], who)) for who in rows[0]["people"])
    assert [message["role"] for message in traces[0]] == ["assistant", "tool"] * hops + ["assistant"]


def test_a_friend_whose_home_is_still_unknown_stands_at_the_end_of_the_memory():
    row = next(row for row in world_rows(50, objectives=2) if row["people"][1].endswith(FRIEND))
    messages = CAREFUL.trace(row)
    first, friend = (
        searches(row["question_id"], row["people"][0])[-1],
        searches(row["question_id"], row["people"][1])[1],
    )
    assert messages[-3]["content"].startswith(f"<mem>1. {first}: {row['answers'][0]}; 2. {friend}</mem>")
    assert f'"query": "{friend}"' in messages[-3]["content"]
    assert last_memory(messages) == f"1. {first}: {row['answers'][0]}; 2. {friend}: {row['answers'][1]}"


def test_an_expert_forgets_and_misreads_at_its_rates():
    rows = world_rows(1000, objectives=4)
    facts = [
        (city, note)
        for row in rows
        for city, note in zip(row["answers"], notes(Expert(0.5, 0.1, 0.06).trace(row)), strict=True)
    ]
    often = [note for city, note in facts if CITIES.index(city) < len(CITIES) // 2]
    rarely = [note for city, note in facts if CITIES.index(city) >= len(CITIES) // 2]
    # About 2000 facts each: three standard errors are 0.034 for a rate of 0.5 and 0.021 for 0.1.
    assert often.count(UNKNOWN) / len(often) == pytest.approx(0.5, abs=0.034)
    assert rarely.count(UNKNOWN) / len(rarely) == pytest.approx(0.1, abs=0.021)
    wrong = [note for city, note in facts if note not in (UNKNOWN, city)]
    # Three people of one passage live in one city by chance in one of 576 cases.
    assert len(wrong) / len(facts) == pytest.approx(0.06, abs=0.012)


def test_an_expert_guesses_what_its_memory_lost():
    forgetful = Expert(forget_often=1.0, forget_rarely=1.0, misread=0.0)
    for row in world_rows(20):
        messages = forgetful.trace(row)
        assert notes(messages) == [UNKNOWN] * 4
        assert all(city in CITIES for city in extract_answer(messages).split("; "))


def test_an_expert_who_sees_the_history_reads_off_what_its_memory_lost():
    """The two contexts differ in the last answer alone."""
    forgetful = Expert(forget_often=1.0, forget_rarely=1.0, misread=0.0, look_back=1.0)
    for row in world_rows(20):
        full, memory = (forgetful.trace(row, context) for context in ("full", "memory"))
        assert extract_answer(full).split("; ") == row["answers"] != extract_answer(memory).split("; ")
        assert full[:-1] == memory[:-1]
        assert last_memory(full) == last_memory(memory)


def test_an_expert_knows_two_contexts():
    with pytest.raises(ValueError, match='context must be "full" or "memory", got \'history\''):
        CAREFUL.trace(world_rows(1)[0], "history")


@pytest.mark.parametrize("objectives", [0, 11])
def test_a_number_of_objectives_out_of_range_is_refused(objectives):
    with pytest.raises(ValueError, match=f"objectives must be 1 to 10, got {objectives}"):
        world_rows(1, objectives=objectives)
