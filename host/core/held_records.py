"""What each drive holds of the private records: counts by class, as a run directory keeps them and a report shows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from host.core.partition import Indices

# So many classes are told apart; those with fewest records are counted together.
MOST_CLASSES = 20
OTHERS = "other classes"


class HeldRecords(msgspec.Struct, frozen=True):
    """How many private records of which class each drive holds.

    Attributes:
        drives: their names.
        classes: their names, the last one `OTHERS` if there are more than `MOST_CLASSES`; empty without classes.
        counts: of each drive, records of each class; without classes one number, of all its records.
        public: records that lie on every drive beside these.
        left_out: records that lie on none.
    """

    drives: list[str]
    classes: list[str]
    counts: list[list[int]]
    public: int = 0
    left_out: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that are not of these drives and classes.

        Raises:
            ValueError: they are not.
        """
        width = len(self.classes) or 1
        if len(self.counts) != len(self.drives) or any(len(row) != width or min(row) < 0 for row in self.counts):
            raise ValueError("counts are not one number for each drive and class")

    @property
    def private(self) -> int:
        """All private records."""
        return sum(map(sum, self.counts))


def count_held(
    drives: Sequence[str],
    private: Sequence[Indices],
    labels: npt.NDArray[np.integer] | None,
    class_names: Sequence[str] = (),
    public: int = 0,
    left_out: int = 0,
) -> HeldRecords:
    """Return what each drive holds.

    Args:
        drives: their names.
        private: of each, the numbers of its records.
        labels: (records,) class of each record; None if they have none.
        class_names: by class; empty if they have none.
        public: records that lie on every drive.
        left_out: records that lie on none.
    """
    if labels is None:
        return HeldRecords(list(drives), [], [[len(part)] for part in private], public, left_out)
    numbers, places = np.unique(labels, return_inverse=True)
    table = np.array([np.bincount(places[part], minlength=len(numbers)) for part in private], np.int64)
    table = table.reshape(len(drives), len(numbers))
    most = np.sort(np.argsort(-table.sum(axis=0), kind="stable")[:MOST_CLASSES])
    names = [class_names[number] if number < len(class_names) else str(number) for number in numbers[most]]
    counts = table[:, most]
    if len(numbers) > len(most):
        names.append(OTHERS)
        counts = np.column_stack([counts, table.sum(axis=1) - counts.sum(axis=1)])
    return HeldRecords(list(drives), names, counts.tolist(), public, left_out)
