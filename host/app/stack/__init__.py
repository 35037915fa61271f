"""The array in containers: what `docker-compose up` starts, set by environment variables (docs/compose.md)."""
