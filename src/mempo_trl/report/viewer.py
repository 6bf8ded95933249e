"""The trajectory viewer: episodes as one HTML file that needs no network and no server."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..traces.file import Trace, Turn

PARTS = ("viewer.css", "viewer_episode.js", "viewer.js", "viewer.html")
FULL_COLOUR = 2.0  # advantages are z-scores: few tokens go beyond this, and one outlier must not pale the rest


def write_viewer(traces: Iterable[Trace], path: str | Path, title: str = "MemPO trajectories") -> Path:
    """Write episodes as one self-contained HTML page, to open from disk in any browser.

    The page lists the episodes with filters and shows one at a time, turn by turn: the memory and what changed in it,
    each token's advantage, the answer's probability after the memory and after the whole history. Episodes are taken
    one by one, so `traces` can be `read_traces(path)` of a file that is larger than the memory. Whatever text they
    hold stays text: the page runs no script but its own.

    Raises:
        ValueError: `traces` is empty.
    """
    path = Path(path)
    parts = _page(traces, title)
    first = next(parts)  # an empty file is refused before anything is written
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(first)
        file.writelines(parts)
    return path


@dataclass(frozen=True)
class InlineViewer:
    """A viewer page that a notebook shows in its output cell."""

    page: str
    height: int  # pixels

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:1px solid #8888;border-radius:6px"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(self.page)}"></iframe>'


def show_trajectory(trace: Trace, height: int = 640) -> InlineViewer:
    """Show one episode in a notebook: let it be the value of a cell's last line. `height` is in pixels."""
    return InlineViewer("".join(_page([trace], trace["question"])), height)


def _page(traces: Iterable[Trace], title: str) -> Iterator[str]:
    """The page in parts. Each episode is a separate data block, which the page parses when it shows the episode."""
    source = files(__package__)
    css, *scripts, template = (source.joinpath(name).read_text("utf-8") for name in PARTS)
    script = "\n".join(scripts)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; base-uri 'none'"
    head, tail = template.split("$episodes")
    values = {"title": html.escape(title), "policy": policy + "; form-action 'none'", "css": css, "script": script}
    episodes: list[dict[str, Any]] = []
    largest = 0.0
    for trace in traces:
        if not episodes:
            yield Template(head).substitute(values)
        yield _data_block(f"episode-{len(episodes)}", {**trace, "turns": [_compact(turn) for turn in trace["turns"]]})
        episodes.append(_summary(trace))
        largest = max([largest, *(abs(a) for turn in trace["turns"] for a in turn["advantages"] or ())])
    if not episodes:
        raise ValueError("no episode to show: the traces are empty. Train with traces on, or name another file.")
    yield _data_block("index", {"scale": min(largest, FULL_COLOUR), "episodes": episodes})
    yield Template(tail).substitute(values)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_block(name: str, value: object) -> str:
    """JSON that no HTML parser can leave: ASCII, and no `<`, `>` or `&` (all of them can only stand inside strings)."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _compact(turn: Turn) -> dict[str, Any]:
    """The turn with its long lists of numbers cut to what the page shows."""
    names = ("advantages", "answer_logps_mem", "answer_logps_baseline")
    lists: dict[str, Any] = {name: turn[name] for name in names}  # type: ignore[literal-required]
    return {**turn, **{name: values and [round(value, 4) for value in values] for name, values in lists.items()}}


def _summary(trace: Trace) -> dict[str, Any]:
    """What the list of episodes shows, filters and sorts by."""
    rewards = [turn["memory_reward"] for turn in trace["turns"] if turn["memory_reward"] is not None]
    keys = ("question_id", "question", "answers", "context", "step", "stop_reason", "reward", "total_tokens")
    return {
        **{key: trace[key] for key in keys},  # type: ignore[literal-required]
        "turns": len(trace["turns"]),
        "memory_reward": sum(rewards) / len(rewards) if rewards else None,
    }
