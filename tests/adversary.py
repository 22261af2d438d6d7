r"""Claims as rows, and the inputs that try to refute them.

    @claim(
        "no entry of $p - t$ exceeds",
        on=lambda: batches(rng(4)),
        but_not={"targets that do not sum to one": ("", np.zeros((1, 3)), np.array([0]), 3.0)},
    )
    def test_no_entry_exceeds_one(_: str, z: Array, y: Array, factor: float = 1.0) -> None:
        assert np.abs(xent.softmax(z) - factor * one_hot(y, z.shape[1])).max() <= 1

The chapter, if it is not that of the file (tests/claims/test_04.py); words of the sentence that stand in the chapter
once and hold what is claimed (of several sentences, if one check defends them); the inputs on which the check holds,
from the whole domain of the sentence; and by name what the same check must reject: what the opposite sentence would
say, a neighbour of the truth, an input outside the condition. An input is one argument, a tuple of several, or a dict
by name; without `on` the check runs as it stands. A callable is called inside the test: whatever draws, reads or
computes goes there. Another row of the same check is `test_more = claim("...", on=..., but_not=...)(check)`. A
docstring, if any, says what the names do not. An odd case is a plain test with `@pytest.mark.claim("04", "...")` that
says `with refuted("what"):` itself. What a printed equation proves has a row of it:

    test_the_likelihood = claim("...", on=["eq-bce"], but_not={"the sum": ("eq-bce", r"-\frac1N", "-")})(printed)

_ext/marks.py finds the sentence: the ✓ stands at its end, and the card shows it. Where only a part is claimed, write
"first words ... last words".

XENT_SEED=1 (2, 3, ...) moves the seed of every generator made by `rng`, and hypothesis's.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray
Draw = np.random.Generator

SEED = int(os.environ.get("XENT_SEED", "0"))
CLASSES = (2, 3, 10, 1000, 50_257)  # to a vocabulary
ROWS = (1, 2, 33)
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # binary ones, by format


def rng(seed: int) -> Draw:
    """A generator of the test's own: called inside it, so that no other test moves it."""
    return np.random.default_rng(seed + SEED)


@contextlib.contextmanager
def refuted(what: str) -> Iterator[None]:
    """The assertion inside has to fail: it is given what the sentence denies."""
    try:
        yield
    except (AssertionError, pytest.fail.Exception):
        return
    pytest.fail(f"the assertion accepts {what}")


def claim(
    *words: str,
    on: Iterable[Any] | Callable[[], Iterable[Any]] = ((),),
    but_not: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a test of a check: it holds on all the inputs of `on`, and rejects each of `but_not`."""

    def test_of(check: Callable[..., None]) -> Callable[[], None]:
        def try_on(given: Any) -> None:
            if isinstance(given, dict):
                check(**given)
            else:
                check(*(given if isinstance(given, tuple) else (given,)))

        def test() -> None:
            number = 0
            for number, given in enumerate(on() if callable(on) else on, 1):
                try:
                    try_on(given)
                except Exception as error:
                    error.add_note(f"input {number} of the claim: {str(given)[:300]}")
                    raise
            rejected = but_not() if callable(but_not) else but_not
            if not (number and rejected):
                pytest.fail(f"{number} inputs are tried, and {len(rejected)} have to be rejected")
            for what, given in rejected.items():
                with refuted(what):
                    try_on(given)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        vars(test).update(vars(check))  # the marks below
        marked: Callable[[], None] = pytest.mark.claim(*words)(test)
        return marked

    return test_of


def page(name: str) -> str:
    """The text of a file of the repository, such as "index.md"."""
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8")


def defined(chapter: str, *names: str, **given: Any) -> dict[str, Any]:
    """What a chapter imports, and what it defines under these names."""
    cells = json.loads(page(f"chapters/{chapter}.ipynb"))["cells"]
    lines = [n for c in cells if c["cell_type"] == "code" for n in ast.parse("".join(c["source"])).body]
    said = [{ast.unparse(t) for t in getattr(n, "targets", [])} | {getattr(n, "name", "")} for n in lines]
    kept = [n for n, own in zip(lines, said, strict=True) if "Import" in type(n).__name__ or own & set(names)]
    exec(compile(ast.Module(kept, []), chapter, "exec"), given)
    return given


def printed(label: str, old: str = "", new: str = "") -> None:
    """An equation of the book proves the claim, as it is printed, or with this piece of it replaced by another."""
    import mpmath

    from equations import reader
    from equations import test_read as read

    tex = " ".join(read.printed()[label].split())
    if old not in tex:
        raise RuntimeError(f"{label} has no {old}: {tex}")
    with mpmath.workdps(reader.DIGITS):
        assert not next(reader.failures(tex.replace(old, new, 1) if old else tex, *read.row(label)), "")


def held(call: Callable[[], Any]) -> Array:
    """The bytes that PyTorch holds over time, beyond what it held before the call, as its allocator counts them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    return np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])


def lowest(loss: Callable[[Any], Any], start: Any, method: str = "BFGS", **options: Any) -> Array:
    """Where a loss of tensors is least, by descent from there along the gradient that PyTorch finds."""
    import torch
    from scipy.optimize import minimize

    def value_and_slope(flat: Array) -> tuple[float, Array]:
        at = torch.tensor(flat.reshape(np.shape(start)), requires_grad=True)
        value = loss(at)
        return value.item(), torch.autograd.grad(value, at)[0].numpy().ravel()

    options = {"gtol": 1e-10, **options}
    found = minimize(value_and_slope, np.ravel(start), jac=True, method=method, options=options)
    return np.asarray(found.x.reshape(np.shape(start)))


def normal(p: Any) -> Array:
    """Rows that sum to one."""
    return np.asarray(p / np.sum(p, -1, keepdims=True))


def one_hot(y: Array, classes: int) -> Array:
    """Rows of zeros and a one; np.eye would be a table of 50,257 squared."""
    return (np.arange(classes) == np.asarray(y)[:, None]).astype(float)


def logits(g: Draw, rows: int, classes: int) -> Iterator[tuple[str, Array]]:
    """Flat, small, peaked, tied rows, margins to 1e4, a common shift, one class ahead of all others."""
    plain = g.normal(size=(rows, classes))
    yield "zeros", np.zeros((rows, classes))
    yield "small", 1e-6 * plain
    yield "plain", plain
    yield "peaked", 30 * plain
    yield "ties", np.rint(plain)
    yield "margins to 1e4", plain * 1e4 / np.ptp(plain, axis=1, keepdims=True)
    yield "shifted by 1e4", plain + 1e4 * g.choice([-1, 1])
    yield "one ahead", plain + 60 * one_hot(g.integers(0, classes, rows), classes)


def labels(g: Draw, z: Array) -> Iterator[tuple[str, Array]]:
    """Labels at random, all of one class, all right, all as wrong as can be."""
    rows, classes = z.shape
    yield "any", g.integers(0, classes, rows)
    yield "one class", np.full(rows, g.integers(0, classes))
    yield "all right", z.argmax(axis=1)
    yield "all wrong", z.argmin(axis=1)


def batches(
    g: Draw, classes: tuple[int, ...] = CLASSES, rows: tuple[int, ...] = ROWS, masked: bool = False
) -> Iterator[tuple[str, Array, Array]]:
    """Yield what it is, logits, labels: every kind of both. `masked` adds infinite logits, none the label's."""
    for k in classes:
        for n in rows if k < 1000 else rows[:1]:
            for what, z in logits(g, n, k):
                for how, y in labels(g, z):
                    yield f"{n} x {k}, {what}, {how}", z, y
                if masked and k > 2:
                    out = (g.random(z.shape) < 0.5) & (np.arange(k) != y[:, None])
                    yield f"{n} x {k}, {what}, masked", np.where(out, -np.inf, z), y


def coins(g: Draw, rows: tuple[int, ...] = (1, 2, 50, 1000)) -> Iterator[tuple[str, Array, Array]]:
    """Yield what it is, the logits and the labels of a binary loss: tiny to huge, both labels, one, or between."""
    for n in rows:
        for scale in (0.0, 1e-6, 1.0, 30.0, 700.0, 1e4):
            z = scale * g.normal(size=n)
            answers = {"any": g.integers(0, 2, n), "zeros": np.zeros(n), "ones": np.ones(n)}
            answers |= {"wrong": z < 0, "soft": g.random(n)}
            for what, y in answers.items():
                yield f"{n} logits of size {scale:g}, {what}", z, np.asarray(y, float)


def distributions(g: Draw, classes: int, rows: int = 1) -> Iterator[tuple[str, Array]]:
    """Rows that sum to one: uniform, of every concentration, with zeros, one-hot, with an outcome of 1e-300."""
    yield "uniform", np.full((rows, classes), 1 / classes)
    for concentration in (0.02, 1.0, 50.0):
        p = g.dirichlet(np.full(classes, concentration), rows)
        yield f"concentration {concentration:g}", p
    zeros = g.random((rows, classes)) * (g.random((rows, classes)) < 0.5)
    zeros[np.arange(rows), g.integers(0, classes, rows)] = 1
    yield "zeros", zeros / zeros.sum(axis=1, keepdims=True)
    yield "one-hot", one_hot(g.integers(0, classes, rows), classes)
    rare = np.full((rows, classes), 1e-300)
    rare[np.arange(rows), g.integers(0, classes, rows)] = 1
    yield "1e-300", rare


def pairs(g: Draw, classes: int, rows: int = 1) -> Iterator[tuple[str, Array, Array]]:
    """Yield what it is, the truth P and the model Q: every two kinds, equal, and a hair apart."""
    for a, p in distributions(g, classes, rows):
        for b, q in distributions(g, classes, rows):
            yield f"P {a}, Q {b}", p, q
        near = p * np.exp(1e-6 * g.normal(size=p.shape))
        yield f"P {a}, Q equal", p, p
        yield f"P {a}, Q near", p, near / near.sum(axis=1, keepdims=True)


def weights(g: Draw, size: int) -> Iterator[tuple[str, Array]]:
    """Weights that are not negative: equal, any, with zeros, one that outweighs all, nothing but one."""
    yield "equal", np.full(size, 3.0)
    yield "any", g.uniform(0.01, 9, size)
    zeros = g.uniform(0.01, 9, size) * (g.random(size) < 0.5)
    zeros[g.integers(size)] = 1.0
    yield "zeros", zeros
    yield "one heavy", np.where(np.arange(size) == g.integers(size), 1e6, 1.0)
    yield "only one", (np.arange(size) == g.integers(size)).astype(float)


def designs(g: Draw, rows: int = 40, columns: int = 3) -> Iterator[tuple[str, Array, Array]]:
    """Yield what it is, features, labels 0 and 1: ordinary, collinear, of all scales, separated, one class, short."""
    x = g.normal(size=(rows, columns))
    y = (g.random(rows) < 0.5).astype(float)
    y[:2] = 0, 1
    yield "plain", x, y
    yield "a column twice", np.column_stack([x, x[:, 0]]), y
    yield "correlated", x @ (np.ones((columns, columns)) + 0.1 * np.eye(columns)), y
    yield "scales", x * 10.0 ** g.uniform(-2, 2, columns), y
    yield "far from zero", x + 100, y
    yield "rows twice", np.vstack([x, x]), np.r_[y, y]
    yield "separated", x, (x[:, 0] > np.median(x[:, 0])).astype(float)
    yield "one class", x, np.ones(rows)
    yield "fewer rows than columns", x[: columns - 1], y[: columns - 1]
    yield "one row", x[:1], y[:1]


def documents(g: Draw, number: int, tokens: int, between: float, within: float) -> Array:
    """Losses (number, tokens) that a document shares: rows correlated by between^2 / (between^2 + within^2)."""
    return 2 + between * g.normal(size=(number, 1)) + within * g.normal(size=(number, tokens))


def prompts(g: Draw, number: int = 2, between: float = 1.0) -> Iterator[tuple[float, Array, Array]]:
    """Yield, for each prompt, its probability, the lengths of its answers and their probabilities.

    `between` sets how far the prompts' mean lengths lie apart, in octaves; the lengths within a prompt vary too.
    """
    chances = g.dirichlet(np.full(number, 5.0))
    for k in range(number):
        mean = 8 * 2.0 ** (between * k)
        lengths = np.unique(np.maximum(1, np.rint(mean * g.uniform(0.5, 1.5, 4)).astype(int)))
        yield chances[k], lengths, g.dirichlet(np.full(len(lengths), 2.0))


def masks(g: Draw, sequences: int, tokens: int) -> Iterator[tuple[str, Array]]:
    """Which targets count, (sequences, tokens): all, some, answers behind prompts, a row of none, one in all."""
    yield "all", np.ones((sequences, tokens), bool)
    some = g.random((sequences, tokens)) < 0.5
    some[:, -1] = True
    yield "some", some
    yield "answers", np.arange(tokens) >= g.integers(1, tokens, (sequences, 1))
    none = some.copy()
    none[0] = sequences == 1
    yield "a row of none", none
    yield "one", np.arange(sequences * tokens).reshape(sequences, tokens) == g.integers(sequences * tokens)


def optimisers(rate: float = 0.01) -> dict[str, Callable[[Any], Any]]:
    """Makers of torch optimisers: plain, with momentum, with decay (in the gradient, or beside it), adaptive."""
    import torch

    def maker(cls: Any, **options: float) -> Callable[[Any], Any]:
        return lambda parameters: cls(parameters, lr=rate, **options)

    return {
        "SGD": maker(torch.optim.SGD),
        "momentum": maker(torch.optim.SGD, momentum=0.9),
        "decay": maker(torch.optim.SGD, weight_decay=0.1),
        "Adam": maker(torch.optim.Adam),
        "Adam with decay": maker(torch.optim.Adam, weight_decay=0.1),
        "AdamW": maker(torch.optim.AdamW, weight_decay=0.1),
    }


def lengths_and_laws(seed: int, number: int = 30) -> Iterator[tuple[Array, Array]]:
    """Two to five lengths below 80 and their probabilities, none next to nothing."""
    g = rng(seed)
    for _ in range(number):
        lengths = np.sort(g.choice(np.arange(1, 80), g.integers(2, 6), replace=False)).astype(float)
        yield lengths, g.dirichlet(np.full(len(lengths), g.choice([0.3, 2.0]))) * 0.99 + 0.01 / len(lengths)
