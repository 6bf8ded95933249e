"""Turns of a completion, read off its mask."""

import re
from collections.abc import Sequence


def find_turns(trainable_mask: Sequence[int]) -> list[tuple[int, int]]:
    """The turns of a trajectory: the runs of ones in its mask, as half-open ranges of tokens.

    Args:
        trainable_mask: 1 for a token that the model wrote, 0 for one that a tool wrote. Length C.
    """
    marks = bytes(map(bool, trainable_mask))
    return [match.span() for match in re.finditer(b"\x01+", marks)]
