"""Number of records on which a configuration trains; private records count only on the device that holds them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats


@dataclass(frozen=True)
class TotalWork:
    """Records of the whole training, of any configuration: public ones, and private ones of the drives that train.

    Attributes:
        public: that whoever takes part has.
        private: (kinds, most devices + 1) that the first n devices of each kind have, by n.
    """

    public: float
    private: Floats

    @classmethod
    def of(cls, records: float, private: Mapping[str, float], nodes: Sequence[Sequence[str]]) -> TotalWork:
        """Return the work of configurations of some nodes.

        Args:
            records: of all nodes together, private ones included.
            private: node -> how many of them are its own; 0 for one that is not there.
            nodes: of each kind, in the order in which they are taken.
        """
        table = np.zeros((len(nodes), max(map(len, nodes), default=0) + 1))
        for kind, each in enumerate(nodes):
            table[kind, 1 : len(each) + 1] = np.cumsum([private.get(node, 0.0) for node in each])
        return cls(records - sum(private.values()), table)

    def records(self, counts: Counts) -> Floats:
        """Return (configurations,) on how many records each trains in all."""
        if not self.private.any():
            return np.full(len(counts), self.public)
        return np.asarray(self.public + self.private[np.arange(counts.shape[1]), counts].sum(axis=1))
