"""What a policy is worth on questions: exact match, F1, what its memory kept, and the tokens it took."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from .agent import MemoryAgent
from .context import CONTEXTS
from .endpoints import Sampling
from .report.traces import write_traces
from .rollout import TurnLimits
from .search.rewards import exact_match, f1_score, normalize_answer, objective_scores
from .search.rows import Row
from .tracing import trajectory_trace
from .trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .trainer import MemPOTrainer


@dataclass(frozen=True)
class QuestionScore:
    """What one trajectory is worth.

    Attributes:
        objectives: questions in the row, k.
        em: 1.0 if every objective is answered exactly, else 0.0. (`exact_match` is a mean over objectives.)
        f1: mean over the objectives.
        memory_fidelity: share of the gold answers that the last closed memory holds; 0 without one.
        total_tokens: that the model read or wrote, summed over the turns.
        peak_tokens: the longest that context and turn together were.
    """

    objectives: int
    em: float
    f1: float
    memory_fidelity: float
    total_tokens: int
    peak_tokens: int


@dataclass(frozen=True)
class Evaluation:
    """Means over all questions, those without an answer included. Units as in `QuestionScore`."""

    em: float
    f1: float
    memory_fidelity: float
    total_tokens: float
    peak_tokens: float

    @classmethod
    def of(cls, scores: Sequence[QuestionScore]) -> "Evaluation":
        """The means of `scores`; a `ValueError` without any."""
        if not scores:
            raise ValueError("there is nothing to average: no question was played")
        return cls(**{name: fmean(getattr(score, name) for score in scores) for name in cls.__dataclass_fields__})

    def rounded(self) -> dict[str, float]:
        """The means with 4 digits, for a report."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def evaluate(
    agent: MemoryAgent,
    rows: Sequence[Row],
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    *,
    batch_size: int = 64,
    seed: int | None = 0,
    traces: str | Path | None = None,
    on_question: Callable[[QuestionScore], None] = lambda score: None,
) -> list[QuestionScore]:
    """Plays each question once, as the agent samples, and scores what came of it.

    Args:
        agent: the policy, its context and its environment.
        rows: questions with `prompt`, `answers` and what the environment needs.
        tokenizer: of the policy: gives the trace file its tokens.
        batch_size: questions that are played at once.
        seed: of the sampling; None for any.
        traces: a trace file that the trajectories are appended to, each as soon as it is there.
        on_question: called after each question.

    Returns:
        One score for each question, in order; `Evaluation.of` averages them.
    """
    scores = []
    for row, trajectory in zip(rows, agent.run_many(rows, batch_size, seed), strict=True):
        scores.append(score_trajectory(row, trajectory))
        if traces is not None:
            rewards = {"em": scores[-1].em}
            write_traces(traces, [trajectory_trace(trajectory, row, agent.context, rewards, tokenizer)])
        on_question(scores[-1])
    return scores


def score_trajectory(row: Row, trajectory: Trajectory) -> QuestionScore:
    """Scores one trajectory against the answers of its row."""
    answers, aliases = row["answers"], row.get("aliases")
    right = objective_scores(trajectory.answer, answers, exact_match, aliases)
    f1 = objective_scores(trajectory.answer, answers, f1_score, aliases)
    kept = memory_fidelity(next((m for m in reversed(trajectory.memories) if m is not None), ""), answers, aliases)
    return QuestionScore(
        len(answers), float(all(right)), fmean(f1), kept, trajectory.total_tokens, trajectory.peak_tokens
    )


def memory_fidelity(memory: str, answers: Sequence[str], aliases: Sequence[Sequence[str]] | None = None) -> float:
    """Share of the gold answers, or of one of their aliases, that stand in a memory as whole words."""
    text = f" {normalize_answer(memory)} "
    golds = [[answer, *(aliases[i] if aliases else ())] for i, answer in enumerate(answers)]
    return fmean(float(any(f" {normalize_answer(gold)} " in text for gold in options)) for options in golds)


class EvaluationCallback(TrainerCallback):
    """Evaluates the policy in both contexts before training, every so many steps, and after it.

    The means are logged as `eval/{context}/{name}`, with the names of `Evaluation`; `first` and `last` hold those from
    before and after training. The processes share the questions.

    Args:
        trainer: whose policy is evaluated, with its own limits and sampling.
        environment_factory: makes the environment of each question.
        rows: questions that are not trained on, at least one for each process; none for no evaluation.
        every: steps between two evaluations during training; 0 for none.
        between: questions of an evaluation during training; before and after it all are played.
        traces: a trace file that the episodes from before and after training are appended to.
    """

    def __init__(
        self,
        trainer: "MemPOTrainer",
        environment_factory: Callable[[], Any],
        rows: Sequence[Row],
        every: int = 0,
        between: int = 64,
        traces: str | Path | None = None,
    ) -> None:
        if rows and (trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()):
            raise ValueError(
                "the policy cannot be evaluated while its weights are sharded (FSDP, ZeRO-3): the ranks play episodes "
                "of different lengths. Set eval_questions to 0, and evaluate the checkpoints with mempo eval"
            )
        self.trainer = trainer
        self.environment_factory = environment_factory
        self.rows = rows
        self.every = every
        self.between = between
        self.traces = traces
        self.first: dict[str, Evaluation] = {}
        self.last: dict[str, Evaluation] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluates the policy that training starts from."""
        self.first = self._evaluate(self.rows, self.traces)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluates every so many steps."""
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            should_log = control.should_log
            self._evaluate(self.rows[: self.between])
            control.should_log = should_log  # the step's own metrics are yet to be logged

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluates the policy that training ends with."""
        self.last = self._evaluate(self.rows, self.traces)

    def _evaluate(self, rows: Sequence[Row], traces: str | Path | None = None) -> dict[str, Evaluation]:
        trainer, results = self.trainer, {}
        if not rows:
            return {}
        rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
        training = trainer.model.training
        trainer.model.eval()  # also tells `log` that these are no metrics of a training step
        for context in CONTEXTS:
            path = traces if rank == 0 else None
            scores = evaluate(self._agent(context), rows[rank::ranks], trainer.processing_class, traces=path)
            results[context] = Evaluation.of(gather_object(scores))
        trainer.log({f"eval/{c}/{name}": value for c, e in results.items() for name, value in asdict(e).items()})
        trainer.model.train(training)
        return results

    def result(self) -> dict[str, dict[str, dict[str, float]]]:
        """`{"before": {context: means}, "after": {context: means}}`, with 4 digits."""
        return {
            name: {context: evaluation.rounded() for context, evaluation in results.items()}
            for name, results in (("before", self.first), ("after", self.last))
        }

    def _agent(self, context: str) -> MemoryAgent:
        trainer, args = self.trainer, self.trainer.args
        return MemoryAgent(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            context=context,
            environment_factory=self.environment_factory,
            context_turns=args.context_turns,
            limits=TurnLimits(args.max_turns, args.max_tool_length, args.max_completion_length),
            sampling=Sampling(args.temperature, args.top_p, args.max_turn_length),
        )
