"""The book by plain Sphinx: `sphinx-build -W -n --keep-going -d _build/.doctrees . _build/html`.

Jupyter Book reads _config.yml and not this file, which hands Sphinx the same settings, so that the book outlives it.
"""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent
sys.path.append(str(ROOT / "_ext"))

globals().update(yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["sphinx"]["config"])
# What Jupyter Book adds of itself: chapters are numbered through the parts, and _static is the site's.
extensions = [name for name in globals()["extensions"] if name != "jupyter_book"] + [
    "sphinx_multitoc_numbering"
]
html_static_path = ["_static"]
