"""What the policy sees at each turn (method.md, section 6): the prompt, and the turns from a first visible one on."""

from ..types import Episode, Message


def first_visible(turn: int, context: str, context_turns: int = 1, compaction: int = 0) -> int:
    """The first turn that turn `turn` (from 0) sees; `turn` itself if it sees the prompt alone.

    All turns in "full" context. In "memory" context the last `context_turns`, each with its own text, memory included,
    and its tool results. In "budget" context all from the last `compaction` on, which is 0 while there is none.
    """
    return {"full": 0, "memory": max(turn - context_turns, 0), "budget": compaction}[context]


def visible_ids(episode: Episode, first: int) -> list[int]:
    """The ids that the episode's next turn is generated from, where `first` is the first turn that it sees."""
    return (episode.prompt_ids or []) + Episode(turns=episode.turns[first:]).completion_ids


def visible_messages(episode: Episode, first: int) -> list[Message]:
    """The messages that the episode's next turn is generated from, where `first` is the first turn that it sees."""
    return episode.prompt + Episode(turns=episode.turns[first:]).messages
