"""Watching: name a tensor where it is made, record it, change it."""
