"""Finds the browser that the tests of the web page drive, and installs one on request.

    python tools/find_browser.py              prints its path, or says how to install one
    python tools/find_browser.py --install    installs Debian's or Ubuntu's package, as root

`ICEFLOE_BROWSER` names another one. Any browser of the Chromium family will do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ADVICE = (
    "no Chromium was found: install it (apt-get install chromium, or `make browser` as root), or "
    "name it with ICEFLOE_BROWSER"
)


def find_browser() -> str | None:
    """The path of a browser, or None."""
    named = os.environ.get("ICEFLOE_BROWSER")
    if named:
        return named
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str | None:
    """Install the package of the system; None if that is not possible here."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print("a browser can only be installed here by root with apt-get", file=sys.stderr)
        return None
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", "chromium"]):
        if subprocess.run(["apt-get", *words], env=quiet, check=False).returncode:
            return None
    return find_browser()


def main() -> int:
    """Run the program."""
    found = find_browser()
    if found is None and "--install" in sys.argv[1:]:
        found = install()
    if found is None:
        print(ADVICE, file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
