"""The emulated hardware: arrays, profiles, engines, images, templates and clocks."""
