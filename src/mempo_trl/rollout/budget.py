"""`context="budget"`: when a context is full, the policy rewrites it as a memory and continues from there."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Episode, Message, TurnLimits

COMPACTION_PROMPT = (
    "The context is full. Write one <mem>...</mem> now, with everything you know so far that the task needs: names, "
    "numbers and dates in full, what is done and what is left to do. Everything else is taken away afterwards. Call no "
    "tool in this turn."
)
GO_ON_PROMPT = "The earlier turns were taken away. Go on from your memory."


@dataclass(frozen=True)
class ContextBudget:
    """How long a context may get, and what the policy is asked once it is that long.

    A compaction is a separate turn. It is asked for behind a turn's tool results, as soon as the next turn, its tool
    result and another compaction might not fit any more. It sees what the next turn would have seen; the turns behind
    it see the prompt and what was written from the compaction on. Two compactions never follow each other.

    Attributes:
        tokens: N. No context and the turn behind it are ever more than this.
        turn_length: most tokens of a turn.
        prompt: the user message that asks for the memory.
    """

    tokens: int
    turn_length: int
    prompt: str = COMPACTION_PROMPT

    @property
    def request(self) -> Message:
        """The message that asks for a memory."""
        return {"role": "user", "content": self.prompt}

    def fits(self, seen: int) -> bool:
        """Whether a turn may be generated from `seen` tokens."""
        return seen + self.turn_length <= self.tokens

    def is_full(self, seen: int, result: int, request: int) -> bool:
        """Whether a turn that sees `seen` tokens could leave no room for a compaction behind it.

        Args:
            seen: tokens of prompt, visible turns and their results.
            result: tokens of the longest tool result, as the template renders it.
            request: tokens of the rendered request.
        """
        return not self.fits(seen + self.turn_length + result + request)

    def least(self, prompt: int, result: int, request: int, go_on: int) -> int:
        """The least N for a prompt: it, a compaction, the message behind that, a turn, its result, a compaction.

        Args:
            prompt: its tokens.
            result: see `is_full`.
            request: see `is_full`.
            go_on: tokens of the rendered message that follows a compaction.
        """
        return prompt + self.turn_length + go_on + self.turn_length + result + request + self.turn_length


def is_asked(episode: Episode, budget: ContextBudget | None) -> bool:
    """Whether the episode's next turn is a compaction."""
    return budget is not None and bool(episode.turns) and episode.turns[-1].results[-1:] == [budget.request]


def is_last(episode: Episode, limits: TurnLimits) -> bool:
    """Whether the episode's next turn is the last one that is allowed; compactions do not count."""
    return episode.turns_taken >= limits.max_turns - 1


def check_context_tokens(context: str, tokens: int | None) -> None:
    """Raises ValueError if `context_tokens` and `context` do not go together."""
    if context == "budget" and (tokens is None or tokens < 1):
        raise ValueError(
            f"context='budget' with context_tokens={tokens} does not say how many tokens a turn and what it sees may "
            "have. Set context_tokens, e.g. to 8192"
        )
    if context != "budget" and tokens is not None:
        raise ValueError(
            f"context_tokens={tokens} has no effect with context={context!r}. Set context='budget', or leave it out"
        )


def refuse_small_budget(budget: ContextBudget, least: int, prompt: int | None) -> None:
    """Raises ValueError for a budget that cannot hold a compaction and one turn.

    Args:
        budget: of the configuration.
        least: the least N, for the prompt.
        prompt: tokens of the longest prompt; None if no prompt is known yet, and `least` is what comes beside it.
    """
    if budget.tokens < least + (prompt is None):
        prompts = "a prompt" if prompt is None else f"a prompt of {prompt} tokens"
        more = f"{least} and the tokens of the longest prompt" if prompt is None else f"{least}"
        raise ValueError(
            f"context_tokens={budget.tokens} does not hold {prompts}, a memory, a turn and the memory after it, each "
            f"of max_turn_length={budget.turn_length}, and a tool result of max_tool_length. Set context_tokens to "
            f"{more} or more, or lower the others"
        )


def longest(messages: Sequence[Message]) -> Message:
    """The message with the longest text."""
    return max(messages, key=lambda message: len(message["content"]))
