"""The turn loop: visible context -> generate -> run tools -> append, on token ids, the same for training and use."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from ..types import Episode, Message, StopReason, Turn, TurnLimits
from .context import first_visible, visible_ids
from .plain import PlainText
from .tools import ToolResult, run_calls

# For each row of prompt ids: the ids of one turn, and their log-probs where the engine gives them.
Generate = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]

LAST_TURN_NOTE = "\n[This was the last tool result. Give your final answer now.]"
CUT_MARKER = "\n[... cut: the result was too long]"


def is_done(environment: Any) -> bool:
    """Whether the environment ends the episode. A `done` that can be called is a tool of that name, not the answer."""
    done = getattr(environment, "done", False)
    return bool(done) and not callable(done)


def stop_reason(episode: Episode, ended: bool, limits: TurnLimits) -> StopReason | None:
    """Why the episode ends with its last turn; None if its tools are to be run.

    Args:
        episode: with the turn in it.
        ended: whether the policy ended that turn; False if a limit cut it.
        limits: budgets.
    """
    if not ended:
        return "truncated"
    if is_done(episode.environment):
        return "done"
    if not episode.turns[-1].tool_calls:
        return "finished"
    return "max_turns" if len(episode.turns) >= limits.max_turns else None


def tool_suffix_ids(
    tokenizer: PreTrainedTokenizerBase,
    tool_messages: list[Message],
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """The ids that stand between a turn's end token and the next turn, as the chat template renders them.

    They are what a short conversation with these tool messages has more than one without. Where the template writes
    something behind a turn's end token, such as a newline, the sampled turn does not have it, so it belongs here.

    Raises:
        ValueError: the template renders the turn differently once tool messages follow it.
    """
    # Some templates take the header of a tool result from the call.
    call = {"type": "function", "function": {"name": tool_messages[0]["name"], "arguments": {}}}
    messages = [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    render = partial(
        tokenizer.apply_chat_template, tokenize=True, return_dict=False, chat_template=chat_template,
        **(chat_template_kwargs or {}),
    )  # fmt: skip
    before: list[int] = render(messages, add_generation_prompt=False)
    after: list[int] = render(messages + tool_messages, add_generation_prompt=True)
    ends = [place for place, token in enumerate(before, start=1) if token == tokenizer.eos_token_id]
    length = ends[-1] if ends else len(before)
    if after[:length] != before[:length]:
        raise ValueError(
            "the chat template renders a turn differently once a tool result follows it, so turns cannot be appended "
            "to. Set tokenizer.chat_template to one that keeps earlier messages as they are"
        )
    return after[length:]


class TurnLoop:
    """Plays episodes turn by turn. Nothing that was sampled is decoded and encoded again.

    Args:
        tokenizer: reads the turns.
        generate: one turn for each row of ids; an empty one ends its episode.
        eos_token_ids: the ids that end a turn. A turn that ends otherwise was cut, and ends its episode.
        context: "full" or "memory", see `rollout.context`.
        context_turns: past turns that the "memory" context keeps.
        limits: budgets.
        suffix_ids: renders tool messages; default: as the tokenizer's chat template does.
        equalize: from the number of rows to generate here to the number to generate, so that all ranks generate as
            many, as often (a vLLM server gives ranks with unequal numbers each other's turns).
        event_loop: where async tools run; a new one for each call by default.
        on_message: called with each turn and each tool result as soon as it is there.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        generate: Generate,
        eos_token_ids: Sequence[int],
        *,
        context: str = "full",
        context_turns: int = 1,
        limits: TurnLimits | None = None,
        suffix_ids: Callable[[list[Message]], list[int]] | None = None,
        equalize: Callable[[int], int] = lambda rows: rows,
        event_loop: asyncio.AbstractEventLoop | None = None,
        on_message: Callable[[Message], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.generate = generate
        self.eos_token_ids = frozenset(eos_token_ids)
        self._plain = PlainText(tokenizer)
        self.context = context
        self.context_turns = context_turns
        self.limits = limits or TurnLimits()
        self.suffix_ids = suffix_ids or partial(tool_suffix_ids, tokenizer)
        self.equalize = equalize
        self.event_loop = event_loop
        self.on_message = on_message or (lambda message: None)

    def run(self, episodes: list[Episode]) -> list[Episode]:
        """Plays episodes to their end, in place. Those that have no turn yet get their first one here."""
        active = [e for e in episodes if e.stop_reason is None]
        while self.equalize(len(active)):
            self._run_tools([e for e in active if e.turns])
            active = [e for e in active if e.stop_reason is None]
            self._generate_turns(active)
            active = [e for e in active if e.stop_reason is None]
        return episodes

    def visible(self, episode: Episode) -> list[int]:
        """The ids that the episode's next turn is generated from."""
        return visible_ids(episode, self._first_visible(episode))

    def _first_visible(self, episode: Episode) -> int:
        return first_visible(len(episode.turns), self.context, self.context_turns)

    def add_turn(self, episode: Episode, context: list[int], ids: list[int], logprobs: list[float] | None) -> None:
        """Appends a turn generated from `context`, cut to what is left of the budget, and says if the episode ends."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"the engine gave {len(logprobs)} log-probs for {len(ids)} tokens")
        start = len(episode.completion_ids)
        room = self.limits.max_completion_length - start
        ids, logprobs = ids[:room], logprobs[:room] if logprobs is not None else None
        if not ids:
            episode.stop_reason = "truncated"
            return
        text = self.tokenizer.decode([i for i in ids if i not in self.eos_token_ids], skip_special_tokens=False)
        calls = self._parse(episode, context, ids).get("tool_calls") or []
        first = self._first_visible(episode)
        episode.turns.append(Turn(text, calls, first, len(context), len(ids), start, ids, logprobs))
        if hasattr(episode.environment, "turn_text"):
            episode.environment.turn_text = text
        episode.stop_reason = stop_reason(episode, ids[-1] in self.eos_token_ids, self.limits)
        self.on_message(episode.turns[-1].message)

    def _parse(self, episode: Episode, context: list[int], ids: list[int]) -> dict[str, Any]:
        try:
            return parse_response(self.tokenizer, ids, prefix=context, tools=list(episode.tools.values()))
        except RecursionError:  # arguments nested too deep for the JSON parser: no call, as any malformed one
            return {}

    def _generate_turns(self, active: list[Episode]) -> None:
        contexts = [self.visible(episode) for episode in active]
        rows = self.equalize(len(active))
        if not rows:
            return
        filler = [[next(iter(self.eos_token_ids))]] * (rows - len(active))
        turns, logprobs = self.generate(contexts + filler)
        if len(turns) != rows:
            raise ValueError(f"the engine returned {len(turns)} turns, expected {rows}")
        for index, episode in enumerate(active):
            self.add_turn(episode, contexts[index], turns[index], None if logprobs is None else logprobs[index])

    def _run_tools(self, active: list[Episode]) -> None:
        """Runs the calls of each episode's last turn, all together, and appends their results."""
        calls = [(episode, call) for episode in active for call in episode.turns[-1].tool_calls]
        results = run_calls(calls, self.limits, self.event_loop)
        messages: dict[int, list[Message]] = {id(episode): [] for episode in active}
        for (episode, call), result in zip(calls, results, strict=True):
            episode.tool_calls += 1
            episode.tool_failures += result.failed
            messages[id(episode)].append(self._tool_message(call, result))
        for episode in active:
            self._append_results(episode, messages[id(episode)])
            for message in messages[id(episode)]:
                self.on_message(message)

    def _tool_message(self, call: Mapping[str, Any], result: ToolResult) -> Message:
        limit = self.limits.max_tool_length
        # No vocabulary packs more than a few dozen characters in a token: what is beyond need not be encoded.
        text, ids = self._plain.encoded(result.text[: 64 * limit])
        if len(ids) > limit:
            text = self.tokenizer.decode(ids[:limit])
        if len(ids) > limit or len(result.text) > 64 * limit:
            text += CUT_MARKER
        return {"role": "tool", "name": self._plain(call.get("function", call)["name"]), "content": text}

    def _append_results(self, episode: Episode, messages: list[Message]) -> None:
        """Appends tool results if the episode and the engine have room for them and for one more token."""
        turn = episode.turns[-1]
        if is_done(episode.environment):
            # No turn follows: the completion ends with the turn's end token, and the results are messages alone.
            turn.results, episode.stop_reason = messages, "done"
            return
        if len(episode.turns) == self.limits.max_turns - 1:
            messages[-1]["content"] += LAST_TURN_NOTE
        turn.results, turn.result_ids = messages, self.suffix_ids(messages)
        if not self._has_room(episode):
            turn.results, turn.result_ids, episode.stop_reason = [], [], "truncated"

    def _has_room(self, episode: Episode) -> bool:
        if len(episode.completion_ids) >= self.limits.max_completion_length:
            return False
        limit = self.limits.max_context_length
        return limit is None or len(self.visible(episode)) < limit
