"""Charts of the report from records, and how they become SVG."""
