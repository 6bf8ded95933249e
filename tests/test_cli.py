import io
import json
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from fake_server import serve
from mempo_trl import MemPOConfig
from mempo_trl.cli import build_parser, main
from mempo_trl.evaluation.grid import read_summary
from mempo_trl.evaluation.scores import ANSWER_METRICS
from mempo_trl.tasks.search import BM25Retriever
from mempo_trl.traces.file import read_traces

COMMANDS = ["run", "eval", "compare", "view", "plot", "index", "serve-retriever", "traces", "sft", "train"]
CAPITALS = {"France": "Paris", "Peru": "Lima", "Chile": "Santiago", "Japan": "Tokyo"}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": c, "title": c, "text": f"The capital of {c} is {city}."} for c, city in CAPITALS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"capital of {c}", "answers": [city], "id": c} for c, city in CAPITALS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def model_folder(tmp_path, model, tokenizer):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def scholar(path, body):
    """An endpoint that searches for each country it was asked about, one a turn, and knows no Japanese."""
    if path == "/v1/models":
        return {"data": [{"id": "scholar"}]}
    question, shown = body["messages"][1]["content"], body["messages"][-1]
    countries = [part.split()[-1] for part in question.split("; ")]
    turns = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
    memory = turns[-1].split("<mem>")[1].split("</mem>")[0] if turns and "<mem>" in turns[-1] else ""
    known = [part for part in memory.split("; ") if part]
    if shown["role"] == "tool":
        capital = shown["content"].split("capital of ")[1].split(" is ")[1].split(".")[0]
        known.append("Kyoto" if capital == "Tokyo" else capital)
    text = f"<mem>{'; '.join(known)}</mem>" if known else ""
    if len(known) < len(countries):
        call = json.dumps({"name": "search", "arguments": {"query": countries[len(known)]}})
        text += f"<think>next</think><tool_call>{call}</tool_call>"
    else:
        text += f"<think>done</think><answer>{'; '.join(known)}</answer>"
    usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 5}
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}


# The parser


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom mempo_trl.cli import main\n"
        f"for command in {[[], *([c] for c in COMMANDS)]}:\n"
        "    try: main([*command, '--help'])\n"
        "    except SystemExit: pass\n"
        "print('HEAVY', [m for m in ('torch', 'transformers', 'trl', 'datasets', 'numpy', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("HEAVY []\n")


def test_the_commands_are_those_that_are_documented():
    (subparsers,) = build_parser()._subparsers._group_actions
    assert sorted(subparsers.choices) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "who?", "--model", "m"], "Name one with --corpus"),
        (["run", "who?", "--model", "m", "--corpus", "x.txt"], "No such file"),
        (["eval", "--model", "m", "--dataset", "odd", "-o", "{tmp}"], "dataset 'odd' is unknown"),
        (["run", "world", "--model", "http://m", "--max_tool_length", "9"], "cannot be held to --max_tool_length"),
        (["view", "{tmp}/none.jsonl"], "No such file"),
        (["plot", "{tmp}/a.png"], "No such file"),
        (["compare", "one"], "Name two or more"),
        (["serve-retriever", "http://localhost:1"], "is a server already"),
        (["serve-retriever", "{tmp}"], "holds no BM25 index"),
    ],
)
def test_what_the_user_can_put_right_is_a_message(argv, message, capsys, tmp_path):
    argv = [part.replace("{tmp}", str(tmp_path)) for part in argv]
    assert main(argv) == 1
    assert message in capsys.readouterr().err


def test_traceback_on_demand(tmp_path):
    with pytest.raises(FileNotFoundError):
        main(["--traceback", "view", str(tmp_path / "none.jsonl")])


@pytest.mark.parametrize("argv", [["view", "x", "--odd"], ["eval", "--model", "m", "--context", "odd"], []])
def test_unknown_options_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2


def test_hyphens_are_accepted_everywhere():
    parser = build_parser()
    argv = ["eval", "--model", "a-b", "--max-turns=3", "--tool-choice", "none", "--top-p", "0.5", "-o", "x-y"]
    args = parser.parse_args(argv)
    assert (args.max_turns, args.tool_choice, args.top_p, args.model, args.output) == (3, "none", 0.5, "a-b", "x-y")
    assert parser.parse_args(["serve-retriever", "i", "--max-top-k", "5"]).max_top_k == 5
    assert parser.parse_args(["eval", "--model-name-or-path", "m"]).model == "m"


def options_of(command):
    """Names of a command's options: what argparse knows, and for those that TRL parses what it knows."""
    (subparsers,) = build_parser()._subparsers._group_actions
    return {name for action in subparsers.choices[command]._actions for name in action.option_strings}


def test_commands_spell_what_they_share_alike():
    shared = {
        "--dataset",
        "--corpus",
        "--passages",
        "--environment_factory",
        "--reward_funcs",
        "--objectives",
        "--count",
    }
    assert shared <= options_of("train") & options_of("eval")
    assert shared - {"--dataset"} <= options_of("traces")
    config = {f"--{option.name}" for option in fields(MemPOConfig)}
    limits = {"--temperature", "--top_p", "--context", "--context_turns", "--max_turns", "--max_turn_length"}
    limits |= {"--max_tool_length", "--max_completion_length"}
    for command in ("eval", "run", "traces"):
        assert limits <= options_of(command) & config
    for command in COMMANDS:
        assert not [name for name in options_of(command) if "-" in name.removeprefix("--").removeprefix("-")]


# run


def test_run_shows_turns_and_answer(corpus, tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    with serve(scholar) as server:
        argv = ["run", "capital of France; capital of Peru", "--model", server.url, "--corpus", corpus]
        assert main([*argv, "--trace", str(trace)]) == 0
    shown = capsys.readouterr().out
    assert "turn 3" in shown
    assert "The capital of Peru is Lima." in shown
    assert "answer: Paris; Lima" in shown
    (episode,) = read_traces(trace)
    assert [turn["memory_text"] for turn in episode["turns"]] == [None, "Paris", "Paris; Lima"]


def test_run_a_local_model_on_the_embedded_world(model_folder, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    argv = ["run", "world", "--model", model_folder, "--max_turn_length", "8", "--seed", "1", "--trace", str(trace)]
    assert main(argv) == 1  # a random model has no answer
    shown = capsys.readouterr().out
    assert "Where does each person live?" in shown
    assert "gold:" in shown
    (episode,) = read_traces(trace)
    assert len(episode["turns"][0]["tokens"]) == 8
    assert episode["stop_reason"] == "truncated"
    assert main([*argv, "--max_completion_length", "5"]) == 1
    assert len(list(read_traces(trace))[1]["turns"][0]["tokens"]) == 5


def test_run_says_what_the_endpoint_said(corpus, capsys):
    with serve(lambda path, body: (401, {"error": "bad key"}, {})) as server:
        assert main(["run", "q", "--model", server.url, "--served_model", "m", "--corpus", corpus]) == 1
    assert "bad key" in capsys.readouterr().out


# eval, compare, plot, view


@pytest.fixture
def evaluated(tmp_path, corpus, questions):
    """A folder with an evaluation of two contexts and two numbers of objectives."""
    folder = tmp_path / "eval"
    with serve(scholar) as server:
        argv = ["eval", "--model", server.url, "--served_model", "scholar", "--dataset", questions]
        argv += ["--corpus", corpus, "--objectives", "1,2", "--context", "full,memory", "--samples", "2"]
        argv += ["--concurrency", "4", "-o", str(folder)]
        assert main(argv) == 0
        first = len(server.requests)
        assert main(argv) == 0
        assert len(server.requests) == first  # nothing was left to do
    return folder


def test_eval_scores_every_combination(evaluated, capsys):
    scores = read_summary(evaluated)
    assert [(s["context"], s["objectives"], s["questions"], s["episodes"]) for s in scores] == [
        ("full", 1, 4, 8), ("full", 2, 2, 4), ("memory", 1, 4, 8), ("memory", 2, 2, 4),
    ]  # fmt: skip
    full, memory = scores[1], scores[3]
    # Three of the four capitals are right.
    assert [s["exact_match"]["mean"] for s in scores] == [0.75] * 4
    assert [s["all_correct"]["mean"] for s in scores] == [0.75, 0.5, 0.75, 0.5]
    assert [s["exact_match_sum"]["mean"] for s in scores] == [0.75, 1.5, 0.75, 1.5]
    # A memory holds what the search found: the last answer is never in it, and one of three of the others is wrong.
    assert [s["memory_fidelity"]["mean"] for s in scores] == [0.75] * 4
    assert full["well_formed"]["mean"] == 1.0
    assert full["stop_reasons"] == {"done": 4}
    # Three turns, with 2, 4 and 6 messages to read in full context; 2, 4 and 4 in memory context.
    assert full["total_tokens"]["mean"] == 10 * (2 + 4 + 6) + 15
    assert memory["total_tokens"]["mean"] == 10 * (2 + 4 + 4) + 15
    assert (full["peak_tokens"]["mean"], memory["peak_tokens"]["mean"]) == (65, 45)
    assert (full["turns"]["mean"], full["tool_calls"]["mean"]) == (3, 2)
    settings = json.loads((evaluated / "settings.json").read_text())
    assert (settings["served_model"], settings["temperature"]) == ("scholar", 1.0)
    assert "scholar" not in capsys.readouterr().err


def test_the_table_fits_a_terminal(evaluated):
    from rich.console import Console

    from mempo_trl.cli.evaluate import details, score_table

    scores = read_summary(evaluated)
    shown = io.StringIO()
    Console(width=80, file=shown).print(score_table(scores))
    shown = shown.getvalue()
    assert "…" not in shown  # nothing was cut
    assert shown.count("0.250-1.000") == 6
    said = "all correct 0.500, well formed 1.000, reward 0.500, turns 3.000"
    assert details(scores[3]) == f"memory, k = 2: {said}; done 4"


def test_an_evaluation_with_other_settings_needs_another_folder(evaluated, capsys):
    assert main(["eval", "--model", "other", "-o", str(evaluated)]) == 1
    assert "not 'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--request", '{"top_k": 5}'), ("--tool_choice", "none"), ("--tokenizer", "other")]
)
def test_an_evaluation_that_is_asked_for_otherwise_needs_another_folder(evaluated, capsys, option, value):
    assert main(["eval", "--model", "other", "-o", str(evaluated), option, value]) == 1
    assert f"{option.removeprefix('--')}=" in capsys.readouterr().err


def test_an_evaluation_that_was_stopped_goes_on(evaluated, corpus, questions):
    lines = (evaluated / "episodes.jsonl").read_text().splitlines(keepends=True)
    (evaluated / "episodes.jsonl").write_text("".join(lines[:-3]) + lines[-3][:50])
    settings = json.loads((evaluated / "settings.json").read_text())
    with serve(scholar) as server:
        (evaluated / "settings.json").write_text(json.dumps({**settings, "model": server.url}))
        argv = ["eval", "--model", server.url, "--served_model", "scholar", "--dataset", questions]
        argv += ["--corpus", corpus, "--objectives", "1,2", "--context", "full,memory", "--samples", "2"]
        with pytest.warns(UserWarning, match="cut short"):
            assert main([*argv, "-o", str(evaluated)]) == 0
        assert len(server.requests) == 3 * 3  # three episodes of three turns
    assert len(list(read_traces(evaluated / "episodes.jsonl"))) == len(lines)


def test_errors_are_told_and_played_again(tmp_path, corpus, questions, capsys):
    folder = tmp_path / "eval"
    broken = [True]

    def reply(path, body):
        if path != "/v1/models" and "Peru" in body["messages"][1]["content"] and broken[0]:
            return (400, {"error": "no Peru"}, {})
        return scholar(path, body)

    with serve(reply) as server:
        argv = ["eval", "--model", server.url, "--dataset", questions, "--corpus", corpus, "-o", str(folder)]
        assert main(argv) == 0
        assert "1 episodes ended with an error" in capsys.readouterr().out
        assert read_summary(folder)[0]["episodes"] == 3
        broken[0] = False
        assert main(argv) == 0
    assert read_summary(folder)[0]["episodes"] == 4


def test_eval_of_a_local_model_gives_answer_probabilities(tmp_path, model, tokenizer, monkeypatch):
    """A model whose turns are scripted; only its probabilities are its own."""
    import torch
    from transformers import AutoModelForCausalLM

    from agent_script import CALL, ScriptedGenerate

    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    texts = [CALL.format("Anna"), "<mem>1. Rome</mem>" + CALL.format("Omar"), "<mem>x</mem><answer>Rome</answer>"]
    model.generate = ScriptedGenerate(tokenizer, texts)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *args, **kwargs: model)
    folder = tmp_path / "eval"
    argv = ["eval", "--model", str(tmp_path / "m"), "--objectives", "2", "--count", "1", "-o", str(folder)]
    assert main(argv) == 0
    (score,) = read_summary(folder)
    first, *later = score["answer_probability"]
    assert first is None
    assert all(0 < p < 1 for p in later)
    (trace,) = read_traces(folder / "episodes.jsonl")
    assert trace["turns"][2]["p_baseline"] != trace["turns"][2]["p_mem"]
    assert score["memory_tokens"] is not None
    assert torch.is_grad_enabled()


def test_compare_pairs_the_questions(evaluated, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    summary = json.loads((evaluated / "summary.json").read_text())
    for score in summary["scores"]:
        for values in score["by_question"].values():
            values["f1"] = 1.0
    (other / "summary.json").write_text(json.dumps(summary))
    assert main(["compare", str(evaluated), str(other)]) == 0
    shown = capsys.readouterr().out
    f1 = [line for line in shown.splitlines() if " f1 " in line and "sum" not in line]
    assert len(f1) == 4
    assert "0.750" in f1[0]
    assert "1.000" in f1[0]
    assert "+0.250 (+0.000 to +0.750)" in f1[0]
    assert "+0.000 (+0.000 to +0.000)" in shown


def test_plot_and_view(evaluated, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"step": s, "reward": s / 3} for s in range(3)]}))
    files = [str(state), str(evaluated / "episodes.jsonl"), str(evaluated / "summary.json")]
    assert main(["plot", *files, "-o", str(tmp_path / "plots"), "--format", "svg"]) == 0
    written = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert written == ["context_tokens.svg", "objectives.svg", "training.svg"]
    page = tmp_path / "page.html"
    assert main(["view", str(evaluated / "episodes.jsonl"), "-o", str(page), "--title", "capitals"]) == 0
    assert "capitals" in page.read_text()
    assert str(page) in capsys.readouterr().out


def test_an_evaluation_with_old_names_of_settings_goes_on(evaluated, capsys):
    file = evaluated / "settings.json"
    settings = json.loads(file.read_text())
    old = {"questions": settings.pop("dataset"), "top_k": settings.pop("passages")}
    del settings["environment_factory"], settings["reward_funcs"]
    file.write_text(json.dumps(settings | old))
    assert main(["eval", "--model", "other", "-o", str(evaluated)]) == 1
    said = capsys.readouterr().err
    assert "model=" in said
    assert "passages=" not in said
    assert f"dataset={old['questions']!r}, not 'world'" in said


OWN_TASK = """
def questions():
    text = "Count to {}."
    rows = [{"prompt": [{"role": "user", "content": text.format(n)}], "answers": [str(n)], "goal": n} for n in (1, 2)]
    return rows + [{"prompt": [{"role": "user", "content": "Count on."}], "answers": ["9"], "hint": "none"}]

class Environment:
    def reset(self, goal=None, **row):
        self.goal, self.value = goal, 0

    def add(self, by: int) -> str:
        \"\"\"
        Adds.

        Args:
            by: how much.

        Returns:
            The value.
        \"\"\"
        self.value += by
        return str(self.value)

class Paying(Environment):
    def get_reward(self):
        return 5.0 * (self.value == self.goal)

def reward(completions, environments, goal, **kwargs):
    return [2.0 * (environment.value == goal) for environment, goal in zip(environments, goal)]

def unanswered():
    return [{name: value for name, value in row.items() if name != "answers"} for row in questions()[:2]]

def mixed():
    return [*questions()[:2], *unanswered()]
"""


def counter(path, body):
    """Adds one; then answers 1."""
    if path == "/v1/models":
        return {"data": [{"id": "counter"}]}
    text = '<tool_call>{"name": "add", "arguments": {"by": 1}}</tool_call>'
    if body["messages"][-1]["role"] == "tool":
        text = "<mem>1</mem><answer>1</answer>"
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}


def test_a_task_of_one_s_own_is_evaluated_asked_and_taught_by_import_paths(tmp_path, monkeypatch, capsys):
    (tmp_path / "counting.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = ["--environment-factory", "counting:Environment"]
    with serve(counter) as server:
        model = ["--model", server.url]
        rewards = ["--reward_funcs", "counting:reward"]
        assert main(["eval", "--dataset", "counting:questions", *model, *task, *rewards, "-o", "eval"]) == 0
        assert main(["run", "counting:questions", *model, *task, "--seed", "1"]) == 0
        assert main(["traces", "counting:questions", "traces.jsonl", *model, *task, *rewards]) == 0
        assert main(["run", "count", *model, *task]) == 1
    said = capsys.readouterr()
    assert "does not have the prompt of your task" in said.err
    assert "1 kept, 2 rejected" in said.out
    (score,) = read_summary("eval")
    # One of three is right, and earns 2; the environment knows it by the row's column.
    means = [score[name]["mean"] for name in ("exact_match", "memory_fidelity", "reward", "tool_calls")]
    assert means == pytest.approx([1 / 3, 1 / 3, 2 / 3, 1])
    # An environment that computes the reward needs no function.
    with serve(counter) as server:
        task = ["--environment-factory", "counting:Paying"]
        assert main(["eval", "--dataset", "counting:questions", "--model", server.url, *task, "-o", "paid"]) == 0
    (score,) = read_summary("paid")
    assert score["reward"]["mean"] == pytest.approx(5 / 3)
    sys.modules.pop("counting")


def test_questions_without_gold_answers_have_the_other_scores(tmp_path, monkeypatch, capsys):
    (tmp_path / "counting.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = ["--environment_factory", "counting:Environment", "--reward_funcs", "counting:reward"]
    with serve(counter) as server:
        assert main(["eval", "--dataset", "counting:unanswered", "--model", server.url, *task, "-o", "none"]) == 0
        assert "reward" in capsys.readouterr().out
        assert main(["eval", "--dataset", "counting:mixed", "--model", server.url, *task, "-o", "mixed"]) == 0
    (score,) = read_summary("none")
    assert (score["objectives"], score["reward"]["mean"]) == (0, 1.0)
    assert not score.keys() & set(ANSWER_METRICS)
    assert [(s["objectives"], s["questions"]) for s in read_summary("mixed")] == [(0, 2), (1, 2)]
    assert main(["compare", "none", "none"]) == 0
    if find_spec("matplotlib"):
        assert main(["plot", "none/summary.json"]) == 1
        assert "no F1 to plot" in capsys.readouterr().err
        assert main(["plot", "mixed/summary.json"]) == 0
    sys.modules.pop("counting")


# index


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv"])
def test_index(corpus, tmp_path, suffix, capsys):
    if suffix == ".tsv":
        corpus = tmp_path / "psgs.tsv"
        lines = [f"{i}\tThe capital of {c} is {city}.\t{c}" for i, (c, city) in enumerate(CAPITALS.items())]
        corpus.write_text("\n".join(["id\ttext\ttitle", *lines]) + "\n")
    assert main(["index", str(corpus), str(tmp_path / "index")]) == 0
    assert "4 passages" in capsys.readouterr().out
    ((passage, *_),) = BM25Retriever.load(tmp_path / "index").search(["Lima"], 1)
    assert passage.title == "Peru"


# traces, sft, train


def test_traces_then_sft_then_train(tmp_path, model_folder, capsys):
    traces = tmp_path / "traces.jsonl"
    assert main(["traces", "world", str(traces), "--count", "3", "--objectives", "2"]) == 0
    assert "3 kept" in capsys.readouterr().out
    assert main(["traces", "world", str(traces), "--count", "4", "--objectives", "2"]) == 0
    assert "3 done, 1 kept" in capsys.readouterr().out
    config = tmp_path / "sft.yaml"
    config.write_text("per_device_train_batch_size: 2\nmax_steps: 1\nreport_to: none\nuse_cpu: true\n")
    start, policy = str(tmp_path / "start"), str(tmp_path / "policy")
    common = ["--config", str(config), "--model_name_or_path"]
    assert main(["sft", "--traces", str(traces), *common, model_folder, "--output_dir", start]) == 0
    options = ["--num_generations", "2", "--max_turn_length", "8", "--max_completion_length", "64", "--count", "2"]
    options += ["--trace_every", "1", "--logging_steps", "1"]
    assert main(["train", "--dataset", "world", *common, start, "--output_dir", policy, *options]) == 0
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before, after = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (model_folder, start))
    assert any(not before[name].equal(after[name]) for name in before)
    assert AutoTokenizer.from_pretrained(policy).chat_template
    assert len(list(read_traces(f"{policy}/traces.jsonl"))) == 2
    log = json.loads(Path(policy, "trainer_state.json").read_text())["log_history"]
    assert log[0]["rollout/turns"] == 1


def test_traces_from_a_teacher(tmp_path, corpus, questions, capsys):
    path = tmp_path / "traces.jsonl"
    with serve(scholar) as server:
        argv = ["traces", questions, str(path), "--corpus", corpus, "--objectives", "2", "--model", server.url]
        assert main(argv) == 0
    assert "1 kept" in capsys.readouterr().out
    assert (tmp_path / "traces.rejected.jsonl").exists()


def test_sft_without_a_row_says_why(tmp_path, model_folder, capsys):
    traces = tmp_path / "traces.jsonl"
    main(["traces", "world", str(traces), "--count", "1"])
    argv = ["sft", "--traces", str(traces), "--model_name_or_path", model_folder, "--output_dir", str(tmp_path)]
    assert main([*argv, "--max_length", "10", "--report_to", "none", "--use_cpu"]) == 1
    assert "raise max_length" in capsys.readouterr().err


def test_sft_takes_right_and_well_formed_episodes_of_an_evaluation(evaluated, tokenizer):
    """Of 24 episodes 18 are right; one of these is made ill-formed, as evaluations before this one recorded it."""
    from mempo_trl.sft.arguments import SFTArguments
    from mempo_trl.sft.fine_tune import trace_dataset

    path = evaluated / "episodes.jsonl"
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    right = [trace for trace in traces if trace["rewards"]["all_correct"]]
    assert [trace["reward"] for trace in traces] == [trace["rewards"]["all_correct"] for trace in traces]
    rows = len(trace_dataset(SFTArguments(str(path)), tokenizer, None)[0])
    assert rows == sum(len(trace["turns"]) for trace in right)
    right[0]["rewards"]["well_formed"] = 0.0
    path.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    assert len(trace_dataset(SFTArguments(str(path)), tokenizer, None)[0]) == rows - len(right[0]["turns"])


@pytest.mark.parametrize("command", ["sft", "train"])
def test_every_option_of_trl_is_listed_on_demand(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help_all"])
    assert stop.value.code == 0
    assert "--learning_rate" in capsys.readouterr().out
