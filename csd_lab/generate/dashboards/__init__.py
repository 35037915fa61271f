"""Grafana's dashboards: what each shows (`panels` are its parts), and their files (`grafana`)."""

from csd_lab.generate.dashboards.panels import Dashboard
from csd_lab.generate.dashboards.run_dashboards import ARRAY, COMMUNICATION, ENERGY, TRAINING
from csd_lab.generate.dashboards.unit_dashboards import DRIVE_DASHBOARD, SERVERS

DASHBOARDS: tuple[Dashboard, ...] = (ARRAY, DRIVE_DASHBOARD, TRAINING, COMMUNICATION, ENERGY, SERVERS)
