"""The registry: one row of rows.toml for each behaviour, and the probe that shows it."""

from __future__ import annotations

import contextlib
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

# The libraries of the rows, with their names for a reader.
NAMES = {
    "torch": "PyTorch",
    "sklearn": "scikit-learn",
    "scipy": "SciPy",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "keras-torch": "Keras on PyTorch",
    "xent": "xent",
}
MODULES = ("_profiles", "torch_probes", "sklearn_probes", "keras_probes", "xent_probes")
# Numbers are recorded with five significant digits, and kernels differ from processor to processor in the
# last bits of float32: a number may be rounded the other way.
TOLERANCE = 1.1e-4


@dataclass(frozen=True)
class Row:
    """A behaviour of a library: a row of rows.toml, and the probe of its name."""

    slug: str
    group: str  # what it is about, such as "weights"
    library: str  # a key of NAMES
    title: str  # what happens, in a few words
    asks: str  # what the probe tries
    expect: str  # what a reader would expect
    instead: str  # what to write instead, in a line
    recorded: Seen = field(repr=False)  # what the probe returned on the versions of the book's lock
    probe: Callable[[], Seen] = field(repr=False)  # runs the library, returns what it saw, prints nothing
    tolerance: float = TOLERANCE  # relative, of the numbers: wider where these have half precision

    def run(self) -> Seen:
        """Run the probe, quietly, and round what it saw."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(plain(self.probe()))

    @property
    def version(self) -> str:
        """The installed version of the row's library, such as "PyTorch 2.13.0"."""
        if self.library == "xent":
            return f"xent {xent.__version__}"
        backends = {"keras": ("keras", "tensorflow"), "keras-torch": ("keras", "torch")}
        used = backends.get(self.library, (self.library,))
        numbers = (metadata.version({"sklearn": "scikit-learn"}.get(n, n)).split("+")[0] for n in used)
        return " on ".join(f"{NAMES[n]} {number}" for n, number in zip(used, numbers, strict=True))


@cache
def rows() -> dict[str, Row]:
    """All rows by slug, group by group. Loads no framework."""
    modules = [import_module(f"xent_book.behaviours.{module}") for module in MODULES]
    # A function's name says its row.
    begin = tuple(f"{library.replace('-', '_')}_" for library in NAMES)
    found = {
        name.replace("_", "-"): f for m in modules for name, f in vars(m).items() if name.startswith(begin)
    }
    table = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
    if table.keys() != found.keys():
        raise ValueError(f"not both a row and a probe: {sorted(table.keys() ^ found.keys())}")
    return {slug: Row(slug, probe=found[slug], **fields) for slug, fields in table.items()}


def get(slug: str) -> Row:
    """Look a row up by its slug."""
    try:
        return rows()[slug]
    except KeyError:
        raise ValueError(f"there is no row {slug!r}; rows() lists all") from None


def see(slug: str) -> Seen:
    """Run the probe of a row and return what it sees now."""
    return get(slug).run()


see_once = cache(see)  # a page that shows a row twice runs it once


# ------------------------------------------------------------------------------------- for the probes

Z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])  # the rows' example: logits, labels, the same one-hot
Y = np.array([0, 1])
ONEHOT = np.eye(3)[Y]
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)


def drawn(*shape: int) -> tuple[Any, Any]:
    """Logits of this shape, the same each time, and a label for each row of them."""
    rng = np.random.default_rng(0)
    return rng.normal(size=shape), rng.integers(0, shape[-1], shape[:-1])


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the first sentence of each warning that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call()
    return value, [str(w.message).strip().splitlines()[0].split(". ")[0][:80] for w in caught]


def plain(value: Any) -> Any:
    """Turn tensors and arrays into rounded floats and lists."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") + 0.0  # -0.0 + 0.0 = 0.0
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    array = np.asarray(value)
    return array.tolist() if array.dtype == bool else plain(array.astype(np.float64).tolist())


class Lazy:
    """A module that is imported when something of it is looked at."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        # Who looks at all that a module names, as pytest does, asks each for names of its own.
        if name.startswith("_"):
            raise AttributeError(name)
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
