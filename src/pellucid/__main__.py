"""`python -m pellucid` is the command `pellucid`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the folder one stands in, which may hold a stranger's torch.py beside its weights

from pellucid.commands import main

sys.exit(main())
