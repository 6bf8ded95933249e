"""The ablations: the grid can be run, its scores are what they say, and the page is what the runs give."""

import json
import random
import re
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean

import pytest
import yaml

import ablation_credit
import ablation_report
import ablation_run
import ablations
from ablation_labels import Label
from ablation_rewards import SHORT, memory_rewards
from ablation_run import Job
from ablation_scores import Cells, Difference, difference, final
from ablation_tables import change, differences_table, scores_table, shown, takeaway
from ablation_world import NoisyRetriever, examples, memory_habits
from docs_pages import ROOT
from mempo_trl import MemPOConfig
from mempo_trl.memory.spans import MemorySpan
from mempo_trl.tasks.world.world import city_of
from mempo_trl.traces.convert import written_episode
from mempo_trl.training.memory_functions import Memory, MemoryRewards
from mempo_trl.types import Episode


def result(cell, seed, values, context="memory", k=4):
    """A run whose tests have `values` in one context at k objectives, and half of them elsewhere."""
    tests = [
        {
            "step": step,
            "objectives": objectives,
            "context": c,
            **dict.fromkeys(("all_correct", "f1", "memory_fidelity"), score),
        }
        for step, value in enumerate(values)
        for objectives in (4, 8)
        for c in ("full", "memory")
        for score in [value if (c, objectives) == (context, k) else value / 2]
    ]
    return {"job": asdict(Job(cell, seed)), "tests": tests, "example": {}}


# The grid


@pytest.mark.parametrize("cell", ablations.GRID, ids=lambda cell: cell.name)
def test_every_cell_can_be_trained(cell, tmp_path):
    world = yaml.safe_load(ablation_run.WORLD.read_text())
    settings = {name: value for name, value in world.items() if name not in ablation_run.OF_THE_SCRIPT}
    args = MemPOConfig(**settings | {"use_cpu": True, "output_dir": str(tmp_path), "max_steps": 1} | cell.options)
    trainer = ablation_run.build_trainer(cell.jobs()[0], args)
    assert (trainer.ref_model is not None) == (args.beta > 0)


def test_every_job_has_a_file_of_its_own_and_comes_seed_by_seed():
    jobs = ablations.jobs(ablations.PARTS)
    assert len({job.path(Path()) for job in jobs}) == len(jobs) == sum(cell.seeds for cell in ablations.GRID)
    assert [job.seed for job in ablations.jobs(["headline"])] == [seed for seed in range(5) for _ in range(4)]


def test_the_credit_grid_is_the_one_that_was_planned():
    jobs = ablations.jobs(["credit"])
    plan = (ROOT / "benchmarks" / "plans" / "credit.md").read_text("utf-8")
    settings = re.findall(r"^\| `k(\d+)-g(\d+)` \| (\d+) \| (\d+) \| (\d+) \|$", plan, re.MULTILINE)
    assert len(settings) == 6
    for k, group, objectives, num_generations, asked in settings:
        arms = [job for job in jobs if job.cell.startswith(f"credit-k{k}-g{group}-") and not job.cell.endswith("start")]
        assert [job.seed for job in arms] == [seed for seed in range(100, 108) for _ in range(2)]
        assert {(job.objectives, job.tests) for job in arms} == {(int(objectives), (int(objectives),))}
        assert {job.options["num_generations"] for job in arms} == {int(num_generations)}
        assert int(num_generations) * int(asked) == 32
        grpo, mempo = arms[:2]
        assert grpo.options == mempo.options | {"memory_weight": 0.0}
    first = [job.cell for job in jobs if job.seed == 100]
    assert [job.cell for job in jobs[: len(first)]] == first
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)


def test_a_job_survives_the_command_line():
    job = Job("cell", 1, {"memory_threshold": None}, 0.1)
    again = Job(**json.loads(json.dumps(asdict(job))))
    assert json.dumps(asdict(again)) == json.dumps(asdict(job))


def test_a_run_that_has_a_result_is_skipped_and_a_failure_is_told(tmp_path, monkeypatch, capsys):
    script = tmp_path / "run.py"
    script.write_text("import sys; sys.exit('no model')")
    monkeypatch.setattr(ablations, "RUN", script)
    done, missing = Job("done", 0), Job("missing", 0)
    done.path(tmp_path).write_text("{}")
    assert ablations.run([done, missing], tmp_path) == 1
    said = capsys.readouterr().out
    assert "missing 0 failed:\nno model" in said
    assert "done 0" not in said


def test_questions_of_several_numbers_have_equal_shares():
    def numbers(job, count):
        return [len(row["people"]) for row in ablation_run.questions(job, count)]

    assert numbers(Job("a", 0), 3) == [4, 4, 4]
    assert numbers(Job("a", 0, objectives=(2, 3)), 5) == [2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(("paid", "unpaid"), [("all", []), ("right", [2]), ("short", [1])])
def test_some_memories_are_paid(paid, unpaid):
    """The second trajectory is wrong; the second memory of the first is a token too long."""
    memories = [
        Memory(0, 1, "", MemorySpan(1, 10, 10 + SHORT)),
        Memory(0, 2, "", MemorySpan(2, 50, 51 + SHORT)),
        Memory(1, 1, "", MemorySpan(1, 10, 12)),
    ]
    rewards = MemoryRewards(*memory_rewards(paid))
    values = rewards(memories, [0.1, 0.2, 0.3], [Episode(), Episode()], {"outcomes": [1.0, 0.0]})
    totals = [rewards.total(values, index) for index in range(3)]
    assert totals == [None if index in unpaid else value for index, value in enumerate([0.1, 0.2, 0.3])]


# A noisy tool


@pytest.mark.parametrize(("rate", "right"), [(0.0, 400), (0.3, 280), (1.0, 0)])
def test_half_of_the_misleading_searches_lie_and_half_find_other_people(rate, right):
    retriever = NoisyRetriever("q", rate, random.Random(0))
    person, city = "Anna", city_of("q", "Anna")
    found = [retriever.search([person], 2)[0] for _ in range(400)]
    texts = [" ".join(passage.text for passage in passages) for passages in found]
    true = sum(f"**{person}** lives in {city} " in text for text in texts)
    absent = sum("**" not in text for text in texts)
    assert abs(true - right) < 30
    assert abs(absent - (400 - right) / 2) < 30
    assert all(len(passages) == 2 for passages in found)


# Habits of memories


def test_memory_habits():
    """Of five, one names a person not found, one holds a city that no search showed, two have a person twice, whom two
    searches found by the time of the second, and one has a note too many."""
    row = {"people": ["Anna", "Omar's friend"]}
    turns = [
        "",
        "<mem>1. Anna: Rome; 2. Anna: Rome</mem>",
        "<mem>1. Omar: Oslo; 2. Anna: Rome</mem>",
        "<mem>1. Anna: Lima; 2. Anna: Rome</mem>",
        "<mem>1. Anna: Rome</mem>",
        "<mem>1. Anna: Rome; 2; 3; 4; 5; 6</mem>",
    ]
    messages = []
    for turn in turns:
        messages.append({"role": "assistant", "content": turn})
        messages.append({"role": "tool", "name": "search", "content": "**Anna** lives in Rome. Omar lives in Oslo."})
    habits = memory_habits(row, written_episode({"prompt": []}, messages, {}))
    assert habits == {"copies": 0.2, "guesses": 0.2, "repeats": 0.2, "grows": 0.4}
    assert memory_habits(row, written_episode({"prompt": []}, messages[:2], {})) is None


def test_an_example_holds_the_counted_tokens_and_the_searches_before():
    logps = {"answer_logps_mem": [-0.1, -1.0], "answer_logps_baseline": [-0.2, -2.0]}
    turn = {"memory_text": "<mem>1. Rome</mem>", **logps}
    first = {"memory_text": None, **dict.fromkeys(logps), "tool_results": ["Anna, Rome"]}
    trace = {
        "step": 1,
        "question": "q",
        "answers": ["Rome"],
        "answer_tokens": ["Rome", "</answer>"],
        "answer_mask": [True, False],
        "turns": [first, turn],
    }
    (example,) = examples(trace)
    assert example["tokens"] == [("Rome", -0.1, -0.2)]
    assert example["tool_results"] == ["Anna, Rome"]


# Scores


def test_a_score_is_the_mean_of_the_last_three_tests():
    run = result("a", 0, [0.0, 0.9, 0.3, 0.6, 0.6])
    assert final(run, "memory", 4) == pytest.approx(0.5)  # (0.3 + 0.6 + 0.6) / 3
    assert final(run, "full", 8) == pytest.approx(0.25)


def test_a_difference_is_taken_by_seed_on_shared_seeds():
    """Seeds differ far more than cells do: only pairs show that b is better."""
    cells = Cells(
        [result("a", seed, [0.2 * seed]) for seed in range(4)]
        + [result("b", seed, [0.2 * seed + 0.1]) for seed in (3, 1, 2)]
    )
    found = difference(cells, "b", "a", "memory", 4)
    assert (found.seeds, found.verdict) == (3, "higher")
    assert found.change == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1})
    assert difference(cells, "a", "b", "memory", 4).verdict == "lower"
    assert takeaway("EM", [("at 4", change(cells, "b", "a", "memory", 4))]) == "**EM is higher at 4.**"
    row = differences_table(cells, [("b - a", "b", "a")]).splitlines()[-1]
    # EM at 4 in both contexts, F1 at 8 in both, fidelity at 4. Half of 0.1 elsewhere; the differences have no spread.
    assert row == "| b - a | **+0.05** | **+0.10** | **+0.05** | **+0.05** | **+0.10** | 3 |"


def test_a_takeaway_is_a_sentence_on_each_verdict():
    def found(mean, reach, seeds=3):
        return Difference({"mean": mean, "low": mean - reach, "high": mean + reach}, seeds)

    results = [
        ("in a", found(0.2, 0.1)),
        ("in b", found(-0.2, 0.1)),
        ("in c", found(0.1, 0.2)),
        ("in d", found(0.3, 0.1)),
    ]
    assert takeaway("F1", results) == "**F1 is higher in a and in d, lower in b, and not clearly different in c.**"
    assert takeaway("F1", [("in a", found(0.1, 0, 2))]) == "**F1 is without a verdict from 2 seeds in a.**"


def test_the_interval_of_a_difference_is_students():
    """0.1, 0.2 and 0.3: a standard error of 0.1 / sqrt(3) = 0.0577, and the quantile for 2 degrees is 4.3027."""
    cells = Cells([result("a", s, [0.5]) for s in range(3)] + [result("b", s, [0.6 + 0.1 * s]) for s in range(3)])
    found = difference(cells, "b", "a", "memory", 4)
    assert found.change == pytest.approx({"mean": 0.2, "low": 0.2 - 0.2484, "high": 0.2 + 0.2484}, abs=1e-4)
    assert found.verdict == "no clear difference"


def test_there_is_no_verdict_on_two_seeds():
    cells = Cells([result("a", s, [0.5]) for s in range(3)] + [result("b", s, [0.8]) for s in range(2)])
    assert difference(cells, "b", "a", "memory", 4).verdict == "no verdict from 2 seeds"
    assert difference(cells, "a", "a", "memory", 4).verdict == "no clear difference"


def test_cells_without_a_shared_seed_are_refused():
    cells = Cells([result("a", 0, [0.5]), result("b", 1, [0.5])])
    with pytest.raises(ValueError, match="a and b have no seed in common"):
        difference(cells, "a", "b", "full", 4)


def test_numbers_as_they_are_shown():
    assert shown({"mean": 0.806, "low": 0.7, "high": 0.9}) == "0.81 [0.70, 0.90]"
    assert shown({"mean": -0.001, "low": -0.2, "high": 0.1}, "+") == "+0.00 [-0.20, +0.10]"
    assert shown({"mean": -0.04, "low": -0.08, "high": 0.003}, "+") == "-0.04 [-0.08, +0.003]"
    assert shown({"mean": -0.1, "low": -0.19, "high": -0.004}, "+") == "-0.10 [-0.19, -0.004]"


def test_a_table_has_a_row_for_each_cell():
    cells = Cells([result("a", 0, [0.5]), result("a", 1, [0.7])])
    row = scores_table(cells, {"a": Label("the cell", "")}).splitlines()[-1]
    half, whole = "0.30 [0.25, 0.35]", "0.60 [0.50, 0.70]"
    # EM at 4, EM and F1 at 8, in both contexts each; fidelity in memory context at 4.
    assert row.split(" | ")[1:] == [half, whole, half, half, half, half, whole, "2 |"]


def test_a_step_without_a_value_keeps_its_place():
    history = [{"step_time": 1, "reward": 0.5}, {"step_time": 1}, {"step_time": 1, "reward": 0.25}, {"train_loss": 1}]
    assert ablation_run.curves_of(history, {"r": "reward"}) == {"r": [0.5, None, 0.25]}


def test_names_of_old_results_are_those_of_today(tmp_path):
    old = {"job": {"cell": "a", "seed": 0}, "curves": {"p_full": [0.5]}, "tests": [{"em": 0.25, "exact_match": 0.75}]}
    (tmp_path / "a-0.json").write_text(json.dumps(old))
    ((run,),) = Cells.read(tmp_path).values()
    assert run["tests"] == [{"all_correct": 0.25, "exact_match": 0.75}]
    assert run["curves"] == {"p_baseline": [0.5]}


def test_no_runs_no_page(tmp_path):
    with pytest.raises(ValueError, match=r"there are no runs in .* Run python benchmarks/ablations\.py"):
        Cells.read(tmp_path)


# The page


def test_the_page_is_what_the_runs_give():
    page = ablation_report.text(ablations.RESULTS, Path("assets/results"))
    assert ablations.PAGE.read_text("utf-8") == page, "run python benchmarks/ablations.py --report"


def whole_grid(folder):
    """A result for each job, and the records of a real model."""
    for job in ablations.jobs(ablations.PARTS):
        scores = ("all_correct", "f1", "memory_fidelity", "copies", "guesses", "grows")
        tests = [
            {
                "step": step,
                "objectives": k,
                "context": c,
                **dict.fromkeys(scores, 0.1 * job.seed + 0.01 * len(job.cell)),
            }
            for step in job.at
            for k in job.tests
            for c in job.contexts
        ]
        curves = {
            "reward": [0.0, 0.1],
            "tied": [0.5, 1.0],
            "memory_length": [9.0, None, 10.0],
            "pools_under_floor": [0.0, 0.0, 0.0],
        }
        config = {"max_steps": 50, "context": job.options.get("context", "memory")}
        run = {"job": asdict(job), "config": config, "commit": "0123456789-dirty", "curves": curves, "tests": tests}
        job.path(folder).write_text(json.dumps(run | {"example": {}}))
    means = {"all_correct": 0.0, "f1": 0.1, "memory_fidelity": 0.2, "total_tokens": 812.4, "peak_tokens": 300.0}
    record = {
        "seconds": 61,
        "cold_start": {"steps": 3, "questions": 4},
        "options": ["--eval_questions", "5"],
        "curves": {"reward": [0.0, None], "p_mem": [0.1, 0.2]},
        "evaluation": {"before": {"full": means}, "after": {"full": means}},
    }
    (folder / "real").mkdir()
    for arm in ("mempo", "grpo"):
        (folder / "real" / f"{arm}.json").write_text(json.dumps(record))


def test_a_whole_grid_answers_every_question(tmp_path):
    whole_grid(tmp_path)
    ablation_report.write(tmp_path, tmp_path / "results.md", tmp_path / "assets")
    page = (tmp_path / "results.md").read_text()
    figures = re.findall(r"!\[.*?\]\(assets/(.*?)\)", page)
    assert sorted(figures) == sorted(path.name for path in (tmp_path / "assets").iterdir())
    assert len(figures) == 11
    titles = set(re.findall(r"^## (.*)", page, re.MULTILINE))
    named = {t for o in fields(MemPOConfig) for t in re.findall(r"'([^']*\?)' ", o.metadata.get("help", ""))}
    assert named
    assert named <= titles
    assert "| MemPO | before | `full` | 0.00 | 0.10 | 0.20 | 812 | 300 |" in page
    assert "`0123456-dirty`" in page
    assert "| trained in `full` | **+0.01** | **+0.01** |" in page
    first = "higher if trained in `full` (4 and 8 objectives) and if trained in `memory` (4 and 8 objectives)"
    assert f"**Compared with GRPO, MemPO's score in `memory` context is {first}.**" in page
    assert "**Compared with the reference, exact match is " in page


def credit_run(arm, seed, f1, rewards=(0.0, 0.0, 0.5)):
    tests = [{"step": s, "objectives": 8, "context": "memory", "f1": f1, "all_correct": 0.0, "memory_fidelity": f1}
             for s in (90, 95, 100)]  # fmt: skip
    job = {"cell": f"credit-k8-g8-{arm}", "seed": seed}
    return {"job": job, "tests": tests, "curves": {"reward": list(rewards), "tied": [1.0, 0.5]}, "commit": "a"}


def test_a_setting_of_the_credit_plan():
    """Differences 0.1, 0.2 and 0.3: mean 0.2, std 0.1, t = 0.2 / (0.1 / sqrt 3) = 3.464 with 2 degrees of freedom."""
    runs = [credit_run("grpo", seed, 0.4) for seed in (100, 101, 102, 103)]
    runs += [credit_run("mempo", 100 + i, 0.4 + gain, (0.0, 0.0)) for i, gain in enumerate((0.1, 0.2, 0.3))]
    cells = Cells([*runs, credit_run("start", 100, 0.4)])
    (setting,) = ablation_credit.settings(cells)
    assert (setting.seeds, setting.tied, setting.objectives) == ([100, 101, 102], 0.75, 8)
    assert setting.f1.change["mean"] == pytest.approx(0.2)
    assert setting.p == pytest.approx(0.0742, abs=1e-4)
    page = ablation_credit.credit_section(cells, Path("assets"))
    assert "3 of 48 pairs of runs have been played" in page
    assert "| `k8-g8` | 0.75 | 0.40 |" in page
    assert "| 3 | over 100 (3 without) | 3 |" in page  # GRPO's median first reward, MemPO's, seeds


def test_holm_and_the_verdicts_of_the_plan():
    assert ablation_credit.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    setting = ablation_credit.settings(Cells([credit_run("grpo", 1, 0.4), credit_run("mempo", 1, 0.5)]))[0]

    def judged(mean, high, p):
        f1 = setting.f1._replace(change={"mean": mean, "low": -1.0, "high": high})
        return ablation_credit.verdict(setting._replace(f1=f1), p)

    assert judged(0.1, 0.2, 0.04) == "yes"
    assert judged(-0.1, 0.0, 0.04) == "harm"
    assert judged(0.0, 0.02, 0.9) == "no gain worth having"
    assert judged(0.0, 0.05, 0.9) == "undecided"


def test_the_readme_quotes_the_results():
    cells = Cells.read(ablations.RESULTS)
    arms = ("grpo-full", "mempo-full", "grpo-memory", "mempo-memory")

    def mean(cell, k=4, metric="all_correct"):
        return fmean(cells.scores(cell, "memory", k, metric).values())

    f1 = [mean(cell, 8, "f1") for cell in arms]
    assert max(f1) == max(mean("grpo-full", 8, "f1"), mean("grpo-memory", 8, "f1"))
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for quoted in (
        f"as the published code does | {mean('grpo-full'):.2f} | {mean('mempo-full'):.2f} |",
        f"trained in memory context | {mean('grpo-memory'):.2f} | {mean('mempo-memory'):.2f} |",
        f"F1 in memory context is between {min(f1):.2f} and {max(f1):.2f}, and GRPO has the highest",
        f"`either`, the default | {mean('mempo-full'):.2f} |",
        f"none, the paper's formula | {mean('threshold-none'):.2f} |",
        f"`independent`, the published code | {mean('threshold-independent'):.2f} |",
    ):
        assert quoted in readme, quoted


@pytest.mark.slow
def test_a_corner_of_the_grid_end_to_end(tmp_path):
    assert ablations.smoke(tmp_path) == 0
    page = (tmp_path / "results.md").read_text()
    assert "### Does MemPO beat GRPO?" in page
    assert {path.name for path in (tmp_path / "assets").iterdir()} == {"headline.svg", "curves.svg", "habits.svg"}
    assert len(list((tmp_path / "results").glob("*.json"))) == 4
