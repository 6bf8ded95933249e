"""Which rows give the trained log-probs: packed ones where that is right, else padded ones, with the reason."""

from contextlib import nullcontext

import pytest
import torch

from conftest import build_model
from helpers import make_trainer
from mempo_trl.memory.scoring import shared
from mempo_trl.memory.scoring.inputs import with_own_positions
from mempo_trl.training.logps import TurnLogps, packing_obstacle
from test_packed import build, padded, random_batch, visible

BATCH = random_batch(11)


def forward(model, input_ids, attention_mask, width, batch_size):
    """TRL's: padded rows."""
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    labels[:, :-width] = -100
    output = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
    return output.log_probs[:, -width:], output.entropy[:, -width:], None


def tensors(batch, context):
    """The padded batch as TRL passes it."""
    prompts, completions, masks = batch
    left, right = max(map(len, prompts)), max(map(len, completions))
    ids = torch.tensor([[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c, _ in zip(*batch, strict=True)])
    starts = torch.tensor([visible(mask, context) + [-1] * (right - len(mask)) for mask in masks])
    return ids, (ids > 0).long(), right, starts


def turn_logps(model, logps="auto", max_tokens=10_000, **options):
    return TurnLogps(model, logps, max_tokens, 0, autocast=nullcontext, **options)


def call(logps, model, context="memory"):
    ids, mask, width, starts = tensors(BATCH, context)
    return logps(forward, model, ids, mask, width, None, starts)


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("how", ["auto", "packed", "padded"])
def test_all_ways_give_the_same(how, context):
    model = build("qwen2")
    expected = padded(model, BATCH, context)
    values = call(turn_logps(model, how), model, context)
    turns = tensors(BATCH, context)[3] >= 0
    for value, other in zip(values[:2], expected, strict=True):
        torch.testing.assert_close(value[turns], other[turns], atol=1e-5, rtol=0)


def test_auto_compares_once_and_packs(caplog):
    model, forwards = build("qwen2"), []
    model.train()
    logps = turn_logps(model)
    model.register_forward_pre_hook(lambda _, args, kwargs: forwards.append("segments" in kwargs), with_kwargs=True)
    for _ in range(2):
        with torch.no_grad():  # old log-probs may come first
            call(logps, model)
    assert forwards == [False, True, True, True]
    assert logps.packed
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not caplog.records


def test_without_turns_known_trl_s_own_forward_is_made():
    model = build("qwen2")
    ids, mask, width, _ = tensors(BATCH, "full")
    logps, _, _ = turn_logps(model)(forward, model, ids, mask, width, None, None)
    assert torch.equal(logps, forward(with_own_positions(model), ids, mask, width, None)[0])


@pytest.mark.parametrize("what", ["log-probs", "gradients", "error"])
def test_wrong_values_are_found(monkeypatch, caplog, what):
    model = build("qwen2")
    true = shared.SegmentAttention.__call__

    def attend(self, query, key, value, scaling, *rest):
        attended = true(self, query, key, value, scaling, *rest)
        if what == "error":
            raise TypeError("unknown argument")
        return attended * 1.01 if what == "log-probs" else attended.detach() + 0 * attended

    monkeypatch.setattr(shared.SegmentAttention, "__call__", attend)
    logps = turn_logps(model)
    values = call(logps, model)
    assert not logps.packed
    torch.testing.assert_close(values[0], padded(model, BATCH, "memory")[0], atol=1e-5, rtol=0)
    message = {"log-probs": "log-probs that differ by", "gradients": "gradients that differ by", "error": "TypeError"}
    assert message[what] in caplog.text


def test_another_rank_s_finding_counts():
    model = build("qwen2")
    logps = turn_logps(model, equalize=lambda count: max(count, 1))
    call(logps, model)
    assert not logps.packed


def test_obstacles(caplog):
    assert packing_obstacle(build("qwen3")) is None
    sliding = build("mistral")
    sliding.config.sliding_window = 8
    assert "sliding window of 8" in packing_obstacle(sliding)
    router = build("qwen3-moe", output_router_logits=True)
    assert "load-balancing" in packing_obstacle(router)
    assert packing_obstacle(torch.compile(build("qwen3"))) == "it is compiled"
    with pytest.raises(ValueError, match=r"logps='packed' cannot hold for this model: .*Set it to 'padded'"):
        turn_logps(router, "packed")
    assert not turn_logps(router).packed
    assert "load-balancing" in caplog.text
    assert not turn_logps(router, "padded").packed


def test_a_trajectory_that_fits_no_row_names_the_number_to_set():
    model = build("qwen2")
    prompts, completions, _ = BATCH
    with pytest.raises(ValueError, match=r"Set logps_max_tokens to \d+ or more") as error:
        call(turn_logps(model, "packed", max_tokens=5), model, "full")
    needed = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    number = int(str(error.value).split("Set logps_max_tokens to ")[1].split()[0])
    assert 5 < number <= needed
    while True:  # each advice taken, until the longest fits
        try:
            call(turn_logps(model, "packed", max_tokens=number), model, "full")
            break
        except ValueError as again:
            following = int(str(again).split("Set logps_max_tokens to ")[1].split()[0])
            assert number < following <= needed
            number = following
    call(turn_logps(model, "padded", max_tokens=5), model, "full")


@pytest.mark.parametrize("context", ["full", "memory"])
def test_a_training_run_is_the_same(tmp_path, tokenizer, questions, context):
    """Both ways of a short run with a reference and several updates: the weights after it."""
    build_model(len(tokenizer)).save_pretrained(tmp_path / "model")
    runs = {}
    for how in ("packed", "padded"):
        torch.manual_seed(0)
        trainer = make_trainer(
            tmp_path / how, str(tmp_path / "model"), tokenizer, questions, context=context, logps=how, beta=0.1,
            max_steps=3, learning_rate=0.1, optim="sgd", gradient_checkpointing=True, num_iterations=2,
            model_init_kwargs={"dtype": "float32"},
        )  # fmt: skip
        trainer.train()
        runs[how] = trainer
    first, second = ([p.detach() for p in run.model.parameters()] for run in runs.values())
    start = build_model(len(tokenizer)).parameters()
    assert max(float((one - before).abs().max()) for one, before in zip(first, start, strict=True)) > 1e-3
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    tokens = [
        sum(log["step/tokens_forwarded"] for log in run.state.log_history if "step/tokens_forwarded" in log)
        for run in runs.values()
    ]
    assert tokens[0] < tokens[1]


def test_dropout_of_attention_is_drawn_in_packed_rows_too():
    model = build("qwen2", attention_dropout=0.5)
    logps = turn_logps(model, "packed")
    model.eval()
    expected = call(logps, model)[0]
    assert torch.equal(call(logps, model)[0], expected)
    model.train()
    assert (call(logps, model)[0] - expected).abs().max() > 0.01
