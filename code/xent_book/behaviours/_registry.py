"""The registry: one row of rows.toml for each behaviour, and the probe that shows it."""

from __future__ import annotations

import contextlib
import math
import os
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import xent

Seen: TypeAlias = dict[str, Any]

# The package that each key of the table stands for, by the name under which it is installed.
LIBRARIES = {
    "torch": "torch",
    "sklearn": "scikit-learn",
    "scipy": "scipy",
    "keras": "keras",
    "tensorflow": "tensorflow",
    "keras-torch": "keras",
    "xent": "xent",
}
# The same keys with the names of the libraries for a reader.
NAMES = {
    "torch": "PyTorch",
    "sklearn": "scikit-learn",
    "scipy": "SciPy",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "keras-torch": "Keras on PyTorch",
    "xent": "xent",
}
# The groups of rows, in the order of the table.
GROUPS = (
    "at a glance",
    "argument order",
    "probabilities or logits",
    "target format",
    "reduction and denominator",
    "weights",
    "ignored targets",
    "smoothing",
    "soft targets and KL",
    "clipping",
    "gradient at the edges",
    "precision",
    "layout",
)
MODULES = ("_profiles", "torch_probes", "sklearn_probes", "keras_probes", "xent_probes")
# Numbers are recorded with five significant digits, and kernels differ from processor to processor in the
# last bits of float32: a number may be rounded the other way.
TOLERANCE = 1.1e-4


@dataclass(frozen=True)
class Row:
    """A behaviour of a library.

    Attributes
    ----------
    slug : str
        The name of the row, unique.
    group : str
        One of `GROUPS`.
    library : str
        One of the keys of `LIBRARIES`.
    title : str
        What happens, in a few words.
    expect : str
        What a reader would expect.
    instead : str
        What to write instead, in a line.
    recorded : dict
        What the probe returned on the versions of the book's lock.
    probe : callable
        Runs the library and returns what it saw: numbers, text, booleans, lists. Prints nothing.
    thread : str
        The address of the discussion of this behaviour, or nothing.
    surprising : bool
        Whether it surprises people who know the library.
    tolerance : float
        Relative tolerance of the numbers: wider where the numbers themselves have half precision.
    """

    slug: str
    group: str
    library: str
    title: str
    expect: str
    instead: str
    recorded: Seen = field(repr=False)
    probe: Callable[[], Seen] = field(repr=False)
    thread: str = ""
    surprising: bool = False
    tolerance: float = TOLERANCE

    def run(self) -> Seen:
        """Run the probe, quietly, and round what it saw."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: Seen = plain(self.probe())
        return result

    @property
    def version(self) -> str:
        """The installed version of the row's library, such as "PyTorch 2.13.0"."""
        if self.library == "xent":
            return f"xent {xent.__version__}"
        number = metadata.version(LIBRARIES[self.library]).split("+")[0]
        if self.library == "keras-torch":
            return f"Keras {number} on PyTorch {metadata.version('torch').split('+')[0]}"
        if self.library == "keras":
            return f"Keras {number} on TensorFlow {metadata.version('tensorflow')}"
        return f"{NAMES[self.library]} {number}"


PROBES: dict[str, Callable[[], Seen]] = {}


def probe(slug: str) -> Callable[[Callable[[], Seen]], Callable[[], Seen]]:
    """Register the decorated function as the probe of a row of rows.toml."""

    def register(function: Callable[[], Seen]) -> Callable[[], Seen]:
        if slug in PROBES:
            raise ValueError(f"two rows are called {slug!r}")
        PROBES[slug] = function
        return function

    return register


@cache
def rows() -> dict[str, Row]:
    """All rows by slug, in the order of the groups. Loads no framework.

    Examples
    --------
    >>> from xent_book import behaviours
    >>> behaviours.rows()["torch-all-ignored"].title
    'all targets ignored: nan'
    """
    for module in MODULES:
        import_module(f"xent_book.behaviours.{module}")
    table = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
    if table.keys() != PROBES.keys():
        raise ValueError(f"not both a row and a probe: {sorted(table.keys() ^ PROBES.keys())}")
    return {slug: Row(slug, probe=PROBES[slug], **fields) for slug, fields in table.items()}


def get(slug: str) -> Row:
    """Look a row up by its slug.

    Raises
    ------
    ValueError
        If there is no such row.
    """
    try:
        return rows()[slug]
    except KeyError:
        raise ValueError(f"there is no row {slug!r}; rows() lists all") from None


def see(slug: str) -> Seen:
    """Run the probe of a row and return what it sees now.

    Examples
    --------
    >>> from xent_book import behaviours
    >>> behaviours.see("xent-clipping")
    {'impossible': inf, 'impossible, eps=1e-7': 16.118, 'perfect': 0.0}
    """
    return get(slug).run()


@cache
def _seen_once(slug: str) -> Seen:
    """What a probe saw in this process: a page that shows a row twice runs it once."""
    return get(slug).run()


def behaviour_table(library: str | None = None, group: str | None = None) -> list[dict[str, Any]]:
    """Run the probes, each once in a process, and return a table: a dict for each row, with its version.

    Parameters
    ----------
    library, group : str, optional
        Only the rows of this library or group.

    Returns
    -------
    list of dict
        Keys slug, group, library, version, title, expect, seen, recorded, unchanged, instead, thread.

    Examples
    --------
    >>> from xent_book import behaviours
    >>> [r["unchanged"] for r in behaviours.behaviour_table("scipy")]
    [True, True]
    """
    table = []
    for r in rows().values():
        if library not in (None, r.library) or group not in (None, r.group):
            continue
        seen = _seen_once(r.slug)
        table.append(
            {
                "slug": r.slug,
                "group": r.group,
                "library": NAMES[r.library],
                "version": r.version,
                "title": r.title,
                "expect": r.expect,
                "seen": seen,
                "recorded": r.recorded,
                "unchanged": agrees(r.recorded, seen, r.tolerance),
                "instead": r.instead,
                "thread": r.thread,
            }
        )
    return table


def agrees(recorded: Any, seen: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two observations are the same, up to a relative tolerance of their numbers.

    Examples
    --------
    >>> from xent_book.behaviours import agrees
    >>> agrees({"loss": 0.28873}, {"loss": 0.2887254})
    True
    >>> agrees({"loss": float("nan")}, {"loss": 0.0})
    False
    """
    if isinstance(recorded, dict):
        return (
            isinstance(seen, dict)
            and recorded.keys() == seen.keys()
            and all(agrees(recorded[key], seen[key], tolerance) for key in recorded)
        )
    if isinstance(recorded, list):
        return (
            isinstance(seen, list)
            and len(recorded) == len(seen)
            and all(agrees(a, b, tolerance) for a, b in zip(recorded, seen, strict=True))
        )
    if isinstance(recorded, bool | str) or isinstance(seen, bool | str | list | dict | None):
        return type(recorded) is type(seen) and bool(recorded == seen)
    if math.isnan(recorded) or math.isnan(seen):
        return math.isnan(recorded) and math.isnan(seen)
    # Zero and infinity are behaviours, not measurements: only themselves agree with them.
    return math.isclose(recorded, seen, rel_tol=tolerance, abs_tol=0.0)


# ------------------------------------------------------------------------------------- for the probes


def plain(value: Any) -> Any:
    """Turn tensors and arrays into rounded floats and lists."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        rounded = float(f"{value:.5g}")
        return 0.0 if rounded == 0 else rounded
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    array = np.asarray(value)
    if array.dtype == bool:
        return array.tolist()
    return plain(array.astype(np.float64).tolist())


class Lazy:
    """A module that is imported when something of it is looked at."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


def attempt(call: Callable[[], Any]) -> Any:
    """Return the value of a call, or the kind and the first line of its exception as text."""
    try:
        return call()
    except Exception as error:  # whatever it is, it is what the probe saw
        lines = str(error).strip().splitlines()
        # Keras and TensorFlow wrap the message in decorations of their own; the first sentence says it.
        first = lines[0].split(". ")[0].rstrip(".") if lines else ""
        if len(first) > 60:
            first = first[:60].rsplit(" ", 1)[0] + " ..."
        return f"{type(error).__name__}: {first}".removesuffix(": ")


@contextlib.contextmanager
def no_stderr() -> Iterator[None]:
    """Keep C++ libraries, which write to the file and not to sys.stderr, from writing to it."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


@cache
def tensorflow() -> Any:
    """Import TensorFlow without its log, on the CPU."""
    # Before the import: TensorFlow reads them then.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with warnings.catch_warnings(), no_stderr():
        warnings.simplefilter("ignore")
        tf = import_module("tensorflow")
    tf.get_logger().setLevel("ERROR")
    return tf


@cache
def keras() -> Any:
    """Import Keras, with TensorFlow unless ``KERAS_BACKEND`` says otherwise."""
    if os.environ.setdefault("KERAS_BACKEND", "tensorflow") == "tensorflow":
        tensorflow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("keras")
