"""Plain ARM machines: Debian as others install it, without anything of ours, reached over SSH only.

They stand in for the drives of an inventory in tests and in the bench ``deploy``. Their clock is the wall's.
"""

from csd_lab.testkit.plain.machine import PlainMachine
from csd_lab.testkit.plain.machine_images import PlainImage, PlainImages, PlainRecipe, load_plain_recipe, plain_names

__all__ = ["PlainImage", "PlainImages", "PlainMachine", "PlainRecipe", "load_plain_recipe", "plain_names"]
