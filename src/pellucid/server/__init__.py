"""The page's server: a model's runs as JSON, its tensors as the bytes of safetensors files, to one browser on this machine.

Nothing here imports torch before the port answers: `session` does, in a thread of its own.
"""
