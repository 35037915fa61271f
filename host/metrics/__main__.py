"""``python -m host.metrics`` writes docs/metrics.md."""

from host.metrics.documentation import PATH, render

PATH.write_text(render(), encoding="utf-8")
