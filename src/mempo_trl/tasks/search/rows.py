"""Rows of a training set, and how they become a dataset."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...rows import check_row
from .corpora import Passage

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]


class QuestionSet(NamedTuple):
    """Questions and the passages that answer them."""

    questions: "Dataset"
    corpus: list[Passage]


def to_dataset(rows: list[Row], places: Sequence[str] | None = None) -> "Dataset":
    """Checks rows (see `validate_rows`) and makes a dataset of them.

    Args:
        rows: of which some may lack columns that others have.
        places: names each row in an error. Default: its number.

    Raises:
        `ValueError`: a row cannot be trained on, or a column mixes types, which a dataset cannot hold.
    """
    from datasets import Dataset

    validate_rows(rows, places)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(_misfit(columns, places) or str(error)) from error


def validate_rows(rows: Iterable[Row], places: Sequence[str] | None = None) -> None:
    """Checks that rows can be trained on (see `mempo_trl.rows.check_row`).

    Raises:
        `ValueError`: naming row and column: `prompt` is not a list of messages; `answers` is not a list of texts, is
            empty, has an answer that is empty, or one of several that holds ";"; `aliases` does not fit `answers`.
    """
    count = 0
    for number, row in enumerate(rows):
        count += 1
        check_row(row, places[number] if places else f"row {number}")
    if not count:
        raise ValueError("the dataset has no rows")


def _misfit(columns: dict[str, list[Any]], places: Sequence[str] | None) -> str | None:
    """Which column a dataset cannot hold, and the first row that does not go with those before it."""
    for name, values in columns.items():
        if _fits(values):
            continue
        good, bad = 0, len(values)  # the first `good` values fit, the first `bad` do not
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if _fits(values[:middle]) else (good, middle)
        place = places[bad - 1] if places else f"row {bad - 1}"
        return (
            f"{place}, column {name!r}: {values[bad - 1]!r:.200} is not of the same type as the values before it, or "
            "not valid text. Give the column one type, or leave it out"
        )
    return None


def _fits(values: list[Any]) -> bool:
    import pyarrow

    try:
        pyarrow.array(values)
    except (ValueError, TypeError, OverflowError):
        return False
    return True
