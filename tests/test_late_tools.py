"""What a tool does after its time is over reaches no episode: not its own, and none that is played later."""

import threading
import time

import torch

from conftest import build_model
from helpers import Scripted, make_trainer, tool_call
from mempo_trl import MemPOTrainer
from mempo_trl.rollout.loop import TurnLimits
from test_rollout import play

TIMEOUT = 1.0


class Late:
    """Its slow search waits to be let go, and then ends the episode and takes notes. Its quick one lets go."""

    waiting: list  # (start, event that lets go, event that it has written) of each slow search
    let_go = True

    def __init__(self):
        self.reset()

    def reset(self, **row):
        """Starts an episode."""
        self.done, self.notes, self.turn_text = False, [], ""

    def search(self, query: str) -> str:
        """
        Searches.

        Args:
            query: what to look for.
        """
        notes = self.notes
        if query == "slow":
            call = time.monotonic(), threading.Event(), threading.Event()
            self.waiting.append(call)
            assert call[1].wait(60)
            self.done = True
        elif self.let_go:
            self._let_go()
        notes.append(query)
        self.notes.append(query)
        if query == "slow":
            call[2].set()
        return query

    @classmethod
    def _let_go(cls, least=0.9 * TIMEOUT):
        for start, let_go, wrote in list(cls.waiting):
            if time.monotonic() - start > least:
                let_go.set()
                assert wrote.wait(60)


def test_done_that_is_set_late_does_not_end_the_episode(tokenizer):
    late = type("LateOnce", (Late,), {"waiting": []})()
    turns = [tool_call("slow"), tool_call("a"), "<answer>c</answer>"]
    (episode,), _ = play(
        tokenizer, [turns], TurnLimits(tool_timeout=TIMEOUT), environments=[late], tools={"search": late.search}
    )
    assert (late.done, late.notes) == (True, ["slow", "slow"])  # written while the episode was played
    assert (episode.stop_reason, len(episode.messages)) == ("finished", 5)
    assert "did not answer within 1 s" in episode.messages[1]["content"]
    assert (episode.environment.done, episode.environment.notes) == (False, ["a", "a"])


class ScriptedLate(Scripted, MemPOTrainer):
    """Half of the episodes search slowly first, the others quickly; then they search or answer."""

    def _text(self, rng, row):
        if row != "":
            return tool_call("slow" if row % 2 else "a")
        return "<mem>a</mem>" + rng.choice([tool_call("slow"), tool_call("a"), tool_call("b"), "<answer>a</answer>"])


def train(tmp_path, tokenizer, questions, let_go):
    class Counted(Late):
        """Has its own list."""

    Counted.waiting, Counted.let_go = [], let_go
    seen = []

    def reward(environments, completions, **kwargs):
        seen.append([(environment.done, list(environment.notes)) for environment in environments])
        return [float(len(environment.notes)) for environment in environments]

    model = build_model(len(tokenizer))
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, ScriptedLate, {"environment_factory": Counted, "tools": None},
        tool_timeout=TIMEOUT, max_steps=2, max_turns=3,
    )  # fmt: skip
    trainer.reward_funcs = [reward]
    trainer.train()
    wrote = sum(call[2].is_set() for call in Counted.waiting)
    Counted._let_go(0)
    return seen, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), wrote


def test_training_is_the_same_whatever_late_calls_write(tmp_path, tokenizer, questions):
    """Two steps with environments that are used again. In one run, what was left behind writes as soon as it can."""
    seen, parameters, wrote = train(tmp_path, tokenizer, questions, let_go=True)
    assert wrote > 3
    assert (seen, parameters, 0) == train(tmp_path, tokenizer, questions, let_go=False)
    assert not any(done for step in seen for done, _ in step)
    assert any(notes for _, notes in seen[-1])
