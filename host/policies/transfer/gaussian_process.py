"""A Gaussian process over few measured points, and what another one may bring. Pure.

Matern 5/2 with one length for all axes, and noise. Both are those under which the points are likeliest, of a few
(maximum marginal likelihood; Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 5.8).
Expected improvement without its margin xi: Jones, Schonlau and Welch 1998, equation 15.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Of the axes, and of a value as one standard deviation: what is tried.
LENGTHS, NOISES = (1.5, 3.0, 6.0), (0.001, 0.003, 0.01, 0.03)
# Of the axes where errors of predictions are alike.
ERRORS_LENGTH = 3.0
# One standard deviation of the values is taken for no less.
_LEAST_SPREAD = 0.003


@dataclass(frozen=True)
class Posterior:
    """What is believed of some places: (places,) means and standard deviations, without the noise."""

    means: Floats
    deviations: Floats

    def expect_improvement(self, least: float) -> Floats:
        """Return (places,) by how much each is expected to lie below `least`, where it does."""
        below = (least - self.means) / self.deviations
        density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
        share = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in below])
        return np.asarray(self.deviations * (below * share + density))


def infer(points: Floats, values: Floats, places: Floats) -> Posterior:
    """Return what measured points say of other places.

    Args:
        points: (points, axes), at least one.
        values: (points,) measured there.
        places: (places, axes).
    """
    middle, spread = float(values.mean()), max(_LEAST_SPREAD, float(values.std()))
    likeliest = max(
        (_condition(points, values - middle, spread, *each) for each in itertools.product(LENGTHS, NOISES)),
        key=lambda each: each[0],
    )
    _, length, lower, weights = likeliest
    near = spread**2 * _matern(places, points, length)
    reduced = np.linalg.solve(lower, near.T)
    return Posterior(middle + near @ weights, np.sqrt(np.maximum(1e-12, spread**2 - np.sum(reduced**2, axis=0))))


def correct(points: Floats, errors: Floats, noises: Floats, shared: Floats, places: Floats, spread: float) -> Posterior:
    """Return by how much predictions are off at some places, from their errors at measured points.

    Args:
        points: (points, axes), at least one.
        errors: (points,) what was measured less what was predicted.
        noises: (points,) one standard deviation of each.
        shared: (points,) 1 where errors share an offset that is not known and left out, else 0; at least one.
        places: (places, axes).
        spread: one standard deviation of an error anywhere.
    """
    covariance = spread**2 * _matern(points, points, ERRORS_LENGTH) + np.diag(noises**2)
    near = spread**2 * _matern(places, points, ERRORS_LENGTH)
    by_error, by_offset = np.linalg.solve(covariance, np.column_stack([errors, shared])).T
    weights = by_error - by_offset * (shared @ by_error) / (shared @ by_offset)
    left = spread**2 - np.sum(near.T * np.linalg.solve(covariance, near.T), axis=0)
    return Posterior(near @ weights, np.sqrt(np.maximum(1e-12, left)))


def _condition(
    points: Floats, values: Floats, spread: float, length: float, noise: float
) -> tuple[float, float, Floats, Floats]:
    """Return the log likelihood, the length, the Cholesky factor and the weights of the points."""
    covariance = spread**2 * _matern(points, points, length) + noise**2 * np.eye(len(points))
    lower: Floats = np.linalg.cholesky(covariance).astype(np.float64)
    weights: Floats = np.linalg.solve(lower.T, np.linalg.solve(lower, values))
    return float(-0.5 * values @ weights - np.log(np.diag(lower)).sum()), length, lower, weights


def _matern(some: Floats, others: Floats, length: float) -> Floats:
    """Return (some, others) correlations."""
    far = math.sqrt(5) / length * np.linalg.norm(some[:, None] - others[None], axis=-1)
    return np.asarray((1 + far + far**2 / 3) * np.exp(-far))
