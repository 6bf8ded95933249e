from rich.console import Console
from transformers import CanineTokenizer

from mempo_trl.report.debugger import main, print_trajectory, render_trajectory


def styled(text, style):
    return "".join(text.plain[s.start : s.end] for s in text.spans if s.style == style)


def test_turns_tools_and_memories_in_their_colours():
    tokenizer = CanineTokenizer()  # one token a character
    ids = tokenizer.encode("ab" + "tool" + "<mem>m</mem>c", add_special_tokens=False)
    mask = [1] * 2 + [0] * 4 + [1] * 13
    (first, second, third) = render_trajectory(tokenizer, ids, mask)
    assert [first[0], second[0], third[0]] == [
        "turn 0, tokens [0, 2)",
        "tool, tokens [2, 6)",
        "turn 1, tokens [6, 19), memory [6, 18)",
    ]
    assert first[1].plain == "a│b│"
    assert styled(second[1], "dim") == "tool"
    assert styled(third[1], "black on green") == "<mem>m</mem>"
    assert styled(third[1], "bold") == "c"


def test_the_answer_mask(tokenizer):
    console = Console(record=True, width=200)
    ids = tokenizer.encode("<mem>a</mem>\n")
    print_trajectory(tokenizer, ids, [1] * len(ids), ["Paris", "Lima"], console=console)
    text = console.export_text()
    assert "tokens scored" in text
    assert "⏎" in text


def test_from_the_shell(tmp_path, tokenizer, capsys):
    tokenizer.save_pretrained(tmp_path)
    main([str(tmp_path), "--turns", "<think>a</think>", "<mem>b</mem>", "--answers", "Paris"])
    printed = capsys.readouterr().out
    assert "turn 1" in printed
    assert "memory [" in printed
