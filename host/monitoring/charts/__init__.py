"""Charts of a run: one description, which the report draws as SVG and the live page hands to Plotly."""
