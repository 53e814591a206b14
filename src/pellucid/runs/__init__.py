"""Runs of models that are kept while a face shows them: the model registry, requests, values within a memory budget, one worker thread."""
