"""Watching: naming a tensor where it is made, recording it, changing it."""
