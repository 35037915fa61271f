"""``python -m host`` is ``csd-emu``."""

from host.entry import main

main()
