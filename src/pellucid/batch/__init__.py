"""The input of a forward besides its tokens: positions and requests, the KV cache, and the mask."""
