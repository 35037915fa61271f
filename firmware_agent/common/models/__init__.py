"""Models: a small built-in zoo, the user's own file, or anything importable."""

from firmware_agent.common.models.model_loading import build_model, resolve_model
from firmware_agent.common.models.zoo import ZOO, ZooEntry

__all__ = ["ZOO", "ZooEntry", "build_model", "resolve_model"]
