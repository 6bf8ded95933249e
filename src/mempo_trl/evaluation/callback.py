"""Evaluating the policy while it is trained."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from ..inference.agent import MemoryAgent
from ..inference.endpoints import Sampling
from ..tasks.outcome import RewardFunction
from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.search.rows import Row
from .evaluation import evaluate
from .scores import Scores, mean_scores

if TYPE_CHECKING:
    from ..training.trainer import MemPOTrainer


class EvaluationCallback(TrainerCallback):
    """Evaluates the policy in both contexts before training, every so many steps, and after it.

    The means are logged as `eval/{context}/{name}`, with the names in `scores.METRICS`; `first` and `last` hold those
    from before and after training, by context. "budget" is a third context where the policy is trained in it. The
    processes share the questions.

    Args:
        trainer: whose policy is evaluated, with its own limits and sampling.
        environment_factory: makes the environment of each question.
        rows: questions that are not trained on, at least one for each process; none for no evaluation.
        every: steps between two evaluations during training; 0 for none.
        between: questions of an evaluation during training; before and after it all are played.
        traces: a trace file that the episodes from before and after training are appended to.
        reward_funcs: TRL reward functions, weighted as in training; their sum is the score `reward`.
    """

    def __init__(
        self,
        trainer: "MemPOTrainer",
        environment_factory: Callable[[], Any],
        rows: Sequence[Row],
        every: int = 0,
        between: int = 64,
        traces: str | Path | None = None,
        reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
    ) -> None:
        if rows and (trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()):
            raise ValueError(
                "the policy cannot be evaluated while its weights are sharded (FSDP, ZeRO-3): the ranks play episodes "
                "of different lengths. Set eval_questions to 0, and evaluate the checkpoints with mempo eval"
            )
        self.trainer = trainer
        self.environment_factory = environment_factory
        column = trainer.args.answers_column
        self.rows = rows if column == "answers" else [{**row, "answers": row.get(column)} for row in rows]
        self.every = every
        self.between = between
        self.traces = traces
        self.reward_funcs = reward_funcs
        self.first: dict[str, Scores] = {}
        self.last: dict[str, Scores] = {}

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

    def _evaluate(self, rows: Sequence[Row], traces: str | Path | None = None) -> dict[str, Scores]:
        trainer, results = self.trainer, {}
        if not rows:
            return {}
        rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
        training = trainer.model.training
        trainer.model.eval()  # also tells `log` that these metrics do not belong to a training step
        for context in dict.fromkeys(("full", "memory", trainer.args.context)):
            path = traces if rank == 0 else None
            scores = evaluate(
                self._agent(context),
                rows[rank::ranks],
                traces=path,
                reward_funcs=self.reward_funcs,
                reward_weights=trainer.args.reward_weights,
            )
            results[context] = mean_scores(gather_object(scores))
        trainer.log({f"eval/{c}/{name}": value for c, means in results.items() for name, value in means.items()})
        trainer.model.train(training)
        return results

    def result(self) -> dict[str, dict[str, dict[str, float]]]:
        """`{"before": {context: means}, "after": {context: means}}`, with 4 digits."""
        return {
            when: {c: {name: round(value, 4) for name, value in means.items()} for c, means in results.items()}
            for when, results in (("before", self.first), ("after", self.last))
        }

    def _agent(self, context: str) -> MemoryAgent:
        trainer, args = self.trainer, self.trainer.args
        return MemoryAgent(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            context=context,
            environment_factory=self.environment_factory,
            settings=trainer.prompt_settings,
            sampling=Sampling(args.temperature, args.top_p, args.max_turn_length),
        )
