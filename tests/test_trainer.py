import copy
import random

import pytest
import torch
from datasets import concatenate_datasets
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from conftest import build_model
from helpers import Scripted, ScriptedMemPO, answer_reward, make_config, make_trainer, search, visible_context
from mempo_trl.memory import find_memory_spans
from mempo_trl.memory.turns import find_turns

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


class ScriptedGRPO(Scripted, GRPOTrainer):
    """TRL's trainer, loop included, on the same turns."""


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def generate_batch(trainer):
    """One generation batch, as the loss gets it."""
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    return trainer._generate_and_score_completions(batch)


def loss_of(trainer, batch):
    trainer.current_gradient_accumulation_steps = 1
    return trainer._compute_loss(trainer.model, batch)


def gradient(trainer, batch):
    trainer.model.zero_grad()
    loss = loss_of(trainer, batch)
    loss.backward()
    grads = [p.grad.flatten() for p in trainer.model.parameters() if p.requires_grad and p.grad is not None]
    return loss.detach(), torch.cat(grads)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_weight_zero_is_grpo_bit_for_bit(tmp_path, tokenizer, questions, loss_type):
    """Three steps from one start: TRL's trainer with TRL's tool loop against ours."""
    ours, theirs = build_model(len(tokenizer)), build_model(len(tokenizer))
    start = parameters(ours)
    # Padded as TRL's are: packed rows round otherwise.
    trainer = make_trainer(tmp_path, ours, tokenizer, questions, memory_weight=0.0, loss_type=loss_type, logps="padded")
    trainer.train()
    config = make_config(tmp_path, loss_type=loss_type)
    shared = {f: getattr(config, f) for f in GRPOConfig.__dataclass_fields__ if f != "generation_batch_size"}
    shared["max_tool_calling_iterations"] = config.max_turns - 1  # TRL counts tool rounds, not turns
    grpo = ScriptedGRPO(
        theirs, answer_reward, GRPOConfig(**shared), questions, processing_class=tokenizer, tools=[search]
    )
    grpo.train()
    assert torch.equal(parameters(ours), parameters(theirs))
    assert not torch.equal(parameters(ours), start)


def test_the_memory_advantage_changes_the_parameters(tmp_path, tokenizer, questions):
    with_memory, without = build_model(len(tokenizer)), build_model(len(tokenizer))
    make_trainer(tmp_path, with_memory, tokenizer, questions).train()
    make_trainer(tmp_path, without, tokenizer, questions, memory_weight=0.0).train()
    assert not torch.equal(parameters(with_memory), parameters(without))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_constant_row_equals_the_scalar(tmp_path, model, tokenizer, questions, loss_type):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, memory_weight=0.0, loss_type=loss_type)
    batch = generate_batch(trainer)
    scalar = batch["advantages"][:, 0].clone()
    assert torch.equal(batch["advantages"], scalar.unsqueeze(1).expand_as(batch["advantages"]))
    loss, grad = gradient(trainer, batch)
    scalar_loss, scalar_grad = gradient(trainer, {**batch, "advantages": scalar})
    assert torch.equal(loss, scalar_loss)
    assert torch.equal(grad, scalar_grad)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_token_s_advantage_changes_the_gradient_and_a_tool_s_does_not(
    tmp_path, model, tokenizer, questions, loss_type
):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, loss_type=loss_type)
    batch = generate_batch(trainer)
    _, grad = gradient(trainer, batch)
    counted = (batch["tool_mask"] * batch["completion_mask"]).bool()
    advantages = batch["advantages"].clone()
    advantages[~counted] += 100.0  # tool results and padding
    assert torch.equal(gradient(trainer, {**batch, "advantages": advantages})[1], grad)
    row, column = counted.nonzero()[1].tolist()
    advantages[row, column] += 1.0
    assert not torch.equal(gradient(trainer, {**batch, "advantages": advantages})[1], grad)


def test_advantages_land_on_the_memories(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, memory_weight=0.5)
    batch = generate_batch(trainer)
    judged = 0
    for row, episode in enumerate(trainer.last_rollout.episodes):
        expected = trainer.last_rollout.outcome_advantages[row].repeat(batch["completion_ids"].size(1))
        for turn, start, end in find_memory_spans(tokenizer, episode.completion_ids, episode.mask):
            expected[start:end] += 0.5 * trainer.last_rollout.memory_advantages[row, turn]
            judged += turn > 0 and trainer.last_rollout.memory_advantages[row, turn].item() != 0
        torch.testing.assert_close(batch["advantages"][row], expected)
    assert judged > 3
    # Turn 1 summarises nothing: no reward, whatever it wrote.
    assert trainer.last_rollout.memories.rewards[:, 0].isnan().all()


@pytest.mark.parametrize(("corrected", "factor"), [(False, 1.0), (True, 2.0)])
def test_the_kl_term_is_k3_and_has_no_ratio_unless_asked_for(tmp_path, model, tokenizer, questions, corrected, factor):
    """pi_ref / pi = 1/2 on every token: k3 = 1/2 - log(1/2) - 1 = 0.193147. pi / pi_old = 2."""
    trainer = make_trainer(tmp_path, model, tokenizer, questions, use_bias_correction_kl=corrected)
    batch = generate_batch(trainer)
    trainer.beta = 0.1
    mask = batch["completion_mask"] * batch["tool_mask"]
    logps, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
        mask.size(1),
    )
    half = torch.tensor(2.0).log()
    changed = {"ref_per_token_logps": logps.detach() - half, "old_per_token_logps": logps.detach() - half}
    loss = loss_of(trainer, {**batch, **changed, "advantages": torch.zeros(mask.shape)})
    assert loss.item() == pytest.approx(0.1 * 0.193147 * factor, abs=1e-6)


# What the policy sees


@pytest.mark.parametrize("context", ["full", "memory"])
def test_generation_was_given_what_the_loss_conditions_on(tmp_path, model, tokenizer, questions, context):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, context=context, logps="padded")
    seen = []
    for _ in range(7):  # 56 trajectories
        trainer.turns_given = []
        trainer.state.global_step += 1
        batch = generate_batch(trainer)
        conditioned = []
        for episode in trainer.last_rollout.episodes:
            for start, end in find_turns(episode.mask):
                prefix = visible_context(
                    episode.prompt_ids, episode.completion_ids[:start], episode.mask[:start], context
                )
                conditioned.append((prefix, episode.completion_ids[start:end]))
        key = lambda pair: repr(pair)  # noqa: E731
        assert sorted(trainer.turns_given, key=key) == sorted(conditioned, key=key)
        seen.append(batch["completion_ids"].size(0))
        # What the rows of the loss hold, read from the model's own inputs.
        rows = []
        handle = trainer.model.model.register_forward_pre_hook(
            lambda _, args, kwargs, rows=rows: rows.append((kwargs["input_ids"], kwargs["attention_mask"])),
            with_kwargs=True,
        )
        loss_of(trainer, batch)
        handle.remove()
        ((ids, attended),) = rows  # one forward, whatever the number of turns
        forwarded = [row[mask.bool()].tolist() for row, mask in zip(ids, attended, strict=True)]
        if context == "memory":
            assert sorted(forwarded) == sorted(prefix + turn for prefix, turn in conditioned)
    assert sum(seen) >= 50


def brute_force_logps(trainer, model, batch):
    """One row and one turn at a time, without padding."""
    logps = torch.zeros(batch["completion_ids"].shape)
    for row, episode in enumerate(trainer.last_rollout.episodes):
        for start, end in find_turns(episode.mask):
            prefix = visible_context(episode.prompt_ids, episode.completion_ids[:start], episode.mask[:start], "memory")
            ids = torch.tensor([prefix + episode.completion_ids[start:end]])
            scores = model(ids).logits[0, len(prefix) - 1 : -1] / trainer.temperature
            picked = scores.log_softmax(-1).gather(-1, ids[0, len(prefix) :].unsqueeze(-1)).squeeze(-1)
            logps = logps.index_put((torch.full((end - start,), row), torch.arange(start, end)), picked)
    return logps


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_memory_context_equals_one_turn_at_a_time(tmp_path, tokenizer, questions, lora, loss_type):
    model = build_model(len(tokenizer))
    options = (
        {"peft_config": LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])} if lora else {}
    )
    # Prompts of different lengths: padding on the left as on the right.
    questions = questions.map(
        lambda row, i: {"prompt": [{"role": "user", "content": row["prompt"][0]["content"] + " and more" * i}]},
        with_indices=True,
    )
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, context="memory", loss_type=loss_type, temperature=0.7,
        trainer_options=options,
    )  # fmt: skip
    batch = generate_batch(trainer)
    assert batch["prompt_mask"].min() == 0
    assert max(len(e.turns) for e in trainer.last_rollout.episodes) > 2
    input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].size(1)
    expected = brute_force_logps(trainer, trainer.model, batch)
    for batch_size in (None, 3):
        with trainer._seen_as(batch["visible_start"]):
            logps, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, input_ids, attention, width, batch_size
            )
        torch.testing.assert_close(logps, expected, atol=1e-5, rtol=0)

    _, grad = gradient(trainer, batch)
    assert grad.abs().max() > 0
    # The loss on brute-force log-probs: the parent's code, with this method's log-probs replaced.
    trainer._get_per_token_logps_and_entropies = lambda model, *args, **kwargs: (
        brute_force_logps(trainer, model, batch), torch.zeros(batch["completion_ids"].shape), None,
    )  # fmt: skip
    torch.testing.assert_close(gradient(trainer, batch)[1], grad, atol=1e-5, rtol=0)


def test_one_turn_trajectories_give_the_full_loss_bit_for_bit(tmp_path, tokenizer, questions):
    losses = []
    for context in ("full", "memory"):
        trainer = make_trainer(
            tmp_path, build_model(len(tokenizer)), tokenizer, questions, context=context, max_turns=1
        )
        losses.append(gradient(trainer, generate_batch(trainer)))
    assert torch.equal(losses[0][0], losses[1][0])
    assert torch.equal(losses[0][1], losses[1][1])


def test_padding_changes_nothing(tmp_path, tokenizer, questions):
    grads = []
    for multiple in (None, 64):
        trainer = make_trainer(
            tmp_path, build_model(len(tokenizer)), tokenizer, questions, context="memory", pad_to_multiple_of=multiple
        )
        batch = generate_batch(trainer)
        grads.append((batch["completion_ids"].size(1), gradient(trainer, batch)[1]))
    assert grads[0][0] < grads[1][0]
    torch.testing.assert_close(grads[0][1], grads[1][1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("baseline", ["history", "visible", "none"])
def test_baselines(tmp_path, model, tokenizer, questions, baseline):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, context="memory", memory_baseline=baseline)
    generate_batch(trainer)
    memories = trainer.last_rollout.memories
    assert len(memories.scored) > 2
    expected = 0.0 if baseline == "none" else None
    for index, (row, turn) in enumerate(memories.scored):
        if expected is None:
            episode = trainer.last_rollout.episodes[row]
            turns = find_turns(episode.mask)
            start = 0 if baseline == "history" else turns[turn - 1][0]
            ids = episode.prompt_ids + episode.completion_ids[start : turns[turn][0]]
            length = int(memories.answer_mask.size(1))
            answer = trainer_answer(trainer, row)
            with torch.no_grad():
                logits = trainer.model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
            logps = logits.log_softmax(-1).gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(memories.baseline_logps[index, : len(answer)], logps, atol=1e-5, rtol=0)
            assert length >= len(answer)
        else:
            assert memories.p_baseline[row, turn].item() == expected


def trainer_answer(trainer, row):
    from mempo_trl import encode_answer

    batch = next(iter(trainer.get_train_dataloader()))
    return encode_answer(trainer._tokenizer, batch[row]["answers"]).ids


# Running it


def test_metrics_are_logged(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions)
    trainer.train()
    logs = trainer.state.log_history[0]
    for name in ("reward", "p_mem", "p_baseline"):
        assert f"memory/{name}_mean" in logs
        assert f"memory/{name}_std" in logs
    for name in ("memory/closed_fraction", "memory/length_mean", "memory/kept_fraction", "memory/pools_under_floor",
                 "rollout/turns", "rollout/total_tokens", "rollout/peak_tokens", "tools/call_frequency"):  # fmt: skip
        assert name in logs, name
    assert logs["memory/reward_mean"] == pytest.approx(
        logs["memory/p_mem_mean"] - logs["memory/p_baseline_mean"], abs=1e-5
    )
    assert 0 < logs["memory/closed_fraction"] < 1


@pytest.mark.parametrize("context", ["full", "memory"])
def test_training_twice_in_one_process_and_with_a_reference(tmp_path, tokenizer, questions, context):
    model = build_model(len(tokenizer))
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    for _ in range(2):
        trainer = make_trainer(
            tmp_path, str(tmp_path / "start"), tokenizer, questions, beta=0.1, num_iterations=2, context=context,
            max_steps=2,
        )  # fmt: skip
        trainer.train()
        logs = [log for log in trainer.state.log_history if "kl" in log]
        assert logs[0]["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the start, under the same context
        assert logs[-1]["kl"] > 0


def test_evaluation(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, per_device_eval_batch_size=8, num_generations_eval=2,
        trainer_options={"eval_dataset": questions},
    )  # fmt: skip
    trainer.evaluate()
    assert "eval_memory/reward_mean" in trainer.state.log_history[-1]
    advantages = trainer.last_rollout.memory_advantages  # pools of two trajectories, not of four
    torch.testing.assert_close(
        advantages.reshape(-1, 2 * advantages.size(1)).sum(dim=1), torch.zeros(4), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("context", ["full", "memory"])
def test_resume_gives_the_loss_the_run_would_have_had(tmp_path, tokenizer, questions, context):
    options = {
        "context": context, "max_steps": 6, "save_strategy": "steps", "save_steps": 1, "steps_per_generation": 2,
        "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "lr_scheduler_type": "constant",
    }  # fmt: skip
    # Twelve questions: the six steps stay in the first epoch.
    questions = concatenate_datasets([questions, questions, questions])
    whole = make_trainer(tmp_path / "a", build_model(len(tokenizer)), tokenizer, questions, **options)
    whole.train()
    resumed = make_trainer(tmp_path / "b", build_model(len(tokenizer), seed=1), tokenizer, questions, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    expected = [log["loss"] for log in whole.state.log_history if "loss" in log]
    losses = [log["loss"] for log in resumed.state.log_history if "loss" in log]
    assert losses == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(parameters(resumed.model), parameters(whole.model), atol=1e-6, rtol=0)


def test_model_card_names_the_method(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    card = (tmp_path / "README.md").read_text()
    assert "MemPO" in card
    assert "2603.00680" in card


def test_prompts_longer_than_the_engine_end_as_data(tmp_path, tokenizer, questions):
    model = build_model(len(tokenizer), max_position_embeddings=256)
    long = [{"role": "user", "content": "x" * 2000}]
    questions = questions.map(lambda row, i: {"prompt": long if i == 0 else row["prompt"]}, with_indices=True)
    model.config.max_position_embeddings = 900
    trainer = make_trainer(tmp_path, model, tokenizer, questions, max_steps=2, max_turn_length=64)
    trainer.train()
    assert max(log.get("rollout/truncated_fraction", 0) for log in trainer.state.log_history) > 0


# Refusals


@pytest.mark.parametrize(
    ("trainer_options", "message"),
    [
        ({"rollout_func": lambda prompts, trainer: {}}, "rollout_func replaces the turn loop"),
        ({"tools": None}, "Pass tools or environment_factory"),
    ],
)
def test_combinations_that_cannot_work(tmp_path, model, tokenizer, questions, trainer_options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, model, tokenizer, questions, trainer_options=trainer_options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.remove_columns("answers"), "no column 'answers', only prompt, question_id"),
        (lambda d: d.remove_columns("prompt"), "no column 'prompt'"),
        (lambda d: d.map(lambda row: {"answers": ["a;b", "c"]}), "row 0 of train_dataset, column 'answers': one of"),
        (
            lambda d: d.map(lambda row, i: {"answers": ["a"] if i < 3 else [""]}, with_indices=True),
            "row 3 of train_dat",
        ),
        (
            lambda d: d.map(lambda row, i: {"answers": ["a"] if i < 2 else ["b<|im_end|>"]}, with_indices=True),
            r"row 2 of train_dataset: the answer 'b<\|im_end\|>' holds '<\|im_end\|>'.*Leave the row out",
        ),
        (lambda d: d.map(lambda row: {"prompt": "text"}), "tools need a chat"),
        (lambda d: d.select([]), "is empty"),
        (lambda d: None, "train_dataset is missing"),
    ],
)
def test_datasets_that_cannot_work(tmp_path, model, tokenizer, questions, change, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, model, tokenizer, change(questions))


def test_a_template_that_rewrites_earlier_turns(tmp_path, model, tokenizer, questions):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{{ messages | length }}" + tokenizer.chat_template
    tokenizer.response_template = None
    with pytest.raises(ValueError, match=r"or set tokenizer.chat_template = trl.chat_template_utils.qwen2"):
        make_trainer(tmp_path, model, tokenizer, questions)


def test_scripted_turns_are_reproducible():
    rng = random.Random(0)
    assert ScriptedMemPO._text(None, rng, 1)
