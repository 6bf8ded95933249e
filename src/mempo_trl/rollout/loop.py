"""The turn loop: visible context -> generate -> run tools -> append, on token ids, the same for training and use."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response

from ..memory.turns import find_turns
from ..text import escape, valid_unicode
from .context import visible_context
from .tools import ToolResult, call_tool, run_concurrently

StopReason = Literal["finished", "done", "max_turns", "truncated"]
# For each row of prompt ids: the ids of one turn, and their log-probs where the engine gives them.
Generate = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]

LAST_TURN_NOTE = "\n[This was the last tool result. Give your final answer now.]"
CUT_MARKER = "\n[... cut: the result was too long]"


@dataclass
class Episode:
    """One trajectory as it grows. `mask`, `completion_ids` and `logprobs` are parallel.

    Attributes:
        prompt_ids: the rendered prompt, ending with the assistant header. Length P.
        tools: what the model may call, by name.
        environment: if it has `turn_text`, it gets each turn's text; if it has `done`, True ends the episode.
        completion_ids: turns and rendered tool results. Length C.
        mask: 1 where the model wrote, 0 where a tool did. Length C.
        logprobs: of the sampled tokens, 0 on tool results; None where the engine gives none. Length C.
        messages: the turns and tool results as messages; a turn's `content` is its whole text, memory included.
        context_lengths: tokens that each turn was generated from.
        stop_reason: "finished" (a turn without a tool call), "done" (the environment said so), "max_turns", or
            "truncated" (a turn, the episode or the engine's context was at its limit).
    """

    prompt_ids: list[int]
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    environment: Any = None
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    context_lengths: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    tool_calls: int = 0
    tool_failures: int = 0

    @property
    def turns(self) -> int:
        """How many turns the model wrote."""
        return len(self.context_lengths)

    @property
    def peak_tokens(self) -> int:
        """The longest that context and turn together were."""
        return max(self._turn_tokens(), default=0)

    @property
    def total_tokens(self) -> int:
        """All tokens that the model read or wrote: context and turn, summed over the turns."""
        return sum(self._turn_tokens())

    def _turn_tokens(self) -> list[int]:
        lengths = [end - start for start, end in find_turns(self.mask)]
        return [read + written for read, written in zip(self.context_lengths, lengths, strict=True)]

    def append(self, ids: list[int], mark: int, logprobs: list[float] | None = None) -> None:
        """Adds tokens that the model (mark 1) or a tool (mark 0) wrote."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"the engine gave {len(logprobs)} log-probs for {len(ids)} tokens")
        if logprobs is not None or self.logprobs is not None:
            self.logprobs = (self.logprobs or [0.0] * len(self.completion_ids)) + (logprobs or [0.0] * len(ids))
        self.completion_ids = self.completion_ids + ids
        self.mask = self.mask + [mark] * len(ids)


@dataclass
class TurnLimits:
    """Budgets in tokens and turns.

    Attributes:
        max_turns: turns of an episode.
        max_tool_length: tokens of one tool result; a longer one is cut, with a marker.
        max_completion_length: tokens of all turns and tool results of an episode.
        max_context_length: tokens that the engine can hold, prompt included; None for no limit.
        tool_timeout: seconds for one tool call; None for no limit.
        tool_concurrency: tool calls that run at once.
    """

    max_turns: int = 16
    max_tool_length: int = 1024
    max_completion_length: int = 8192
    max_context_length: int | None = None
    tool_timeout: float | None = 60.0
    tool_concurrency: int = 64


def is_done(environment: Any) -> bool:
    """Whether the environment ends the episode. A `done` that can be called is a tool of that name, not the answer."""
    done = getattr(environment, "done", False)
    return bool(done) and not callable(done)


def tool_suffix_ids(
    tokenizer: PreTrainedTokenizerBase, tool_messages: list[dict[str, Any]], chat_template: str | None = None
) -> list[int]:
    """The ids that stand between a turn's end token and the next turn, as TRL renders them."""
    trainer = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=chat_template, chat_template_kwargs={},
        _is_vlm=False,
    )  # fmt: skip
    return GRPOTrainer._get_tool_suffix_ids(trainer, tool_messages)


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
        suffix_ids: Callable[[list[dict[str, Any]]], list[int]] | None = None,
        equalize: Callable[[int], int] = lambda rows: rows,
        event_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.generate = generate
        self.eos_token_ids = frozenset(eos_token_ids)
        special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = special - {tokenizer.unk_token_id}
        self.context = context
        self.context_turns = context_turns
        self.limits = limits or TurnLimits()
        self.suffix_ids = suffix_ids or partial(tool_suffix_ids, tokenizer)
        self.equalize = equalize
        self.event_loop = event_loop

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
        return visible_context(
            episode.prompt_ids, episode.completion_ids, episode.mask, self.context, self.context_turns
        )

    def add_turn(self, episode: Episode, context: list[int], ids: list[int], logprobs: list[float] | None) -> None:
        """Appends a turn generated from `context`, cut to what is left of the budget, and says if the episode ends."""
        room = self.limits.max_completion_length - len(episode.completion_ids)
        ids, logprobs = ids[:room], logprobs[:room] if logprobs is not None else None
        if not ids:
            episode.stop_reason = "truncated"
            return
        message = self._parse(episode, context, ids)
        text = self.tokenizer.decode([i for i in ids if i not in self.eos_token_ids], skip_special_tokens=False)
        episode.append(ids, 1, logprobs)
        episode.context_lengths.append(len(context))
        episode.messages.append({**message, "role": "assistant", "content": text})
        if hasattr(episode.environment, "turn_text"):
            episode.environment.turn_text = text
        if ids[-1] not in self.eos_token_ids:
            episode.stop_reason = "truncated"
        elif is_done(episode.environment):
            episode.stop_reason = "done"
        elif not message.get("tool_calls"):
            episode.stop_reason = "finished"
        elif episode.turns >= self.limits.max_turns:
            episode.stop_reason = "max_turns"

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
        calls = [(episode, call) for episode in active for call in episode.messages[-1]["tool_calls"]]
        results = run_concurrently(
            [partial(call_tool, episode.tools, call, self.event_loop) for episode, call in calls],
            self.limits.tool_timeout,
            self.limits.tool_concurrency,
        )
        messages: dict[int, list[dict[str, Any]]] = {id(episode): [] for episode in active}
        for (episode, call), result in zip(calls, results, strict=True):
            episode.tool_calls += 1
            episode.tool_failures += result.failed
            messages[id(episode)].append(self._tool_message(call, result))
        for episode in active:
            self._append_results(episode, messages[id(episode)])

    def _tool_message(self, call: Mapping[str, Any], result: ToolResult) -> dict[str, Any]:
        limit = self.limits.max_tool_length
        # No vocabulary packs more than a few dozen characters in a token: what is beyond need not be encoded.
        text, ids = self._plain(result.text[: 64 * limit])
        if len(ids) > limit:
            text = self.tokenizer.decode(ids[:limit])
        if len(ids) > limit or len(result.text) > 64 * limit:
            text += CUT_MARKER
        name, _ = self._plain(call.get("function", call)["name"])
        return {"role": "tool", "name": name, "content": text}

    def _plain(self, text: str) -> tuple[str, list[int]]:
        """`text` as the chat template can take it: valid Unicode, nothing encoded as a special token; and its ids."""
        text = valid_unicode(text)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if not self._special_ids.isdisjoint(ids):
            text = escape(text)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
        return text, ids

    def _append_results(self, episode: Episode, messages: list[dict[str, Any]]) -> None:
        """Appends tool results if the episode and the engine have room for them and for one more token."""
        if is_done(episode.environment):
            # No turn follows: the completion ends with the turn's end token, and the results are messages alone.
            episode.messages.extend(messages)
            episode.stop_reason = "done"
            return
        if episode.turns == self.limits.max_turns - 1:
            messages[-1]["content"] += LAST_TURN_NOTE
        suffix = self.suffix_ids(messages)
        if self._has_room(episode, suffix):
            episode.append(suffix, 0)
            episode.messages.extend(messages)
        else:
            episode.stop_reason = "truncated"

    def _has_room(self, episode: Episode, suffix: list[int]) -> bool:
        if len(episode.completion_ids) + len(suffix) >= self.limits.max_completion_length:
            return False
        limit = self.limits.max_context_length
        extended = visible_context(
            episode.prompt_ids,
            episode.completion_ids + suffix,
            episode.mask + [0] * len(suffix),
            self.context,
            self.context_turns,
        )
        return limit is None or len(extended) < limit
