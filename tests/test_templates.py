"""Every chat template that TRL ships: a right episode is written, taught, read and rewarded, or it is refused."""

import json

import pytest
from trl import chat_template_utils as trl_templates

from conftest import build_model
from helpers import answer_reward, make_config, search
from mempo_trl import MemPOTrainer
from mempo_trl.rollout.chat_format import ChatFormat
from mempo_trl.rollout.self_check import check_episode
from mempo_trl.sft.demonstrations import sft_rows
from mempo_trl.tasks.search import build_prompt, mempo_outcome_reward
from mempo_trl.traces.convert import episode_trace, written_episode
from templates import NAMES, template_tokenizer

NO_TOOLS = "does not render tool calls"
UNREAD = "TRL does not know how to read the tool calls"
# Why a template cannot be trained with.
REFUSED = {
    **dict.fromkeys(["cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "idefics3", "lfm2"], NO_TOOLS),
    **dict.fromkeys(["llama3", "llava_next", "phi3", "phi3_5", "qwen2_5_vl", "smolvlm"], NO_TOOLS),
    **dict.fromkeys(["deepseekv3", "diffusion_gemma", "muse_glimmer"], UNREAD),
}
USED = [name for name in NAMES if name.removesuffix("_training") not in REFUSED]
CALL = {"name": "search", "arguments": {"query": "Zoë {y} é"}}
THOUGHT = "<think>\nplan\n</think>"
MEMORY = "<mem>\nOslo é\n</mem>"


def turns(answer="Paris"):
    """Body and calls of each turn."""
    return [
        (THOUGHT, [CALL]),
        (f"{MEMORY}\n{THOUGHT}", [CALL]),
        (f"{MEMORY}\n{THOUGHT}\n<answer>{answer}</answer>", []),
    ]


def played(chat, answer="Paris"):
    """The messages of an episode whose turns `chat` wrote, as ids, and read."""
    messages = []
    for body, calls in turns(answer):
        ids = chat.turn_ids(body, calls)
        assert ids[-1] in chat.end_ids
        turn = chat.read(chat.tokenizer.decode(ids[:-1]), [search])
        assert [call["function"] for call in turn.calls] == calls
        assert turn.error is None
        messages += [turn.message(), *({"role": "tool", "name": "search", "content": "r"} for _ in calls)]
    return messages


@pytest.mark.parametrize("name", USED)
def test_a_right_episode_is_rewarded_and_a_wrong_one_is_not(name):
    chat = ChatFormat(template_tokenizer(name))
    completions = [played(chat), played(chat, "Rome"), played(chat)[2:]]
    forgetful = [[part for part in message.get("parts", []) if part.kind != "memory"] for message in completions[0]]
    completions.append([{**m, "parts": parts} for m, parts in zip(completions[0], forgetful, strict=True)])
    assert mempo_outcome_reward(completions, [["Paris"]] * 4) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("name", USED)
def test_the_header_and_the_results_join_as_the_template_renders_them(name):
    chat = ChatFormat(template_tokenizer(name))
    messages = build_prompt("q")
    prompt = chat.prompt_ids(messages, [search])
    assert chat.tokenizer.decode(prompt).endswith(chat.opened)
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}
    result = {"role": "tool", "name": "search", "content": "found"}
    whole = chat.tokenizer.decode(
        chat._render_ids([*messages, turn, result], tools=[search], add_generation_prompt=True)
    )
    suffix = chat.tokenizer.decode(chat.suffix_ids([result]))
    assert whole.endswith(chat.ends[0] + suffix)
    assert "found" in suffix
    assert chat._marker not in suffix


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize("context", ["memory", "full"])
def test_what_is_taught_is_what_is_read(name, context):
    """A trace that an expert wrote, with calls between tags, is taught in the template's own syntax."""
    chat = ChatFormat(template_tokenizer(name))
    messages = []
    for body, calls in turns():
        text = body + "".join(f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
        called = [{"type": "function", "function": call} for call in calls]
        messages += [{"role": "assistant", "content": text, "tool_calls": called}]
        messages += [{"role": "tool", "name": "search", "content": "r"} for _ in calls]
    trace = episode_trace(written_episode({"prompt": build_prompt("q")}, messages, {"search": search}), context)
    rows = sft_rows(trace, chat, context)
    taught = [[i for i, m in zip(row["input_ids"], row["assistant_masks"], strict=True) if m] for row in rows]
    decoded = [chat.tokenizer.decode(ids) for ids in taught]
    assert "\\u00" not in "".join(decoded)
    expected = [chat.turn_text(body, calls) for body, calls in turns()]
    assert decoded == (expected if context == "memory" else ["".join(expected)])


@pytest.mark.parametrize("name", [name for name in NAMES if name.removesuffix("_training") in REFUSED])
def test_a_template_that_cannot_is_refused_and_a_remedy_helps(name):
    tokenizer = template_tokenizer(name)
    with pytest.raises(ValueError, match=REFUSED[name.removesuffix("_training")]) as error:
        ChatFormat(tokenizer)
    assert "tokenizer.chat_template = trl.chat_template_utils.qwen2_5_chat_template" in str(error.value)
    assert "tokenizer.response_template = None" in str(error.value)
    tokenizer.chat_template, tokenizer.response_template = trl_templates.qwen2_5_chat_template, None
    assert mempo_outcome_reward([played(ChatFormat(tokenizer))], [["Paris"]]) == [1.0]


def test_a_response_template_that_one_sets_is_the_other_remedy():
    tokenizer = template_tokenizer("diffusion_gemma")
    tokenizer.response_template = trl_templates.gemma4_template
    assert mempo_outcome_reward([played(ChatFormat(tokenizer))], [["Paris"]]) == [1.0]


@pytest.mark.parametrize("name", USED)
def test_every_template_that_is_used_passes_the_check_at_the_start(name):
    check_episode(ChatFormat(template_tokenizer(name)))


def reads_other_calls(tokenizer):
    tokenizer.response_template = trl_templates.llama3_template


def loses_what_tools_return(tokenizer):
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message.content", "(message.content | replace('here', ''))"
    )


def shows_no_tools(tokenizer):
    tokenizer.chat_template = tokenizer.chat_template.replace("{{- tool | tojson }}", "")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (reads_other_calls, "the calls of turn 1 are read as"),
        (loses_what_tools_return, "does not show what a tool returned"),
        (shows_no_tools, "a prompt shows no tool"),
    ],
)
def test_a_template_that_cannot_carry_an_episode_is_refused_and_the_remedy_helps(spoil, message, tmp_path, questions):
    tokenizer = template_tokenizer("qwen2_5")
    tokenizer.response_template = trl_templates.qwen3_template
    spoil(tokenizer)
    model = build_model(len(tokenizer))

    def train():
        config = make_config(tmp_path)
        MemPOTrainer(model, answer_reward, config, questions, processing_class=tokenizer, tools=[search])

    with pytest.raises(ValueError, match=f"cannot carry an episode: .*{message}") as error:
        train()
    assert "qwen2_5_chat_template and tokenizer.response_template = None" in str(error.value)
    tokenizer.chat_template, tokenizer.response_template = trl_templates.qwen2_5_chat_template, None
    train()
