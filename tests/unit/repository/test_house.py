"""What `scripts/house` counts stays within what the structure allows (docs/development/architecture.md)."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT

# Lower one where its count has fallen; none may be raised.
MOST = {
    "loose_modules_in_host": 1,
    "modules_in_the_largest_cycle": 1,
    # The front door's, which loads the Python interface when an attribute is asked for, and one of csd_lab.
    "imports_against_the_layers": 2,
    "public_class_names_defined_more_than_once": 0,
    "files_over_400_lines": 0,
    "folders_over_20_modules": 0,
    "functions_over_50_lines": 1,
    "functions_over_7_parameters": 0,
    "classes_over_12_attributes": 1,
    # Of them the clock `sampled` has some 900, where its issue allows 700.
    "statements_outside_csd_lab": 43_008,
    # `errors` is an old import path too.
    "base_names_of_two_or_more_modules": 1,
}


@pytest.mark.slow
def test_the_counts_of_the_structure_do_not_grow(subtests: pytest.Subtests) -> None:
    figures = runpy.run_path(str(ROOT / "scripts" / "house"))["figures"]()
    assert set(MOST) <= set(figures)
    for name, most in MOST.items():
        with subtests.test(name=name):
            assert figures[name] <= most
