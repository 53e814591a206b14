"""The public API: load, Model, trace, count."""
