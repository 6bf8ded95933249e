"""`context="budget"`: what is seen, that it is never more than N, and that it is trained on as it was seen."""

import json
import random
from itertools import pairwise

import pytest
import torch

from conftest import build_model
from helpers import ScriptedMemPO, make_trainer
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling
from mempo_trl.rollout.budget import COMPACTION_PROMPT, GO_ON_PROMPT, ContextBudget
from mempo_trl.rollout.loop import CUT_MARKER, LAST_TURN_NOTE, TurnLoop
from mempo_trl.traces.convert import episode_trace, trace_episode
from mempo_trl.traces.file import check_trace
from mempo_trl.types import Episode, TurnLimits
from test_rollout import make_search, tool_call

TURN, RESULT = 60, 40
PROMPT = list(range(20))
ROLES = {"tool": "t", "user": "u", "assistant": "a"}


class Writes:
    """Writes the texts of a list, then of a function; keeps what it was given."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.given = tokenizer, texts, []

    def __call__(self, contexts):
        (context,) = contexts
        ids = [*self.tokenizer.encode(self.texts(len(self.given), context))[: TURN - 1], self.tokenizer.eos_token_id]
        self.given.append((context, ids))
        return [ids], None


def play(tokenizer, texts, tokens, result=lambda query: f"found {query}", max_turns=50, context="budget"):
    """One episode; `texts` gives each turn by its number and whether it is a compaction."""
    request = tokenizer.encode(COMPACTION_PROMPT)[-5:]
    eos = len(tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n"))
    engine = Writes(tokenizer, lambda number, context: texts(number, context[:-eos][-5:] == request))
    episode = Episode(tools={"search": make_search(result)}, prompt_ids=PROMPT)
    limits = TurnLimits(max_turns=max_turns, max_tool_length=RESULT, max_completion_length=100_000)
    budget = ContextBudget(tokens, TURN)
    loop = TurnLoop(tokenizer, engine, [tokenizer.eos_token_id], context=context, budget=budget, limits=limits)
    loop.run([episode])
    return episode, engine, loop


def least(tokenizer):
    loop = play(tokenizer, lambda number, asked: "x", 10**9)[2]
    return loop.budget.least(len(PROMPT), loop._result, loop._request, loop._go_on)


def script(number, asked):
    return f"<mem>m{number}</mem>" if asked else tool_call(f"q{number}")


def test_what_a_turn_sees(tokenizer):
    """The prompt, and all from the last compaction on."""
    episode, engine, _ = play(tokenizer, script, least(tokenizer) + 40, max_turns=12)
    compactions = [number for number, turn in enumerate(episode.turns) if turn.compaction]
    assert len(compactions) >= 3
    assert episode.turns_taken == 12
    assert episode.stop_reason == "max_turns"
    for number, (turn, (context, ids)) in enumerate(zip(episode.turns, engine.given, strict=True)):
        first = max((c for c in compactions if c < number), default=0)
        start = episode.turns[first].start
        assert context == PROMPT + episode.completion_ids[start : turn.start]
        assert (turn.first_visible, turn.ids, turn.context_tokens) == (first, ids, len(context))
    before, compaction = episode.turns[compactions[0] - 1], episode.turns[compactions[0]]
    assert before.results[-1] == {"role": "user", "content": COMPACTION_PROMPT}
    assert compaction.results == [{"role": "user", "content": GO_ON_PROMPT}]
    text = tokenizer.decode(engine.given[compactions[0] + 1][0][len(PROMPT) :])
    assert text == (
        f"<mem>m{compactions[0]}</mem><|im_end|>\n<|im_start|>user\n{GO_ON_PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_budget_without_limit_is_full_context(tokenizer):
    budget, full = (play(tokenizer, script, 10**9, max_turns=9, context=c)[1] for c in ("budget", "full"))
    assert budget.given == full.given


def test_the_least_budget_works_and_never_asks_twice_in_a_row(tokenizer):
    """Turns and memories as long as they may be: all turns but the first and the last two are followed by
    a compaction."""
    long = "x" * 2 * TURN

    def full_turns(number, asked):
        return f"<mem>{'m ' * 5}</mem>{long}" if asked else f"<think>{long[:4]}</think>" + tool_call("q" * 8)

    episode, _, _ = play(tokenizer, full_turns, least(tokenizer), lambda query: "ab " * 200, max_turns=6)
    assert episode.stop_reason == "max_turns"
    flags = [turn.compaction for turn in episode.turns]
    assert flags == [False, *[False, True] * 3, False, False]


def test_no_context_is_ever_longer_than_the_budget(tokenizer):
    """300 random episodes: several calls in a turn, results of any length, memories or none, any N that works."""
    smallest, reasons, peak = least(tokenizer), set(), 0
    for seed in range(300):
        rng = random.Random(seed)

        def text(number, asked, rng=rng):
            if asked:
                return rng.choice(["<mem>a b</mem>"] * 9 + ["no memory"]) + "y" * rng.randrange(80)
            calls = "".join(tool_call("q" * rng.randrange(4)) for _ in range(rng.choice([1, 1, 1, 2, 3])))
            return rng.choice(["", "z" * 9]) + calls if rng.random() < 0.95 else "<answer>x</answer>"

        tokens = smallest + rng.choice([0, 10, 100, 400])
        episode, engine, _ = play(
            tokenizer, text, tokens, lambda query, rng=rng: "ab " * rng.randrange(300), max_turns=rng.choice([3, 20])
        )
        assert all(len(context) + TURN <= tokens for context, _ in engine.given)
        flags = [turn.compaction for turn in episode.turns]
        assert (True, True) not in set(pairwise(flags))
        reasons.add(episode.stop_reason)
        peak = max(peak, episode.peak_tokens / tokens)
    assert {"finished", "max_turns", "no_memory"} <= reasons
    assert peak > 0.9


def test_results_are_cut_so_that_a_memory_can_be_asked_for(tokenizer):
    def text(number, asked):
        return "<mem>m</mem>" if asked else tool_call("a") * (2 if number == 3 else 1)

    N = least(tokenizer)
    episode, _, _ = play(tokenizer, text, N, lambda query: "ab " * 40, max_turns=6)
    assert episode.stop_reason == "max_turns"
    assert any(r["content"].endswith(CUT_MARKER) for turn in episode.turns for r in turn.results)


def test_a_compaction_without_a_memory_ends_the_episode(tokenizer):
    episode, _, _ = play(tokenizer, lambda n, asked: "<mem>open" if asked else tool_call("a"), least(tokenizer))
    assert episode.stop_reason == "no_memory"
    assert episode.turns[-1].compaction
    # A call in a compaction is not run.
    text = lambda n, asked: "<mem>m</mem>" + tool_call("b") if asked else tool_call("a")  # noqa: E731
    episode, _, _ = play(tokenizer, text, least(tokenizer), max_turns=5)
    assert all(not turn.tool_calls for turn in episode.turns if turn.compaction)
    assert episode.tool_calls == 4


def test_the_note_of_the_last_turn_comes_after_the_compaction(tokenizer):
    for max_turns in range(3, 8):
        episode, _, _ = play(tokenizer, script, least(tokenizer), max_turns=max_turns)
        noted = [r for turn in episode.turns for r in turn.results if r["content"].endswith(LAST_TURN_NOTE)]
        assert noted == [episode.turns[-2].results[-1]]


def test_a_trace_keeps_the_compactions(tokenizer):
    episode, _, _ = play(tokenizer, script, least(tokenizer), max_turns=8)
    episode.prompt = [{"role": "user", "content": "who?"}]
    trace = episode_trace(episode, "budget", tokenizer=tokenizer)
    assert all(len(turn["tool_results"]) == len(turn["tool_calls"]) for turn in trace["turns"][:-1])
    check_trace(trace, "here")
    read = trace_episode(json.loads(json.dumps(trace)))
    assert [turn.compaction for turn in read.turns] == [turn.compaction for turn in episode.turns]
    assert sum(turn.compaction for turn in read.turns) >= 2
    assert read.tool_calls == episode.tool_calls
    assert [m["content"] for m in read.messages] == [m["content"] for m in episode.messages]
    assert [m["role"] for m in read.messages] == [m["role"] for m in episode.messages]


# Training


def trainer_options(**changes):
    return {
        "context": "budget", "max_turn_length": 80, "max_tool_length": 40, "context_tokens": 900, "max_turns": 12,
        "max_completion_length": 4096, **changes,
    }  # fmt: skip


class Budgeted(ScriptedMemPO):
    """Compacts well, most of the time."""

    def _text(self, rng, row):
        if row != "":
            return super()._text(rng, row)
        return rng.choice(["", "<mem>a</mem>"] * 4 + ["<mem>Paris b</mem>"]) + (
            super()._text(rng, "")
            if rng.random() < 0.2
            else f"<mem>c{rng.randrange(9)}</mem><tool_call>\n"
            f'{{"name": "search", "arguments": {{"query": "{rng.choice("xyz")}"}}}}\n</tool_call>'
        )


def brute_force(trainer, model, batch):
    """Log-probs of each turn behind exactly what the engine was given for it."""
    given = {}
    for context, turn in trainer.turns_given:
        given.setdefault(tuple(turn), []).append(context)
    logps = torch.zeros(batch["completion_ids"].shape)
    for row, episode in enumerate(trainer.last_rollout.episodes):
        for turn in episode.turns:
            before = episode.prompt_ids + episode.completion_ids[: turn.start]
            (context, *_) = [
                c for c in given[tuple(turn.ids)]
                if len(c) == turn.context_tokens and c[: len(episode.prompt_ids)] == episode.prompt_ids
                and c[len(episode.prompt_ids) :] == before[len(episode.prompt_ids) :][len(before) - len(c) :]
            ]  # fmt: skip
            ids = torch.tensor([context + turn.ids])
            scores = model(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
            logps[row, turn.start : turn.end] = scores.gather(-1, ids[0, len(context) :, None])[:, 0]
    return logps


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_log_probs_are_those_of_what_was_seen(tmp_path, tokenizer, questions, kind):
    trainer = make_trainer(
        tmp_path, build_model(len(tokenizer), kind), tokenizer, questions, Budgeted, **trainer_options()
    )
    counts = set()
    for step in range(4):  # 32 episodes
        trainer.turns_given, trainer.state.global_step = [], step
        batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
        episodes = trainer.last_rollout.episodes
        counts |= {sum(turn.compaction for turn in episode.turns) for episode in episodes}
        assert max(len(context) + 80 for context, _ in trainer.turns_given) <= 900
        with torch.no_grad(), trainer._seen_as(batch["visible_start"]):
            logps, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].size(1),
            )
            mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
            expected = brute_force(trainer, trainer.model, batch)
        torch.testing.assert_close(logps[mask], expected[mask], atol=1e-5, rtol=0)
    assert {0, 1, 2} <= counts


def test_only_the_memories_of_compactions_are_credited(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **trainer_options())
    trainer.train()
    rollout = trainer.last_rollout
    assert rollout.memories.scored
    for row, turn in rollout.memories.scored:
        assert rollout.episodes[row].turns[turn].compaction
    for row, episode in enumerate(rollout.episodes):
        credited = rollout.advantages[row] != rollout.outcome_advantages[row]
        inside = torch.zeros_like(credited)
        for turn in episode.turns:
            inside[turn.start : turn.end] = turn.compaction
        assert not (credited & ~inside).any()
    (log,) = [entry for entry in trainer.state.log_history if "rollout/compactions" in entry][-1:]
    expected = sum(turn.compaction for episode in rollout.episodes for turn in episode.turns) / len(rollout.episodes)
    assert log["rollout/compactions"] == pytest.approx(expected)
    assert 0 <= log["rollout/failed_compactions"] <= 1


def test_too_small_a_budget_is_refused_with_the_least_that_works(tmp_path, model, tokenizer, questions):
    options = trainer_options(context_tokens=100)
    with pytest.raises(ValueError, match=r"context_tokens=100 does not hold a prompt of \d+ tokens") as error:
        make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **options)
    (number,) = [int(part.split()[0]) for part in str(error.value).split("Set context_tokens to ")[1:]]
    with pytest.raises(ValueError, match=f"Set context_tokens to {number} or more"):
        make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **trainer_options(context_tokens=number - 1))
    make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **trainer_options(context_tokens=number))
    with pytest.raises(ValueError, match="context_tokens=5000 is more than the 2048 tokens that the model"):
        make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **trainer_options(context_tokens=5000))
    for changes in ({"context_tokens": None}, {"context": "memory"}):
        with pytest.raises(ValueError, match="context_tokens"):
            make_trainer(tmp_path, model, tokenizer, questions, Budgeted, **trainer_options(**changes))


def test_an_agent_plays_under_the_budget(model, tokenizer):
    options = {
        "limits": TurnLimits(max_turns=4, max_tool_length=40), "sampling": Sampling(max_turn_length=30),
        "tools": [make_search(str)],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"Set context_tokens to (\d+) and the tokens of the longest prompt"):
        MemoryAgent(model, tokenizer, context="budget", context_tokens=50, **options)
    agent = MemoryAgent(model, tokenizer, context="budget", context_tokens=900, **options)
    episode = agent.run("who?", seed=0)
    assert episode.turns
    assert episode.peak_tokens <= 900
    assert (
        MemoryAgent(model, tokenizer, context="budget", context_tokens=600, **options).run("who? " * 300).stop_reason
        == "truncated"
    )
