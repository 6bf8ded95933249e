"""Running a trained policy on questions, under the context it was trained in, on any backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..rollout.chat_format import ChatFormat, environment_tools
from ..rollout.chat_loop import ChatLoop
from ..rollout.loop import TurnLoop
from ..rollout.prompt_settings import PromptSettings, say_difference, settings_of
from ..rollout.tools import tool_schemas
from ..types import Episode, Message, TurnLimits
from .endpoints import ChatEndpoint, ContextOverflow, EndpointError, Sampling, VLLMServer
from .local_model import LocalModel

Question = str | Mapping[str, Any]
OnMessage = Callable[[Message], None]
_LIMITS = ("max_turns", "max_tool_length", "max_completion_length")
NextSeed = Callable[[], int | None]


class MemoryAgent:
    """Answers questions in several turns, with tools, under the visible context of `rollout.context`.

    A model in this process and a vLLM server are run on token ids, by the turn loop of training: each turn is generated
    from exactly the ids that training conditions it on. A chat endpoint is run on messages, by the same rule.

    What shapes the prompts and is not given is as the policy was trained with, if its tokenizer's folder says so (see
    `rollout.prompt_settings`); what is given and differs from that is logged as a warning.

    Args:
        model: a transformers model, a `VLLMServer` or a `ChatEndpoint`.
        tokenizer: of the model; needed but for a `ChatEndpoint`.
        tools: functions that the model may call.
        context: "memory" (the default), "full" or "budget".
        environment_factory: makes the environment of each question, whose public methods are tools too, as in
            `GRPOTrainer`.
        settings: what shapes the prompts, in place of what the tokenizer's folder says. The arguments below replace
            single ones.
        context_turns: past turns that the "memory" context keeps; default: 1.
        context_tokens: most tokens that a turn and what it sees have in "budget" context.
        compaction_prompt: the user message that asks for a memory in "budget" context.
        limits: turns, and tokens of tool results and episodes; without `max_context_length` the model's own is taken.
        sampling: how turns are sampled, and how long they are.
        chat_template_kwargs: options of the chat template, as in `MemPOConfig`. Not for a `ChatEndpoint`.
        system_prompt: stands before a question that is given as a text; a row brings its own.

    Raises:
        `ValueError`: the arguments do not fit each other, or the chat template renders no tools.
    """

    def __init__(
        self,
        model: PreTrainedModel | VLLMServer | ChatEndpoint,
        tokenizer: PreTrainedTokenizerBase | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        context: str | None = None,
        *,
        environment_factory: Callable[[], Any] | None = None,
        settings: PromptSettings | None = None,
        context_turns: int | None = None,
        context_tokens: int | None = None,
        compaction_prompt: str | None = None,
        limits: TurnLimits | None = None,
        sampling: Sampling | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        given = {
            "context": context, "context_turns": context_turns, "context_tokens": context_tokens,
            "compaction_prompt": compaction_prompt, "chat_template_kwargs": chat_template_kwargs,
            "system_prompt": system_prompt, "max_turn_length": sampling and sampling.max_turn_length,
            **({name: getattr(limits, name) for name in _LIMITS} if limits else {}),
        }  # fmt: skip
        named = settings_of(getattr(tokenizer, "name_or_path", None), given) if settings is None else settings
        self.settings = named.replaced(given)
        if self.settings.context == "budget" and isinstance(model, ChatEndpoint):
            raise ValueError("context='budget' needs token ids, which a chat endpoint has not. Pass a VLLMServer")
        if not tools and environment_factory is None:
            raise ValueError("an agent without tools has one turn. Pass tools or environment_factory")
        if tokenizer is None and not isinstance(model, ChatEndpoint):
            raise ValueError(f"{type(model).__name__} is run on token ids. Pass its tokenizer")
        self.tokenizer = tokenizer
        self.tools = list(tools)
        self.context = self.settings.context
        self.environment_factory = environment_factory
        self.limits = limits or self.settings.limits
        self.sampling = sampling or Sampling(max_turn_length=self.settings.max_turn_length)
        self.budget = self.settings.budget
        self.model: LocalModel | VLLMServer | ChatEndpoint
        self.model = model if isinstance(model, (VLLMServer, ChatEndpoint)) else LocalModel(model, tokenizer)
        self._format = None
        if not isinstance(model, ChatEndpoint):
            self._format = ChatFormat(tokenizer, self.settings.chat_template_kwargs)
        if isinstance(self.model, LocalModel) and self._format is not None:
            self.model.eos_token_ids = list(dict.fromkeys([*self.model.eos_token_ids, *self._format.end_ids]))
        if self.budget:
            self._turn_loop(None, lambda: None).check_budget()

    def run(self, question: Question, on_message: OnMessage | None = None, seed: int | None = None) -> Episode:
        """Plays one question to its end.

        Args:
            question: a text, or a dataset's row: its `prompt` is asked, and the environment is reset with it.
            on_message: called with each turn and each tool result as soon as it is there.
            seed: of the random numbers that turns are sampled with; None for any.

        Returns:
            The episode. What an endpoint does wrong, after retries, ends it with the stop reason "error".
        """
        (episode,) = self._play([question], on_message, seed)
        return episode

    def run_many(
        self, questions: Sequence[Question], concurrency: int = 16, seed: int | Sequence[int] | None = None
    ) -> Iterator[Episode]:
        """Plays questions, and yields their episodes in order.

        Args:
            questions: as in `run`.
            concurrency: how many are played at once: a batch of a model in this process, or requests to a server.
            seed: question i is sampled with `seed + i`, or with its own seed if there is one for each. A batch in
                this process has that of its first question.
        """
        seeds: Sequence[int | None]
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + number for number in range(len(questions))]
        else:
            seeds = seed
        if len(seeds) != len(questions):
            raise ValueError(f"each question needs a seed: got {len(seeds)} seeds, expected {len(questions)}")
        if isinstance(self.model, LocalModel):
            for first in range(0, len(questions), concurrency):
                yield from self._play(questions[first : first + concurrency], None, seeds[first])
            return
        with ThreadPoolExecutor(concurrency) as pool:
            try:
                yield from pool.map(lambda pair: self.run(pair[0], seed=pair[1]), zip(questions, seeds, strict=True))
            finally:
                pool.shutdown(cancel_futures=True)

    def _start(self, question: Question) -> Episode:
        """An episode that has only its prompt, its tools and its environment."""
        row = {"prompt": self._prompt(question)} if isinstance(question, str) else dict(question)
        prompt, tools = list(row["prompt"]), self.tools
        environment = self.environment_factory() if self.environment_factory else None
        if environment is not None:
            observation = environment.reset(**row)
            if observation is not None:  # TRL adds it to the last message
                prompt[-1] = {**prompt[-1], "content": prompt[-1]["content"] + observation}
            tools = tools + environment_tools(environment)
        episode = Episode(prompt, {tool.__name__: tool for tool in tools}, environment, row)
        self._compare(episode)
        return episode

    def _compare(self, episode: Episode) -> None:
        """Says if an episode has other tools, or another system prompt, than the policy was trained with."""
        trained, first = self.settings, episode.prompt[0]
        system = first["content"] if first["role"] == "system" else None
        for name, known, here in (
            ("tools", trained.tools, tool_schemas(episode.tools)),
            ("system_prompt", trained.system_prompt, system),
        ):
            if known and here != known:
                say_difference(name, known, here)

    def _prompt(self, question: str) -> list[Message]:
        text = self.settings.system_prompt
        system = [{"role": "system", "content": text}] if text else []
        return [*system, {"role": "user", "content": question}]

    def _play(self, questions: Sequence[Question], on_message: OnMessage | None, seed: int | None) -> list[Episode]:
        """Plays questions side by side. For an endpoint there is one at a time, so that an error affects only it."""
        episodes = [self._start(question) for question in questions]
        play = self._play_messages if isinstance(self.model, ChatEndpoint) else self._play_ids
        # A seed for each turn: with one for all, they would be sampled with the same random numbers.
        rng = Random(seed)
        next_seed = (lambda: None) if seed is None else (lambda: rng.getrandbits(31))
        try:
            play(episodes, on_message, next_seed)
        except EndpointError as error:
            for episode in [e for e in episodes if e.stop_reason is None]:
                episode.stop_reason = "truncated" if isinstance(error, ContextOverflow) else "error"
                episode.error = str(error)
        return episodes

    def _play_messages(self, episodes: list[Episode], on_message: OnMessage | None, next_seed: NextSeed) -> None:
        endpoint = self.model
        assert isinstance(endpoint, ChatEndpoint)
        loop = ChatLoop(
            lambda messages, tools: endpoint.complete(messages, tools, self.sampling, next_seed()),
            self.context,
            self.settings.context_turns,
            self.limits,
        )
        for episode in episodes:
            loop.run(episode, on_message)

    def _turn_loop(self, on_message: OnMessage | None, next_seed: NextSeed) -> TurnLoop:
        engine, chat = self.model, self._format
        assert chat is not None
        assert not isinstance(engine, ChatEndpoint)
        longest = self.limits.max_context_length or engine.max_context_length
        if self.budget and longest and longest < self.budget.tokens:
            raise ValueError(
                f"context_tokens={self.budget.tokens} is more than the {longest} tokens that the model or its server "
                f"holds. Set context_tokens={longest} or less"
            )
        return TurnLoop(
            chat.tokenizer,
            lambda contexts: (engine.generate(contexts, self.sampling, next_seed()), None),
            engine.eos_token_ids or [chat.tokenizer.eos_token_id],
            context=self.context,
            context_turns=self.settings.context_turns,
            budget=self.budget,
            limits=replace(self.limits, max_context_length=longest),
            chat=chat,
            on_message=on_message,
        )

    def _play_ids(self, episodes: list[Episode], on_message: OnMessage | None, next_seed: NextSeed) -> None:
        loop, chat = self._turn_loop(on_message, next_seed), self._format
        assert chat is not None
        for episode in episodes:
            episode.prompt_ids = chat.prompt_ids(episode.prompt, list(episode.tools.values()))
            if not loop.has_room(episode):
                episode.stop_reason = "truncated"
        loop.run(episodes)
