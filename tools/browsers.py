"""Find the browser that the tests and tools/lighthouse.py drive."""

from __future__ import annotations

import os
import shutil


def find_chromium() -> str | None:
    """Return the browser to test with, or None."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)
