"""The commands of `csd-emu` that measure the product; entry points in `pyproject.toml` name them."""
