"""The agent on a transformers model and over a vLLM server: what it is given, and what comes of it."""

import pytest
import torch

from agent_script import FACTS, TURNS, ScriptedGenerate
from fake_server import serve
from helpers import visible_context
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling, VLLMServer
from mempo_trl.memory.turns import find_turns
from mempo_trl.tasks.search import SYSTEM_PROMPT, BM25Retriever, SearchEnvironment, build_prompt, extract_answer
from mempo_trl.training.by_turn import turn_rows, visible_starts
from mempo_trl.types import TurnLimits


@pytest.fixture
def environment_factory():
    retriever = BM25Retriever.build(FACTS)
    return lambda: SearchEnvironment(retriever, top_k=1)


def scripted_agent(model, tokenizer, texts, environment_factory, context="memory", end=True, **options):
    model.generate = ScriptedGenerate(tokenizer, texts, end)
    options |= {"context": context, "environment_factory": environment_factory}
    return MemoryAgent(model, tokenizer, system_prompt=SYSTEM_PROMPT, **options)


def tokens_of(episode):
    return [(turn.context_tokens, turn.turn_tokens) for turn in episode.turns]


# A transformers model


@pytest.mark.parametrize("context", ["full", "memory"])
def test_each_turn_is_generated_from_what_training_conditions_it_on(model, tokenizer, environment_factory, context):
    agent = scripted_agent(model, tokenizer, TURNS, environment_factory, context)
    trajectory = agent.run("Capital of France; capital of Peru")
    episode = trajectory
    turns = find_turns(episode.mask)
    given = [rows[0] for rows in model.generate.given]
    for turn, (start, _) in enumerate(turns):
        seen = visible_context(episode.prompt_ids, episode.completion_ids[:start], episode.mask[:start], context)
        assert given[turn] == seen
    assert len(given) == len(turns) == 4
    if context == "memory":  # the rows of the loss
        ids = torch.tensor([episode.prompt_ids + episode.completion_ids])
        rows = turn_rows(ids, torch.ones_like(ids), visible_starts([episode]), tokenizer.pad_token_id)
        for row, ids in enumerate(given):
            context_ids = rows.input_ids[row, : -rows.width][rows.attention_mask[row, : -rows.width].bool()]
            assert context_ids.tolist() == ids


def test_trajectory_of_a_search(model, tokenizer, environment_factory):
    heard = []
    agent = scripted_agent(model, tokenizer, TURNS, environment_factory)
    trajectory = agent.run("Capital of France; capital of Peru", on_message=heard.append)
    assert extract_answer(trajectory.messages) == "Paris; Lima"
    assert trajectory.stop_reason == "done"
    assert [turn.text for turn in trajectory.turns] == TURNS
    assert trajectory.memories == [None, "Paris", "Paris, Lima", "Paris, Lima"]
    assert [m["role"] for m in trajectory.messages] == ["assistant", "tool"] * 3 + ["assistant"]
    assert "Its capital is Paris." in trajectory.messages[1]["content"]
    assert heard == trajectory.messages
    assert (trajectory.tool_calls, trajectory.tool_failures) == (3, 0)
    given = [len(rows[0]) for rows in model.generate.given]
    written = [len(tokenizer.encode(turn)) + 1 for turn in TURNS]
    assert tokens_of(trajectory) == list(zip(given, written, strict=True))
    assert trajectory.total_tokens == sum(given) + sum(written)
    assert trajectory.peak_tokens == max(g + w for g, w in zip(given, written, strict=True))


def test_the_prompt_is_the_trainers(model, tokenizer, environment_factory):
    agent = scripted_agent(model, tokenizer, TURNS[-1:], environment_factory)
    trajectory = agent.run("Capital of France?")
    expected = tokenizer.apply_chat_template(
        build_prompt("Capital of France?"),
        tools=[environment_factory().search],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert trajectory.prompt_ids == model.generate.given[0][0] == expected


def test_sampling_ignores_what_the_checkpoint_brings_along(model, tokenizer, environment_factory):
    model.generation_config.repetition_penalty = 1.3
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, 7]
    sampling = Sampling(temperature=0.7, top_p=0.9, max_turn_length=33)
    agent = scripted_agent(model, tokenizer, TURNS[-1:], environment_factory, sampling=sampling)
    agent.run("q")
    (config,) = model.generate.configs
    assert (config.temperature, config.top_p, config.max_new_tokens) == (0.7, 0.9, 33)
    assert (config.top_k, config.repetition_penalty, config.do_sample) == (0, 1.0, True)
    assert config.eos_token_id == [tokenizer.eos_token_id, 7]


def test_real_sampling_depends_on_the_seed_alone(model, tokenizer, environment_factory):
    agent = MemoryAgent(
        model.train(), tokenizer, environment_factory=environment_factory, sampling=Sampling(max_turn_length=12)
    )
    state = torch.get_rng_state()
    first, again, other = (agent.run("q", seed=seed).completion_ids for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training  # as it was


def test_greedy_turns_of_a_batch_are_those_of_each_alone(model, tokenizer, environment_factory):
    options = {"environment_factory": environment_factory, "sampling": Sampling(0.0, max_turn_length=12)}
    agent = MemoryAgent(model, tokenizer, **options)
    questions = ["short", "a question that is quite a bit longer than the other"]
    batch = [t.completion_ids for t in agent.run_many(questions, concurrency=2)]
    assert batch == [agent.run(q).completion_ids for q in questions]


def test_run_many_plays_chunks_and_keeps_the_order(model, tokenizer, environment_factory):
    texts = [["<answer>0</answer>", "<answer>1</answer>"], ["<answer>2</answer>"]]
    agent = scripted_agent(model, tokenizer, texts, environment_factory)
    answers = [extract_answer(t.messages) for t in agent.run_many(["a", "b", "c"], concurrency=2)]
    assert answers == ["0", "1", "2"]
    assert [len(rows) for rows in model.generate.given] == [2, 1]


@pytest.mark.parametrize(
    ("texts", "end", "limits", "reason"),
    [
        (TURNS[:1] * 3, True, TurnLimits(max_turns=2), "max_turns"),
        (["<mem>x</mem><think>nothing to call</think>"], True, None, "finished"),
        (TURNS[:1], False, None, "truncated"),
        (TURNS[:1], True, TurnLimits(max_completion_length=60), "truncated"),
        ([], True, TurnLimits(max_context_length=10), "truncated"),  # the prompt alone is too long
    ],
)
def test_stop_reasons(model, tokenizer, environment_factory, texts, end, limits, reason):
    agent = scripted_agent(model, tokenizer, texts, environment_factory, end=end, limits=limits)
    trajectory = agent.run("q")
    assert trajectory.stop_reason == reason
    assert extract_answer(trajectory.messages) is None


def test_the_row_resets_the_environment_and_what_it_says_is_asked(model, tokenizer):
    class Greeter:
        def reset(self, **row):
            self.row = row
            return f" (hint: {row['hint']})"

        def search(self, query: str) -> str:
            """Searches.

            Args:
                query: what to look for.
            """
            return "found"

        def get_reward(self):
            return 1.0

    agent = scripted_agent(model, tokenizer, ["<answer>x</answer>"], Greeter)
    row = {"prompt": [{"role": "user", "content": "Where?"}], "hint": "north"}
    trajectory = agent.run(row)
    assert trajectory.environment.row == row
    assert trajectory.prompt == [{"role": "user", "content": "Where? (hint: north)"}]
    assert row["prompt"] == [{"role": "user", "content": "Where?"}]
    assert list(trajectory.tools) == ["search"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "last"}, "Set one of full, memory"),
        ({"context_turns": 0}, "Set it to 1 or more"),
        ({"environment_factory": None}, "Pass tools or environment_factory"),
        ({"tokenizer": None}, "Pass its tokenizer"),
    ],
)
def test_arguments_that_cannot_work(model, tokenizer, environment_factory, options, message):
    with pytest.raises(ValueError, match=message):
        MemoryAgent(model, **{"tokenizer": tokenizer, "environment_factory": environment_factory, **options})


def test_a_template_without_tools_is_refused(model, environment_factory):
    from conftest import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(ValueError, match="does not render tool calls"):
        MemoryAgent(model, tokenizer, environment_factory=environment_factory)


# A vLLM server


def vllm_reply(tokenizer, texts, max_model_len=4096):
    texts = iter(texts)

    def reply(path, body):
        if path == "/v1/models":
            return {"data": [{"id": "policy", "max_model_len": max_model_len}]}
        ids = [*tokenizer.encode(next(texts)), tokenizer.eos_token_id]
        return {"choices": [{"token_ids": ids, "finish_reason": "stop"}]}

    return reply


def test_a_vllm_server_gets_and_gives_ids(model, tokenizer, environment_factory):
    local = scripted_agent(model, tokenizer, TURNS, environment_factory).run("q")
    with serve(vllm_reply(tokenizer, TURNS)) as server:
        agent = MemoryAgent(
            VLLMServer(server.url), tokenizer, environment_factory=environment_factory, system_prompt=SYSTEM_PROMPT
        )
        trajectory = agent.run("q", seed=3)
    assert trajectory.completion_ids == local.completion_ids
    assert tokens_of(trajectory) == tokens_of(local)
    asked = [body for path, body, _ in server.requests if path == "/v1/completions"]
    assert [body["prompt"] for body in asked] == [rows[0] for rows in model.generate.given]
    assert asked[0]["model"] == "policy"
    assert asked[0]["return_token_ids"] is True
    assert len({body["seed"] for body in asked}) == len(TURNS)  # no two turns with the same random numbers


def test_the_servers_own_limit_holds(tokenizer, environment_factory):
    prompt = len(tokenizer.apply_chat_template(build_prompt("q"), tools=[environment_factory().search])["input_ids"])
    with serve(vllm_reply(tokenizer, TURNS, max_model_len=prompt + 50)) as server:
        agent = MemoryAgent(VLLMServer(server.url), tokenizer, environment_factory=environment_factory)
        trajectory = agent.run({"prompt": build_prompt("q")})
    assert trajectory.stop_reason == "truncated"
    assert len(trajectory.turns) == 1  # what the search found does not fit any more
    assert server.requests[-1][1]["max_tokens"] <= 60


def test_a_server_without_token_ids_is_an_error_that_says_what_to_do(tokenizer, environment_factory):
    with serve(lambda path, body: {"data": [{"id": "m"}], "choices": [{"text": "hi"}]}) as server:
        agent = MemoryAgent(VLLMServer(server.url), tokenizer, environment_factory=environment_factory)
        trajectory = agent.run("q")
    assert trajectory.stop_reason == "error"
    assert "use ChatEndpoint" in trajectory.error


def test_a_server_that_is_away_ends_each_episode_on_its_own(tokenizer, environment_factory):
    server = VLLMServer("http://127.0.0.1:9", retries=1, backoff=0.01, timeout=1.0)
    agent = MemoryAgent(server, tokenizer, environment_factory=environment_factory)
    trajectories = list(agent.run_many(["a", "b"], concurrency=2))
    assert [t.stop_reason for t in trajectories] == ["error", "error"]
    assert "gave no answer in 2 attempts" in trajectories[0].error
