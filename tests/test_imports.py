"""Imports point one way, and the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "mempo_trl"
MODULES = sorted(SOURCE.rglob("*.py"))
# Where trl may be imported: what extends it, and what is started from a shell.
TRL_ALLOWED = {"config.py", "trainer.py", "rollout.py", "callbacks.py", "checks.py", "chat_format.py"}


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


def imported_by(folder: str) -> set[str]:
    return set().union(*(imports(path) for path in MODULES if path.is_relative_to(SOURCE / folder)))


def test_the_method_knows_no_trainer_and_no_task():
    allowed = ("mempo_trl.memory", "mempo_trl.turns")
    assert not [name for name in imported_by("memory") if name.startswith("mempo_trl") and not name.startswith(allowed)]
    assert not [name for name in imported_by("memory") if name.split(".")[0] == "trl"]


def test_the_task_knows_no_torch_and_no_method():
    names = imported_by("search")
    assert not [name for name in names if name.split(".")[0] in ("torch", "trl", "transformers")]
    allowed = ("mempo_trl.search", "mempo_trl.text")
    assert not [name for name in names if name.startswith("mempo_trl") and not name.startswith(allowed)]
    assert imports(SOURCE / "text.py") == set()


def test_the_context_knows_neither():
    assert {name for name in imports(SOURCE / "context.py") if name.startswith("mempo_trl")} == {"mempo_trl.turns"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_trl_is_imported_where_it_is_extended(path):
    if path.name not in TRL_ALLOWED:
        assert not [name for name in imports(path, top_level=True) if name.split(".")[0] == "trl"]


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, mempo_trl; print([m for m in ('torch', 'transformers', 'trl', 'peft') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_trainer_needs_no_optional_package():
    block = "sys.modules.update(dict.fromkeys(['vllm', 'wandb', 'bitsandbytes', 'matplotlib', 'trackio', 'uvicorn']))"
    code = f"import sys; {block}; from mempo_trl import *; import mempo_trl.search, mempo_trl.report; print('fine')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.endswith("fine\n"), result.stderr


def test_every_public_name_is_there():
    import mempo_trl

    for name in mempo_trl.__all__:
        assert getattr(mempo_trl, name).__doc__, name
