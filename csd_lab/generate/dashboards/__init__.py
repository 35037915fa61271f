"""Grafana's dashboards: a module for each, of `panels`; `grafana` makes their files."""

from csd_lab.generate.dashboards.array_dashboard import ARRAY
from csd_lab.generate.dashboards.communication_dashboard import COMMUNICATION
from csd_lab.generate.dashboards.drive_dashboard import DRIVE_DASHBOARD
from csd_lab.generate.dashboards.energy_dashboard import ENERGY
from csd_lab.generate.dashboards.panels import Dashboard
from csd_lab.generate.dashboards.servers_dashboard import SERVERS
from csd_lab.generate.dashboards.training_dashboard import TRAINING

DASHBOARDS: tuple[Dashboard, ...] = (ARRAY, DRIVE_DASHBOARD, TRAINING, COMMUNICATION, ENERGY, SERVERS)
