"""The clock ``sampled``: virtual machines count some steps, and their means stand for the others."""
