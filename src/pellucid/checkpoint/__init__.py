"""Checkpoints on disk: strict JSON, safetensors, tokenizer and folder in and out.

Whatever comes from a file is checked before it is used.
"""
