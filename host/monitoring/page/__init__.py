"""The live page of a run: what it has done so far (history), how it is told (state, view), how it is served (app)."""
