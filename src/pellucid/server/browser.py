"""The address handed to the browser by a file that only its owner can read and that redirects there.

Every user of the machine can list the arguments of a running command, and the address holds the token.
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
    """Open the default browser at an address. Its file is deleted after a minute, or when `end` closes."""
    with suppress(webbrowser.Error):
        webbrowser.get()
        file = leading_to(address) if command_visible() else None
        if file is not None:
            gone = threading.Timer(LASTS, file.unlink, [True])
            gone.daemon = True
            gone.start()
            end.callback(gone.cancel)
            end.callback(file.unlink, missing_ok=True)
        webbrowser.open(address if file is None else file.as_uri())


def command_visible() -> bool:
    """True if the browser is started by a command whose arguments other users can list, and takes a file.

    A browser that BROWSER names may take none: those of remote editors, and of Windows beside this Linux, do not.
    """
    return sys.platform not in ("darwin", "win32") and not {"BROWSER", "WSL_DISTRO_NAME"} & os.environ.keys()


def leading_to(address: str) -> Path | None:
    """Write a page that redirects to the address and return its path, None if no folder is writable.

    It lies in the home folder: browsers in a sandbox read there, not in hidden or temporary folders.
    """
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
