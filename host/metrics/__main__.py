"""``python -m host.metrics`` writes docs/metrics.md, and Prometheus' rules."""

from host.metrics import documentation, rules

for path, text in {documentation.PATH: documentation.render(), **rules.files()}.items():
    path.write_text(text, encoding="utf-8")
