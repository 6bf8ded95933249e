"""Draws docs/assets/credit.svg: what `token_advantages` gives to each token of one trajectory.

python scripts/draw_credit.py
"""

from html import escape
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from mempo_trl.memory import MemorySpan, token_advantages

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "assets" / "credit.svg"
OUTCOME, MEMORY = 0.8, [0.0, 1.2, -0.5]  # A^out of the trajectory, A^mem of its turns
ANSWER = "Ridley Scott; Michael Mann"
TURNS = [
    ["<think> … </think>", "<tool_call> Alien </tool_call>"],
    ["<mem>", "Alien:", "Ridley", "Scott", "</mem>", "<think> … </think>", "<tool_call> Heat </tool_call>"],
    ["<mem>", "Heat:", "Michael", "Mann", "</mem>", "<think> … </think>", f"<answer> {ANSWER} </answer>"],
]
RESULTS = ["… by Ridley Scott", "… by Michael Mann", None]
UNIT, LEFT, TOP, WIDTH = 30, 74, 66, 900  # pixels; UNIT is an advantage of 1
STYLE = """
  text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
  .token{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}
  .title{font-weight:600;font-size:15px} .soft{fill:#59636e} .line{stroke:#59636e}
  .card{fill:#fff;stroke:#d0d7de} .box{fill:#f6f8fa;stroke:#d0d7de} .memory{fill:#dafbe1;stroke:#2da44e}
  .tool{fill:none;stroke:#afb8c1;stroke-dasharray:3 3} .outcome{fill:#54aeff} .gain{fill:#2da44e}
  .loss{fill:none;stroke:#cf222e;stroke-width:1.5;stroke-dasharray:3 2}
  @media (prefers-color-scheme:dark){
    text{fill:#e6edf3} .soft{fill:#9198a1} .line{stroke:#9198a1} .card{fill:#0d1117;stroke:#30363d}
    .box{fill:#161b22;stroke:#30363d} .memory{fill:#12261e;stroke:#2ea043} .tool{stroke:#484f58}
    .outcome{fill:#388bfd} .loss{stroke:#ff7b72}
  }
"""


class Token(NamedTuple):
    """A token, or a run of them that share their credit, with its total advantage."""

    text: str
    in_memory: bool
    advantage: float
    memory_advantage: float


def credited_turns() -> list[list[Token]]:
    """The tokens of each turn with the advantages that the library gives them."""
    texts = list(chain(*TURNS))
    spans, start = [], 0
    for number, turn in enumerate(TURNS):
        if "<mem>" in turn:
            spans.append(MemorySpan(number, start + turn.index("<mem>"), start + turn.index("</mem>") + 1))
        start += len(turn)
    advantages = token_advantages(torch.tensor([OUTCOME]), torch.tensor([MEMORY]), [spans], len(texts))[0].tolist()
    owner = {place: span.turn for span in spans for place in range(span.start, span.end)}
    tokens = iter(
        Token(text, place in owner, advantage, MEMORY[owner[place]] if place in owner else 0.0)
        for place, (text, advantage) in enumerate(zip(texts, advantages, strict=True))
    )
    return [[next(tokens) for _ in turn] for turn in TURNS]


def rect(css: str, x: float, y: float, width: float, height: float, radius: int = 3) -> str:
    return f'<rect class="{css}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'


def text(css: str, x: float, y: float, content: str, anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(content)}</text>'


def draw_token(token: Token, x: float, base: float, width: float) -> list[str]:
    """Bars above the base line, the token's box below it."""
    top = base - OUTCOME * UNIT
    parts = [rect("outcome", x, top, width, OUTCOME * UNIT, 0)]
    height = abs(token.memory_advantage) * UNIT
    if token.memory_advantage > 0:
        parts.append(rect("gain", x, top - height, width, height, 0))
    elif token.memory_advantage < 0:
        parts[0] = rect("outcome", x, top + height, width, OUTCOME * UNIT - height, 0)
        parts.append(rect("loss", x + 1, top, width - 2, height, 0))
    parts.append(rect("memory" if token.in_memory else "box", x, base + 4, width, 24))
    return [*parts, text("token", x + width / 2, base + 20, token.text, "middle")]


def draw_turn(number: int, tokens: list[Token], result: str | None, base: float) -> list[str]:
    parts, x = [text("soft", 20, base + 20, f"turn {number}")], float(LEFT)
    labels: dict[tuple[bool, float], list[float]] = {}
    for token in tokens:
        width = 7.25 * len(token.text) + 10
        parts += draw_token(token, x, base, width)
        labels.setdefault((token.in_memory, token.advantage), []).extend((x, x + width))
        x += width + 3
    for (_, advantage), edges in labels.items():
        above = max(OUTCOME, advantage) * UNIT + 6
        parts.append(text("", (min(edges) + max(edges)) / 2, base - above, f"{advantage:+.1f}", "middle"))
    if result:
        width = 7.25 * len(result) + 10
        parts += [rect("tool", x + 6, base + 4, width, 24), text("token soft", x + 11, base + 20, result)]
        parts.append(text("soft", x + 6 + width / 2, base - 6, "0", "middle"))
        x += width + 6
    return [*parts, f'<line class="line" x1="{LEFT}" y1="{base:g}" x2="{x:g}" y2="{base:g}"/>']


def draw_legend(y: float) -> list[str]:
    entries = [
        ("outcome", "outcome advantage, on all that the model wrote", 336),
        ("gain", "added to a better memory", 192),
        ("loss", "taken off a worse one", 165),
        ("tool", "tool result", 0),
    ]
    parts, x = [], 20
    for css, label, width in entries:
        parts += [rect(css, x, y - 11, 14, 14), text("", x + 21, y, label)]
        x += width + 10
    return parts


def picture() -> str:
    """The SVG's text."""
    question = "“Who directed Alien?; Who directed Heat?” Answered right. The third turn’s memory lost a name."
    parts, base = [text("title", 20, 30, "Where credit lands"), text("soft", 20, 52, question)], float(TOP - 30)
    for number, (tokens, result) in enumerate(zip(credited_turns(), RESULTS, strict=True)):
        base += max(OUTCOME, *(token.advantage for token in tokens)) * UNIT + 64
        parts += draw_turn(number + 1, tokens, result, base)
    height = round(base + 76)
    parts = [rect("card", 0.5, 0.5, WIDTH - 1, height - 1, 8), *parts, *draw_legend(height - 18)]
    title = "Advantage of each token: +0.8 everywhere, +2.0 on a good memory, +0.3 on a memory that lost a name"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


if __name__ == "__main__":
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(picture(), "utf-8")
    print(OUTPUT)
