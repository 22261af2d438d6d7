"""Every function of `xent` that exists on tensors too, found by inspection: the two are one function.

They are called with every value of every option and of every pair of options, on logits of one to four
dimensions along every axis; the tensors with and without a gradient, and as `torch.func` calls them. The arrays
are given the tensors' numbers in float64, so that beside the narrower dtypes their rounding does not show; in
float64 it is 4 epsilons more. ``XENT_SEED`` draws other inputs.
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
SPREADS = (0.5, 2.0, 8.0, 20.0, 50.0, 1e4)
# Arguments that one of the two has alone; those that carry no gradient; and where a target is one logit.
ALONE = {"softcap", "treatment", "z_loss"}
CONSTANT = {"teacher_logits", "top_log_probs"}
BINARY = {"binary_cross_entropy", "binary_log_loss"}
ONLY_TENSORS = {
    "accumulate", "check_accumulation", "check_trainer", "linear_cross_entropy", "linear_distillation_loss",
    "linear_selected_log_probs", "mixed_loss", "selected_log_probs", "top_k_of_teacher",
}  # fmt: skip


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
                assert name not in found, f"two functions on arrays are {name}"
                found[name] = pair
    return found


TWINS = twins()
LOGIT_LOSSES = ("cross_entropy", "soft_cross_entropy", "binary_cross_entropy")
GRADIENTS = {name: getattr(xent.gradients, f"{name}_gradient") for name in LOGIT_LOSSES} | {
    "distillation_loss": distillation_gradient
}


def both(name: str) -> list[str]:
    """The options that both have; one that the table of `Case.options` does not know is a KeyError."""
    arrays, tensors = (inspect.signature(f).parameters for f in TWINS[name])
    for one in set(arrays) | set(tensors):
        if one in arrays and one in tensors:
            assert arrays[one].default == tensors[one].default, one
        else:
            assert one in ALONE, one
    return [p for p in tensors if p in arrays and p not in needed(TWINS[name][0])]


class Traced(torch.Tensor):
    """A tensor of some kind whose values are not looked at, as while tracing."""


class Case:
    """Logits of some kind, the classes last, and where the classes are to be; calm ones can be differentiated."""

    def __init__(self, name: str, rng: np.random.Generator, *, calm: bool = False) -> None:
        self.rng, self.name, self.calm, self.hopeless = rng, name, calm, False
        self.rows: tuple[int, ...] = [(), (5,), (2, 3), (2, 1, 3)][rng.integers(4)]
        self.axis = -1 if name in BINARY else int(rng.integers(-len(self.rows) - 1, len(self.rows) + 1))
        self.classes = int(rng.choice([1, 2, 2, 7, 40]))
        self.shape = *self.rows, self.classes
        kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
        self.dtype = kinds[0 if calm else rng.choice(4, p=[0.4, 0.4, 0.1, 0.1])]
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.spread = float(rng.choice(SPREADS[:3] if calm else SPREADS))

    def rounded(self, x: Any, dtype: torch.dtype | None = None) -> Array:
        """Numbers that the dtype has."""
        near: Array = torch.as_tensor(np.clip(x, -6e4, 6e4)).to(dtype or self.dtype).double().numpy()
        return np.where(np.isneginf(x), -INF, near)

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
        z = self.rounded(z)
        if kind == 4 and rng.random() < 0.3:  # rows without a softmax
            self.hopeless = True
            z[rng.random(self.rows) < 0.3] = rng.choice([math.nan, -INF, INF])
        return z

    def teacher(self, z: Array) -> Array:
        """Close to the student or far, surer or less, higher, the same; ruling out the same classes or others."""
        rng, noise = self.rng, self.rng.normal(size=z.shape)
        sure = np.where(np.isfinite(z), z, 0.0)
        kinds = [sure + 10.0 ** -rng.uniform(0, 8) * noise, sure * rng.uniform(0, 6), self.spread * noise]
        kinds += [sure, sure + rng.choice([8, 64]) + 0.1 * noise, sure + 30 * (np.arange(z.shape[-1]) == 0)]
        kinds += [kinds[0] - 9 * (np.arange(z.shape[-1]) == 0)]  # close but for a class
        v = self.rounded(kinds[rng.integers(7)]) if self.calm or rng.random() < 0.9 else self.logits()
        return np.where(np.isneginf(z) & (rng.random() < 0.5) & ~np.isposinf(v), -INF, v)

    def distributions(self) -> Array:
        """In half precision in steps of 1 / 128, whose sum is not rounded; elsewhere small ones too."""
        if self.dtype.itemsize == 2 or (not self.calm and self.rng.random() < 0.3):
            return self.rng.multinomial(128, self.rng.dirichlet(np.full(self.classes, 0.5), self.rows)) / 128
        p = np.exp(self.rng.normal(size=self.shape) * min(self.spread, 2 if self.calm else 8))
        return self.rounded(p / p.sum(-1, keepdims=True))

    def arguments(self) -> Named:
        """A draw of what the function needs, in float64 and with the classes last."""
        rng, binary, made = self.rng, self.name in BINARY, dict[str, Any]()
        chosen = *self.rows, int(rng.integers(1, self.classes + 1))
        for name in needed(TWINS[self.name][0]):
            if name == "targets" and binary:
                y = self.rounded(rng.random(self.shape))
                made[name] = y if rng.random() < 0.5 else np.rint(y).astype(rng.choice(["i8", "u1", "?"]))
            elif name == "targets":
                # Or all of one class.
                labels = rng.integers(0, self.classes, self.rows) * (rng.random() < 0.8)
                made[name] = np.asarray(labels).astype(rng.choice(["i8", "i4", "i2", "u1"]))
            elif name in ("probs", "target_probs"):
                made[name] = self.rounded(rng.random(self.shape)) if binary else self.distributions()
            elif name == "teacher_logits" and made:
                made[name] = self.teacher(made["student_logits"])
            elif name in ("log_probs", "top_log_probs"):
                z = self.teacher(made["student_logits"]) if name == "top_log_probs" else self.logits()
                log_p = xent.log_softmax(np.where(np.isfinite(z), z, -self.spread))
                made[name] = self.rounded(log_p, self.wide)
            elif name == "top_indices":
                made[name] = np.argsort(-made["top_log_probs"], kind="stable")[..., : chosen[-1]]
                made["top_log_probs"] = np.take_along_axis(made["top_log_probs"], made[name], -1)
            else:
                made[name] = self.logits()
        return made

    def options(self, choice: dict[str, int]) -> Named:
        """What each option is: the table holds what it can be, last what both refuse. No weight is rounded."""
        rng, name, least = self.rng, self.name, int(self.calm)  # at a weight of zero there is no derivative
        each = self.shape if name in BINARY else self.rows
        part = tuple(n if rng.random() < 0.5 else 1 for n in each)
        by_target = [None, rng.integers(least, 5, each) / 4, rng.integers(least, 5, part) / 4,
                     rng.random(each) < 0.7, 0.5, -1.0]  # fmt: skip
        by_class = rng.integers(least, 5, self.classes) / 4
        by_class = [None, by_class, by_class > 0.5, np.ones(self.classes + 1)]
        table: dict[str, list[Any]] = {
            "axis": [self.axis, self.axis + 9],
            "weight": by_class,
            "sample_weight": by_target,
            "pos_weight": [None, 2.5, rng.integers(1, 9, self.classes) / 4, 0.0],
            "alpha": by_class,
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
        }
        self.lengths = {o: len(table[o]) for o in both(name)}
        if "denominator" in choice and "reduction" not in choice:
            choice = {**choice, "reduction": 1}
        return {o: table[o][choice.get(o, 0)] for o in self.lengths}

    def placed(self, a: Named) -> Named:
        return {n: x if n == "targets" else np.moveaxis(x, -1, self.axis) for n, x in a.items()}

    def tensors(self, a: Named) -> Named:
        """In the dtype, and half of them with another order of memory."""
        made: Named = {}
        for n, x in self.placed(a).items():
            made[n] = torch.as_tensor(np.array(x))
            if made[n].is_floating_point():
                made[n] = made[n].to(self.wide if n.endswith("log_probs") else self.dtype)
                made[n] = made[n].mT.contiguous().mT if x.ndim > 1 and self.rng.random() < 0.5 else made[n]
        return made

    def __str__(self) -> str:
        return f"{self.dtype}, classes last {self.shape}, axis {self.axis}, spread {self.spread}"


def choices(name: str) -> Iterator[dict[str, int]]:
    """Every value of every two options, by its place in the table, and for each option the one that is refused."""
    some = Case(name, generator())
    some.options({})
    yield {}
    yield from ({o: n - 1} for o, n in some.lengths.items())
    for a, b in itertools.combinations(some.lengths, 2):
        places = itertools.product(range(some.lengths[a] - 1), range(some.lengths[b] - 1))
        yield from ({a: i, b: j} for i, j in places)


def some_choices(name: str, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """Each value of each option three times, the others being what they may."""
    some = Case(name, rng)
    some.options({})
    for option, n in [*some.lengths.items(), ("", 11)]:
        for i in 3 * [*range(n - 1)]:
            others = {o: int(rng.integers(m - 1)) for o, m in some.lengths.items()}
            yield others | ({option: i} if option else {})


def returned(function: Callable[..., Any], arguments: Named) -> Any:
    try:
        return function(**arguments)
    except (ValueError, TypeError) as error:
        return error


def room(case: Case, a: Named, o: Named, expected: Array) -> Any:
    """How far from the arrays' result the arithmetic may end."""
    name, z, info = case.name, next(iter(a.values())), torch.finfo(case.wide)
    least = -math.log(info.tiny)  # what is further below the highest is zero

    def gaps(x: Array) -> Array:
        return np.nan_to_num(np.minimum(x.max(-1, keepdims=True) - x, least), nan=least)

    each, size = 8.0, np.maximum(np.abs(expected), info.tiny)
    if name in BINARY:
        each = 8 + (np.minimum(np.abs(z), least) if "logits" in a else 0)
    elif name not in ("nll", "log_loss"):
        # How far the highest lies from the second, or a target from the highest other one: that difference is
        # rounded before it is exponentiated.
        margin = np.sort(gaps(z))[..., :2][..., -1]
        if "targets" in a:
            own = np.take_along_axis(gaps(z), a["targets"][..., None].astype(int), -1)[..., 0]
            margin = np.maximum(margin, own)
        each = 8 + (np.expand_dims(margin, case.axis) if name == "log_softmax" else margin)
    if "teacher_logits" in a:
        # Both rows of probabilities carry their gaps' rounding. Each difference v - z is rounded too, and the
        # loss moves along its gradient: little beside itself, but for a shift or a class that is far in both.
        some = {k: o[k] for k in ("temperature", "scale", "direction", "beta")}
        z, v = (np.where(np.isfinite(x.max(-1, keepdims=True)), x, 0.0) for x in (z, a["teacher_logits"]))
        slope = distillation_gradient(z, v, **some, reduction="sum")
        loss = distillation_loss(z, v, **some, reduction="none")
        moved = np.abs(slope * np.nan_to_num(v - z, posinf=0, neginf=0)).sum(-1) / loss
        widest = np.minimum((gaps(z).max(-1) + gaps(v).max(-1)) / o["temperature"], least)
        each = 8 + widest + 2 * np.nan_to_num(moved, posinf=0)
    if name == "top_k_loss":
        # Of the sums p log p and p log q, whose difference it is, and of what is left of 1.
        log_p = a["top_log_probs"]
        size = size + gaps(z).max()  # an epsilon or none may be left
        size = size + np.max(1 - 2 * (np.exp(log_p) * np.maximum(log_p, -least)).sum(-1))
    each = each * (1 + o.get("gamma", 0))  # a power multiplies the relative error
    each = each + (1 / o["eps"] if o.get("eps") else 0)  # 1 - eps is rounded, and its logarithm is -eps
    allowed = (4 + (each if o.get("reduction", "none") == "none" else 1 + np.max(each))) * info.eps * size
    if "teacher_logits" in a:
        # A probability below the normal numbers has few digits or none, and the other row's may be a multiple of it.
        allowed = np.where(np.abs(expected) < info.tiny, np.maximum(allowed, np.abs(expected)), allowed)
    return allowed


def without(z: Array, other: Array, case: Case, temperature: float) -> Array:
    """Without classes that the other row rules out and whose probability is zero in the dtype of the tensors."""
    below = (z.max(-1, keepdims=True) - z) / temperature
    return np.where(np.isneginf(other) & (below > -math.log(torch.finfo(case.wide).tiny)), -INF, z)


def error(case: Case, a: Named, o: Named) -> float:
    """The error as a share of the room that there is."""
    arrays, tensors = TWINS[case.name]
    expected = returned(arrays, case.placed(a) | o)
    as_arrays = case.rng.random() < 0.5
    given = {k: x if as_arrays or not isinstance(x, np.ndarray) else torch.as_tensor(x) for k, x in o.items()}
    given |= case.tensors(a)
    first = next(iter(a))
    # By the fast formula, that with a gradient, or the plain one for transforms, which looks at no value.
    way = case.rng.integers(2 if isinstance(expected, Exception) else 3)
    given[first] = given[first].as_subclass(Traced) if way == 2 else given[first].requires_grad_(bool(way))
    observed = returned(tensors, given)
    if isinstance(expected, Exception) or isinstance(observed, Exception):
        # A row without a softmax is refused in arrays and nan in tensors.
        passed_on = case.hopeless and isinstance(observed, torch.Tensor) and bool(observed.isnan().any())
        return 0.0 if passed_on or type(expected) is type(observed) else INF
    assert observed.dtype == case.wide and tuple(observed.shape) == np.shape(expected)
    got, expected = observed.detach().as_subclass(torch.Tensor).double().numpy(), np.asarray(expected)
    with np.errstate(all="ignore"):
        if np.isinf(expected).any() and "teacher_logits" in a:  # a probability that underflows counts as zero
            z, v, t = a["student_logits"], a["teacher_logits"], o["temperature"]
            u = {"student_logits": without(z, v, case, t), "teacher_logits": without(v, z, case, t)}
            expected = np.where(np.isfinite(got), arrays(**case.placed(a | u), **o), expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        if case.name == "top_k_loss":  # whether an epsilon is left of 1 decides about an impossible class
            left = np.abs(1 - np.exp(a["top_log_probs"]).sum(-1))
            same |= (np.isinf(got) | np.isinf(expected)) & (left < 64 * torch.finfo(case.wide).eps).any()
        share = np.where(same, 0.0, np.abs(got - expected) / room(case, a, o, expected))
    return float(np.max(np.nan_to_num(share, nan=INF), initial=0.0))


@pytest.mark.parametrize("name", sorted(TWINS))
def test_tensors_give_what_arrays_give(name: str) -> None:
    rng, failures, of = generator(), [], list(choices(name))
    of *= -(-300 // len(of))  # where there are few options, other inputs
    for choice in of:
        case = Case(name, rng)
        a, o = case.arguments(), case.options(choice)
        share = error(case, a, o)
        if share > 1:
            failures.append((share, f"{case}: {o} of {a}"))
    worst = max(failures, default=(0.0, ""))
    assert not failures, f"{len(failures)} of {len(of)}, the worst {worst[0]:.3g} times the room: {worst[1]}"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_gradients_are_the_differences_of_arrays(name: str) -> None:
    # Along a direction that leaves distributions what they are, by logits alone or by all that may have a gradient.
    # From a step and its double follow a third estimate and the error of the first; rounding is over the step.
    rng, h = generator(), 2.0**-13
    arrays, function = TWINS[name]
    for choice in some_choices(name, rng):
        case = Case(name, rng, calm=True)
        a, o = case.arguments(), case.options(choice)
        given = case.placed(a) | o
        first = next(iter(a))
        if o.get("eps") and np.min(np.abs(np.abs(a[first] - 0.5) - 0.5 + o["eps"])) < 0.005:
            continue  # close to the edge of what is clipped
        real = {k: x for k, x in given.items() if isinstance(x, np.ndarray) and x.dtype == float}
        moving = real if rng.random() < 0.5 else {first: real[first]}
        way = {k: direction(case, k, x) for k, x in moving.items()}
        arrays_of = {k: x for k, x in given.items() if isinstance(x, np.ndarray)}
        tensors = given | {k: torch.as_tensor(np.array(x)) for k, x in arrays_of.items()}
        for k in moving:
            tensors[k].requires_grad_()
        result = returned(function, tensors)
        if isinstance(result, Exception):
            assert type(returned(arrays, given)) is type(result)
            continue
        share = rng.normal(size=tuple(result.shape))
        (result * torch.as_tensor(share)).sum().backward()
        assert all((tensors[k].grad is None) == (k in CONSTANT) for k in moving), f"{case}: {o}"
        slope = sum(float((tensors[k].grad.numpy() * way[k]).sum()) for k in set(moving) - CONSTANT)
        steps = {s: {k: x + s * way[k] for k, x in moving.items()} for s in (-2 * h, -h, 0.0, h, 2 * h)}
        at = {s: float(np.sum(arrays(**given | stepped) * share)) for s, stepped in steps.items()}
        one, two = ((at[s] - at[-s]) / (2 * s) for s in (h, 2 * h))
        best = (4 * one - two) / 3
        allowed = abs(best - one) + 1e-13 * (1 + abs(at[0]) + np.abs(share).sum()) / h
        assert abs(slope - best) <= allowed, f"{slope}, {best} within {allowed}, {case}: {o} of {a}"
        if own := GRADIENTS.get(name):  # the one on arrays, which takes each row's share to be one
            each = np.expand_dims(share, case.axis) if share.ndim and name not in BINARY else share
            theirs = tensors[first].grad.numpy()
            # A sure student's reverse and "jsd" gradients are differences of log ratios: their error is absolute.
            error = 1e-14 * np.abs(share).max() if o.get("direction", "forward") != "forward" else 0.0
            atol = error + 1e-12 * np.abs(theirs).max()
            np.testing.assert_allclose(own(**given) * each, theirs, rtol=1e-9, atol=atol)


def direction(case: Case, name: str, x: Array) -> Array:
    noise, axis = case.rng.normal(size=x.shape), case.axis
    if name in CONSTANT:
        return noise * 0
    if name in ("targets", "probs") and case.name in BINARY:
        return x * (1 - x) * noise
    if name in ("probs", "target_probs"):
        return x * (noise - (x * noise).sum(axis, keepdims=True)) / 8
    return noise - (np.exp(x) * noise).sum(axis, keepdims=True) if name == "log_probs" else noise


def test_every_function_has_its_twin_or_is_for_tensors_alone() -> None:
    functions = {n for n in xt.__all__ if inspect.isfunction(getattr(xt, n))}
    assert functions - set(TWINS) == ONLY_TENSORS
    assert {f.__name__ for f in GRADIENTS.values()} > {*xent.gradients.__all__}
