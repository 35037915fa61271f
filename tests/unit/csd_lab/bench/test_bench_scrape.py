import pytest

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import harness
from csd_lab.bench.harness import Bench
from csd_lab.bench.monitoring import served_pages as scrape
from firmware_agent.common.errors import ProtocolError
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState


def test_figures_are_medians_of_the_scrapes_behind_a_change(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "describe_machine", lambda _: {})  # it starts a process
    done = scrape.bench_scrape(Bench("scrape", paths, Silent(), 1), devices=5, scrapes=3)
    assert done.clock == "wall"
    for case in ("fresh_gzip", "unchanged_gzip", "fresh_identity", "unchanged_identity"):
        for mode in ("federated", "sync"):
            assert len(done.samples[f"{mode}_{case}_ms"]) == 3
    medians = [sorted(done.samples[f"{mode}_fresh_gzip_ms"])[1] for mode in ("federated", "sync")]
    assert done.figures["scrape_ms"] == max(medians)
    assert done.figures["unchanged_scrape_ms"] > 0


def test_an_answer_that_is_of_an_earlier_round_fails_the_bench(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsState, "version", property(lambda _: 7))
    kept = Exposition._page

    def keep(self: Exposition, open_metrics: bool) -> object:
        page = kept(self, open_metrics)
        page.version = 7
        return page

    monkeypatch.setattr(Exposition, "_page", keep)
    with pytest.raises(ProtocolError, match="the answer is not that of round 2"):
        scrape.bench_scrape(Bench("scrape", paths, Silent(), 1), devices=2, scrapes=2)
