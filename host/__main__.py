"""``python -m host`` is ``csd-emu``."""

from host.cli import main

main()
