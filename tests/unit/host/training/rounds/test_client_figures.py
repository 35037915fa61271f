"""Names of client programs' numbers: they begin with ``train_`` once, if that leaves them apart."""

from hypothesis import given
from hypothesis import strategies as st

from host.training.rounds.client_figures import name_figures

PARTS = st.lists(st.sampled_from(["", "train_", "train_train_", "train_train_train_"]), max_size=4)


@given(st.lists(st.builds("".join, st.tuples(PARTS.map("".join), st.sampled_from(["loss", "x"]))), max_size=8))
def test_no_two_have_one_name_and_only_loss_itself_is_called_as_the_rounds_loss(names: list[str]) -> None:
    called = name_figures([names[:3], names[3:]])
    assert called.keys() == set(names)
    assert len(set(called.values())) == len(called)
    assert all(value in (name, f"train_{name}") and value.startswith("train_") for name, value in called.items())
    assert [name for name, value in called.items() if value == "train_loss"] in ([], ["loss"])


def test_all_drives_names_count_for_each() -> None:
    assert name_figures([["train_x"], ["x"]]) == {"train_x": "train_train_x", "x": "train_x"}
    assert name_figures([["train_x"], ["acc"]]) == {"train_x": "train_x", "acc": "train_acc"}
