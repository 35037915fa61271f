"""Nodes that may take part in a plan: without excluded ones, lost ones, and those that have no record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.cluster import Cluster, Configuration
from host.policies.selection.costs.planned_records import TotalWork
from host.policies.selection.selection_rules import Constraints


class Members:
    """Nodes of each kind in the order in which they are taken: included ones first.

    Attributes:
        cluster: all that might train.
        lost: nodes that failed, until they are back.
    """

    def __init__(self, cluster: Cluster, wanted: Constraints, records: float, private: Mapping[str, float]) -> None:
        """Take what there is.

        Args:
            cluster: all that might train.
            wanted: who must take part, and who must not.
            records: that the job trains on in all if every node takes part.
            private: node -> how many of them nobody trains on without it.

        Raises:
            ConfigurationError: a node is unknown, has no record and is to be included, or nobody is left.
        """
        self.cluster, self._wanted, self._records, self._private = cluster, wanted, records, dict(private)
        self.lost: set[str] = set()
        names = [node for kind in cluster.kinds for node in kind.nodes]
        for word, nodes in (("include", wanted.include), ("exclude", wanted.exclude)):
            if unknown := sorted(nodes - set(names)):
                raise ConfigurationError(f"{word}: {unknown[0]!r} is no device here; there are {', '.join(names)}")
        # They have nothing to train on: no record is public, and none is theirs.
        all_private = sum(self._private.values()) >= records
        self._bare = frozenset(node for node in names if all_private and not self._private.get(node, 0))
        if idle := sorted(wanted.include & self._bare):
            raise ConfigurationError(f"include: {idle[0]} has no record to train on; leave it out, or share records")
        self._refuse_nothing()

    def lose(self, node: str) -> None:
        """Note that a node failed: it takes part in nothing any more.

        Raises:
            ConfigurationError: there is no such node, or none is left.
        """
        if not any(node in kind.nodes for kind in self.cluster.kinds):
            raise ConfigurationError(f"{node!r} is no device of this plan; it cannot be lost")
        self.lost.add(node)
        self._refuse_nothing()

    def nodes(self) -> list[list[str]]:
        """Return the nodes of each kind that may take part."""
        out = self._wanted.exclude | self.lost | self._bare
        left = [[node for node in kind.nodes if node not in out] for kind in self.cluster.kinds]
        return [sorted(nodes, key=lambda node: node not in self._wanted.include) for nodes in left]

    def with_lost(self) -> list[list[str]]:
        """Return the same with lost ones behind them: they took part in trials."""
        return [
            [*left, *(node for node in kind.nodes if node in self.lost)]
            for left, kind in zip(self.nodes(), self.cluster.kinds, strict=True)
        ]

    def fewest(self) -> tuple[int, ...]:
        """Return how many of each kind must take part."""
        return tuple(sum(node in self._wanted.include for node in nodes) for nodes in self.nodes())

    def work(self) -> TotalWork:
        """Return on how many records configurations train in all."""
        return TotalWork.of(self._records, self._private, self.nodes())

    def choose(self, configuration: Configuration) -> tuple[str, ...]:
        """Return which nodes take part in a configuration: of each kind the first that are left."""
        return tuple(node for nodes, count in zip(self.nodes(), configuration, strict=True) for node in nodes[:count])

    def _refuse_nothing(self) -> None:
        if any(self.nodes()):
            return
        excluded, every = len(self._wanted.exclude), sum(self.cluster.counts)
        causes = [f"{excluded} of {every} excluded"] if excluded else []
        causes += [f"{', '.join(sorted(self.lost))} lost"] if self.lost else []
        causes += [f"{', '.join(sorted(self._bare))} without a record"] if self._bare else []
        cause = f" ({'; '.join(causes)})" if causes else ""
        remedy = "exclude fewer" if excluded else "add one to the array"
        raise ConfigurationError(f"planner: there is no device to train with{cause}; {remedy}")
