"""TRL's options under token advantages: what the table in docs/limits.md says of them."""

import pytest
import torch

from helpers import make_trainer
from test_trainer import generate_batch, gradient

# Beside the loss types, which test_trainer.py goes through. Together, since none touches another.
WORKING = [
    {"delta": 1.5, "epsilon": 0.01, "epsilon_high": 0.3, "num_iterations": 2, "scale_rewards": "batch"},
    {"top_entropy_quantile": 0.5, "entropy_coef": 0.1, "temperature": 0.7, "scale_rewards": "none"},
    {"mask_truncated_completions": True, "max_completion_length": 300,
     "multi_objective_aggregation": "normalize_then_sum"},
]  # fmt: skip


def off_policy(batch):
    """The batch with old log-probs that are not the policy's, so that ratios differ from 1."""
    if "old_per_token_logps" not in batch:
        return batch
    noise = torch.linspace(-0.3, 0.3, batch["completion_ids"].size(1))
    return {**batch, "old_per_token_logps": batch["old_per_token_logps"] + noise}


@pytest.mark.parametrize(
    ("options", "context"),
    [(options, "memory") for options in WORKING] + [(WORKING[0], "full")],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_options_that_work(tmp_path, model, tokenizer, questions, options, context):
    """A row of equal advantages is the scalar; the memory's reach the gradient; those of tool results do not."""
    trainer = make_trainer(tmp_path, model, tokenizer, questions, context=context, **options)
    batch = off_policy(generate_batch(trainer))
    outcome = trainer.last_rollout.outcome_advantages
    rows = outcome.unsqueeze(1).expand_as(batch["advantages"])
    loss, grad = gradient(trainer, {**batch, "advantages": outcome})
    row_loss, row_grad = gradient(trainer, {**batch, "advantages": rows})
    assert torch.equal(row_loss, loss)
    assert torch.equal(row_grad, grad)
    _, with_memories = gradient(trainer, batch)
    assert not torch.equal(with_memories, grad)
    counted = (batch["tool_mask"] * batch["completion_mask"]).bool()
    elsewhere = torch.where(counted, batch["advantages"], batch["advantages"] + 100.0)
    assert torch.equal(gradient(trainer, {**batch, "advantages": elsewhere})[1], with_memories)
