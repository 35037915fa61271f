"""``python -m host.metrics`` writes docs/metrics.md, Prometheus' rules and Grafana's dashboards."""

from host.metrics import documentation, rules
from host.metrics.dashboards import grafana

for path, text in {documentation.PATH: documentation.render(), **rules.files(), **grafana.files()}.items():
    path.write_text(text, encoding="utf-8")
