"""The documentation says what is: its code runs, its commands parse, its links hold, its lists are complete."""

import argparse
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from docs_commands import check_command, parse_options
from docs_pages import MODEL, PAGES, ROOT, blocks, commands, save_stand_in
from helpers import make_trainer
from mempo_trl import MemPOConfig
from mempo_trl.cli import build_parser, main
from mempo_trl.cli.arguments import TrainArguments
from mempo_trl.evaluation.scores import METRICS
from mempo_trl.evaluation.summary import Score

LANGUAGES = {"", "text", "diff", "html", "python", "pycon", "bash", "yaml", "json", "jsonl"}
EXECUTED = {"setup", "python", "pycon"}
per_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    save_stand_in(str(folder))
    return folder


@per_page
def test_code_blocks_run(page, stand_in, tmp_path, monkeypatch):
    """Pages name a model of the Hub, and want a GPU: a folder of that name and the CPU stand in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / MODEL).parent.mkdir(parents=True)
    (tmp_path / MODEL).symlink_to(stand_in)
    monkeypatch.setattr(MemPOConfig, "__post_init__", on_a_cpu(MemPOConfig.__post_init__))
    namespace = {"__name__": "docs"}
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        if block.language in ("setup", "python"):
            source = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's line
            exec(compile(source, str(page), "exec"), namespace)
        elif block.language == "pycon":
            run_doctest(block, namespace, place)
        elif block.run:
            for command in commands(block.code):
                words = shlex.split(command)
                assert words[0] == "mempo", f"{place}: only mempo commands are run, got {command}"
                assert main(words[1:]) == 0, f"{place}: {command}"


def on_a_cpu(post_init):
    def changed(config):
        config.bf16, config.gradient_checkpointing = False, False
        post_init(config)

    return changed


def run_doctest(block, namespace, place):
    test = doctest.DocTestParser().get_doctest(block.code, namespace, place, str(place), block.line - 1)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append, clear_globs=False)
    namespace.update(test.globs)
    assert not runner.failures, "".join(said)


@per_page
def test_other_blocks_parse(page, tmp_path):
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES | EXECUTED, f"{where}: no test knows the language {block.language!r}"
        if block.language in ("json", "jsonl"):
            for text in block.code.splitlines() if block.language == "jsonl" else [block.code]:
                json.loads(text)
        elif block.language == "yaml":
            file = tmp_path / "options.yaml"
            file.write_text(block.code)
            parse_options(["--config", str(file)])
        elif block.language == "bash":
            for command in commands(block.code):
                check_command(command, where)


# Links


@per_page
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        target = "".join(target)
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
    return {*names, *re.findall(r'id="([^"]+)"', text)}


# Generated pages, and lists that must be complete


def test_the_configuration_page_is_what_the_dataclass_says():
    import generate_configuration

    committed = (ROOT / "docs" / "configuration.md").read_text()
    assert committed == generate_configuration.page(), "run python scripts/generate_configuration.py"


def test_the_picture_is_what_the_script_draws():
    import draw_credit

    assert (ROOT / "docs" / "assets" / "credit.svg").read_text() == draw_credit.picture()


METRIC = r"(?:memory|rollout|tools|step)/\w+|sampling/masked_fraction"


def test_every_logged_metric_is_in_the_glossary(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, max_steps=1)
    trainer.train()
    logged = {name for entry in trainer.state.log_history for name in entry if re.fullmatch(METRIC, name)}
    # Those that a step on this machine, in this context, does not log.
    conditional = {
        "step/peak_memory_gib", "sampling/masked_fraction", "rollout/compactions", "rollout/failed_compactions",
        "rollout/redraws",
    }  # fmt: skip
    rows = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    rows = [name for row in rows for name in row.split("`, `")]
    assert {name for name in rows if re.fullmatch(METRIC, name)} == logged | conditional
    assert {f"eval/<context>/{name}" for name in METRICS} <= set(rows)
    training = ROOT / "src/mempo_trl/training"
    source = (training / "trainer.py").read_text() + (training / "metrics.py").read_text()
    assert set(re.findall(rf'"({METRIC})"', source)) <= logged | conditional


def test_every_error_in_troubleshooting_is_one():
    """What a heading quotes stands in the code, whose messages run over several lines."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    source = re.sub(r"[\"']\s*\n\s*f?[\"']", "", source).replace("{{", "{").replace("}}", "}")
    page = (ROOT / "docs" / "troubleshooting.md").read_text().split("## From TRL")[0]
    quoted = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(quoted) > 10
    assert not [text for text in quoted if text not in source]


def test_the_command_line_page_is_complete():
    page = (ROOT / "docs" / "cli.md").read_text()
    (commands_action,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert set(re.findall(r"^## mempo ([\w-]+)$", page, re.MULTILINE)) == set(commands_action.choices)
    said = set(re.findall(r"`(\w+)`", page))
    assert set(Score.__annotations__) - {"context", "objectives"} <= said
    assert {option.name for option in fields(TrainArguments)} <= set(re.findall(r"`--(\w+)`", page))


def test_sections_that_docstrings_name_are_there():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\d", " ".join(re.findall(r"method\.md, sections? ([\d, and]+)", source))))
    headings = re.findall(r"^## (\d)\. ", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE)
    assert named
    assert named <= set(headings)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason='needs pip install "mempo-trl[docs]"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert result.returncode == 0, result.stderr
