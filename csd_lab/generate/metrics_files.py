"""``python -m csd_lab.generate.metrics_files`` writes docs/metrics.md, Prometheus' rules and Grafana's dashboards."""

from csd_lab.generate import metrics_documentation as documentation
from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards import grafana

for path, text in {documentation.PATH: documentation.render(), **rules.files(), **grafana.files()}.items():
    path.write_text(text, encoding="utf-8")
