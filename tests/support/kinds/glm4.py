"""glm4, tiny, with the changes and refusals of glm."""

from kinds.glm import KIND

__all__ = ["KIND"]
