"""The turn loop: visible context -> generate -> run tools -> append, on token ids, the same for training and use."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..types import Episode, Message, StopReason, Turn, TurnLimits
from .budget import GO_ON_PROMPT, ContextBudget, is_asked, is_last, longest, refuse_small_budget
from .chat_format import ChatFormat
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
    turn = episode.turns[-1]
    if turn.compaction:
        return "no_memory" if turn.memory is None else None
    if not turn.tool_calls and turn.malformed is None:
        return "finished"
    return "max_turns" if episode.turns_taken >= limits.max_turns else None


def malformed_result(episode: Episode) -> tuple[Message, ToolResult]:
    """What answers a call of the last turn that cannot be read: a call that stands for it, and its result.

    A template derives the header of a result from a tool's name, and the name in the turn is unknown.
    """
    name = next(iter(episode.tools), "tool")
    text = f"Error: the tool call cannot be read: {episode.turns[-1].malformed} Call again."
    return {"function": {"name": name, "arguments": {}}}, ToolResult(text, failed=True)


class TurnLoop:
    """Plays episodes turn by turn. Nothing that was sampled is decoded and encoded again.

    Args:
        tokenizer: reads the turns.
        generate: one turn for each row of ids; an empty one ends its episode.
        eos_token_ids: the ids that end a turn, beside those of the chat template. A turn that ends otherwise was cut,
            and ends its episode.
        context: "full", "memory" or "budget", see `rollout.context`.
        context_turns: past turns that the "memory" context keeps.
        budget: of the "budget" context.
        limits: budgets.
        chat: renders what stands between turns and reads turns; default: with the tokenizer's chat template.
        stop: texts that end a turn too, as the engine's stop strings do. What was sampled behind one is left out.
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
        budget: ContextBudget | None = None,
        limits: TurnLimits | None = None,
        chat: ChatFormat | None = None,
        stop: Sequence[str] = (),
        equalize: Callable[[int], int] = lambda rows: rows,
        event_loop: asyncio.AbstractEventLoop | None = None,
        on_message: Callable[[Message], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.generate = generate
        self.chat = chat or ChatFormat(tokenizer)
        self.stop = tuple(stop)
        self.eos_token_ids = frozenset([*eos_token_ids, *self.chat.end_ids])
        self._plain = PlainText(tokenizer)
        self.context = context
        self.context_turns = context_turns
        self.budget = budget if context == "budget" else None
        self.limits = limits or TurnLimits()
        self.equalize = equalize
        self.event_loop = event_loop
        self.on_message = on_message or (lambda message: None)
        if context == "budget":
            if budget is None:
                raise ValueError("context='budget' needs a ContextBudget. Pass budget")
            self._result, self._request, self._go_on = self._budget_lengths(budget)

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
        return first_visible(episode.turns, self.context, self.context_turns)

    def add_turn(self, episode: Episode, context: list[int], ids: list[int], logprobs: list[float] | None) -> None:
        """Appends a turn generated from `context`, cut to what is left of the budget, and says if the episode ends."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"the engine gave {len(logprobs)} log-probs for {len(ids)} tokens")
        start = len(episode.completion_ids)
        room = self.limits.max_completion_length - start
        ids, stopped = self._cut_at_stop(ids[:room])
        logprobs = logprobs[: len(ids)] if logprobs is not None else None
        if not ids:
            episode.stop_reason = "truncated"
            return
        if self.budget and len(context) + len(ids) > self.budget.tokens:
            raise ValueError(
                f"a turn of {len(ids)} tokens behind {len(context)} exceeds context_tokens={self.budget.tokens}: the "
                f"engine must write at most {self.budget.turn_length}"
            )
        text = self.tokenizer.decode([i for i in ids if i not in self.eos_token_ids], skip_special_tokens=False)
        read = self.chat.read(text, list(episode.tools.values()))
        first = self._first_visible(episode)
        turn = Turn(text, read.calls, first, len(context), len(ids), start, ids, logprobs)
        turn.malformed, turn.opened, turn.parts = read.error, self.chat.opened, read.parts
        if self.budget:
            turn.compaction = is_asked(episode, self.budget)
        if turn.compaction:
            turn.tool_calls, turn.malformed = [], None
        episode.turns.append(turn)
        if hasattr(episode.environment, "turn_text"):
            episode.environment.turn_text = text
        episode.stop_reason = stop_reason(episode, stopped or ids[-1] in self.eos_token_ids, self.limits)
        self.on_message(turn.message)

    def _cut_at_stop(self, ids: list[int]) -> tuple[list[int], bool]:
        """The ids up to the token that completes a stop string, and whether there is one."""

        def holds_stop(length: int) -> bool:
            text = self.tokenizer.decode(ids[:length], skip_special_tokens=False)
            return any(stop in text for stop in self.stop)

        if not self.stop or not holds_stop(len(ids)):
            return ids, False
        return ids[: bisect_left(range(len(ids)), True, key=holds_stop)], True

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
            if episode.turns[-1].malformed is not None:
                messages[id(episode)].append(self._tool_message(*malformed_result(episode)))
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
        if turn.compaction:
            messages = [{"role": "user", "content": GO_ON_PROMPT}]
        note = LAST_TURN_NOTE if is_last(episode, self.limits) else ""
        messages[-1]["content"] += note
        turn.results, turn.result_ids = messages, self._suffix_ids(turn, messages)
        if self.budget and not turn.compaction and self._is_full(episode, self.budget):
            messages[-1]["content"] = messages[-1]["content"].removesuffix(note)
            self._ask_for_memory(episode, self.budget)
        if not self.has_room(episode):
            turn.results, turn.result_ids, episode.stop_reason = [], [], "truncated"

    def _suffix_ids(self, turn: Turn, messages: list[Message]) -> list[int]:
        return self.chat.suffix_ids(messages, (turn.ids or [])[-1] in self.eos_token_ids)

    def _budget_lengths(self, budget: ContextBudget) -> tuple[int, int, int]:
        """Tokens of the longest tool result, of what asks for a memory behind it, and of what follows a memory."""
        result: Message = {"role": "tool", "name": "tool", "content": CUT_MARKER + LAST_TURN_NOTE}
        go_on: Message = {"role": "user", "content": GO_ON_PROMPT + LAST_TURN_NOTE}
        rendered = [
            len(self.chat.suffix_ids(messages, False)) for messages in ([result], [result, budget.request], [go_on])
        ]
        return rendered[0] + self.limits.max_tool_length, rendered[1] - rendered[0], rendered[2]

    def check_budget(self, prompt: int | None = None) -> None:
        """Raises ValueError if the budget is too small for prompts of so many tokens; None where none is known yet."""
        if self.budget is not None:
            least = self.budget.least(prompt or 0, self._result, self._request, self._go_on)
            refuse_small_budget(self.budget, least, prompt)

    def _is_full(self, episode: Episode, budget: ContextBudget) -> bool:
        seen = len(self.visible(episode))
        return (
            not budget.fits(seen)
            if is_last(episode, self.limits)
            else budget.is_full(seen, self._result, self._request)
        )

    def _ask_for_memory(self, episode: Episode, budget: ContextBudget) -> None:
        """Asks for a compaction behind the last turn's results, which are cut if there is no room for it."""
        turn = episode.turns[-1]
        tools = turn.results
        for _ in range(2 * len(tools)):  # a text that was cut may have more tokens than were kept of it
            turn.results = [*tools, budget.request]
            turn.result_ids = self._suffix_ids(turn, turn.results)
            excess = len(self.visible(episode)) + budget.turn_length - budget.tokens
            if excess <= 0:
                return
            result = longest(tools)
            text = result["content"].removesuffix(CUT_MARKER)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            kept = max(len(ids) - excess - len(self.tokenizer.encode(CUT_MARKER)), 0)
            result["content"] = self.tokenizer.decode(ids[:kept]) + CUT_MARKER

    def has_room(self, episode: Episode) -> bool:
        """Whether a turn may follow: what it sees is shorter than the limits."""
        if len(episode.completion_ids) >= self.limits.max_completion_length:
            return False
        limit, seen = self.limits.max_context_length, len(self.visible(episode))
        return (limit is None or seen < limit) and (self.budget is None or self.budget.fits(seen))
