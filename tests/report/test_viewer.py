"""The viewer page as a file: what it embeds, and that it cannot be broken out of."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from mempo_trl.report.viewer import show_trajectory, write_viewer
from mempo_trl.traces.file import Trace
from report.sample_traces import make_traces

HOSTILE = (
    '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"><!--<script>\u2028\'"$title'
)


def hostile_trace() -> Trace:
    """An episode that holds `HOSTILE` in every place that takes text."""
    trace = next(make_traces(1))
    trace.update(question=HOSTILE, question_id=HOSTILE, stop_reason=HOSTILE, context=HOSTILE, answers=[HOSTILE])
    trace["messages"] = [{"role": HOSTILE, "content": HOSTILE}]
    trace["rewards"] = {HOSTILE: 1.0}
    trace["answer_tokens"] = [HOSTILE for _ in trace["answer_tokens"] or ()]
    for turn in trace["turns"]:
        turn["text"] = turn["memory_text"] = HOSTILE
        turn["tokens"] = [HOSTILE for _ in turn["tokens"]]
        turn["tool_results"] = [HOSTILE]
        turn["tool_calls"] = [{"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}]
    return trace


class Scripts(HTMLParser):
    """The script elements of a page: (attributes, content)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, Any], str]] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.found.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.found[-1] = (self.found[-1][0], self.found[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append("/" + tag)


def test_each_episode_is_embedded_whole(tmp_path: Path) -> None:
    traces = list(make_traces(3))
    scripts = Scripts(write_viewer(traces, tmp_path / "v.html").read_text("utf-8")).found
    blocks = {attributes["id"]: json.loads(text) for attributes, text in scripts if attributes.get("id")}
    assert list(blocks) == ["episode-0", "episode-1", "episode-2", "index"]
    for number, trace in enumerate(traces):
        turns = blocks[f"episode-{number}"].pop("turns")
        assert blocks[f"episode-{number}"] == {key: value for key, value in trace.items() if key != "turns"}
        assert [turn["tokens"] for turn in turns] == [turn["tokens"] for turn in trace["turns"]]
        assert turns[1]["advantages"] == pytest.approx(trace["turns"][1]["advantages"], abs=1e-4)
    assert [episode["reward"] for episode in blocks["index"]["episodes"]] == [trace["reward"] for trace in traces]


def test_hostile_text_stays_inside_its_data_block(tmp_path: Path) -> None:
    plain = Scripts(write_viewer(make_traces(1), tmp_path / "plain.html").read_text("utf-8"))
    page = write_viewer([hostile_trace()], tmp_path / "v.html", title=HOSTILE).read_text("utf-8")
    hostile = Scripts(page)
    assert hostile.tags == plain.tags
    assert json.loads(hostile.found[0][1])["question"] == HOSTILE
    assert "\u2028" not in "".join(text for _, text in hostile.found)


def test_the_policy_allows_the_page_s_own_script_and_nothing_else(tmp_path: Path) -> None:
    page = write_viewer(make_traces(1), tmp_path / "v.html").read_text("utf-8")
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    [script] = [text for attributes, text in Scripts(page).found if not attributes]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:|//cdn|@import|url\(", page)


@pytest.mark.parametrize("name", ["viewer_episode.js", "viewer.js", "viewer.css"])
def test_the_inlined_files_cannot_close_their_element(name: str) -> None:
    text = files("mempo_trl.report").joinpath(name).read_text("utf-8")
    assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE)
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text


def test_no_episode_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no episode to show"):
        write_viewer([], tmp_path / "v.html")
    assert not (tmp_path / "v.html").exists()


def test_one_outlier_does_not_pale_the_colours(tmp_path: Path) -> None:
    trace = next(make_traces(1))
    for turn in trace["turns"]:
        turn["advantages"] = [-0.25 for _ in turn["tokens"]]
    assert '{"scale":0.25,' in write_viewer([trace], tmp_path / "v.html").read_text("utf-8")
    trace["turns"][0]["advantages"] = [-40.0 for _ in trace["turns"][0]["tokens"]]
    assert '{"scale":2.0,' in write_viewer([trace], tmp_path / "v.html").read_text("utf-8")


def test_a_notebook_shows_the_page_in_a_sandboxed_frame() -> None:
    shown = show_trajectory(hostile_trace(), height=500)._repr_html_()
    parser = Scripts(shown)
    assert parser.tags == ["iframe", "/iframe"]
    assert 'sandbox="allow-scripts"' in shown
    assert "height:500px" in shown
