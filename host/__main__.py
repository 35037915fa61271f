"""``python -m host`` is ``csd-emu``."""

from host.cli.entry import main

main()
