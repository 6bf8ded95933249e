"""Imports point one way, files stay small, every public name is documented, and the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "mempo_trl"
MODULES = sorted(SOURCE.rglob("*.py"))
# A room and the rooms that it imports, beside itself.
ROOMS = {
    "text": set(),
    "parts": set(),
    "files": set(),
    "http": {"files"},
    "rows": {"text"},
    "types": {"parts"},
    "memory": {"rows"},
    "rollout": {"parts", "text", "types"},
    "inference": {"http", "rollout", "types"},
    "traces": {"memory", "rollout", "types"},
    "tasks": {"files", "http", "parts", "rows", "text", "types"},
    "evaluation": {"inference", "memory", "tasks", "traces", "training", "types"},
    "sft": {"inference", "parts", "rollout", "tasks", "traces", "types"},
    "integrations": {"training"},
    "training": {"integrations", "memory", "rollout", "rows", "text", "traces", "types"},
    "report": {"memory", "traces"},
    "cli": {"evaluation", "inference", "report", "rollout", "sft", "tasks", "traces", "training", "types"},
}
# Where trl may be imported at the top of a file: what extends it, and what renders as it does.
TRL_ALLOWED = {
    *("episodes.py", "questions.py"),
    *("config.py", "trainer.py", "loop.py", "callbacks.py", "checks.py", "chat_format.py", "compat.py"),
    *("train.py", "parsing.py"),
}


def imports(path: Path, top_level: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports; with `top_level`, not those inside functions."""
    package = ["mempo_trl", *path.relative_to(SOURCE).parts[:-1]]
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names.add(".".join([*base, *([node.module] if node.module else [])]))
    return names


def room(module: str) -> str:
    return module.removeprefix("mempo_trl.").split(".")[0]


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_what_the_table_says(name):
    paths = [path for path in MODULES if path.relative_to(SOURCE).with_suffix("").parts[0] == name]
    found = {room(module) for path in paths for module in imports(path) if module.startswith("mempo_trl.")}
    assert found - {name} == ROOMS[name]


def test_the_method_knows_no_trl():
    names = set().union(*(imports(path) for path in MODULES if path.is_relative_to(SOURCE / "memory")))
    assert not [name for name in names if name.split(".")[0] == "trl"]


def test_every_room_is_in_the_table():
    assert {path.relative_to(SOURCE).with_suffix("").parts[0] for path in MODULES} - {"__init__"} <= set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_has_at_most_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_public_name_is_documented(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or path.name == "__main__.py"
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in nodes:
        # A method that overrides another is documented there.
        members = node.body if isinstance(node, ast.ClassDef) and not node.bases else []
        for item in [node, *(m for m in members if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))]:
            assert item.name.startswith("_") or ast.get_docstring(item), f"{path.name}:{item.lineno} {item.name}"


def test_a_task_knows_no_torch_and_no_trl():
    model = SOURCE / "tasks" / "world" / "model.py"  # the world's model, which needs them
    paths = [path for path in MODULES if path.is_relative_to(SOURCE / "tasks") and path != model]
    names = set().union(*(imports(path) for path in paths))
    assert not [name for name in names if name.split(".")[0] in ("torch", "trl", "transformers")]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_trl_is_imported_where_it_is_extended(path):
    if path.name not in TRL_ALLOWED:
        assert not [name for name in imports(path, top_level=True) if name.split(".")[0] == "trl"]


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, mempo_trl; print([m for m in ('torch', 'transformers', 'trl', 'peft') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_search_task_imports_no_torch():
    code = "import sys, mempo_trl.tasks.task; print([name for name in ('torch', 'trl') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_trainer_needs_no_optional_package():
    block = "sys.modules.update(dict.fromkeys(['vllm', 'wandb', 'bitsandbytes', 'matplotlib', 'trackio', 'uvicorn']))"
    code = f"import sys; {block}; from mempo_trl import *; import mempo_trl.tasks.search, mempo_trl.report; print(1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.endswith("1\n"), result.stderr


def test_every_public_name_is_there():
    import mempo_trl

    for name in mempo_trl.__all__:
        assert getattr(mempo_trl, name).__doc__, name
