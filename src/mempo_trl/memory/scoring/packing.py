"""Trajectories and their answer texts as rows of tokens in which every shared prefix stands once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .separate import AnswerContext

IGNORED = -100  # the label of a token whose successor is not scored, as in transformers

Places = tuple[range, ...]  # of a sequence's tokens in a row, in order


class Segment(NamedTuple):
    """Tokens `own` of a row that continue the tokens `context`: each sees those, and its own segment up to itself."""

    context: Places
    own: range


def _first(places: Places, length: int) -> Places:
    """The places of the first `length` tokens of a sequence."""
    kept = []
    for place in places:
        kept.append(place[: max(length, 0)])
        length -= len(place)
    return tuple(place for place in kept if place)


@dataclass
class PackedRow:
    """The tokens of one forward. Lists of length S; `segments` cover the row in order.

    Attributes:
        ids: token ids.
        positions: the place of each token in its own sequence.
        labels: the token to be scored after each one, or `IGNORED`.
        segments: which tokens see which.
        answers: for a context, the places whose labels are its answer.
        completions: for a trajectory, the places whose labels are its completion.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    answers: dict[int, range] = field(default_factory=dict)
    completions: dict[int, range] = field(default_factory=dict)

    def add(self, parent: Places, shared: int, ids: list[int], scored: int = 0) -> Places:
        """Adds `ids` behind the first `shared` tokens of `parent`; the last `scored` of them become labels.

        The last token of all is only a label, if it is one.

        Returns:
            The places of the sequence that they end.
        """
        labels = [IGNORED] * (len(ids) - 1 - scored) + ids[len(ids) - scored :] if scored else [IGNORED] * len(ids)
        own = range(len(self.ids), len(self.ids) + len(labels))
        context = _first(parent, shared)
        self.ids += ids[: len(labels)]
        self.positions += range(shared, shared + len(labels))
        self.labels += labels
        self.segments.append(Segment(context, own))
        return (*context, own)


class Piece(NamedTuple):
    """What a trajectory adds to a row: itself (`context` None), or one of its contexts with the answer."""

    context: int | None
    shared: int  # tokens of the trajectory, prompt included, that it continues
    ids: list[int]
    scored: int = 0


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.ids) - (piece.scored > 0) for piece in pieces)


@dataclass
class Trajectories:
    """What is to be scored: answers after contexts, and with `completions` the completions themselves.

    A label stands at the token before it, and each token has one label. So a piece with labels starts with the last
    token of what it continues.
    """

    prompt_ids: Sequence[list[int]]
    completion_ids: Sequence[list[int]]
    answer_ids: Sequence[list[int]]
    contexts: Sequence[AnswerContext]
    completions: bool = False

    def _branch(self, index: int) -> Piece:
        row, start, end = self.contexts[index]
        sequence = self.prompt_ids[row] + self.completion_ids[row][start:end]
        shared = min(len(self.prompt_ids[row]) + (0 if start else end), len(sequence) - 1)
        return Piece(index, shared, sequence[shared:] + self.answer_ids[row], len(self.answer_ids[row]))

    def _pieces(self, row: int, indices: Sequence[int], completion_too: bool) -> list[Piece]:
        """The trajectory as far as it is needed, then its contexts, without the prompt."""
        prompt, completion = self.prompt_ids[row], self.completion_ids[row]
        branches = [self._branch(index) for index in indices]
        if completion_too:
            return [Piece(None, len(prompt) - 1, prompt[-1:] + completion, len(completion)), *branches]
        reach = max((piece.shared for piece in branches), default=0) - len(prompt)
        return [Piece(None, len(prompt), completion[:reach]), *branches] if reach > 0 else branches

    def _parts(self, row: int, indices: list[int], completion_too: bool, max_tokens: int) -> Iterator[list[Piece]]:
        """A trajectory's pieces, its contexts halved until each part fits; one context is always allowed."""
        pieces = self._pieces(row, indices, completion_too)
        if len(indices) < 2 or len(self.prompt_ids[row]) + _length(pieces) <= max_tokens:
            yield pieces
        else:
            half = len(indices) // 2
            yield from self._parts(row, indices[:half], completion_too, max_tokens)
            yield from self._parts(row, indices[half:], False, max_tokens)

    def _work(self, max_tokens: int) -> Iterator[tuple[int, list[Piece]]]:
        """Trajectories of one prompt together, contexts in the order of their ends."""
        by_row: list[list[int]] = [[] for _ in self.prompt_ids]
        for index in sorted(range(len(self.contexts)), key=lambda index: self.contexts[index].end):
            by_row[self.contexts[index].row].append(index)
        for row in sorted(range(len(by_row)), key=lambda row: self.prompt_ids[row]):
            if by_row[row] or self.completions:
                for pieces in self._parts(row, by_row[row], self.completions, max_tokens):
                    yield row, pieces

    def pack(self, max_tokens: int) -> Iterator[PackedRow]:
        """Rows of at most `max_tokens` tokens each, or of one context where that alone is longer."""
        packed, prompt_places = PackedRow(), Places()
        prompt: list[int] | None = None
        for row, pieces in self._work(max_tokens):
            length = _length(pieces) + (0 if self.prompt_ids[row] == prompt else len(self.prompt_ids[row]))
            if packed.ids and len(packed.ids) + length > max_tokens:
                yield packed
                packed, prompt = PackedRow(), None
            if self.prompt_ids[row] != prompt:
                prompt = self.prompt_ids[row]
                prompt_places = packed.add((), 0, prompt)
            _add(packed, prompt_places, row, pieces)
        if packed.ids:
            yield packed


def _add(packed: PackedRow, prompt: Places, row: int, pieces: Sequence[Piece]) -> None:
    trajectory = prompt
    for piece in pieces:
        places = packed.add(trajectory, piece.shared, piece.ids, piece.scored)
        scored = places[-1][len(places[-1]) - piece.scored :]
        if piece.context is not None:
            packed.answers[piece.context] = scored
            continue
        trajectory = places
        if piece.scored:
            packed.completions[row] = scored
