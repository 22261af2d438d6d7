"""What chapter 5 claims about lost digits, and attempts to refute it: other logits, formats and class counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import oracle
import xent
import xent.torch
from adversary import DIGITS, Array, batches, claim, printed, rng
from xent.gradients import cross_entropy_gradient as exact_slopes

F = torch.nn.functional
NAMES = list(DIGITS)
SHORT = ("float16", "bfloat16")


def true_loss(row: Any) -> mpmath.mpf:
    return oracle.negative_log_softmax(torch.as_tensor(row).double().tolist())[0]


def level(classes: int, margin: float, dtype: Any) -> tuple[Array, mpmath.mpf]:
    """Logits of zero but for the first, and the loss of that class."""
    z = np.zeros(classes, dtype)
    z[0] = margin
    return z, mpmath.log1p((classes - 1) * mpmath.exp(-mpmath.mpf(float(z[0]))))


def log_softmax(z: torch.Tensor, axis: int = -1) -> torch.Tensor:
    return F.log_softmax(z, axis)


def log_of_softmax(z: torch.Tensor, axis: int = -1) -> torch.Tensor:
    return torch.log(torch.softmax(z, axis))


def slopes(z: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """The gradient of the mean loss of the first class."""
    z = z.clone().requires_grad_()
    return torch.autograd.grad(scale * F.cross_entropy(z, torch.zeros(len(z), dtype=torch.long)), z)[0]


def in_range(name: str) -> Array:
    """20,000 numbers over the range of a format."""
    g, info = rng(1), torch.finfo(getattr(torch, name))
    powers = g.uniform(np.log2(info.tiny), np.log2(info.max) - 1, 20_000).astype(int)
    return np.asarray(g.uniform(1, 2, 20_000) * 2.0**powers)


@claim(
    "A single rounding is off by at most $u$ ... runs out of digits.",
    on=lambda: [(name, in_range(name)) for name in ("float32", *SHORT)],
    but_not={
        f"subnormal numbers of {n}": (n, np.linspace(1, 9, 99) * 2.0**-k)
        for n, k in (("float32", 149), ("float16", 24))
    },
)
def test_a_rounding_errs_by_at_most_u_and_comes_close_to_it(name: str, x: Array) -> None:
    numbers = torch.from_numpy(x)
    error = ((numbers.to(getattr(torch, name)).double() - numbers) / numbers).abs().max().item()
    assert 0.95 < error * 2.0 ** DIGITS[name] <= 1


LOWEST = {name: int(np.log2(torch.finfo(getattr(torch, name)).tiny)) for name in NAMES}


@claim(
    "Intervals from one power of two ... each power of two.",
    on=[(n, k) for n in NAMES for k in np.linspace(LOWEST[n] + DIGITS[n], -LOWEST[n], 99).astype(int)],
    but_not={f"where the gaps of {n} stay the same": (n, LOWEST[n] - 1) for n in NAMES},
)
def test_each_octave_holds_equally_many_numbers(name: str, power: int) -> None:
    start = torch.tensor(2.0 ** float(power), dtype=getattr(torch, name))
    gap = torch.nextafter(start, 2 * start) - start
    assert float(gap) == 2.0 ** (power + 1 - DIGITS[name])


def finite_rows() -> Iterator[Array]:
    for z in [*(z for _, z, _ in batches(rng(3))), *(rng(3).normal(size=(50, 7)) * s for s in (1e2, 1e30))]:
        yield from (z.astype(t) for t in ("f8", "f4", "f2") if np.abs(z).max() < 6e4 or t != "f2")


@claim(
    "On paper, shifting the logits by their maximum",
    on=finite_rows,
    but_not={"a shift by the mean": (np.array([[0.0, 2e3, 2e3, 0]]), np.mean)},
)
def test_the_shift_changes_nothing_and_prevents_overflow(z: Array, of: Any = np.max) -> None:
    shift = of(z, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        assert np.exp(z - shift).max() <= 1
    if z.dtype == "f8" and len(z.T) < 20 and np.abs(z).max() < 1e5:
        with mpmath.workdps(60):
            rows = ([mpmath.mpf(v) - by for v in z[0].tolist()] for by in (0, mpmath.mpf(float(shift[0, 0]))))
            p, q = ([mpmath.exp(v) / mpmath.fsum(map(mpmath.exp, row)) for v in row] for row in rows)
            assert all(abs(a - b) <= mpmath.mpf(10) ** -25 * a for a, b in zip(p, q, strict=True))


@claim(
    "a term that is too small for the format ... change it.)",
    on=[(n, share) for n in ("float16", "bfloat16", "float32") for share in (0.3, 0.4, 0.499)],
    but_not={f"a term that {n} holds": (n, 1.0) for n in ("float16", "bfloat16", "float32")},
)
def test_what_underflows_is_missed_in_float16_only(name: str, share: float) -> None:
    """The largest terms that a format rounds to zero: one of them, and 60,000, beside the roundoff of 1."""
    dtype, info = getattr(torch, name), torch.finfo(getattr(torch, name))
    term = share * info.tiny * info.eps
    assert torch.tensor(term, dtype=torch.float64).to(dtype) == 0 and term < info.eps / 1000
    assert (60_000 * term > info.eps) == (name == "float16")


def gap_row(gap: float, classes: int = 2, spread: float = 0.0) -> torch.Tensor:
    z = torch.from_numpy(-spread * rng(5).uniform(size=classes)).float()
    z[1], z[0] = 0, -gap
    return z


@claim(
    "The logarithm of a float32 softmax is infinite",
    on=lambda: (
        [
            gap_row(*case)
            for gap in (104.01, *rng(5).uniform(104, 1e4, 9))
            for case in itertools.product((gap,), (2, 10, 50_257), (0, 1))
        ]
        + [gap_row(96, 50_257)]
    ),
    but_not={"a gap of 103": gap_row(103.0)},
)
def test_log_of_softmax_is_lost_beyond_104_for_any_number_of_classes(z: torch.Tensor) -> None:
    assert torch.isinf(log_of_softmax(z))[0]
    assert log_softmax(z)[0].item() == pytest.approx(log_softmax(z.double())[0].item(), rel=1e-6)


@claim(
    "For a right answer with two classes ... $\\log(1/u)$.",
    on=[(n, a, at) for n, a in (("float64", 8.0), ("float32", 4.0)) for at in (0.0, 2.0)],
    but_not={
        "the subtraction without a shift": ("float64", 8.0, 1e3, lambda z: torch.logsumexp(z, 1) - z[:, 0]),
        "images of 16 bits": (
            "float16",
            2.0,
            0.0,
            lambda z: -log_softmax(z[..., None].expand(-1, -1, 40), 1)[:, 0, 0],
        ),
        "the sum of the others": ("float32", 4.0, 0.0, lambda z: torch.log1p(torch.exp(z[:, 1] - z[:, 0]))),
    },
)
def test_the_subtraction_loses_digits_along_a_line(
    name: str, start: float, shift: float, of: Any = lambda z: -log_softmax(z)[:, 0]
) -> None:
    g, dtype, dead = rng(6), getattr(torch, name), DIGITS[name] * np.log(2)
    margins, base = np.sort(g.uniform(start, dead - 1, 300)), g.uniform(-3, 3, 300) + shift
    z = torch.from_numpy(np.stack([base + margins, base], 1)).to(dtype)
    off = [oracle.epsilons(v, true_loss(row), name) for v, row in zip(of(z).tolist(), z, strict=True)]
    digits = -np.log10(np.array(off) * torch.finfo(dtype).eps + 1e-18)
    # The median error of a rounding is a quarter of an ulp: u / 2, or 0.3 digits more than u.
    slope, at_dead = np.polyfit(margins - dead, digits, 1)
    assert abs(slope * np.log(10) + 1) < 0.12 and abs(at_dead - 0.3) < 0.5
    beyond = torch.tensor([[dead + more + shift, shift] for more in (0.1, 5, dead)], dtype=dtype)
    assert (of(beyond) == 0).all()


@claim(
    "The gradient loses the right class's entry along",
    "The right class's entry becomes 0 ... $1 - 1$ is 0.",
    on=lambda: [
        (n, a + np.log(k - 1), k, rows)
        for n in NAMES
        for dead in (DIGITS[n] * np.log(2),)
        for k, rows in ((2, 1), (3, 1), (20, 64), (100, 4096))
        for a in (*rng(23).uniform(dead + 0.5, 2 * dead, 5), *rng(24).uniform(1, dead - 0.5, 5))
    ],
    but_not={
        **{
            f"the softmax of {n}": (n, a, 2, 1, slopes, torch.softmax)
            for n, a in (("float16", 8.0), ("bfloat16", 6.0))
        },
        "xent's gradient": ("float64", 40.0, 2, 1, lambda z: torch.from_numpy(exact_slopes(z.numpy(), [0]))),
    },
)
def test_the_right_classs_entry_follows_the_loss(
    name: str, margin: float, classes: int, rows: int, slopes_of: Any = slopes, p_of: Any = None
) -> None:
    z = torch.zeros(rows, classes, dtype=getattr(torch, name))
    z[:, 0] = margin
    entry, loss = rows * slopes_of(z)[0, 0].double(), F.cross_entropy(z[:1], torch.tensor([0]))
    assert (loss == 0) == (entry == 0) == (float(z[0, 0]) > DIGITS[name] * np.log(2) + np.log(classes - 1))
    p = torch.exp(-loss.double()) if p_of is None else p_of(z, -1)[0, 0]
    # Half precision takes its exponentials in float32; elsewhere each may be off by a unit in the last place.
    near = torch.finfo(z.dtype).eps / (4 if name in SHORT else 1)
    assert float(p) - 1 == pytest.approx(float(entry), abs=near)


def gap_form(z: Array) -> float:
    gap, others = z.max() - z[0], np.exp(z[1:] - z.max()).sum()
    return float(np.log1p(others) if gap == 0 else gap + np.log(np.exp(-gap) + others))


ENDS = (("f4", 87.3), ("f8", 708.3))


def both_ends() -> Iterator[Any]:
    g = rng(9)
    for dtype, end in (("f8", 700), ("f4", 80)):
        for k, a in itertools.product((2, 5, 1000), (0.0, -1e-9, *g.uniform(-end, end, 6))):
            z = g.normal(size=k) + g.choice([0.0, 10.0])
            z[0] = z[1:].max() + a
            yield (z.astype(dtype),)
    for dtype, end in ENDS:
        yield from (level(50_257, a, dtype) for a in g.uniform(end / 2, end, 3))


def added_in_turn() -> tuple[Any, ...]:
    """A vocabulary's rival and tail below the roundoff of its term, which NumPy adds one by one on an inner axis."""
    z = rng(9).normal(-17, 1, (50_257, 2)).astype("f4")
    z[:2] = [[20.0], [0.0]]
    terms = np.exp(z[1:] - z.max(axis=0)).sum(axis=0)
    return z[:, 0], None, lambda _: float(np.log1p(terms[0]))


@pytest.mark.slow
@claim(
    "Where the target leads, leave it out ... underflow.",
    on=both_ends,
    but_not=lambda: {
        "the sum of a vocabulary on an inner axis": added_in_turn(),
        **{
            f"a vocabulary's terms of {t} that underflow": (*level(50_257, a, t), gap_form)
            for t, a in (("f2", 18.3), ("f4", 97.2), ("f8", 718.3))
        },
        "the target left out where another leads": (
            np.array([-800.0, 0]),
            None,
            lambda z: np.log1p(np.exp(np.minimum(z[1:] - z[0], 709)).sum()),
        ),
        "the target left in": (np.array([30.0, 0, 0]), None, lambda z: np.logaddexp.reduce(z) - z[0]),
        "the logarithm of the softmax": (np.array([-740.0, 0]), None, lambda z: -np.log(xent.softmax(z)[0])),
    },
)
def test_the_gap_form_keeps_its_digits_at_both_ends(z: Array, truth: Any = None, of: Any = gap_form) -> None:
    truth = true_loss(z) if truth is None else truth
    assert truth > np.finfo(z.dtype).tiny
    assert oracle.epsilons(of(z), truth, z.dtype) < 8 + abs(float(z[0] - z[1:].max()))
    if len(z) <= 1000:  # the package takes the rounding back
        assert oracle.epsilons(float(xent.cross_entropy(z, 0)), truth, z.dtype) <= 4


@claim(
    "Add up the losses of a batch in float32 ... before that.",
    "In bfloat16 the sum does not overflow here",
    on=lambda: [
        s * x for s in (0.5, 3, 8) for x in (rng(10).exponential(size=12_000), rng(10).uniform(0, 2, 12_000))
    ],
    but_not={
        "losses of 300 nats": (np.full(1000, 300.0),),
        "a sum to 65,519": (np.full(12_000, 3.0), 65_519),
        "PyTorch's own sum, which adds in parts": (np.full(12_000, 3.0), 65_520, torch.sum),
    },
)
def test_sums_in_half_precision_overflow_or_stall(
    losses: Array, end: float = 65_520, of: Any = lambda x: reduce(torch.add, x)
) -> None:
    assert float(of(torch.from_numpy(losses).bfloat16())) < min(losses.sum() / 3, 65_504)
    # float32 keeps the sum: at most one rounding for each addition.
    wide = torch.from_numpy(losses).float().sum().item()
    assert wide == pytest.approx(losses.sum(), rel=len(losses) * 2.0**-24)
    # From half of the next spacing on, the largest number plus a float16 rounds to infinity.
    sums = [torch.tensor(65_504.0).half() + torch.tensor(end - 65_504 - less).half() for less in (0.0, 1.0)]
    assert [bool(total.isinf()) for total in sums] == [True, False]


@claim(
    "float16 rounds to 0 whatever is below ... positive number.",
    "entries of this size survive without scaling",
    on=lambda: [(ours, 2.0**e) for ours in (0, 1) for e in (-25.1, *rng(31).uniform(-34, -26, 10))],
    but_not={
        "a scaled loss": (0, 2.0**-30, torch.float16, 2.0**14),
        "bfloat16": (1, 2.0**-30, torch.bfloat16),
        "a larger entry": (1, 2.0**-24.5),
    },
)
def test_float16_needs_a_scale(ours: int, entry: float, dtype: Any = torch.float16, scale: float = 1) -> None:
    for n, k in ((256, 2), (1024, 10), (4096, 1000)):
        z = torch.zeros(n, k, dtype=dtype)
        z[:, 0] = -np.log(entry * n)
        z.requires_grad_()
        y = torch.zeros(n, dtype=torch.long)
        loss = xent.torch.cross_entropy(z, y) if ours else F.cross_entropy(z.float(), y)
        (slope,) = torch.autograd.grad(scale * loss, z)
        assert (slope[:, 1:] == 0).all()


@claim(
    "No loss function that takes the logits can do this ... what it returns.",
    on=[lambda h, w, y: xent.torch.cross_entropy(h @ w.T, y)],
    but_not={"a loss that takes the layer": lambda h, w, y: xent.torch.linear_cross_entropy(h, w, y)},
)
def test_a_loss_of_the_layer_keeps_them(of: Any) -> None:
    """4,096 rows of entries near 2^-28, which add up to 2^-16 in the weights."""
    w = torch.zeros(10, 1, dtype=torch.float16)
    w[0] = 16 * np.log(2)
    w.requires_grad_()
    loss = of(torch.ones(4096, 1).half(), w, torch.zeros(4096, dtype=torch.long))
    assert (torch.autograd.grad(loss, w)[0][1:] == 0).all()


test_a_clipped_loss_is_bounded_and_flat = claim(
    "Clipping bounds the loss by",
    on=["eq-clipped-loss", "eq-clipped-gradient"],
    but_not={
        "no clip": ("eq-clipped-loss", r"\max(p_y, \epsilon)", "p_y"),
        "a lower bound": ("eq-clipped-loss", r"\log\frac1\epsilon", r"\log\frac1{2 \epsilon}"),
        "a gradient beyond the clip": ("eq-clipped-gradient", "0 &", "-1 &"),
    },
)(printed)


@pytest.mark.erratum("2.3", "conditional")
@claim(
    "`log_softmax` is more accurate where the probability ... both lose them.",
    on=[("keep", 1, 86.5), ("keep", 86.5, 91), ("better", 92, 103), ("better", 96, 120), ("lose", -15, -12)],
    but_not={
        "where it underflows, from 87 on": ("better", 87.4, 91),
        "a vocabulary": ("keep", 84, 91, 50_257),
        "2.3: 'more accurate', where nothing underflows": ("better", 38, 42),
        "an underflow where both keep them": ("keep", 105, 115),
        "'more accurate', for a right answer": ("better", -14, -12),
    },
)
def test_where_log_softmax_is_better(which: str, low: float, high: float, classes: int = 2) -> None:
    """From 87 on the probability is subnormal, but its logarithm keeps every digit up to 91."""
    z = torch.zeros(200, classes)
    z[:, 0] = -torch.from_numpy(rng(15).uniform(low, high, 200)).float()
    truth = F.log_softmax(z.double(), 1)[:, 0]
    two, one = ((f(z)[:, 0].double() / truth - 1).abs() for f in (log_of_softmax, log_softmax))
    if which == "lose":
        assert min(one.median(), two.median()) > 1e-4
    else:
        assert one.max() < 2.0**-23 and bool((two != one).double().mean() > 0.5) is (which == "better")
        assert two.mean() > 2 * one.mean() if which == "better" else two.max() < 2.0**-23
