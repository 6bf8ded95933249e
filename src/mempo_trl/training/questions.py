"""Which questions are asked when: a curriculum over a column, and tied groups drawn again."""

from typing import Any

from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer

from .batch import GenerationBatch
from .config import MemPOConfig


class QuestionTrainer(GRPOTrainer):
    """
    Mixed in before [`~trl.GRPOTrainer`].

    - With `args.curriculum_column`, questions are asked in the order of that column.
    - With `args.max_redraws`, a generation batch whose groups are all tied is generated again, since its outcome
      rewards teach nothing. DAPO (arXiv 2503.14476, section 3.2) draws other questions instead; here they stay, so that
      the curriculum and a resumed run keep their order.
    """

    args: MemPOConfig
    _batch: GenerationBatch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        column = kwargs["args"].curriculum_column
        if column is not None:
            kwargs["train_dataset"] = by_difficulty(kwargs["train_dataset"], column)
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Tensor:
        column = self.args.curriculum_column
        if column is not None and self.model.training:
            for row in inputs:
                self._log_metric(f"curriculum/{column}", float(row[column]))
        return super()._calculate_rewards(inputs, *args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not (self.args.max_redraws and self.model.training):
            return output
        redraws, metrics = 0, self._metrics["train"]
        while redraws < self.args.max_redraws and metrics["frac_reward_zero_std"][-1] == 1:  # over all ranks
            self._batch = GenerationBatch(self._batch.rows, self._batch.answers)
            output, redraws = super()._generate_and_score_completions(inputs), redraws + 1
        metrics["rollout/redraws"].append(float(redraws))
        return output


def by_difficulty(dataset: Any, column: str) -> Dataset:
    """The rows of `dataset` in the order of `column`; rows with the same value keep their order.

    `MemPOConfig.curriculum_column` also turns TRL's shuffling off, so this is the order of the training.

    Args:
        dataset: the training questions.
        column: numbers, for example of objectives or of hops.

    Raises:
        ValueError: the dataset is a stream, or the column is missing, not all numbers, or the same in every row.
    """
    name = f"curriculum_column={column!r}"
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{name} needs a dataset that can be sorted, and a stream cannot. Load it without streaming")
    if column not in dataset.column_names:
        raise ValueError(
            f"{name} is not a column of the training dataset. Set one of {', '.join(dataset.column_names)}"
        )
    values = dataset[column]
    for number, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ValueError(f"{name} must hold numbers: row {number} of the training dataset has {value!r}")
    if min(values) == max(values):
        raise ValueError(f"{name} is {values[0]} in every row, so it orders nothing. Set another column, or None")
    return dataset.select(sorted(range(len(dataset)), key=values.__getitem__))
