"""Names of nodes that every layer knows."""

HOST = "host"
"""The host, where it is named beside drives: as a node that trains, and in events, spans and metrics."""
