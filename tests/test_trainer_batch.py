"""What the trainer's batch holds and who gets it: log-probs asked for by hand, memory rewards of one's own."""

import pytest
import torch
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from conftest import build_model
from helpers import Scripted, make_trainer
from mempo_trl import MemPOTrainer
from test_trainer import generate_batch, loss_of

# Log-probs are those of what was asked for


def hand_made(trainer, rows=2, prompt=5, completion=7):
    """Inputs of the loss as TRL's own tests make them: ids and masks, nothing of ours."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (rows, prompt + completion), generator=generator)
    return {
        "prompt_ids": ids[:, :prompt], "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": ids[:, prompt:], "completion_mask": torch.ones(rows, completion, dtype=torch.long),
        "advantages": torch.tensor([1.0, -1.0]), "num_items_in_batch": torch.tensor(rows * completion),
    }  # fmt: skip


@pytest.mark.parametrize("generated", [False, True])
def test_inputs_made_by_hand_give_what_trl_gives(tmp_path, model, tokenizer, questions, generated):
    ours = make_trainer(tmp_path, model, tokenizer, questions, context="memory")
    if generated:
        generate_batch(ours)  # what was played before plays no part
    inputs = hand_made(ours)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    logps, *_ = ours._get_per_token_logps_and_entropies(ours.model, ids, torch.ones_like(ids), 7)
    with torch.no_grad():
        expected = model(ids).logits[:, 4:-1].log_softmax(-1).gather(-1, ids[:, 5:, None]).squeeze(-1)
    torch.testing.assert_close(logps, expected, atol=1e-5, rtol=0)
    loss = loss_of(ours, inputs)
    loss.backward()
    # At ratio 1 the loss is the mean advantage, negated: 1 and -1 over as many tokens.
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert model.lm_head.weight.grad.abs().max() > 0


def test_old_log_probs_are_taken_by_the_right_call_alone(tmp_path, model, tokenizer, questions):
    """While a batch is made, other forwards, of other models, with gradients or of other rows, are their own."""
    options = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "per_device_train_batch_size": 4}
    trainer = make_trainer(tmp_path, model, tokenizer, questions, **options)
    other = build_model(len(tokenizer), seed=1)
    add_fused_lm_head(other, outputs=("log_probs", "entropy"))
    parent, seen = trainer._get_per_token_logps_and_entropies, []

    def asked(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        rest = (input_ids, attention_mask, logits_to_keep)
        theirs = parent(other, *rest)[0]
        part = parent(model, input_ids[:1], attention_mask[:1], logits_to_keep)[0]
        with torch.enable_grad():
            graded = parent(model, *rest)[0]
        served = parent(model, *rest, *args, **kwargs)
        again = parent(model, *rest, *args, **kwargs)
        seen.append((theirs, part, graded, served[0], again[0]))
        return served

    trainer._get_per_token_logps_and_entropies = asked
    batch = generate_batch(trainer)
    ((theirs, part, graded, served, again),) = seen
    counted = (batch["tool_mask"] * batch["completion_mask"]).bool()
    assert not served.requires_grad
    assert graded.requires_grad
    assert torch.equal(served, again)
    assert torch.equal(batch["old_per_token_logps"], served)
    torch.testing.assert_close(served[counted], graded.detach()[counted], atol=2e-5, rtol=0)
    torch.testing.assert_close(part[0][counted[0]], graded.detach()[0][counted[0]], atol=2e-5, rtol=0)
    assert (theirs[counted] - served[counted]).abs().max() > 1e-2


# Memory rewards of one's own


def test_a_memory_reward_that_needs_no_answers(tmp_path, model, tokenizer, questions):
    """Without a column of gold answers; the reward is a memory's length, counted by hand."""
    calls = []

    def brevity(memories, episodes, prompts, question_id, **kwargs):
        assert len(episodes) == len(prompts) == len(question_id)
        calls.append(memories)
        return [None if memory.text == "" else -float(len(memory.text)) for memory in memories]

    trainer = make_trainer(
        tmp_path, model, tokenizer, questions.remove_columns("answers"), max_steps=1,
        trainer_options={"memory_reward_funcs": brevity},
    )  # fmt: skip
    trainer.train()
    rollout = trainer.last_rollout
    assert rollout.answers is None
    (memories,) = calls
    assert len(memories) > 3
    for memory in memories:
        assert memory.text == rollout.episodes[memory.row].memories[memory.turn]
        reward = rollout.memories.rewards[memory.row, memory.turn].item()
        assert reward == -len(memory.text) if memory.text else reward != reward
    assert rollout.memory_advantages.abs().max() > 0
    assert "memory/reward_mean" in trainer.state.log_history[0]


def test_memory_rewards_are_weighted(tmp_path, model, tokenizer, questions):
    def late(memories, rewards, **kwargs):
        assert list(rewards) == ["answer_likelihood"]
        return [float(memory.turn) for memory in memories]

    options = {"memory_reward_funcs": ["answer_likelihood", late]}
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, max_steps=1, memory_reward_weights=[2.0, 0.5], trainer_options=options
    )
    trainer.train()
    rollout = trainer.last_rollout
    gains = (rollout.memories.p_mem - rollout.memories.p_baseline).tolist()
    for row, turn in rollout.memories.scored:
        expected = 2 * gains[row][turn] + 0.5 * turn
        assert rollout.memories.rewards[row, turn].item() == pytest.approx(expected, abs=1e-5)
    assert "memory/rewards/late" in trainer.state.log_history[0]


@pytest.mark.parametrize(
    ("funcs", "weights", "message"),
    [
        (
            "likelihood",
            None,
            r"memory_reward_funcs takes functions and the name 'answer_likelihood': got \['likelihood'\]",
        ),
        ([], None, "memory_reward_funcs takes functions"),
        (None, [1.0, 2.0], "memory_reward_weights has 2 weights for 1 memory_reward_funcs"),
        ([max, max], None, "must have different names"),
    ],
)
def test_memory_rewards_that_cannot_be(tmp_path, model, tokenizer, questions, funcs, weights, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(
            tmp_path, model, tokenizer, questions, memory_reward_weights=weights,
            trainer_options={"memory_reward_funcs": funcs},
        )  # fmt: skip


def test_a_memory_reward_function_with_too_few_values(tmp_path, model, tokenizer, questions):
    def short(memories, **kwargs):
        return [1.0]

    trainer = make_trainer(tmp_path, model, tokenizer, questions, trainer_options={"memory_reward_funcs": short})
    with pytest.raises(ValueError, match=r"short returned 1 rewards for \d+ memories"):
        trainer.train()


def test_a_base_class_with_another_order_of_arguments(tmp_path, model, tokenizer, questions):
    """Packages that speed up training replace the class; ours passes by keyword."""
    import inspect

    parameters = list(inspect.signature(MemPOTrainer.__init__).parameters)
    order = list(inspect.signature(GRPOTrainer.__init__).parameters)
    assert parameters[: len(order)] == order

    class Reordered(GRPOTrainer):
        def __init__(self, args=None, train_dataset=None, model=None, **kwargs):
            super().__init__(model=model, args=args, train_dataset=train_dataset, **kwargs)

    class Ours(Scripted, MemPOTrainer, Reordered):
        pass

    make_trainer(tmp_path, model, tokenizer, questions, trainer_class=Ours, max_steps=1).train()
