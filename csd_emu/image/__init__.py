"""The ARM image that every emulated drive boots: built once per recipe and agent, without root, checked by one boot."""

from csd_emu.image.image_recipe import Image, ImageInfo
from csd_emu.image.image_store import ImageStore

__all__ = ["Image", "ImageInfo", "ImageStore"]
