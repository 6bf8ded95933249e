"""What is relied on of TRL is in one table, which the installed version has; a mismatch is named."""

import ast
import inspect
import logging
import re
from pathlib import Path

import pytest
import torch
import trl
from accelerate import PartialState
from packaging.requirements import Requirement
from packaging.version import Version
from trl.trainer import grpo_trainer

from docs_pages import ROOT
from helpers import make_trainer
from mempo_trl import MemPOTrainer
from mempo_trl.training import compat
from test_project import PROJECT
from test_trainer import generate_batch, gradient

PACKAGE = Path(compat.__file__).parents[1]


def test_the_installed_trl_has_all_of_it():
    assert compat.mismatches() == []
    compat.check_trl()


def test_the_packages_take_what_the_table_says():
    requirement = next(r for r in map(Requirement, PROJECT["project"]["dependencies"]) if r.name == "trl")
    assert requirement.specifier == Requirement(compat.TRL_VERSIONS).specifier
    oldest, newest = compat.TESTED
    assert f">={Version(oldest).major}.{Version(oldest).minor}" in str(requirement.specifier)
    assert f"\ntrl=={newest}\n" in (ROOT / "constraints.txt").read_text()
    # Releases that came later are installed beside this package.
    assert all(version in requirement.specifier for version in ("1.17.0", "1.18.2", "1.19.0"))
    assert not {"1.15.0", "2.0.0"} & set(requirement.specifier.filter(["1.15.0", "1.16.0", "2.0.0"]))


def test_every_private_name_that_is_read_is_in_the_table():
    source = inspect.getsource(grpo_trainer)
    read = set()
    for path in [*(PACKAGE / "training").glob("*.py"), *(PACKAGE / "integrations").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            owner = getattr(node, "value", None)
            if isinstance(node, ast.Attribute) and ast.unparse(owner) in ("self", "trainer", "super()"):
                read.add(node.attr)
    trl_s = {name for name in read if re.search(rf"\bself\.{name}\b|\bdef {name}\b", source) and name.startswith("_")}
    assert "_metrics" in trl_s
    assert trl_s - {"__init__"} <= {*compat.HOOKS, *compat.ATTRIBUTES}


def test_a_mismatch_is_named(monkeypatch):
    class OtherTrainer:
        def __init__(self, policy):
            """Other arguments."""

        def _generate_single_turn(self, prompt_ids, num_generations):
            """Another signature."""

    monkeypatch.setattr(compat, "ATTRIBUTES", (*compat.ATTRIBUTES, "_renamed"))
    monkeypatch.setattr(compat, "OUTPUT", ("credits",))
    monkeypatch.setitem(compat.MODULES, "trl.chat_template_utils", ("moved",))
    with pytest.raises(ImportError) as error:
        compat.check_trl(OtherTrainer)
    said = str(error.value)
    for part in (
        f"TRL {trl.__version__}",
        "_generate_single_turn takes (prompt_ids, num_generations), expected (prompt_ids, images,",
        "OtherTrainer has no _compute_loss",
        "OtherTrainer takes no reward_funcs",
        "GRPOTrainer has no _renamed",
        "gives the loss no credits",
        "trl.chat_template_utils has no moved",
        f"pip install 'trl=={compat.TESTED[-1]}'",
    ):
        assert part in said


def test_an_older_trl_is_refused(monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.15.0")
    with pytest.raises(ImportError, match=r"TRL 1\.15\.0 .* is older than 1\.16\.0"):
        compat.check_trl()


def test_a_class_in_place_of_trls_may_take_keywords_only():
    class Faster(trl.GRPOTrainer):
        def __init__(self, *, model, **kwargs):
            """As packages do that make training faster."""

    compat.check_trl(Faster)


def test_a_newer_trl_whose_table_matches_is_used_with_a_warning(monkeypatch, caplog):
    PartialState()
    compat.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(trl, "__version__", compat.TESTED[-1])
        compat.check_trl()
        assert not caplog.records
        monkeypatch.setattr(trl, "__version__", "1.19.0")
        compat.check_trl()
    assert "TRL 1.19.0 is newer than" in caplog.text


@pytest.mark.parametrize("context", ["full", "memory"])
def test_an_advantage_for_each_token_reaches_the_loss(tmp_path, model, tokenizer, questions, context):
    """Credit 1 on one token of one trajectory: the loss is -1 / its tokens / the trajectories, at ratio 1."""
    trainer = make_trainer(tmp_path, model, tokenizer, questions, context=context)
    batch = generate_batch(trainer)
    mask = batch["completion_mask"] * batch["tool_mask"]
    row, token = 1, int(mask[1].nonzero()[3])
    credit = torch.zeros_like(batch["advantages"])
    assert credit.shape == mask.shape  # (B, C)
    credit[row, token] = 1.0
    loss, grad = gradient(trainer, {**batch, "advantages": credit})
    torch.testing.assert_close(loss, -1 / mask[row].sum() / len(mask), rtol=1e-4, atol=1e-7)
    assert grad.abs().sum() > 0
    assert isinstance(trainer, MemPOTrainer)
