"""The viewer in a real browser, driven by keys. Skipped where Chromium is absent."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from mempo_trl.report.viewer import show_trajectory, write_viewer
from mempo_trl.traces.file import Trace
from report.chromium import EXECUTABLE, Page
from report.sample_traces import make_traces
from report.test_viewer import HOSTILE, hostile_trace

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return list(chain(make_traces(24), make_traces(8, seed=5, context="memory")))


@pytest.fixture
def page(browser: Page, traces: list[Trace], tmp_path: Path) -> Page:
    browser.view(1280, 900)
    browser.open(write_viewer(traces, tmp_path / "viewer.html"))
    return browser


def question(page: Page) -> str:
    return page.evaluate("document.querySelector('#question').textContent")


def text(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({selector!r}).innerText")


def count(page: Page, selector: str) -> int:
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def choose(page: Page, selector: str, value: str) -> None:
    page.evaluate(
        f"document.querySelector({selector!r}).value = {value!r};"
        f"document.querySelector({selector!r}).dispatchEvent(new Event('input', {{bubbles: true}}))"
    )


def test_an_episode_is_shown_turn_by_turn(page: Page, traces: list[Trace]) -> None:
    trace = traces[0]
    assert count(page, "#list li") == len(traces)
    assert question(page) == trace["question"]
    assert count(page, ".turn") == len(trace["turns"])
    assert count(page, ".tok") == sum(len(turn["tokens"]) for turn in trace["turns"])
    memories = [turn["tokens"][slice(*turn["memory"])] for turn in trace["turns"] if turn["memory"]]
    shown = page.evaluate("[...document.querySelectorAll('.memory .text')].map(node => node.textContent)")
    assert shown == ["".join(tokens) for tokens in memories]
    bars = page.evaluate("[...document.querySelectorAll('.probabilities .number')].map(node => node.textContent)")
    assert bars == [f"{turn[side]:.2f}" for turn in trace["turns"][1:] for side in ("p_baseline", "p_mem")]  # type: ignore[literal-required]
    kept = [sum(turn["kept"] or ()) for turn in trace["turns"][1:]]
    assert (
        page.evaluate("[...document.querySelectorAll('.turn')].slice(1).map(t => t.querySelectorAll('.kept').length)")
        == kept
    )
    assert count(page, ".overview tbody tr") == len(trace["turns"])
    prompt = page.evaluate("[...document.querySelectorAll('.prompt .text')].map(node => node.textContent)")
    assert prompt == [message["content"] for message in trace["messages"]]
    results = page.evaluate("[...document.querySelectorAll('.result .text')].map(node => node.textContent)")
    assert results == [text for turn in trace["turns"] for text in turn["tool_results"]]


def test_keys_move_between_episodes_and_turns(page: Page, traces: list[Trace]) -> None:
    page.press("j", "j", "k", "j")
    assert text(page, "#position") == f"3 of {len(traces)}"
    assert page.evaluate("location.hash") == "#3"
    page.press("n", "n")
    assert page.evaluate("document.activeElement.id") == "turn-1-title"
    page.press("p")
    assert page.evaluate("document.activeElement.id") == "turn-0-title"
    page.press("/", "j")
    assert page.evaluate("document.querySelector('#filter-text').value") == "j"
    assert text(page, "#position") == ""


def test_arrows_move_in_the_list(page: Page) -> None:
    page.evaluate("document.querySelector('#list button').focus()")
    page.press("ArrowDown", "ArrowDown")
    assert page.evaluate("document.activeElement === document.querySelectorAll('#list button')[2]")
    assert text(page, "#position").startswith("3 of")


def test_the_list_scrolls_to_the_episode_that_is_shown(page: Page) -> None:
    inside = """(() => {
        const list = document.querySelector('#list').getBoundingClientRect();
        const row = document.querySelector('#list [aria-current]').getBoundingClientRect();
        return row.top >= list.top - 1 && row.bottom <= list.bottom + 1 && row.height > 0;
    })()"""
    page.press(*"j" * 25)
    assert page.evaluate("document.querySelector('#list').scrollTop") > 0
    assert page.evaluate(inside)
    page.press(*"k" * 24)
    assert page.evaluate(inside)


def test_tab_reaches_the_skip_link_first_and_focus_is_visible(page: Page) -> None:
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_token_s_credit_shows_on_focus_and_on_hover(page: Page, traces: list[Trace]) -> None:
    turn, outcome = traces[0]["turns"][1], traces[0]["outcome_advantage"]
    assert turn["advantages"] is not None
    assert outcome is not None
    total = turn["advantages"][1]
    page.evaluate("document.querySelector('#turn-1 .tokens').focus()")
    page.press("ArrowRight", "ArrowRight")

    def number(value: float) -> str:
        return f"{value:+.3f}".replace("-", "−")

    assert page.evaluate("document.activeElement.dataset.token") == "1"
    rows = page.evaluate("[...document.querySelectorAll('#tip tr')].map(row => row.innerText.split(/\\s+/))")
    assert rows == [["outcome", number(outcome)], ["memory", number(total - outcome)], ["total", number(total)]]
    page.press("End")  # far enough to scroll the page
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    assert page.evaluate("document.querySelector('#tip').hidden") is False
    page.press("Escape")
    assert page.evaluate("document.querySelector('#tip').hidden")
    page.evaluate("scrollTo(0, 0)")
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    x, y = page.evaluate(
        "(() => { const box = document.querySelectorAll('#turn-0 .tok')[2].getBoundingClientRect();"
        " return [box.left + 2, box.top + 4]; })()"
    )
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    rows = page.evaluate("[...document.querySelectorAll('#tip tr')].map(row => row.innerText.split(/\\s+/))")
    assert rows == [["outcome", number(outcome)], ["memory", "0.000"], ["total", number(outcome)]]


def test_colour_has_the_sign_of_the_advantage(page: Page, traces: list[Trace]) -> None:
    advantages = [value for turn in traces[0]["turns"] for value in turn["advantages"] or ()]
    sign = "t => t.classList.contains('pos') - t.classList.contains('neg')"
    signs = page.evaluate(f"[...document.querySelectorAll('.tok')].map({sign})")
    assert signs == [(value > 0) - (value < 0) for value in advantages]


def test_filters_narrow_the_list(page: Page, traces: list[Trace]) -> None:
    choose(page, "#filter-stop", "max_turns")
    assert count(page, "#list li") == sum(trace["stop_reason"] == "max_turns" for trace in traces) > 0
    page.evaluate("document.querySelector('#filters [type=reset]').click()")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert count(page, "#list li") == len(traces)
    choose(page, "#filter-low", "0.5")
    assert count(page, "#list li") == sum(trace["reward"] == 1 for trace in traces)
    choose(page, "#filter-high", "1")
    assert count(page, "#list li") == sum(trace["reward"] == 1 for trace in traces)
    choose(page, "#filter-high", "0.9")
    assert count(page, "#list li") == 0
    choose(page, "#filter-high", "")
    choose(page, "#filter-context", "memory")
    assert count(page, "#list li") == sum(trace["reward"] == 1 and trace["context"] == "memory" for trace in traces)
    choose(page, "#filter-text", traces[24]["question"][4:30].upper())
    assert question(page) == traces[24]["question"]
    choose(page, "#filter-text", "no such question")
    assert count(page, "#list li") == 0


def test_the_diff_marks_words_that_came_and_went(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    trace["turns"][1]["memory_text"] = "<mem>Salt was made by Mira. Ana was born in Bergen.</mem>"
    trace["turns"][2]["memory_text"] = "<mem>Salt was shot by Mira. Ana was born in Bergen in May.</mem>"
    trace["turns"][3]["memory_text"] = trace["turns"][2]["memory_text"]
    browser.open(write_viewer([trace], tmp_path / "viewer.html"))
    assert text(browser, "#turn-2 .words") == "Salt was made shot by Mira. Ana was born in Bergen. Bergen in May."
    marked = "[...document.querySelectorAll('#turn-2 :is(ins, del)')].map(node => node.tagName + ' ' + node.innerText)"
    assert browser.evaluate(marked) == ["DEL made", "INS shot", "DEL Bergen.", "INS Bergen in May."]
    assert "Same words as the memory of turn 3" in text(browser, "#turn-3 .memory")


def test_hostile_text_is_shown_and_not_run(browser: Page, tmp_path: Path) -> None:
    browser.open(write_viewer([hostile_trace(), *make_traces(1)], tmp_path / "viewer.html", title=HOSTILE))
    assert browser.evaluate("document.title").startswith("</script><script>")
    browser.press("j", "k")
    assert question(browser) == HOSTILE
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert count(browser, "#episode :is(script, img), #list :is(script, img)") == 0
    # The policy holds even if markup did get in.
    browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 1'}))"
    )
    browser.evaluate("new Promise(done => setTimeout(done, 200))")
    assert browser.evaluate("typeof window.hacked") == "undefined"


def test_an_episode_without_credit_or_tokens_is_plain_text(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    for turn in trace["turns"]:
        turn.update(tokens=[], memory=None, advantages=None, memory_reward=None, memory_advantage=None)
        turn.update(p_mem=None, p_baseline=None, answer_logps_mem=None, answer_logps_baseline=None, kept=None)
    trace.update(answer_tokens=None, answer_mask=None, reward=None, outcome_advantage=None, step=None)
    browser.open(write_viewer([trace], tmp_path / "viewer.html"))
    memory = trace["turns"][1]["memory_text"]
    assert memory is not None
    assert text(browser, "#turn-1 .memory .text").strip() == memory.strip()
    assert browser.evaluate("document.querySelector('#turn-0 .text').textContent") == trace["turns"][0]["text"]
    assert count(browser, ".tok, .probabilities, .chips") == 0
    assert browser.evaluate("document.querySelector('#legend').hidden")


def test_a_tool_call_shows_whatever_arguments_the_model_wrote(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    for turn, arguments in zip(trace["turns"], [{"query": "a", "k": 2}, None, "text"], strict=False):
        turn["tool_calls"] = [{"name": "search", "arguments": arguments}]  # type: ignore[typeddict-item]
    browser.open(write_viewer([trace], tmp_path / "viewer.html"))
    calls = browser.evaluate("[...document.querySelectorAll('.call')].map(node => node.textContent)")
    assert calls == ['search(query="a", k=2)', "search(null)", 'search("text")']


def test_without_a_baseline_only_the_memory_s_probabilities_show(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    for turn in trace["turns"]:
        turn.update(answer_logps_baseline=None, p_baseline=None)
    browser.open(write_viewer([trace], tmp_path / "viewer.html"))
    assert count(browser, "#turn-1 .probabilities .bar") == 1
    assert count(browser, "#turn-1 .chips .side") == sum(trace["answer_mask"] or ())
    assert text(browser, "#turn-1 .note") == "Bar: probability given the memory."


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_episode_without_sideways_scrolling(page: Page, tmp_path: Path, dark: bool) -> None:
    page.view(390, 844, dark)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('#list-panel').offsetParent") is None
    page.evaluate("document.querySelector('#list-toggle').click()")
    page.evaluate("document.querySelectorAll('#list button')[4].click()")
    assert text(page, "#position").startswith("5 of")
    assert page.evaluate("document.body.classList.contains('list-open')") is False
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    page.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


def test_five_thousand_episodes_open(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    path = write_viewer((trace for _ in range(5000)), tmp_path / "viewer.html")
    browser.open(path)
    assert text(browser, "#count") == "5,000 episodes"
    assert count(browser, ".turn") == len(trace["turns"])
    browser.press("j")
    assert text(browser, "#position") == "2 of 5,000"


def test_the_notebook_frame_renders(browser: Page, tmp_path: Path) -> None:
    trace = next(make_traces(1))
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{show_trajectory(trace)._repr_html_()}", "utf-8")
    browser.view(900, 700)
    browser.open(path, ready="document.querySelector('iframe') !== null")
    with browser.frame():
        assert count(browser, ".turn") == len(trace["turns"])
        assert browser.evaluate("document.querySelector('#list-panel').offsetParent") is None
        browser.evaluate("document.querySelectorAll('.tok')[1].focus()")
        assert browser.evaluate("document.querySelector('#tip').hidden") is False
