"""Strata of steps, what counted ones say of the others, and how sure that is."""
