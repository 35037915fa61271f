"""Gradient noise scale, from the gradients of drives in each step. Pure.

How many records a step may have before more of them hardly save steps (McCandlish, Kaplan, Amodei et al. 2018,
arXiv:1812.06162, B_simple of section 2.2): with tr(S) the variance of one record's gradient and G the true gradient,
tr(S) / |G|^2. Drives that compute unequal parts b_i of a step of B records are the small and the large batch of its
appendix A.1:

    mean over i of |G_i|^2 = |G|^2 + tr(S) mean(1 / b_i),    |sum b_i G_i / B|^2 = |G|^2 + tr(S) / B

Both are averaged over steps before they are divided, as it says there. Where records are dealt out unevenly by their
kind, what drives differ by counts as noise, and the scale is too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from host.training.sync.gradient_direction import GradientSample

# Steps that the averages go back, about; before so many nothing is said.
MEMORY, LEAST_STEPS = 64, 16


class NoiseScale:
    """The scale as of the last step; from some coordinates of the gradients, for both averages shrink alike."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._steps, self._noise, self._signal = 0, 0.0, 0.0

    @property
    def records(self) -> float | None:
        """In records of a step; None in the first steps, and where the noise hides the gradient."""
        known = self._steps >= LEAST_STEPS and self._signal > 0
        return max(0.0, self._noise / self._signal) if known else None

    def state(self) -> tuple[int, float, float]:
        """Return what it goes by, as JSON takes it."""
        return self._steps, self._noise, self._signal

    def load_state(self, state: Sequence[float]) -> None:
        """Go on from `state`.

        Raises:
            TypeError, ValueError: it is none.
        """
        steps, noise, signal = map(float, state)
        self._steps, self._noise, self._signal = int(steps), noise, signal

    def observe(self, step: Mapping[str, GradientSample]) -> None:
        """Take a step; one in which fewer than two drives had records says nothing."""
        parts = [each for each in step.values() if each.records]
        if len(parts) < 2:
            return
        sizes = np.array([each.records for each in parts], np.float64)
        gradients = np.array([each.sample for each in parts])
        total = float(sizes.sum())
        whole = sizes @ gradients / total
        small, large = float((gradients**2).sum(axis=1).mean()), float(whole @ whole)
        noise = (small - large) / float((1 / sizes).mean() - 1 / total)
        self._steps += 1
        share = 1 / min(self._steps, MEMORY)
        self._noise += share * (noise - self._noise)
        self._signal += share * (large - noise / total - self._signal)
