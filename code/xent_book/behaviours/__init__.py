"""What scikit-learn, PyTorch and Keras do with a cross-entropy: probes that run them and say what they saw.

Every row is a behaviour of one library: a probe, and what the probe showed on the versions of the book's
lock. Importing this module loads no framework; running a probe imports the library it is about.

>>> from xent_book import behaviours
>>> behaviours.see("torch-all-ignored")
{'mean': nan, 'gradient': [0.0, 0.0, 0.0], 'sum': 0.0}
>>> row = behaviours.get("torch-all-ignored")
>>> row.instead
"xent's denominator=, or reduction='sum' over max(count, 1)"
"""

from __future__ import annotations

from ._registry import NAMES, Row, get, keras, rows, see, tensorflow
from ._tables import Table, glance_table, group_table, versions

__all__ = [
    "NAMES",
    "Row",
    "Table",
    "get",
    "glance_table",
    "group_table",
    "keras",
    "rows",
    "see",
    "tensorflow",
    "versions",
]
