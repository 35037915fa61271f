"""Communication schedules over a simulated link: what a step takes when slices overlap computing. All of it is pure."""
