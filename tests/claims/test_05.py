"""What chapter 5 claims about lost digits, and attempts to refute it: other logits, formats and class counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import xent
import xent.torch
from adversary import DIGITS, batches, claim, printed, rng
from xent import gradients

F = torch.nn.functional
Array = np.ndarray
NAMES = list(DIGITS)
SHORT = ("float16", "bfloat16")
FIRST = torch.tensor([0])


def true_loss(row: Any, y: int = 0) -> mpmath.mpf:
    """The loss with 60 digits, from the definition, of a row as it is stored."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(v) for v in torch.as_tensor(row).double().tolist()]
        return mpmath.log1p(mpmath.fsum(mpmath.exp(v - z[y]) for j, v in enumerate(z) if j != y))


def level(classes: int, margin: float, dtype: Any) -> tuple[Array, mpmath.mpf]:
    """Logits of zero but for the first, and the loss of that class."""
    z = np.zeros(classes, dtype)
    z[0] = margin
    with mpmath.workdps(60):
        return z, mpmath.log1p((classes - 1) * mpmath.exp(-mpmath.mpf(float(z[0]))))


def off_by(value: float, truth: mpmath.mpf) -> float:
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(value) - truth) / truth)


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
    "One rounding is off by at most $u$ ... in bfloat16.",
    on=lambda: [(name, in_range(name)) for name in ("float32", *SHORT)],
    but_not={
        f"subnormal numbers of {n}": (n, np.linspace(1, 9, 99) * 2.0**-k)
        for n, k in (("float32", 149), ("float16", 24))
    },
)
def test_a_rounding_errs_by_at_most_u_and_comes_close_to_it(name: str, x: Array) -> None:
    numbers = torch.from_numpy(x)
    error = ((numbers.to(getattr(torch, name)).double() - numbers) / numbers).abs().max().item()
    assert 0.95 < error * 2.0 ** {"float32": 24, "float16": 11, "bfloat16": 8}[name] <= 1


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
    "a term that is too small for the format ... large enough.)",
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
    on=lambda: [
        *(
            gap_row(v, k, s)
            for k in (2, 10, 50_257)
            for v in (104.01, *rng(5).uniform(104, 1e4, 9))
            for s in (0, 1)
        ),
        gap_row(96, 50_257),
    ],
    but_not={"a gap of 103": gap_row(103.0)},
)
def test_log_of_softmax_is_lost_beyond_104_for_any_number_of_classes(z: torch.Tensor) -> None:
    assert torch.isinf(log_of_softmax(z))[0]
    others = float(np.log(np.exp(z[1:].double().numpy()).sum()))
    assert log_softmax(z)[0].item() == pytest.approx(float(z[0]) - others, rel=1e-6)


@claim(
    "For a right answer of two classes ... $\\log(1/u)$.",
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
    digits = [-np.log10(off_by(v, true_loss(row)) + 1e-18) for v, row in zip(of(z).tolist(), z, strict=True)]
    # The median error of a rounding is a quarter of an ulp: u / 2, or 0.3 digits more than u.
    slope, at_dead = np.polyfit(margins - dead, digits, 1)
    assert abs(slope * np.log(10) + 1) < 0.12 and abs(at_dead - 0.3) < 0.5
    beyond = torch.tensor([[dead + more + shift, shift] for more in (0.1, 5, dead)], dtype=dtype)
    assert (of(beyond) == 0).all()


def end_of(name: str, inside: bool = False) -> float:
    """The margin at which exp rounds to 0 in a format, or in that in which PyTorch computes its softmax."""
    dtype = getattr(torch, name)
    info = torch.finfo(torch.promote_types(dtype, torch.float32) if inside else dtype)
    return float(np.log(2) - np.log(info.tiny) - np.log(info.eps))


def lost_entries() -> Iterator[tuple[Any, ...]]:
    """Margins beyond the one at which the loss dies, with subnormal numbers and zero; means and scaled losses."""
    for name in NAMES:
        dead, zero = DIGITS[name] * np.log(2), end_of(name)
        for k in (2, 3, 20, 100):
            margins = [
                dead + np.log(k) + 0.6,
                zero - 0.3,
                zero - 2,
                zero + 3,
                760.0 if name == "float64" else 110.0,
            ]
            yield from ((name, k, margin) for margin in margins if margin > dead + np.log(k) + 0.5)
        for n in (64, 4096):
            yield from (
                (name, 2, a, n)
                for a in (dead + 1, zero - np.log(n) - 0.5, zero - np.log(n) + 0.5)
                if a > dead
            )
        yield from ((name, 2, zero + more, 1, 2.0**10) for more in (1, 3))


@claim(
    "The gradient loses the right class's entry along",
    on=lost_entries,
    but_not={
        **{f"a margin at which the loss of {n} lives": (n, 3, DIGITS[n] * np.log(2) / 2) for n in NAMES},
        **{
            f"an entry of {n} lost while it is subnormal": (n, 3, end_of(n) - 0.5, 1, 1.0, True)
            for n in NAMES
        },
        **{f"a mean in {n} that keeps its entry": (n, 2, end_of(n) - 1, 64, 1.0, False) for n in NAMES},
        **{f"a scaled loss in {n} that loses it": (n, 2, end_of(n) + 1, 1, 2.0**10, True) for n in SHORT},
    },
)
def test_the_right_entry_dies_first(
    name: str, classes: int, margin: float, rows: int = 1, scale: float = 1.0, lost: bool | None = None
) -> None:
    info = torch.finfo(getattr(torch, name))
    z = torch.zeros(rows, classes, dtype=getattr(torch, name))
    z[:, 0] = margin
    found, stored = slopes(z, scale)[0].double(), float(z[0, 0])
    assert found[0] == 0
    if lost is None:
        lost = stored > min(end_of(name, inside=True), end_of(name) + np.log(scale / rows))
    if lost:
        assert not found[1:].any()
        return
    expected = np.exp(-stored) / (1 + (classes - 1) * np.exp(-stored)) * scale / rows
    # A few roundings, and one of the exponent, which multiplies it; a subnormal number is off by up to one step.
    allowed = (16 + 2 * margin) * 2.0 ** -DIGITS[name] * expected + info.tiny * info.eps
    assert found[1:].all() and (found[1:] - expected).abs().max() < allowed


@claim(
    "The entry of the right class becomes 0 ... $1 - 1$ is 0.",
    on=lambda: [
        (n, a)
        for n in NAMES
        for dead in (DIGITS[n] * np.log(2),)
        for a in (*rng(23).uniform(dead + 0.1, 2 * dead, 9), *rng(24).uniform(1, dead - 0.4, 9))
    ],
    but_not={
        f"the softmax of {n}": (n, a, lambda z: torch.softmax(z, -1)[0, 0])
        for n, a in zip(SHORT, (8.0, 6.0), strict=True)
    },
)
def test_the_right_classs_entry_follows_the_loss(
    name: str, margin: float, p_of: Any = lambda z: torch.exp(-F.cross_entropy(z, FIRST).double())
) -> None:
    z = torch.tensor([[margin, 0.0]], dtype=getattr(torch, name))
    entry, loss = slopes(z)[0, 0], F.cross_entropy(z, FIRST)
    assert (loss == 0) == (entry == 0) == (margin > DIGITS[name] * np.log(2))
    # Half precision takes its exponentials in float32; elsewhere each may be off by a unit in the last place.
    near = torch.finfo(z.dtype).eps / (4 if name in SHORT else 1)
    assert float(p_of(z.detach())) - 1 == pytest.approx(float(entry), abs=near)


MARGINS = {"float64": (37.5, 700), "float32": (17.4, 87), "float16": (8, 9.6), "bfloat16": (6, 86)}


@claim(
    "As long as that entry keeps its digits",
    on=lambda: [
        *((n, a) for n in NAMES for a in rng(8).uniform(*MARGINS[n], 30)),
        ("bfloat16", 8.5, 2, 1024),
    ],
    but_not={
        "a margin of ten": ("float32", 10.0),
        "ten classes": ("float32", 25.0, 10),
        "a mean in float16": ("float16", 9.5, 2, 1024),
        "a smallest number": ("float16", 17.0),
        "nothing": ("float16", 18.0),
    },
)
def test_the_difference_of_the_entries_is_half(
    name: str, margin: float, classes: int = 2, rows: int = 1
) -> None:
    z = torch.tensor([[margin] + [0.0] * (classes - 1)] * rows, dtype=getattr(torch, name))
    along = rows * float(slopes(z)[0, 1:].mean() - slopes(z)[0, 0])
    near = 1e-4 + 4 * torch.finfo(z.dtype).eps
    assert along / (classes * np.exp(-z[0, 0].item())) == pytest.approx(0.5, rel=near)


def gap_form(z: Array) -> float:
    gap, others = z.max() - z[0], np.exp(z[1:] - z.max()).sum()
    return float(np.log1p(others) if gap == 0 else gap + np.log(np.exp(-gap) + others))


def both_ends() -> Iterator[Any]:
    g = rng(9)
    for dtype, end in (("f8", 700), ("f4", 80)):
        for k, a in itertools.product((2, 5, 1000), (0.0, -1e-9, *g.uniform(-end, end, 6))):
            z = g.normal(size=k) + g.choice([0.0, 10.0])
            z[0] = z[1:].max() + a
            yield (z.astype(dtype),)
    for dtype, end in (("f4", 87.3), ("f8", 708.3)):
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
            np.array([-800.0, 0.0]),
            None,
            lambda z: float(np.log1p(np.exp(np.minimum(z[1:] - z[0], 709)).sum())),
        ),
        "the target left in": (
            np.array([30.0, 0, 0]),
            None,
            lambda z: float(np.log(np.exp(z - z.max()).sum()) + z.max() - z[0]),
        ),
        "the logarithm of the softmax": (
            np.array([-740.0, 0.0]),
            None,
            lambda z: float(-np.log(xent.softmax(z)[0])),
        ),
    },
)
def test_the_gap_form_keeps_its_digits_at_both_ends(z: Array, truth: Any = None, of: Any = gap_form) -> None:
    truth, eps = true_loss(z) if truth is None else truth, float(np.finfo(z.dtype).eps)
    assert truth > np.finfo(z.dtype).tiny
    assert off_by(of(z), truth) < (8 + abs(float(z[0] - z[1:].max()))) * eps
    if len(z) <= 1000:  # the package takes the rounding back
        assert off_by(float(xent.cross_entropy(z, 0)), truth) <= 4 * eps


ENDS = (("f4", 87.3), ("f8", 708.3))


def noise(classes: int, dtype: str, scale: float, ahead: float) -> Array:
    z = (scale * rng(21).normal(size=(8, classes))).astype(dtype)
    z[:, 0] += np.dtype(dtype).type(ahead)
    return z


def dropped(classes: int, dtype: str, lead: float, at: int) -> Array:
    """One rival, and beside it terms of 0.99 u, of which a sum of two keeps nothing."""
    z = np.full((1, classes), lead + np.log(0.99 * np.finfo(dtype).eps / 2), dtype)
    z[:, 0], z[:, at] = 0, lead
    return z


def alike(classes: int, dtype: str) -> Array:
    """Equal rivals: each z_j - z_y is rounded by the same amount, and no term of the sum is rounded away."""
    z = np.repeat(rng(21).uniform(-4, 4, (40, 1)), classes, 1).astype(dtype)
    z[:, 0] += rng(22).uniform(8, 12, 40).astype(dtype)
    return z


def exact_rows() -> Iterator[tuple[Any, ...]]:
    for (dtype, end), which in itertools.product(ENDS, ("arrays", "tensors")):
        for k in (2, 3, 10, 1000, 50_257):
            for a in (*rng(21).uniform(-end, end, 3), *rng(22).uniform(end - 3, end, 3)):
                z, truth = level(k, a, dtype)
                yield z[None], which, [truth]
        for k, ahead in itertools.product((2, 10, 129, 1000), (0.0, 5.0)):
            yield noise(k, dtype, 2 * ahead or 1.0, ahead), which
            yield noise(k, dtype, 0.1, np.log(k) + 3), "inner" if which == "arrays" else which
        if which == "tensors":
            yield alike(300, dtype), which
            yield from ((dropped(k, dtype, lead, 1), which) for k in (64, 128, 1000) for lead in (0.0, -9.0))
    yield (
        noise(10_000, "f4", 0.1, np.log(10_000) + 3),
        "inner",
    )  # a sum of one class after another was 24 ulp off


@pytest.mark.slow
@claim(
    "In its tests `xent` computes ... exceed the first bound.",
    on=exact_rows,
    but_not=lambda: {
        "terms that round alike": (alike(300, "f4"), "arrays"),
        "terms that are each rounded away": (
            np.vstack([dropped(256, "f4", lead, at) for lead in (0.0, -9.0) for at in (1, 2, 128, 255)]),
            "arrays",
        ),
        **{
            f"a loss that is a normal number of {t}, of terms that are not": (
                np.stack([level(50_257, end + np.log(50_257) - less, t)[0] for less in (0.3, 1, 1.7)]),
                "arrays",
            )
            for t, end in ENDS
        },
    },
)
def test_the_package_keeps_its_digits(z: Array, which: str, truths: Any = None) -> None:
    """Rows with the target first, computed together; also where the classes are an inner axis of images."""
    info, y = np.finfo(z.dtype), np.zeros((1, len(z)), int)
    if which == "tensors":
        found = xent.torch.cross_entropy(
            torch.from_numpy(z), torch.from_numpy(y[0]), reduction="none"
        ).numpy()
    else:
        rows = np.ascontiguousarray(z.T)[None] if which == "inner" else z[None]
        found = xent.cross_entropy(rows, y, axis=1 if which == "inner" else -1, reduction="none")[0]
    for row, value, truth in zip(z, found, truths or map(true_loss, z), strict=True):
        assert truth >= info.tiny
        allowed = 8 + abs(float(row[0] - row[1:].max())) if which == "tensors" else 4
        assert off_by(float(value), truth) <= allowed * float(info.eps)


def running_sum(losses: torch.Tensor) -> float:
    total = torch.zeros((), dtype=torch.bfloat16)
    for loss in losses:
        total = total + loss
    return float(total)


@claim(
    "Add up the losses of a batch in float32 ... before that.",
    "In bfloat16 the sum does not overflow here",
    on=lambda: [(draw(12_000),) for s in (0.5, 3.0, 8.0) for draw in exponential_and_uniform(s)],
    but_not={
        "losses of 300 nats": (np.full(1000, 300.0),),
        "a sum to 65,519": (np.full(12_000, 3.0), 65_519),
        "PyTorch's own sum, which adds in parts": (np.full(12_000, 3.0), 65_520, torch.sum),
    },
)
def test_sums_in_half_precision_overflow_or_stall(
    losses: Array, end: float = 65_520, of: Any = running_sum
) -> None:
    assert float(of(torch.from_numpy(losses).bfloat16())) < min(losses.sum() / 3, 65_504)
    # float32 keeps the sum: at most one rounding for each addition.
    wide = torch.from_numpy(losses).float().sum().item()
    assert wide == pytest.approx(losses.sum(), rel=len(losses) * 2.0**-24)
    # From half of the next spacing on, the largest number plus a float16 rounds to infinity.
    sums = [torch.tensor(65_504.0).half() + torch.tensor(end - 65_504 - less).half() for less in (0.0, 1.0)]
    assert [bool(total.isinf()) for total in sums] == [True, False]


def exponential_and_uniform(scale: float) -> list[Any]:
    g = rng(10)
    return [lambda n: g.exponential(scale, n), lambda n: g.uniform(0, 2 * scale, n)]


def of_float(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(z.float(), y)


def torch_loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return xent.torch.cross_entropy(z, y)


@claim(
    "float16 rounds whatever is below ... to 0.",
    "In bfloat16, whose range is that of float32",
    on=lambda: [
        (of, 2.0**e) for of in (of_float, torch_loss) for e in (-25.1, *rng(31).uniform(-34, -26, 10))
    ],
    but_not={
        "a scaled loss": (of_float, 2.0**-30, torch.float16, 2.0**14),
        "bfloat16": (torch_loss, 2.0**-30, torch.bfloat16),
        "a larger entry": (torch_loss, 2.0**-24.5),
    },
)
def test_float16_needs_a_scaled_loss(
    of: Any, entry: float, dtype: Any = torch.float16, scale: float = 1
) -> None:
    for n, k in ((256, 2), (1024, 10), (4096, 1000)):
        z = torch.zeros(n, k, dtype=dtype)
        z[:, 0] = -np.log(entry * n)
        z.requires_grad_()
        (slope,) = torch.autograd.grad(scale * of(z, torch.zeros(n, dtype=torch.long)), z)
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


@claim(
    "For a row of bfloat16 logits with a margin of 6",
    on=[1, 2, 100],
    but_not={
        "a margin of 5": (3, 5),
        "images": (3, 6, lambda z: z[:, :, None].expand(-1, -1, 40).contiguous()),
    },
)
def test_a_loss_in_bfloat16_is_zero_at_six(rows: int, margin: float = 6, of: Any = torch.clone) -> None:
    low = torch.from_numpy(rng(19).integers(-20, 20, rows) / 4)
    z = of(torch.stack([low + margin, low], 1).bfloat16())
    assert xent.sigmoid(6.0) == pytest.approx(0.998, abs=0.0005)
    assert (F.cross_entropy(z, torch.zeros(z[:, 0].shape, dtype=torch.long), reduction="none") == 0).all()


@claim(
    "Subtracting saves the top left corner ... three in float16.",
    on=[("bfloat16", 2), ("float16", 3)],
    but_not={
        "the logarithm of a softmax": ("float16", 3, log_of_softmax),
        "three in bfloat16": ("bfloat16", 3),
    },
)
def test_the_digits_in_the_wrong_corner(name: str, least: int, of: Any = log_softmax) -> None:
    z = torch.from_numpy(np.sort(rng(20).uniform(-60, 60, (2_000, 2)), axis=1)).to(getattr(torch, name))
    z = z[z[:, 1] - z[:, 0] >= 10]
    true = F.cross_entropy(z.double(), torch.zeros(len(z), dtype=torch.int64), reduction="none")
    digits = -((-of(z)[:, 0].double() / true - 1).abs() + 1e-17).log10()
    assert digits.min() >= least and (digits > 4).double().mean() > 0.3


@claim(
    "the mean 2.7304 of ... in bfloat16",
    on=["bfloat16"],
    but_not={"float16": "float16", "float32": "float32"},
)
def test_the_mean_is_one_rounding_away(name: str) -> None:
    assert f"{torch.tensor(2.7304).to(getattr(torch, name)).item():.4f}" == "2.7344"


test_a_clipped_loss_is_bounded_and_flat = claim(
    "Clipping bounds the loss by",
    on=["eq-clipped-loss", "eq-clipped-gradient"],
    but_not={
        "no clip": ("eq-clipped-loss", r"\max(p_y, \epsilon)", "p_y"),
        "a lower bound": ("eq-clipped-loss", r"\log\frac1\epsilon", r"\log\frac1{2 \epsilon}"),
        "a gradient beyond the clip": ("eq-clipped-gradient", "0 &", "-1 &"),
    },
)(printed)


def medians(margin: float, seed: int = 12) -> tuple[float, float]:
    """The median errors of the logarithm of softmax and of log_softmax, of 200 rows of two classes."""
    shift = rng(seed).normal(size=(200, 2)) / 4
    z = torch.from_numpy(shift + np.array([margin, 0])).float()
    truths = [true_loss(row) for row in z]
    found = (f(z)[:, 0].tolist() for f in (log_of_softmax, log_softmax))
    two, one = (
        [off_by(-v, t) if np.isfinite(v) else np.inf for v, t in zip(vs, truths, strict=True)] for vs in found
    )
    return float(np.median(two)), float(np.median(one))


CORNERS = {
    "better": lambda two, one: one < 1e-7 < two,
    "both exact": lambda two, one: max(one, two) < 2.0**-23,
    "both poor": lambda two, one: min(one, two) > 1e-4,
}


def corners() -> list[tuple[str, float]]:
    places = {
        "better": [(-120, -96, 3)],
        "both exact": [(-80, -1, 5), (-90, -88.5, 2)],
        "both poor": [(12, 15, 3)],
    }
    return [(what, a) for what, some in places.items() for place in some for a in rng(12).uniform(*place)]


@pytest.mark.slow
@pytest.mark.erratum("2.3", "conditional")
@claim(
    "It is more accurate where the probability ... both lose them.",
    on=corners,
    but_not={
        "an underflow where both are exact": ("both exact", -110.0),
        "2.3: 'more accurate', where nothing underflows": ("better", -40.0),
        "2.3: 'more accurate', where not far enough": ("better", -89.0),
        "'more accurate', for a right answer": ("better", 13.0),
    },
)
def test_log_softmax_is_more_accurate_on_one_side_only(which: str, margin: float) -> None:
    """Underflow begins at 87."""
    assert CORNERS[which](*medians(margin))


@claim(
    "where the probability underflows far enough, from ... two classes",
    on=[(40, 86.5, False), (86.5, 91, False), (92, 103, True)],
    but_not={"where it underflows, from 87 on": (87.4, 91, True), "a vocabulary": (84, 91, False, 50_257)},
)
def test_the_gap_from_which_it_is_better(low: float, high: float, better: bool, classes: int = 2) -> None:
    """From 87 on the probability is subnormal, but its logarithm keeps every digit up to 91."""
    gaps, z = torch.from_numpy(rng(15).uniform(low, high, 200)).float(), torch.zeros(200, classes)
    z[:, 0] = -gaps
    truth = -(gaps.double() + np.log(classes - 1))
    two, one = ((f(z)[:, 0].double() / truth - 1).abs() for f in (log_of_softmax, log_softmax))
    assert one.max() < 2.0**-23 and bool((two != one).double().mean() > 0.5) is better
    assert two.mean() > 2 * one.mean() if better else two.max() < 2.0**-23


def half(numbers: Any) -> Array:
    """The float16 of these bits."""
    return np.asarray(numbers).astype(np.uint16).view(np.float16)


def bits() -> Iterator[tuple[Array, Array]]:
    """A million pairs of any two float16, of smaller ones, and all beside the largest."""
    for end in (65_536, 4_096, 2_048):
        yield tuple(half(rng(14).integers(0, end, (2, 1_000_000))))
    yield half(np.full(65_536, 0x7BFF)), half(np.arange(65_536))


@claim(
    "Unless a step overflows, the error ... as follows",
    on=bits,
    but_not=lambda: {
        "a product": (*half(rng(14).integers(0, 16_384, (2, 1_000_000))), np.multiply),
        "65,504 less 48, where a later step overflows": (half([0x7BFF]), half([0x5200]), np.subtract, False),
    },
)
def test_the_error_of_a_difference(a: Array, b: Array, of: Any = np.subtract, unless: bool = True) -> None:
    """float64 holds the differences exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        d, exact = of(a, b), of(a.astype(float), b.astype(float))
        back = d + b
        e = (a - back) - (b - (back - d))
        held = np.isfinite(d) & (np.isfinite(back) | (not unless))
        lost = (exact - d)[held]
    assert held.any() and (lost.astype(np.float16) == lost).all() and (e[held] == lost).all()


@claim(
    "Computed as $-s / (1 + s)$ ... keeps its digits",
    on=[(gradients.cross_entropy_gradient, margin) for margin in np.linspace(-60, 60, 121)],
    but_not={"p - y": (lambda z, _: xent.softmax(z) - [1, 0], 30.0)},
)
def test_the_digits_of_the_right_entry(of: Any, margin: float) -> None:
    s = np.exp(-margin)
    assert of(np.array([margin, 0.0]), 0)[0] == pytest.approx(-s / (1 + s), rel=1e-14, abs=0)
