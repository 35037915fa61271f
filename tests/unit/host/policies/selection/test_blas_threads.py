"""The planner computes on one thread, and leaves what others have as it was."""

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from host.config.preference import Preference
from host.policies.selection import planner as planners
from host.policies.selection.planner import Planner
from host.policies.selection.reasons import explain
from host.policies.selection.search.ranking import Ranking
from host.policies.selection.selection_rules import SelectionRules
from tests.support.planner_clusters import make_cluster


def threads() -> set[int]:
    """Of each library of linear algebra in this process."""
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_a_look_is_worked_out_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    believe = Planner._believe

    def look(planner: Planner) -> Ranking:
        seen.append(threads())
        return believe(planner)

    def tell(*arguments: object) -> tuple[str, ...]:
        seen.append(threads())
        return explain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "_believe", look)
    monkeypatch.setattr(planners, "explain", tell)
    planner = Planner(make_cluster([2]), SelectionRules(Preference(time=1)), 1e6)
    with threadpool_limits(limits=2, user_api="blas"):
        planner.next_trial()
        planner.decide()
        assert threads() == {2}
    assert seen == [{1}, {1}]
