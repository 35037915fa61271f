"""report.html: what a run did, on one page that needs nothing else; see docs/report.md."""
