"""What one forward knows besides its tokens: positions and requests, the KV cache, and the mask."""
