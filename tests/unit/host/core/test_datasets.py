"""scikit-learn's digits, and how they are dealt out, against scikit-learn itself, which no run imports for them."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.datasets import load_digits as bundled
from sklearn.model_selection import train_test_split

from host.core.datasets import HELD_OUT_SHARE, load_digits, split_stratified

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
def test_the_digits_are_those_that_scikit_learn_has_and_splits(seed: int) -> None:
    images, labels = bundled(return_X_y=True)
    shaped = images.reshape(-1, 1, 8, 8).astype(np.uint8)
    parts = train_test_split(shaped, labels, test_size=HELD_OUT_SHARE, stratify=labels, random_state=seed)
    data = load_digits(seed)
    ours_all = [part[name] for name in ("image", "label") for part in (data.fields, data.held_out)]
    for ours, theirs in zip(ours_all, parts, strict=True):
        assert ours.dtype == (np.uint8 if ours.ndim == 4 else np.int64)
        np.testing.assert_array_equal(ours, theirs)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=12), st.floats(0.02, 0.98), SEEDS)
def test_records_are_split_as_scikit_learn_splits_them(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    records = np.arange(len(labels))
    try:
        theirs = train_test_split(records, test_size=share, stratify=labels, random_state=seed)
    except ValueError:  # too few for each class to be in both parts
        assume(False)
    for ours, their in zip(split_stratified(labels, share, seed), theirs, strict=True):
        np.testing.assert_array_equal(ours, their)
