"""Code of the server that holds the drives: policies, fleet, training, monitoring, deployment, commands."""
