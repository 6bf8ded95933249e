"""What the policy sees at each turn (method.md, section 6): the prompt, and the turns from a first visible one on.

One number for each turn says it all, and is stored with it (`Turn.first_visible`): the turn sees the prompt and
everything from that turn on, whose memory stands for what lies before. The loss, the scores, the cold start and the
viewer go by it. A context is the function that chooses it.
"""

from collections.abc import Callable, Sequence

from ..types import Episode, Message, Turn

# From the turns so far and `context_turns` to the number of the first turn that the next one sees.
Policy = Callable[[Sequence[Turn], int], int]


def _all(turns: Sequence[Turn], context_turns: int) -> int:
    return 0


def _last(turns: Sequence[Turn], context_turns: int) -> int:
    return max(len(turns) - context_turns, 0)


def _since_compaction(turns: Sequence[Turn], context_turns: int) -> int:
    return max((number for number, turn in enumerate(turns) if turn.compaction), default=0)


POLICIES: dict[str, Policy] = {
    "full": _all,
    "memory": _last,
    "budget": _since_compaction,
}
CONTEXTS = tuple(POLICIES)


def first_visible(turns: Sequence[Turn], context: str, context_turns: int = 1) -> int:
    """The number of the first turn that the turn behind `turns` sees; 0 if there is none yet.

    In "full" context it sees all turns, in "memory" context the last `context_turns`, and in "budget" context the last
    compaction and what follows it, each with its own text, memory included, and its tool results.
    """
    return POLICIES[context](turns, context_turns)


def visible_ids(episode: Episode, first: int) -> list[int]:
    """The ids that the episode's next turn is generated from, where `first` is the first turn that it sees."""
    return (episode.prompt_ids or []) + Episode(turns=episode.turns[first:]).completion_ids


def visible_messages(episode: Episode, first: int) -> list[Message]:
    """The messages that the episode's next turn is generated from, where `first` is the first turn that it sees."""
    return episode.prompt + Episode(turns=episode.turns[first:]).messages
