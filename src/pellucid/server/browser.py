"""How the address reaches the browser: by a file that its owner alone can read and that leads there.

What a command is started with, everybody on the machine can list for as long as it runs, and the address holds the token.
"""

import os
import sys
import tempfile
import threading
import webbrowser
from contextlib import ExitStack, suppress
from pathlib import Path

LASTS = 60.0  # seconds that a browser has to start


def browse(address: str, end: ExitStack) -> None:
    """Open the default browser at an address; what that needs on disk is gone after a minute, and at the end."""
    with suppress(webbrowser.Error):
        webbrowser.get()
        file = leading_to(address) if listed() else None
        if file is not None:
            gone = threading.Timer(LASTS, file.unlink, [True])
            gone.daemon = True
            gone.start()
            end.callback(gone.cancel)
            end.callback(file.unlink, missing_ok=True)
        webbrowser.open(address if file is None else file.as_uri())


def listed() -> bool:
    """Whether a browser is started by a command here that others can list. One that BROWSER names may take no file, as those of remote
    editors and of Windows beside this Linux do.
    """
    return sys.platform not in ("darwin", "win32") and not {"BROWSER", "WSL_DISTRO_NAME"} & os.environ.keys()


def leading_to(address: str) -> Path | None:
    """A page that goes on to the address, in the home folder: browsers in a sandbox read there, not in hidden or temporary folders."""
    for folder in (Path(os.path.expanduser("~")), None):
        with suppress(OSError):
            handle, name = tempfile.mkstemp(".html", "pellucid-", folder)  # 0600
            with open(handle, "w", encoding="utf-8") as page:
                page.write(
                    f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}"><title>Pellucid</title>'
                )
                page.write(f'<a href="{address}">Pellucid</a>\n')
            return Path(name)
    return None
