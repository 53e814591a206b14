"""`python -m pellucid` is the command `pellucid`."""

import sys

from pellucid.commands import main

sys.exit(main())
