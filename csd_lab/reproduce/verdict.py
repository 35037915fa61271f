"""Verdicts on published headlines.

Rule: a headline is

* ``not reproduced`` if it lies outside the predicted band;
* ``undecidable`` if what it takes to predict it could not be read, or if it lies inside a band whose ends differ by
  more than a factor of `WIDEST`, which says next to nothing;
* ``reproduced`` if it lies inside a narrower band.

A headline "up to" is held against the best of the models.
"""

from __future__ import annotations

import msgspec

REPRODUCED, NOT_REPRODUCED, UNDECIDABLE = "reproduced", "not reproduced", "undecidable"
# High over low of a band that still says something.
WIDEST = 2.0


class HeadlineVerdict(msgspec.Struct, frozen=True):
    """One headline.

    Attributes:
        source: who published it.
        figure: ``speedup``, ``energy_factor``, ``traffic`` (bytes over the baseline's), ``hit_rate`` or ``gain``.
        published: the headline.
        low, middle, high: the predicted band; null if nothing is predicted.
        verdict: ``reproduced``, ``not reproduced`` or ``undecidable``.
        reason: in one sentence.
    """

    source: str
    figure: str
    published: float
    low: float | None
    middle: float | None
    high: float | None
    verdict: str
    reason: str


def judge(
    source: str, figure: str, published: float, band: tuple[float, float, float], reason: str = ""
) -> HeadlineVerdict:
    """Return the verdict on a headline with a predicted band, 0 < low <= middle <= high; `reason` goes behind ours."""
    low, middle, high = band
    text = f"predicted {low:.3g} to {high:.3g}"
    if not low <= published <= high:
        side = "below" if published < low else "above"
        verdict, text = NOT_REPRODUCED, f"{text}; the headline lies {side} it"
    elif high / low > WIDEST:
        verdict, text = UNDECIDABLE, f"{text}, a factor of {high / low:.2g}: too wide to say anything"
    else:
        verdict, text = REPRODUCED, f"{text}, and the headline lies within"
    return HeadlineVerdict(source, figure, published, low, middle, high, verdict, f"{text}{reason}")


def undecidable(source: str, figure: str, published: float, missing: str) -> HeadlineVerdict:
    """Return the verdict on a headline for which something could not be read: `missing`, a sentence."""
    return HeadlineVerdict(source, figure, published, None, None, None, UNDECIDABLE, missing)
