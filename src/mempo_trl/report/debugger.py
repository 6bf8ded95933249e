"""The mask debugger: a trajectory token by token, with its turns, its memories and the answer tokens in colour.

    python -m mempo_trl.report.debugger TOKENIZER --turns "<think>a</think>" "<mem>b</mem><answer>c</answer>" \
        --answers c

From Python, on ids that were sampled: `print_trajectory(tokenizer, episode.completion_ids, episode.mask, answers)`.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ..memory.answers import ANSWER_TEMPLATE, encode_answer
from ..memory.spans import find_memory_spans, token_pieces
from ..memory.turns import find_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STYLES = {"turn": "bold", "memory": "black on green", "tool": "dim", "answer": "black on yellow", "text": "none"}
EDGE = "│"  # between tokens


def render_tokens(pieces: Sequence[str], styles: Sequence[str]) -> Text:
    """Tokens in their styles, an edge behind each, line breaks made visible."""
    text = Text()
    for piece, style in zip(pieces, styles, strict=True):
        text.append(piece.replace("\n", "⏎"), STYLES[style])
        text.append(EDGE, "bright_black")
    return text


def render_trajectory(
    tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], trainable_mask: Sequence[int]
) -> list[tuple[str, Text]]:
    """A title and the coloured tokens of each turn and each tool result, in order."""
    styles = ["turn" if mark else "tool" for mark in trainable_mask]
    spans = find_memory_spans(tokenizer, ids, trainable_mask)
    for _, start, end in spans:
        styles[start:end] = ["memory"] * (end - start)
    memories = {turn: f", memory [{start}, {end})" for turn, start, end in spans}
    pieces = token_pieces(tokenizer, ids)
    parts, position = [], 0
    for turn, (start, end) in enumerate([*find_turns(trainable_mask), (len(ids), len(ids))]):
        if position < start:
            parts.append((f"tool, tokens [{position}, {start})", (position, start)))
        if start < end:
            parts.append((f"turn {turn}, tokens [{start}, {end}){memories.get(turn, '')}", (start, end)))
        position = end
    return [(title, render_tokens(pieces[start:end], styles[start:end])) for title, (start, end) in parts]


def print_trajectory(
    tokenizer: "PreTrainedTokenizerBase",
    ids: Sequence[int],
    trainable_mask: Sequence[int],
    answers: list[str] | None = None,
    template: str = ANSWER_TEMPLATE,
    console: Console | None = None,
) -> None:
    """Prints a trajectory with its turns, memory spans and, given gold answers, the answer mask.

    Args:
        tokenizer: of the ids.
        ids: the completion: turns and tool results. Length C.
        trainable_mask: 1 on turns, 0 on tool results. Length C.
        answers: gold answers, one for each objective.
        template: the text they are scored in.
        console: where to print.
    """
    console = console or Console()
    for title, text in render_trajectory(tokenizer, ids, trainable_mask):
        console.print(title, style="cyan")
        console.print(text)
    if answers:
        encoded = encode_answer(tokenizer, answers, template)
        console.print(f"answer text, {sum(encoded.mask)} of {len(encoded.mask)} tokens scored", style="cyan")
        styles = ["answer" if mark else "text" for mark in encoded.mask]
        console.print(render_tokens(token_pieces(tokenizer, encoded.ids), styles))


def main(arguments: list[str] | None = None) -> None:
    """Encodes turns and tool results given as text, and prints them."""
    parser = argparse.ArgumentParser(prog="python -m mempo_trl.report.debugger", description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer", help="name or folder of a tokenizer")
    parser.add_argument("--turns", nargs="+", default=[], help="texts that the model wrote, turn by turn")
    parser.add_argument("--tool", default="\n(a tool result)\n", help="text between two turns")
    parser.add_argument("--answers", nargs="*", help="gold answers, one for each objective")
    options = parser.parse_args(arguments)

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    ids: list[int] = []
    mask: list[int] = []
    for number, turn in enumerate(options.turns):
        for text, mark in [(options.tool, 0)] * (number > 0) + [(turn, 1)]:
            piece = tokenizer.encode(text, add_special_tokens=False)
            ids += piece
            mask += [mark] * len(piece)
    print_trajectory(tokenizer, ids, mask, options.answers)


if __name__ == "__main__":
    main()
