"""Page mapping: nothing is lost, whatever is written, and collection copies as much as the closed form says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.profiles.flash_geometry import FlashParameters

SMALL = FlashParameters(
    channels=1, dies_per_channel=2, planes=2, blocks_per_plane=5, pages_per_block=2, over_provisioning=0.7
)


def check_sound(mapping: PageMapping) -> None:
    """Each logical page is where its owner says, and nothing else is valid."""
    flash = mapping.flash
    mapped = np.flatnonzero(mapping.page_of >= 0)
    places = mapping.page_of[mapped]
    assert len(np.unique(places)) == len(places)
    assert mapping.owner[places].tolist() == mapped.tolist()
    assert np.count_nonzero(mapping.owner >= 0) == len(mapped)
    size = flash.pages_erased
    assert (mapping.owner.reshape(-1, size) >= 0).sum(axis=1).tolist() == mapping.valid.tolist()
    assert (places // (size * flash.blocks_per_plane)).tolist() == (mapped % flash.dies).tolist()
    assert mapping.live.tolist() == np.bincount(mapped % flash.dies, minlength=flash.dies).tolist()


@given(
    batches=st.lists(st.lists(st.integers(0, SMALL.namespace_pages - 1), max_size=40), max_size=8), filled=st.booleans()
)
def test_nothing_is_lost_and_batches_do_not_matter(batches: list[list[int]], filled: bool) -> None:
    together, one_by_one = PageMapping(SMALL, filled=filled), PageMapping(SMALL, filled=filled)
    for batch in batches:
        costs, refused = together.write(np.array(batch, np.int64))
        singly = [one_by_one.write(np.array([page], np.int64)) for page in batch]
        assert costs.tolist() == [int(cost[0]) for cost, _ in singly]
        assert not refused.any()
        check_sound(together)
    assert together.page_of.tolist() == one_by_one.page_of.tolist()
    written = {page for batch in batches for page in batch}
    assert written | set(range(SMALL.namespace_pages) if filled else ()) == set(np.flatnonzero(together.page_of >= 0))
    assert together.written_pages == sum(map(len, batches))


@given(batches=st.lists(st.lists(st.integers(0, 39), max_size=40), max_size=8))
def test_a_drive_that_is_full_refuses_pages_without_a_place_and_keeps_all_others(batches: list[list[int]]) -> None:
    most = SMALL.usable_pages_per_die
    together, one_by_one = (PageMapping(SMALL, 40, filled=False) for _ in range(2))
    for batch in batches:
        before = set(np.flatnonzero(together.page_of >= 0).tolist())
        _, refused = together.write(np.array(batch, np.int64))
        singly = [bool(one_by_one.write(np.array([page], np.int64))[1][0]) for page in batch]
        assert refused.tolist() == singly
        held = set(np.flatnonzero(together.page_of >= 0).tolist())
        assert held == before | {page for page, no in zip(batch, singly, strict=True) if not no}
        for page, no in zip(batch, singly, strict=True):
            assert not no or (page not in held and together.live[page % 2] == most)
        check_sound(together)


def test_a_full_block_is_collected_with_one_that_has_the_fewest_valid_pages() -> None:
    mapping = PageMapping(SMALL)  # of die 0, pages 0 to 20: two full blocks of four, one with three; two are free
    costs, _ = mapping.write(np.array([0, 2, 4, 6, 0, 2, 4, 6, 8, 10]))
    move, erase = SMALL.read_ns + SMALL.program_ns, SMALL.erase_ns
    # The first block has no valid page left when the last free one is opened; later, of all, page 0's has one.
    # Its time comes in slices, one before each page of the rest of the open block: of four, and of three.
    slices = [erase // 4] * 4, -(-(move + erase) // 3)
    assert costs.tolist() == [0, 0, 0, 0, 0, *slices[0], slices[1]]
    assert (mapping.written_pages, mapping.copied_pages, mapping.erased_blocks) == (10, 1, 2)
    assert mapping.write_amplification == 1.1
    check_sound(mapping)


def greedy_write_amplification(size: int, ratio: float) -> float:
    """The limit of many blocks, of `size` pages each; `ratio` is closed blocks per logical page (docs/flash.md)."""
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, size + 1))])
    for least in range(1, size):
        share = (harmonic[size] - harmonic[least] - ratio * (size - least)) / (ratio - 1 / least)
        if 0 <= share < 1:
            return float(size / (size - least + share))
    raise AssertionError("no solution")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "over"), [(32, 0.28), (64, 0.15)])
def test_collection_copies_what_the_closed_form_of_uniform_writes_says(size: int, over: float) -> None:
    flash = FlashParameters(
        channels=1, dies_per_channel=1, blocks_per_plane=200, pages_per_block=size, over_provisioning=over
    )
    mapping, random = PageMapping(flash), np.random.default_rng(7)
    pages = flash.namespace_pages
    mapping.write(random.integers(0, pages, 3 * pages))
    copied, written = mapping.copied_pages, mapping.written_pages
    mapping.write(random.integers(0, pages, 3 * pages))
    measured = 1 + (mapping.copied_pages - copied) / (mapping.written_pages - written)
    closed = greedy_write_amplification(size, (flash.blocks_per_plane - 1) / pages)
    assert measured == pytest.approx(closed, rel=0.02)
