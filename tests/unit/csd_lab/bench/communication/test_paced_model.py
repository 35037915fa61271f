"""Layers that take the seconds that they are said to take, on a clock of their own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from csd_lab.bench.communication.comm_nets import PacedLayerSeconds, Pacer, pace

SECONDS = st.floats(0.0, 10.0)


class Clock:
    """Stands still but for sleeping, and for what a test says that computing takes."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds


class Slow(nn.Linear):
    """A layer whose arithmetic takes as long as it is told."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        super().__init__(3, 3, bias=False)
        self.clock, self.seconds = clock, seconds

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.clock.seconds += self.seconds
        return super().forward(value)


def paced(clock: Clock, *seconds: PacedLayerSeconds, own: float = 0.0) -> nn.Sequential:
    model = nn.Sequential(*(Slow(clock, own) for _ in seconds))
    pace(model, {str(number): each for number, each in enumerate(seconds)}, Pacer(clock.now, clock.sleep))
    return model


@given(st.lists(st.builds(PacedLayerSeconds, SECONDS, SECONDS), min_size=1, max_size=6))
def test_passes_take_what_is_said(seconds: list[PacedLayerSeconds]) -> None:
    clock = Clock()
    model = paced(clock, *seconds)
    for _ in range(2):
        begin = clock.seconds
        loss = model(torch.ones(2, 3)).sum()
        assert clock.seconds - begin == pytest.approx(sum(each.forward for each in seconds))
        begin = clock.seconds
        loss.backward()
        assert clock.seconds - begin == pytest.approx(sum(each.backward for each in seconds))
        clock.seconds += 1.0  # what lies between two steps is no layer's


def test_gradients_are_there_when_their_layers_time_is_over() -> None:
    clock, moments = Clock(), {}
    model = paced(clock, PacedLayerSeconds(1, 2), PacedLayerSeconds(1, 3), PacedLayerSeconds(1, 4))
    for name, parameter in model.named_parameters():
        hook = lambda _, name=name: moments.update({name: clock.seconds})  # noqa: E731
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    loss = model(torch.ones(1, 3)).sum()
    begin = clock.seconds
    loss.backward()
    assert {name: moment - begin for name, moment in moments.items()} == {"2.weight": 4, "1.weight": 7, "0.weight": 9}


def test_values_and_gradients_are_those_of_the_model_unpaced() -> None:
    clock = Clock()
    torch.manual_seed(1)
    model = paced(clock, PacedLayerSeconds(1, 2), PacedLayerSeconds(1, 2))
    plain = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(2)))
    plain.load_state_dict(model.state_dict())
    value = torch.randn(4, 3)
    losses = [torch.tanh(each(value)).sum() for each in (model, plain)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    assert losses[0].item() == losses[1].item()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_arithmetic_is_part_of_a_layers_time() -> None:
    clock = Clock()
    model = paced(clock, PacedLayerSeconds(1, 0), PacedLayerSeconds(1, 0), own=0.25)
    begin = clock.seconds
    model(torch.ones(1, 3))
    assert clock.seconds - begin == pytest.approx(2)


def test_what_the_machine_costs_between_layers_does_not_add_up() -> None:
    clock = Clock()
    model = paced(clock, *[PacedLayerSeconds(1, 0)] * 10)
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: setattr(clock, "seconds", clock.seconds + 0.01))
    begin = clock.seconds
    model(torch.ones(1, 3))
    assert clock.seconds - begin == pytest.approx(10, abs=0.011)


def test_waiting_for_parameters_comes_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    model = paced(clock, PacedLayerSeconds(1, 0), PacedLayerSeconds(1, 0))
    last = model[1].weight
    waited: list[float] = []

    class Held(torch.overrides.TorchFunctionMode):
        """The last layer's parameter comes 5 ms after it is asked for, as over a wire."""

        def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            if not waited and any(each is last for each in arguments):
                waited.append(0.005)
                clock.seconds += 0.005
            return function(*arguments, **(keywords or {}))

    begin = clock.seconds
    with Held():
        model(torch.ones(1, 3))
    assert waited
    assert clock.seconds - begin == pytest.approx(2.005)


def test_judging_is_not_paced() -> None:
    clock = Clock()
    model = paced(clock, PacedLayerSeconds(1, 2)).eval()
    begin = clock.seconds
    model(torch.ones(1, 3)).sum().backward()
    assert clock.seconds == begin
