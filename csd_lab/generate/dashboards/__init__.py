"""Grafana's dashboards (`panels`, and a module for each), and what they ask (`expressions`)."""

from csd_lab.generate.dashboards.expressions import DASHBOARDS, Expression, list_expressions, read_expressions

__all__ = ["DASHBOARDS", "Expression", "list_expressions", "read_expressions"]
