"""All tuners in one job, on simulated arrays: what they win together, against each alone and the best there is."""
