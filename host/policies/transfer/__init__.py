"""Transfer of slices while a run goes on: slice size and credit, fixed, searched for once, or kept right. Pure."""
