"""glm4, tiny: told apart and refused as glm is."""

from kinds.glm import KIND

__all__ = ["KIND"]
