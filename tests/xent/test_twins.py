"""Every function of `xent` that exists on tensors too, found by inspection: the two are one function.

They are called with every value of every option and of every pair of options, on logits of one to three
dimensions along every axis. The arrays are given the tensors' numbers in float64, so that beside the narrower
dtypes their rounding does not show; in float64 it is 4 epsilons more. ``XENT_SEED`` draws other inputs.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import xent
import xent.torch as xt
from xent.distillation import distillation_gradient, distillation_loss

Array = NDArray[Any]
Named = dict[str, Any]
INF = math.inf
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPREADS = (0.5, 2.0, 8.0, 20.0, 50.0, 1e4)
# The arguments that one of the two has alone, and those that stay where they are when the classes move.
ALONE = {"vocab_group", "labels", "base", "rng", "generator"}
STILL = {"targets", "samples"}
BINARY = {"binary_cross_entropy", "binary_focal_loss", "binary_log_loss", "sigmoid", "log_sigmoid"}
CONSTANT = {"teacher_logits", "top_log_probs", "importance_weights"}
ONLY_TENSORS = {"accumulate", "check_accumulation", "linear_cross_entropy", "linear_distillation_loss"}


def generator() -> np.random.Generator:
    return np.random.default_rng(int(os.environ.get("XENT_SEED", "0")))


def needed(function: Callable[..., Any]) -> list[str]:
    """The arguments without a default."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.name not in ALONE]


def twins() -> Named:
    """Functions of the same name that take the same arguments, on arrays and on tensors."""
    found: Named = {}
    modules = [f"xent.{m.name}" for m in pkgutil.iter_modules(xent.__path__) if m.name != "torch"]
    for module in map(importlib.import_module, modules):
        for name in {*getattr(module, "__all__", ())} & {*xt.__all__}:
            pair = getattr(module, name), getattr(xt, name)
            if needed(pair[0]) == needed(pair[1]):
                assert name not in found, f"two functions are {name} on arrays"
                found[name] = pair
    return found


TWINS = twins()


def both(name: str) -> list[str]:
    """The options that both have; one that the table `Case.options` does not know is a KeyError."""
    arrays, tensors = (inspect.signature(f).parameters for f in TWINS[name])
    for other in set(arrays) ^ set(tensors):
        assert other in ALONE or (name, other) == ("mixed_loss", "sample_weight"), other
    for one in set(arrays) & set(tensors):
        assert arrays[one].default == tensors[one].default, one
    return [p for p in tensors if p in arrays and p not in needed(TWINS[name][0])]


class Case:
    """Logits of a kind, the classes last, and where the classes are to be."""

    def __init__(self, name: str, rng: np.random.Generator, *, calm: bool = False) -> None:
        self.rng, self.name, self.calm = rng, name, calm
        self.rows: tuple[int, ...] = [(), (5,), (2, 3)][rng.integers(3)]
        self.axis = -1 if name in BINARY else int(rng.integers(-len(self.rows) - 1, len(self.rows) + 1))
        self.classes = int(rng.choice([1, 2, 2, 7, 40]))
        self.shape = *self.rows, self.classes
        self.dtype = DTYPES[0 if calm else rng.choice(4, p=[0.4, 0.4, 0.1, 0.1])]
        self.half = self.dtype.itemsize == 2
        self.hopeless = False
        self.spread = float(rng.choice(SPREADS[:3] if calm else SPREADS))

    def rounded(self, x: Any, dtype: torch.dtype | None = None) -> Array:
        """Numbers that the dtype has."""
        array: Array = (
            torch.as_tensor(np.maximum(np.minimum(x, 6e4), -6e4)).to(dtype or self.dtype).double().numpy()
        )
        return np.where(np.isneginf(x), -INF, array)

    def logits(self) -> Array:
        rng, kind = self.rng, 0 if self.calm else self.rng.integers(8)
        z = self.spread * rng.normal(size=self.shape)
        if kind == 1:  # ties
            z = np.rint(z)
        elif kind == 2:  # a winner at zero: small losses
            z[..., 0] = z.max(-1) + rng.uniform(0, 3 * self.spread, self.rows)
            z -= z.max(-1, keepdims=True)
        elif kind == 3:  # impossible classes
            z[..., :-1][rng.random(z[..., :-1].shape) < 0.3] = -INF
        elif kind == 4 and rng.random() < 0.3:  # rows without a softmax
            self.hopeless, z = True, self.rounded(z)
            z[rng.random(self.rows) < 0.3] = rng.choice([math.nan, -INF, INF])
            return z
        return self.rounded(z)

    def teacher(self, z: Array) -> Array:
        """Close to the student or far, much surer or less, higher, the same; ruling out the same or other classes."""
        rng, noise = self.rng, self.rng.normal(size=z.shape)
        finite = np.where(np.isfinite(z), z, 0.0)
        kinds = (finite + 10.0 ** -rng.uniform(0, 8) * noise, finite * rng.uniform(0, 6), self.spread * noise,
                 finite + rng.choice([8, 64]) + 0.1 * noise, finite + 30 * (np.arange(z.shape[-1]) == 0), finite)  # fmt: skip
        v = self.rounded(kinds[rng.integers(6)])
        v = v if self.calm or rng.random() < 0.9 else self.logits()
        return np.where(np.isneginf(z) & (rng.random() < 0.5) & ~np.isposinf(v), -INF, v)

    def distributions(self) -> Array:
        """In half precision, in steps of 1 / 128, whose sum is not rounded; elsewhere small ones too."""
        if self.half or not self.calm and self.rng.random() < 0.3:
            return self.rng.multinomial(128, self.rng.dirichlet(np.full(self.classes, 0.5), self.rows)) / 128
        p = np.exp(self.rng.normal(size=self.shape) * min(self.spread, 2 if self.calm else 8))
        return self.rounded(p / p.sum(-1, keepdims=True))

    def arguments(self) -> Named:
        """A draw of what the function needs."""
        rng, binary, made = self.rng, self.name in BINARY, dict[str, Any]()
        k = int(rng.integers(1, self.classes + 1))
        for name in needed(TWINS[self.name][0]):
            if name in ("x", "logits", "student_logits") or not made and name == "teacher_logits":
                made[name] = self.logits()
            elif name == "teacher_logits":
                made[name] = self.teacher(made["student_logits"])
            elif name == "targets" and binary:
                y = self.rounded(rng.random(self.shape))
                made[name] = y if rng.random() < 0.5 else np.rint(y).astype(rng.choice(["i8", "u1", "?"]))
            elif name == "targets":
                labels = rng.integers(0, self.classes, self.rows)
                labels = labels * 0 if rng.random() < 0.2 else labels  # all of one class
                made[name] = np.asarray(labels).astype(rng.choice(["i8", "i4", "i2", "u1"]))
            elif name in ("probs", "target_probs"):
                made[name] = self.rounded(rng.random(self.shape)) if binary else self.distributions()
            elif name in ("log_probs", "top_log_probs"):
                z = self.teacher(made["student_logits"]) if name == "top_log_probs" else self.logits()
                z = np.where(np.isfinite(z), z, -self.spread)
                made[name] = self.rounded(xent.log_softmax(z), torch.float32 if self.half else None)
            elif name == "top_indices":
                made[name] = np.argsort(-made["top_log_probs"], kind="stable")[..., :k]
                made["top_log_probs"] = np.take_along_axis(made["top_log_probs"], made[name], -1)
            elif name == "indices":
                made[name] = rng.integers(0, self.classes, (*self.rows, k))
            elif name == "importance_weights":
                made[name] = rng.integers(0, 5, (*self.rows, k)) / 4
                made[name][..., 0] += 0.25
            else:
                made[name] = {"samples": 64}[name]
        return made

    def options(self) -> dict[str, list[Any]]:
        """What each option can be: what is meant by none, others, and last what both refuse. No weight is rounded."""
        rng, name, least = (
            self.rng,
            self.name,
            int(self.calm),
        )  # a weight of zero has a derivative on one side
        each = self.shape if name in BINARY else self.rows
        part = tuple(n if rng.random() < 0.5 else 1 for n in each)
        of_class = rng.integers(least, 5, self.classes) / 4
        moved = np.moveaxis(np.empty(self.shape), -1, self.axis).shape
        by_target = [
            None,
            rng.integers(least, 5, each) / 4,
            rng.integers(least, 5, part) / 4,
            rng.random(each) < 0.7,
            0.5,
        ]
        by_class = [None, of_class, of_class > 0.5, np.ones(self.classes + 1)]
        return {
            "axis": [self.axis, *([None, tuple(range(len(moved)))[-2:]] if name == "log_sum_exp" else []), self.axis + 9],
            "weight": [*by_target, -1.0] if name in BINARY else by_class,
            "sample_weight": [*by_target, -1.0],
            "pos_weight": [None, 2.5, rng.integers(1, 9, self.classes) / 4, 0.0],
            "alpha": {"mixed_loss": [0.5, 0.0, 0.1, 1.0, 1.5], "focal_loss": by_class}.get(
                name, [None, 0.25, 0.0, 1.0, 1.5]),
            "gamma": [2.0, 0.0, 0.5, 5.0, -1.0],
            "label_smoothing": [0.0, 0.1, 1.0, *([] if name in BINARY else [1e-310]), 1.5],
            "ignore_index": [None, 0, -100, 2**63, 0.5],
            "reduction": ["none", "mean", "sum", "average"],
            "denominator": [None, 2.5, 0.0],
            "eps": [0.0, 0.01, 0.3, 0.5],
            "temperature": [1.0, 0.25, 4.0, 1e4, 0.0],
            "scale": ["t_squared", "none", "T"],
            "direction": ["forward", "reverse", "jsd", "both"],
            "beta": [0.5, 0.1, 0.9, 1.0],
            "treatment": ["tail", "truncated", "renormalised", "renormalised_both", "none"],
            "b": [None, rng.integers(least, 5, moved) / 4, 0.5, -1.0],
            "keepdims": [False, True, 2],
            "proposal_temperature": [1.0, 0.5, 3.0, 0.0],
        }  # fmt: skip


def choices(name: str) -> Iterator[dict[str, int]]:
    """Every value of every two options, by its place in the table, and for each option the one that is refused."""
    lengths = {o: len(Case(name, generator()).options()[o]) for o in both(name)}
    yield {}
    yield from ({o: n - 1} for o, n in lengths.items())
    for a, b in itertools.combinations(lengths, 2):
        yield from ({a: i, b: j} for i, j in itertools.product(range(lengths[a] - 1), range(lengths[b] - 1)))


def chosen(case: Case, choice: dict[str, int]) -> Named:
    values = case.options()
    if "denominator" in choice and "reduction" not in choice:
        choice = {**choice, "reduction": 1}
    return {o: values[o][choice.get(o, 0)] for o in both(case.name)}


def placed(case: Case, arguments: Named) -> Named:
    return {n: a if n in STILL else np.moveaxis(a, -1, case.axis) for n, a in arguments.items()}


def as_tensors(case: Case, arguments: Named) -> Named:
    """In the dtype, half of them with another order of memory."""
    tensors: Named = {}
    for name, a in arguments.items():
        if name == "samples":
            tensors[name] = a
            continue
        t = torch.as_tensor(np.array(a))
        if t.is_floating_point():
            t = t.to(torch.float32 if case.half and name.endswith("log_probs") else case.dtype)
        tensors[name] = t.mT.contiguous().mT if t.ndim > 1 and case.rng.random() < 0.5 else t
    return tensors


def returned(function: Callable[..., Any], arguments: Named) -> Any:
    try:
        return function(**arguments)
    except (ValueError, TypeError) as error:
        return error


def allowed(case: Case, a: Named, o: Named, tiny: float) -> Any:
    """How many epsilons the arithmetic takes, a number or one for each row."""
    name, z, least = case.name, next(iter(a.values())), -math.log(tiny)  # what is further below is zero

    def gaps(x: Array) -> Array:
        return np.nan_to_num(np.minimum(x.max(-1, keepdims=True) - x, least), nan=least)

    each: Any = 8.0
    if name in BINARY:
        each = 8 + (np.minimum(np.abs(z), least) if "logits" in a else 0)
    elif name == "softmax":
        each = np.moveaxis(8 + gaps(z), -1, case.axis)
    elif name == "log_sum_exp":
        each = 8 + np.max(gaps(z.reshape(1, -1)))
    elif name not in ("nll", "log_loss"):
        # How far the highest lies from the second, or a target from the highest other one: that difference is
        # rounded before it is exponentiated.
        margin = np.sort(gaps(z))[..., :2][..., -1]
        if "targets" in a:
            margin = np.maximum(
                margin, np.take_along_axis(gaps(z), a["targets"][..., None].astype(int), -1)[..., 0]
            )
        each = 8 + (np.expand_dims(margin, case.axis) if name == "log_softmax" else margin)
    if name in ("distillation_loss", "mixed_loss"):
        # Both rows of probabilities carry their gaps' rounding. Each difference v - z is rounded too, and the
        # loss moves along its gradient: little beside itself, but for a shift or a far class of both.
        some = {k: o[k] for k in ("temperature", "scale", "direction", "beta")}
        z, v = (np.where(np.isfinite(x.max(-1, keepdims=True)), x, 0.0) for x in (z, a["teacher_logits"]))
        slope = distillation_gradient(z, v, **some, reduction="sum")
        loss = distillation_loss(z, v, **some, reduction="none")
        moved = np.nan_to_num(
            np.abs(slope * np.nan_to_num(v - z, posinf=0, neginf=0)).sum(-1) / loss, posinf=0
        )
        widest = np.minimum((gaps(z).max(-1) + gaps(v).max(-1)) / o["temperature"], least)
        each = np.maximum(8 + widest + 2 * moved, each if name == "mixed_loss" else 0)
    each = each * (1 + o.get("gamma", 0))  # a power multiplies the relative error
    each = each + (1 / o["eps"] if o.get("eps") else 0)  # 1 - eps is rounded, and its logarithm is -eps
    return 4 + (each if o.get("reduction", "none") == "none" else 1 + np.max(each))


def size(case: Case, a: Named, o: Named, expected: Array, info: torch.finfo) -> Any:
    """What the epsilons are of: the result, but where a sum with two signs is its definition."""
    if case.name == "sigmoid":
        return np.abs(expected) + info.tiny / info.eps  # which PyTorch's is zero below
    if case.name == "log_sum_exp":
        return np.abs(expected) + np.max(np.abs(a["x"]), initial=0, where=np.isfinite(a["x"]))
    if case.name == "top_k_loss":  # sum p log p - sum p log q, and the logarithm of what is left of 1
        log_p = a["top_log_probs"]
        log_p = xent.log_softmax(log_p) if o["treatment"].startswith("renormalised") else log_p
        return np.abs(expected) + np.max(1 - 2 * (np.exp(log_p) * np.maximum(log_p, -800)).sum(-1))
    return np.abs(expected)


def zeroed(z: Array, other: Array, o: Named, tiny: float) -> Array:
    """Without the classes that the other row rules out and whose probability is none in the narrower dtype."""
    below = (z.max(-1, keepdims=True) - z) / o["temperature"]
    return np.where(np.isneginf(other) & (below > -math.log(tiny)), -INF, z)


def error(case: Case, a: Named, o: Named) -> float:
    """The error as a share of what is allowed."""
    arrays, tensors = TWINS[case.name]
    expected = returned(arrays, placed(case, a) | o)
    given = {
        k: torch.as_tensor(v) if isinstance(v, np.ndarray) and case.rng.random() < 0.5 else v
        for k, v in o.items()
    }
    observed = returned(tensors, as_tensors(case, placed(case, a)) | given)
    if isinstance(expected, Exception) or isinstance(observed, Exception):
        # A row without a softmax is refused in arrays and nan in tensors.
        passed_on = case.hopeless and isinstance(observed, torch.Tensor) and bool(observed.isnan().any())
        return 0.0 if passed_on or type(expected) is type(observed) else INF
    info = torch.finfo(torch.promote_types(case.dtype, torch.float32))
    assert str(observed.dtype) == f"torch.{info.dtype}" and tuple(observed.shape) == np.shape(expected)
    with np.errstate(all="ignore"):
        got, expected = observed.double().numpy(), np.asarray(expected)
        if np.isinf(expected).any() and "teacher_logits" in a:  # a probability that underflows counts as zero
            z, v = a["student_logits"], a["teacher_logits"]
            u = {"student_logits": zeroed(z, v, o, info.tiny), "teacher_logits": zeroed(v, z, o, info.tiny)}
            expected = np.where(np.isfinite(got), arrays(**placed(case, a | u), **o), expected)
        room = (
            allowed(case, a, o, info.tiny)
            * info.eps
            * np.maximum(size(case, a, o, expected, info), info.tiny)
        )
        share = np.where(
            (got == expected) | (np.isnan(got) & np.isnan(expected)), 0.0, np.abs(got - expected) / room
        )
    return float(np.max(np.nan_to_num(share, nan=INF), initial=0.0))


def message(case: Case, a: Named, o: Named) -> str:
    return f"{case.dtype}, classes last {case.shape}, axis {case.axis}, spread {case.spread}: {o} of {a}"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_tensors_give_what_arrays_give(name: str) -> None:
    rng, failures, of = generator(), [], list(choices(name))
    of *= -(-300 // len(of))  # where there are few options, other inputs
    for choice in of:
        case = Case(name, rng)
        a, o = case.arguments(), chosen(case, choice)
        share = weights_drawn(case, a, o) if name == "sample_targets" else error(case, a, o)
        if share > 1:
            failures.append((share, message(case, a, o)))
    failures.sort(reverse=True)
    assert not failures, (
        f"{len(failures)} of {len(of)}, the worst {failures[0][0]:.3g} times what is allowed: {failures[0][1]}"
    )


def weights_drawn(case: Case, a: Named, o: Named) -> float:
    """The weights of the classes that both draw, which are a matter of the class alone."""
    place = placed(case, a) | o
    expected = returned(TWINS[case.name][0], place | {"rng": case.rng})
    seeded = torch.Generator().manual_seed(int(case.rng.integers(1000)))
    observed = returned(TWINS[case.name][1], as_tensors(case, placed(case, a)) | o | {"generator": seeded})
    if isinstance(expected, Exception) or isinstance(observed, Exception):
        return 0.0 if type(expected) is type(observed) else INF
    assert all(np.shape(x) == tuple(t.shape) for x, t in zip(expected, observed, strict=True))
    tables = [np.full(case.shape, math.nan) for _ in range(2)]
    for table, (at, weights) in zip(tables, (expected, observed), strict=True):
        np.put_along_axis(table, *(np.moveaxis(np.asarray(x), case.axis, -1) for x in (at, weights)), -1)
    eps = torch.finfo(observed[1].dtype).eps
    gaps = a["teacher_logits"].max(-1, keepdims=True) - a["teacher_logits"]
    room = (12 + gaps * (1 + 1 / o["proposal_temperature"])) * eps * tables[0]
    return float(np.nanmax(np.abs(tables[1] - tables[0]) / room, initial=0.0))


@pytest.mark.parametrize("name", sorted(set(TWINS) - {"sample_targets"}))
def test_gradients_are_the_differences_of_arrays(name: str) -> None:
    # Along a direction that leaves distributions what they are. Twice the step and the step give a third estimate
    # and the error of the second; its rounding is that of the values over the step.
    rng, h = generator(), 2.0**-13
    for choice in choices(name):
        case = Case(name, rng, calm=True)
        a, o = case.arguments(), chosen(case, choice)
        p = next(iter(a.values()))
        if o.get("eps") and np.min(np.abs(np.abs(p - 0.5) - 0.5 + o["eps"]), initial=1) < 0.005:
            continue  # too close to the edge of what is clipped
        moving = placed(case, a) | {k: v for k, v in o.items() if isinstance(v, np.ndarray)}
        moving = {k: v for k, v in moving.items() if v.dtype == float}
        fixed = {k: v for k, v in (placed(case, a) | o).items() if k not in moving}
        way = {k: direction(case, k, v) for k, v in moving.items()}
        tensors = {k: torch.from_numpy(np.array(v)).requires_grad_() for k, v in moving.items()}
        still = {k: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for k, v in fixed.items()}
        result = returned(TWINS[name][1], tensors | still)
        if isinstance(result, Exception):
            assert type(returned(TWINS[name][0], moving | fixed)) is type(result)
            continue
        share = rng.normal(size=tuple(result.shape))
        (result * torch.as_tensor(share)).sum().backward()
        slope = sum(float((t.grad.numpy() * way[k]).sum()) for k, t in tensors.items() if t.grad is not None)
        assert all((t.grad is None) == (k in CONSTANT) for k, t in tensors.items()), message(case, a, o)

        def at(step: float, case: Case = case, way: Named = way, moving: Named = moving, fixed: Named = fixed,
               share: Array = share) -> float:  # fmt: skip
            value = TWINS[case.name][0](**{k: v + step * way[k] for k, v in moving.items()}, **fixed)
            return float(np.sum(value * share))

        one, two = ((at(s) - at(-s)) / (2 * s) for s in (h, 2 * h))
        best = (4 * one - two) / 3
        room = abs(best - one) + 1e-13 * (1 + abs(at(0)) + np.abs(share).sum()) / h
        assert abs(slope - best) <= room, (slope, best, room, message(case, a, o))


def direction(case: Case, name: str, x: Array) -> Array:
    noise, of_class = case.rng.normal(size=x.shape), {"axis": case.axis, "keepdims": True}
    if name in CONSTANT:
        return noise * 0
    if name in ("targets", "probs") and case.name in BINARY:
        return x * (1 - x) * noise
    if name in ("probs", "target_probs"):
        return x * (noise - (x * noise).sum(**of_class)) / 8
    return noise - (np.exp(x) * noise).sum(**of_class) if name == "log_probs" else noise


def test_the_twins_are_these() -> None:
    functions = {n for n in xt.__all__ if inspect.isfunction(getattr(xt, n))}
    assert functions - set(TWINS) == ONLY_TENSORS
