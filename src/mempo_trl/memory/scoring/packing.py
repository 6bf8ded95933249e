"""Trajectories and their answer texts as rows of tokens in which every shared prefix stands once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from .separate import AnswerContext

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
    """The tokens of one forward, and the tokens whose log-probs it is made for.

    A scored token need not be in the row: its log-prob is read at the token before it. So one place can have several
    labels, such as the end of a prompt that several trajectories continue.

    Attributes:
        ids: token ids. Length S.
        positions: the place of each token in its own sequence. Length S.
        segments: which tokens see which; they cover the row in order.
        places: for each scored token, the place of the token before it. Length K.
        labels: the scored tokens. Length K.
        answers: for a context, which of the scored tokens are its answer.
        completions: for a trajectory, which of the scored tokens are its completion.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    answers: dict[int, range] = field(default_factory=dict)
    completions: dict[int, range] = field(default_factory=dict)

    def add(self, parent: Places, shared: int, ids: list[int]) -> Places:
        """Adds `ids` behind the first `shared` tokens of `parent`, and returns the places of that sequence."""
        context = _first(parent, shared)
        if not ids:
            return context
        own = range(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids
        self.positions += range(shared, shared + len(ids))
        self.segments.append(Segment(context, own))
        return (*context, own)

    def score(self, sequence: Places, before: Sequence[int], labels: list[int]) -> range:
        """Scores `labels`, each after the token at a place `before` it in a sequence.

        Returns:
            Which of the scored tokens they are.
        """
        places = list(chain(*sequence))
        self.places += [places[place] for place in before]
        self.labels += labels
        return range(len(self.labels) - len(labels), len(self.labels))


def dummy_row(pad_token_id: int) -> PackedRow:
    """A row whose one scored token nobody asks for, so that all ranks make as many forwards."""
    row = PackedRow()
    row.score(row.add((), 0, [pad_token_id]), [0], [pad_token_id])
    return row


class Piece(NamedTuple):
    """What a trajectory adds to a row: itself (`context` None), or one of its contexts with the answer."""

    context: int | None
    shared: int  # tokens of the trajectory, prompt included, that it continues
    ids: list[int]
    start: int  # place in its own sequence of the first scored token
    scored: list[int]


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.ids) for piece in pieces)


@dataclass
class Trajectories:
    """What is to be scored: answers after contexts, and with `completions` the completions themselves."""

    prompt_ids: Sequence[list[int]]
    completion_ids: Sequence[list[int]]
    answer_ids: Sequence[list[int]]
    contexts: Sequence[AnswerContext]
    completions: bool = False

    def _branch(self, index: int) -> Piece:
        row, start, end = self.contexts[index]
        prompt, answer = len(self.prompt_ids[row]), self.answer_ids[row]
        own = self.completion_ids[row][start:end] if start else []
        return Piece(index, prompt if start else prompt + end, own + answer[:-1], prompt + end - start, answer)

    def _pieces(self, row: int, indices: Sequence[int], completion_too: bool) -> list[Piece]:
        """The trajectory as far as it is needed, then its contexts, without the prompt."""
        prompt, completion = len(self.prompt_ids[row]), self.completion_ids[row]
        branches = [self._branch(index) for index in indices]
        reach = max((piece.shared - prompt for piece in branches), default=0)
        if completion_too:
            reach = max(reach, len(completion) - 1)
            return [Piece(None, prompt, completion[:reach], prompt, completion), *branches]
        return [Piece(None, prompt, completion[:reach], prompt, []), *branches] if reach else branches

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
        places = packed.add(trajectory, piece.shared, piece.ids)
        before = range(piece.start - 1, piece.start - 1 + len(piece.scored))
        scored = packed.score(places, before, piece.scored)
        if piece.context is not None:
            packed.answers[piece.context] = scored
            continue
        trajectory = places
        if piece.scored:
            packed.completions[row] = scored
