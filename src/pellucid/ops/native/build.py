"""`python -m pellucid.ops.native.build`: compile the kernels next to their sources, for a checkout that is not installed."""

import sys

from pellucid.ops.native.make import build

if __name__ == "__main__":
    libraries = build()
    print(*libraries, sep="\n")
    sys.exit(0 if libraries else 1)
