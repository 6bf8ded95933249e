"""How messages become token ids and turns become messages: one place for training, agent and cold start."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import load_response_template

from ..parts import find_blocks
from .plain import PlainText
from .prompt_settings import saved_settings
from .reading import ReadTurn, TurnReader

_USER = {"role": "user", "content": "dummy"}
_BODY = "TURNBODYGOESHERE"

OTHER_TEMPLATE = (
    "tokenizer.chat_template = trl.chat_template_utils.qwen2_5_chat_template and tokenizer.response_template = None"
)
"""The remedy for a chat template that turns with tools cannot be rendered with."""

Tools = Sequence[Callable[..., Any] | dict[str, Any]]


class ChatFormat:
    """Renders prompts, turns and tool results with a tokenizer's chat template, and reads turns that were sampled.

    As in [`~trl.GRPOTrainer`], a template that renders earlier messages differently when others follow is replaced by
    TRL's training version of it, and a tokenizer that cannot read tool calls yet gets TRL's response template for its
    chat template.

    Args:
        tokenizer: with a chat template.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`. Default: those that a model
            in the tokenizer's folder was trained with (see `rollout.prompt_settings`), or none.

    Attributes:
        opened: what the assistant header writes of each turn, such as `<think>`.
        opens_thought: whether the model begins its turn in a thought.

    Raises:
        `ValueError`: the template renders no tools, or TRL knows no way to read its tool calls.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        if chat_template_kwargs is None:
            chat_template_kwargs = saved_settings(tokenizer.name_or_path).get("chat_template_kwargs", {})
        self.chat_template_kwargs = dict(chat_template_kwargs)
        self.chat_template = training_template(tokenizer)
        self._prompt = self._render([_USER], add_generation_prompt=True)
        self.opened = _opened(load_response_template(tokenizer.response_template), self._prompt)
        self.opens_thought = self.opened.rstrip().endswith("<think>")
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._special = sorted({*special, *tokenizer.all_special_tokens}, key=len, reverse=True)

    def prompt_ids(self, messages: list[dict[str, Any]], tools: Tools) -> list[int]:
        """The ids of a prompt with its tools (functions or their JSON schemas), ending with the assistant header."""
        plain = PlainText(self.tokenizer).messages(messages)
        return self._render_ids(plain, tools=list(tools) or None, add_generation_prompt=True)

    def suffix_ids(self, messages: list[dict[str, Any]], ended: bool = True) -> list[int]:
        """The ids between a turn's end token and the next turn: what tools returned, and the assistant header.

        Args:
            messages: of the tools, and of the user in "budget" context.
            ended: whether the turn ended with its end token; if a stop string ended it, that token belongs here.

        Raises:
            `ValueError`: the template renders a turn differently when tool results follow it.
        """
        # Some templates derive the header of a result from the name in the call.
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        if messages[0]["role"] == "tool":
            turn["tool_calls"] = [_call(messages[0]["name"], {})]
        before = self._render_ids([_USER, turn])
        after = self._render_ids([_USER, turn, *messages], add_generation_prompt=True)
        prompt = self._render_ids([_USER], add_generation_prompt=True)
        start = _shared(prompt, before)
        # A turn ends with its end token, whichever message the template counts it to.
        ends = (place for place in range(start, len(before) + 1) if after[place] in self.end_ids)
        end = next((place + 1 for place in ends), len(before))
        if after[: min(end, len(before))] != before[:end]:
            raise ValueError(_NOT_PRESERVING)
        return after[end:] if ended else [self.end_ids[0], *after[end:]]

    def read(self, text: str, tools: Tools = ()) -> ReadTurn:
        """Reads a turn: what the model wrote behind the header, without its end token."""
        return self.reader.read(text, self.opened, tools)

    @cached_property
    def reader(self) -> TurnReader:
        """Reads the calls of this template."""
        return TurnReader(self.tokenizer.response_template, self._marker, self.ends[0])

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The texts of the tokens that end a turn: one with calls, and one that answers."""
        calls = self._continued([_call("dummy", {})])
        return self._call_end(calls), self._answer_end()

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of `ends`, and the tokenizer's end id."""
        ids = self.tokenizer.convert_tokens_to_ids(list(self.ends))
        return tuple(dict.fromkeys([*ids, self.tokenizer.eos_token_id]))

    def turn_text(self, body: str, calls: Sequence[Mapping[str, Any]] = ()) -> str:
        """A turn as the template's models write it: body, calls and end token.

        Args:
            body: memory, thoughts and answer between their tags. Where the header opens a thought, the turn begins in
                it: with the memory, then the thought.
            calls: `{"name", "arguments"}` of each.

        Returns:
            What stands behind the assistant header.
        """
        before, after = self._around([_call(call["name"], call["arguments"]) for call in calls])
        body = body.strip()
        if self.opens_thought:
            return _continue_thought(body, before or "\n</think>\n\n") + after
        return (before if not _is_empty_thought(before) else "") + body + after

    def turn_ids(self, body: str, calls: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The ids of `turn_text`."""
        return self.tokenizer.encode(self.turn_text(body, calls), add_special_tokens=False)

    def _around(self, calls: list[dict[str, Any]]) -> tuple[str, str]:
        """What the template writes before and after the body of a turn, its end token included."""
        turn = {"role": "assistant", "content": _BODY, **({"tool_calls": calls} if calls else {})}
        text = self._behind_header(self._render([_USER, turn]))
        before, found, after = text.partition(_BODY)
        end = self.ends[1 if not calls else 0]
        if calls and (not found or self._marker in before):
            # The template drops a text beside calls, or puts it behind them, where the memory would not be first.
            before, after = "", "\n" + self._continued(calls).lstrip()
        return before, after.partition(end)[0] + end

    def _continued(self, calls: list[dict[str, Any]]) -> str:
        """What the template writes for a turn that has calls alone, and behind it when a tool's result follows."""
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        result = {"role": "tool", "name": calls[0]["function"]["name"], "content": "dummy"}
        text = self._behind_header(self._render([_USER, turn, result], add_generation_prompt=True))
        thoughts = [block for block in find_blocks(text, ("think",)) if not text[: block.start].strip()]
        return text[thoughts[0].end :] if thoughts else text.replace("</think>", "", 1) if self.opened else text

    @cached_property
    def _marker(self) -> str:
        """What each call begins with."""
        first, second = (self._continued([_call(name, {"dummy": 1})]).lstrip() for name in ("alpha", "beta"))
        shared = first[: _shared(first, second)]
        token = next((token for token in self._special if shared.startswith(token)), None)
        if token is None and shared.startswith("<"):
            token = shared[: shared.find(">") + 1]
        return token or shared.split('"name"')[0] + ('"name"' if '"name"' in shared else "")

    def _call_end(self, text: str) -> str:
        """The token that ends a turn with calls: a special one, behind those that close the calls themselves."""
        header = self._prompt.removeprefix(self._render([_USER]))
        special = list(self._special_in(text))
        for number, (start, token) in enumerate(special):
            if token == self.tokenizer.eos_token:
                return token
            if self._has_call(text[:start]):
                end = start + len(token)
                for start, following in special[number + 1 :]:
                    # A token that opens the header of a message begins the tool's.
                    if start != end or following in header:
                        break
                    token, end = following, start + len(following)
                return token
        return self.tokenizer.eos_token

    def _has_call(self, text: str) -> bool:
        parser = ResponseParser(self.tokenizer.response_template, prefix="")
        try:
            parser.feed(text)
            return bool(parser.finalize()[0].get("tool_calls"))
        except (ValueError, TypeError, KeyError):
            return False

    def _answer_end(self) -> str:
        turn = {"role": "assistant", "content": _BODY}
        for messages in ([_USER, turn], [_USER, turn, _USER]):
            found = list(self._special_in(self._render(messages).partition(_BODY)[2]))
            if found:
                return found[0][1]
        return self.tokenizer.eos_token

    def _special_in(self, text: str) -> list[tuple[int, str]]:
        found = [(text.find(token), token) for token in self._special]
        places, position = [], 0
        while found := [(text.find(token, position), token) for _, token in found if token in text[position:]]:
            start, token = min(found, key=lambda pair: (pair[0], -len(pair[1])))
            places.append((start, token))
            position = start + len(token)
        return places

    def _behind_header(self, text: str) -> str:
        return text[_shared(text, self._prompt) :]

    def _render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        return self._apply(messages, tokenize=False, **options)

    def _render_ids(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return self._apply(messages, tokenize=True, return_dict=False, **options)

    def _apply(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.chat_template, **options, **self.chat_template_kwargs
        )


_NOT_PRESERVING = (
    "the chat template renders a turn differently when tool results follow it, so turns cannot be appended. Set "
    f"{OTHER_TEMPLATE}"
)


def training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template that turns are rendered with; None for the tokenizer's own. Makes it able to read calls.

    Raises:
        `ValueError`: the template renders no tools, TRL does not know how to read its calls, or it renders earlier
            messages differently when others follow and TRL has no version that does not.
    """
    from trl import chat_template_utils as templates

    name = tokenizer.name_or_path or type(tokenizer).__name__
    if not tokenizer.chat_template or not templates.supports_tool_calling(tokenizer):
        raise ValueError(
            f"the chat template of {name} does not render tool calls and their results. Use a model that was trained "
            f"with tools, or set {OTHER_TEMPLATE}"
        )
    if not getattr(tokenizer, "response_template", None):
        try:
            _add_response_template(tokenizer)
        except ValueError as error:
            raise ValueError(
                f"TRL does not know how to read the tool calls of {name}'s chat template. Set "
                "tokenizer.response_template to what describes them (see 'Response parsing' in the documentation of "
                f"Transformers), or set {OTHER_TEMPLATE}"
            ) from error
    if templates.is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        return templates.get_training_chat_template(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the chat template of {name} renders earlier messages differently when others follow, so turns cannot be "
            f"appended, and TRL has no training version of it. Set {OTHER_TEMPLATE}"
        ) from error


def _add_response_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Sets the response template that TRL has for the chat template, or for the one that it is the training version of.

    Raises:
        `ValueError`: TRL has none.
    """
    from trl import chat_template_utils as templates

    own = tokenizer.chat_template
    names = [name for name, text in vars(templates).items() if name.endswith("_training_chat_template") and text == own]
    originals = [getattr(templates, name.replace("_training_", "_")) for name in names]
    try:
        tokenizer.chat_template = next(iter(originals), own)
        templates.add_response_schema(tokenizer)
    finally:
        tokenizer.chat_template = own


def environment_tools(environment: Any) -> list[Callable[..., Any]]:
    """The tools of an environment: its class's public functions but `reset` and `get_reward`, as TRL finds them."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, n) for n in names if not n.startswith("_") and n not in ("reset", "get_reward")]


def _call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items two sequences begin with in common."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _opened(template: Any, prompt: str) -> str:
    """What the assistant header at the end of `prompt` writes of the turn. An anchor may hold a part of that."""
    anchors = list(template.start_anchor_re.finditer(prompt))
    if not anchors:
        return ""
    anchor = anchors[-1]
    _, tag, rest = anchor[0].partition("<think>")
    return tag + rest + prompt[anchor.end() :]


def _is_empty_thought(text: str) -> bool:
    return "".join(text.split()) in ("", "<think></think>")


def _continue_thought(body: str, closing: str) -> str:
    """`body` as it is written in a thought that is open already: memory, thought, the end of the thought, the rest."""
    for tag, start, end in find_blocks(body, ("mem", "think")):
        if tag == "think":
            return body[:start] + body[start + 7 : end - 8].strip("\n") + closing + body[end:].lstrip()
    memory = next((block.end for block in find_blocks(body, ("mem",))), 0)
    return body[:memory] + closing + body[memory:].lstrip()
