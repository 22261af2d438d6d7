"""diagnose: find a law of a loss from single rows, and let whole batches judge it."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from xent._validate import choice, real_array

from . import _call as calls
from ._call import LIBRARIES, Caller, Loss, NoDiagnosis, loaded, to_numpy
from ._law import LEVELS, Law
from ._other_losses import function_of_one, other_axes
from ._read import Own, Reader
from ._report import Diagnosis
from ._rows import KINDS, SHAPES, Call, Data, datasets, fits, inputs

Candidate: TypeAlias = "tuple[Data, Law]"
ORDERS = ("prediction", "target")
CLASSES, SMALL = (3, 2, 5, 4, 7, 10), 5  # up to these many all laws are tried
PLAIN, RARE = ("indices", "rows"), ("signs", "logarithms", "labels", "logits", "soft")
# Further numbers of classes, for a loss that holds a weight for each class and refuses all others.
MORE = (6, 8, 9, *range(11, 22), 32, 64, 100, 1000)


class Search:
    """The way through libraries, shapes and numbers of classes, and what was met on it."""

    def __init__(self, loss: Loss, arrays: str, logits: Any, batch: Own, shapes: Any = SHAPES) -> None:
        self.loss, self.arrays, self.logits, self.batch, self.shapes = loss, arrays, logits, batch, shapes
        shape = logits if is_shape(logits) else np.shape(() if logits is None else to_numpy(logits))
        # Time and memory grow with the square of the classes.
        axes = (shape[-1], shape[1]) if len(shape) > 1 else ()
        self.classes = tuple(n for n in dict.fromkeys(axes) if 2 <= n <= 3000)
        self.deep = len(shape) > 2
        self.said: dict[str, str] = {}
        self.searched = False
        self.answered: list[Data] = []
        self.numbers: set[bool] = set()

    def callers(self) -> list[Caller]:
        """The libraries, that of the reader's batch first."""
        found = [Caller(self.loss, *k) for k in loaded(self.arrays)]
        return sorted(found, key=lambda c: c.arrays != calls.library(self.logits))

    def run(self) -> list[Candidate]:
        best: list[Candidate] = []
        for caller in self.callers():
            if self.answered and not best:
                break  # it answered, and nothing explained it: another library will not either
            rows = False
            for shape in self.shapes:
                if rows and shape != "(N, T, K)":
                    continue  # of rows that it takes as targets it may take labels, of sequences
                if shape.count(",") > 1 and any(d.call.form == "indices" for d in self.answered):
                    continue  # it takes rows, and they are not explained: one position more explains nothing
                found = self.shape(caller, shape)
                labels = any(law.form == "indices" for _, law in found)
                least, before = (min(map(_cost, models), default=np.inf) for models in (found, best))
                best = found if found and (not best or (labels and least <= before)) else best
                if labels or any(d.binary or d.soft for d, _ in found):
                    break
                rows |= bool(found)
            # Indices may be refused in float64 alone, by a loss that holds weights in float32.
            other = (caller.arrays, caller.dtype) != ("torch", "float64")
            if best and (other or (d := min(best, key=_cost)[0]).call.form == "indices" or d.binary):
                break
        return best

    def shape(self, caller: Caller, shape: str) -> list[Candidate]:
        """The models of a loss that takes this shape, for the first numbers of classes that it takes."""
        tried = large = 0

        def sizes() -> Iterator[int]:
            if "N,)" in shape or "(N, 1)" in shape:
                yield 1
                return
            yield from dict.fromkeys((*self.classes, *CLASSES))
            # With a batch of your own its number of classes was tried: float32 comes next.
            if not tried and not (self.classes and (caller.arrays, caller.dtype) == ("torch", "float64")):
                told = [int(n) for n in re.findall(r"\b\d{1,5}\b", caller.said) if 2 <= int(n) <= 10_000]
                yield from dict.fromkeys((*told, *(k for k in MORE if shape == "(N, K)")))
            yield from [large] if tried == 1 and large else [1] * (shape == "(N, K)")

        for k in sizes():
            before = caller.answered
            found = self.at(caller, shape, k, not self.searched and (k <= SMALL or k == large))
            answers = caller.answered > before
            tried += answers
            if found or tried >= (1 if self.searched else 3):
                return found
            large = k if k > SMALL and answers else large
        return []

    def at(self, caller: Caller, shape: str, k: int, thorough: bool) -> list[Candidate]:
        """The laws, of the lowest level of complication, that explain a loss that answers with numbers."""
        data: list[Data] = []
        if self.searched and caller.answered > 2500:
            return []  # enough has been seen that nothing explains
        # What is rare is asked for, and what bends is searched for, where nothing plain explains the loss.
        for forms, levels in ((PLAIN, 1), (RARE, len(LEVELS)))[: 1 + thorough]:
            for order, form in itertools.product(ORDERS, forms):
                data += self.measured(Call(caller, order, shape, form, k))
            dtype = data[0].precision() if data else "float64"
            for level in range(levels):
                if found := [(d, law) for d in data for law in fits(d, level, dtype)]:
                    self.answered += data
                    return found
        self.answered += data
        self.searched |= bool(data) and thorough
        return []

    def measured(self, call: Call) -> list[Data]:
        """Single rows of each kind, where the loss answers and two equal calls agree."""
        k, value, caller = call.k, None, call.caller
        t = np.eye(k)[np.arange(6) % k] if k > 1 else (np.arange(6) % 2)[:, None].astype(float)
        t = np.random.default_rng(4).dirichlet(np.ones(k), 6) if call.soft else t
        for kind in KINDS:
            x = inputs(kind, False, 6, k, np.random.default_rng(2))
            if (seen := call.ask(x, t)) is not None:
                value, given = seen, x
                if not np.isnan(seen).all():
                    break
        if value is None:
            telling = call.form == "indices" and call.shape in ("(N, K)", "(N, T, K)")
            kept = self.said.get(caller.arrays, "")
            if call.order == "prediction" and ((telling and "it returned" not in kept) or not kept):
                self.said[caller.arrays] = caller.said
            return []
        found = [*datasets(call)]
        if call.order == "prediction":  # after many calls, as some losses change
            again = call.ask(given, t)
            if again is None or again.shape != value.shape:
                shapes = f"{value.shape} and {getattr(again, 'shape', None)}"
                raise NoDiagnosis(f"two equal calls return the shapes {shapes}")
            if not np.allclose(again, value, 1e-6, 1e-9, equal_nan=True):
                a, b = value.ravel()[0], again.ravel()[0]
                raise NoDiagnosis(f"two equal calls return two values, {a:.6g} and {b:.6g}")
        self.numbers.add(not np.isnan(value).all())
        return found

    def described(self, found: list[Candidate]) -> Diagnosis:
        """Choose among the models, put the further questions, and let fresh batches judge."""
        # Of two classes that exclude each other a binary loss is a categorical one; on any yes and no it stays itself.
        yes_no = {(d.call, d.kind) for d, law in found if d.binary and law.reading.rank == 0}
        found = [(d, law) for d, law in found if d.binary or (d.call, d.kind) not in yes_no]
        best = [f for f in found if f[1].cost < min(map(_cost, found)) + 0.5]
        forms = {"indices": 0, "logits": 1}  # what takes the latter takes their logarithms, normalised, too
        data, law = min(best, key=lambda f: (forms.get(f[1].form, 2), f[1].first != "prediction"))
        alike = [other for _, other in best if other.form == law.form]
        orders = {other.first for other in alike if other.reading == law.reading}
        others = {o.reading for o in alike if o.first == law.first and o.reading != law.reading}
        result = Reader(data, law).report(self.batch)
        if not result.known:
            return result if result.tried else other_axes(data.call.caller, self.batch) or result
        rivals = (f"{r.family}, reads {r.name}" for r in others)
        first = "either" if len(orders) > 1 else result.first
        return replace(result, first=first, alternatives=(*result.alternatives, *rivals))

    def nothing(self) -> Diagnosis:
        """What can be said of a loss that no model of single rows predicts."""
        for caller in self.callers():
            if found := other_axes(caller, self.batch):
                return found
        said = tuple(f"with {LIBRARIES[k]}: {v}" for k, v in self.said.items() if v)
        if not self.numbers:
            only = [p.name for p in calls.parameters(self.loss) if p.kind is p.KEYWORD_ONLY]
            named = (f"it takes keyword arguments: {', '.join(only)}",) if only else ()
            wrong = tuple(v for v in said if "it returned" in v)
            return Diagnosis(notes=wrong or ("every call raises", *named, *said))
        if True not in self.numbers:
            return Diagnosis(notes=("it returns nan for every batch", *said))
        notes: tuple[str, ...] = ("it returns numbers, and no cross-entropy predicts them",)
        if not self.answered:
            return Diagnosis(notes=(*notes, "single rows cost the same, 0 or nan, or are refused"))
        plain = [d.call for d in self.answered if not d.binary and d.call.form in PLAIN]
        notes += function_of_one(plain[0]) if plain else ()
        if (dtype := self.answered[0].call.caller.result_dtype) in ("float16", "bfloat16"):
            notes += (f"in {dtype} neither a temperature nor weights are looked for: try float32",)
        return Diagnosis(arrays=self.answered[0].call.caller.arrays, notes=notes)

    def understood(self) -> Diagnosis:
        """Search, describe what is found, and search once more where a batch has more axes than the rows it read."""
        found = self.run()
        result = self.described(found) if found else self.nothing()
        note = "".join(result.notes[:1])
        mine = note.startswith("your batch") and ("not explained" not in note or self.deep)
        if mine or (found and not result.known and not result.tried) or result.axis == "the whole array":
            # It may flatten rows, as those of sequences, or compare the first with the second's label.
            shapes = tuple(s for s in SHAPES if s.count(",") > 1 and "targets" not in s)
            again = Search(self.loss, self.arrays, self.logits, self.batch, shapes)
            other = again.described(found) if (found := again.run()) else result
            return other if other.known or (not mine and other.tried) else result
        return result


def _cost(found: Candidate) -> float:
    return found[1].cost


def is_shape(logits: Any) -> bool:
    return isinstance(logits, tuple) and all(isinstance(n, int | np.integer) for n in logits)


def diagnose(loss: Loss | str, logits: Any = None, targets: Any = None, *, arrays: str = "auto") -> Diagnosis:
    """Find out what a loss computes by calling it on designed batches.

    Parameters
    ----------
    loss : callable or str
        Takes two arrays, prediction and target in either order, and returns the loss; or the name of a loss
        of Keras. Configure it first: ``functools.partial`` or a lambda for keyword arguments.
    logits : array_like, Tensor or tuple of int, optional
        A batch of your own, as you pass it to the loss, or its shape. The lengths of its last axis and its second, up
        to 3000, are tried first as numbers of classes.
    targets : array_like or Tensor, optional
        The targets of that batch; labels in it that are no class are tried as ignored ones. With both, the loss is
        called on copies of them, and what it costs stands beside what was predicted.
    arrays : {"auto", "numpy", "torch", "tensorflow"}, default "auto"
        What to call it with. "auto" tries NumPy, then the libraries that are imported already.

    Returns
    -------
    Diagnosis
        What was found. A loss that no law predicts on every batch that was tried, your own among them, or that
        refuses your own, is "unknown", with notes: where larger batches alone differ, they say from which size on.

    Raises
    ------
    TypeError
        If `loss` is neither callable nor a name, `arrays` no text, or `logits` or `targets` hold no numbers.
    ValueError
        If Keras knows no loss of this name, or `arrays` is none of the names above.

    Notes
    -----
    Single rows are measured first, then a law is fitted to them; batches tell the reduction. The whole has to predict
    fresh batches within 1e-5 of the loss, or of 1 if it is less (in float32 1e-4, in float16 3e-2, in bfloat16 0.25),
    up to 8,200 rows, 1,200 classes and sequences of 300 (`tried`). Chunks or limits beyond these show with a batch of
    your own alone. Of a loss that no cross-entropy predicts the notes say whether a row's loss is a function of its
    label's probability, or of its margin, alone.

    Examples
    --------
    >>> import xent
    >>> found = xent.diagnose(xent.cross_entropy)
    >>> found.first, found.reads, found.reduction, found.denominator
    ('prediction', 'logits', 'mean', 'N')
    >>> xent.diagnose(lambda z, y: xent.cross_entropy(z, y, reduction="sum") / 5).added
    'times 0.2 (divided by 5)'
    >>> xent.diagnose(lambda p, y: ((p - y) ** 2).mean()).known
    False
    """
    loss = calls.resolve(loss)
    choice(arrays, "arrays", ("auto", *LIBRARIES))
    given = None if is_shape(logits) else logits
    for name, values in (("logits", given), ("targets", targets)):
        if values is not None:
            real_array(to_numpy(values), name, bools=name == "targets")
    if inspect.isclass(loss):
        said = f"this is the class {loss.__name__}: pass an instance, {loss.__name__}(...)"
        return Diagnosis(notes=(said,))
    search, printed = (
        Search(loss, arrays, logits, None if targets is None else (given, targets)),
        io.StringIO(),
    )
    try:
        with np.errstate(all="ignore"), contextlib.redirect_stdout(printed):
            found = search.understood()
    except NoDiagnosis as error:
        found = Diagnosis(notes=(str(error),))
    return replace(found, notes=(*found.notes, "prints while it is called")) if printed.getvalue() else found
