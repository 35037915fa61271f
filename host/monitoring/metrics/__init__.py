"""Prometheus metrics of a run: what there is (names), what is known (state), how it is served (exposition, server)."""
