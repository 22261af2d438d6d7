"""What chapter 5 claims about lost digits, and attempts to refute it: other logits, formats and class counts."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch

import xent
import xent.torch
from adversary import DIGITS, batches, refuted, rng

F = torch.nn.functional
Array = np.ndarray


def true_loss(row: torch.Tensor, y: int) -> mpmath.mpf:
    """The loss with 60 digits, from the definition, of a row as it is stored."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(v) for v in row.double().tolist()]
        return mpmath.log1p(mpmath.fsum(mpmath.exp(v - z[y]) for j, v in enumerate(z) if j != y))


def off_by(value: float, truth: mpmath.mpf) -> float:
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(value) - truth) / truth)


def level(classes: int, margin: float, dtype: type) -> tuple[Array, mpmath.mpf]:
    """Logits of zero but for the first, and the loss of that class."""
    z = np.zeros(classes, dtype)
    z[0] = margin
    with mpmath.workdps(60):
        return z, mpmath.log1p((classes - 1) * mpmath.exp(-mpmath.mpf(float(z[0]))))


@pytest.mark.claim(
    "05",
    "One rounding is off by at most $u$ relative to the result, except where a format overflows or, close to zero, "
    "runs out of digits: $2^{-24}$ in float32, $2^{-11}$ in float16, $2^{-8}$ in bfloat16.",
)
def test_a_rounding_errs_by_at_most_u_and_comes_close_to_it() -> None:
    """20,000 random numbers over the range of each format, the worst of which comes close to u.

    Would be refuted by a number in the range that is rounded by more; subnormal numbers are.
    """
    g = rng(1)

    def says(x: Array, name: str) -> None:
        numbers = torch.from_numpy(x)
        error = ((numbers.to(getattr(torch, name)).double() - numbers) / numbers).abs().max().item()
        assert 0.95 < error * 2.0 ** DIGITS[name] <= 1

    for name in ("float32", "float16", "bfloat16"):
        info = torch.finfo(getattr(torch, name))
        powers = g.uniform(np.log2(info.tiny), np.log2(info.max) - 1, 20_000).astype(int)
        says(g.uniform(1, 2, 20_000) * 2.0**powers * g.choice([-1, 1], 20_000), name)
        with refuted("subnormal numbers"):
            says(g.uniform(1, 2, 1000) * info.tiny * info.eps, name)


@pytest.mark.claim(
    "05",
    "Intervals from one power of two to the next contain equally many numbers, except close to zero, where "
    "digits run out; so the gaps double at each power of two.",
)
@pytest.mark.parametrize("name", DIGITS)
def test_each_octave_holds_equally_many_numbers(name: str) -> None:
    """The gap above every power of two in the range of each format.

    Would be refuted by a power above which the gap has not doubled, as below the smallest normal number.
    """
    dtype, info = getattr(torch, name), torch.finfo(getattr(torch, name))

    def says(power: int) -> None:
        start = torch.tensor(2.0**power, dtype=dtype)
        gap = torch.nextafter(start, 2 * start) - start
        assert float(gap) == 2.0 ** (power + 1 - DIGITS[name])

    lowest, highest = int(np.log2(info.tiny)), int(np.log2(info.max))
    for power in range(lowest + DIGITS[name], highest, max(1, highest // 100)):
        says(power)
    with refuted("subnormal numbers, where the gaps stay the same"):
        says(lowest - 1)


@pytest.mark.claim(
    "05",
    "On paper, shifting the logits by their maximum changes no probability, and no exponential can then overflow.",
)
def test_the_shift_changes_nothing_and_prevents_overflow() -> None:
    """Batches of every kind and rows to 1e30, in three formats, with overflow raised; against 60 digits.

    Would be refuted by a finite row whose shifted exponentials overflow, or whose probabilities change. (Their *sum*
    overflows in float16 from 65,520 classes on.)
    """
    g = rng(3)

    def says(z: Array, shift: Array) -> None:
        with np.errstate(over="raise"):
            try:
                assert np.exp(z - shift).max() <= 1
            except FloatingPointError as overflow:
                raise AssertionError from overflow
        if z.dtype == np.float64 and len(z.T) < 20 and np.abs(z).max() < 1e5:
            with mpmath.workdps(60):
                row, moved = ([mpmath.mpf(v) for v in x.tolist()] for x in (z[0], z[0]))
                moved = [v - mpmath.mpf(float(shift[0, 0])) for v in moved]
                p, q = ([mpmath.exp(v) / mpmath.fsum(map(mpmath.exp, x)) for v in x] for x in (row, moved))
                assert all(abs(a - b) <= mpmath.mpf(10) ** -25 * a for a, b in zip(p, q, strict=True))

    rows = [z for _, z, _ in batches(g)] + [g.normal(size=(50, 7)) * scale for scale in (1e2, 1e30)]
    for z in rows:
        for dtype in (np.float64, np.float32, np.float16):
            if np.abs(z).max() < 6e4 or dtype != np.float16:
                says(z.astype(dtype), z.astype(dtype).max(axis=1, keepdims=True))
    with refuted("a shift by the mean"):
        says(rows[-1], rows[-1].mean(axis=1, keepdims=True))
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(np.exp(np.zeros(65_600, np.float16)).sum())


@pytest.mark.claim(
    "05",
    "a term that is too small for the format is far too small to change a sum of at least 1. (In float16, tens"
    " of thousands of such terms can together be large enough.)",
)
def test_what_underflows_is_missed_in_float16_only() -> None:
    """The largest terms that each format rounds to zero: one of them, and 60,000, beside the roundoff of 1.

    Would be refuted by a format with a larger one; the smallest normal number of float16 is.
    """

    def says(term: float, name: str) -> None:
        dtype = getattr(torch, name)
        assert float(torch.tensor(term, dtype=torch.float64).to(dtype)) == 0
        assert term < torch.finfo(dtype).eps / 1000
        assert (60_000 * term > torch.finfo(dtype).eps) == (name == "float16")

    for name in ("float16", "bfloat16", "float32"):
        info = torch.finfo(getattr(torch, name))
        for share in (0.499, *rng(4).uniform(0.3, 0.499, 5)):
            says(share * info.tiny * info.eps, name)
        with refuted("a term that the format holds"):
            says(info.tiny, name)


@pytest.mark.claim(
    "05", "The logarithm of a float32 softmax is infinite at the latest once the gap passes 104."
)
def test_log_of_softmax_is_lost_beyond_104_for_any_number_of_classes() -> None:
    """Random gaps from 104 to 1e4, with 2 classes to a vocabulary, alone at the top or beside others.

    Would be refuted by such a gap with a finite logarithm; with two classes 103 has one, unless small numbers are
    flushed to zero, and with a vocabulary of equal rivals 96 has none.
    """
    g = rng(5)

    def says(z: torch.Tensor) -> None:
        assert torch.isinf(torch.log(torch.softmax(z, -1)))[0]

    for classes in (2, 10, 1000, 50_257):
        for gap in (104.01, *g.uniform(104, 1e4, 10)):
            for spread in (0.0, 1.0):
                z = torch.from_numpy(-spread * g.uniform(size=classes)).float()
                z[1], z[0] = 0, -gap
                says(z)
                others = float(np.log(np.exp(z[1:].double().numpy()).sum()))
                assert F.log_softmax(z, -1)[0].item() == pytest.approx(float(z[0]) - others, rel=1e-6)
    with refuted("a gap of 103"):
        says(torch.tensor([-103.0, 0.0]))
    many = torch.zeros(50_257)
    many[0] = -96
    says(many)
    if torch.set_flush_denormal(True):
        try:
            says(torch.tensor([-88.0, 0.0]))
        finally:
            torch.set_flush_denormal(False)


@pytest.mark.claim(
    "05",
    "For a right answer of two classes in float32 or float64, PyTorch's `log_softmax` loses a digit for every 2.3 of "
    "margin and has none left beyond a margin of $\\log(1/u)$.",
)
@pytest.mark.parametrize(("name", "start"), [("float64", 8.0), ("float32", 4.0)])
def test_the_subtraction_loses_digits_along_a_line(name: str, start: float) -> None:
    """300 random margins in two formats, against 60 digits: the slope, and margins beyond the end.

    Rows, and images whose classes are an inner axis. Would be refuted by another slope, or a digit beyond; without the
    shift there are fewer near large logits, and 16-bit images keep digits beyond, as they are computed in float32.
    """
    g, dtype = rng(6), getattr(torch, name)
    dead = DIGITS[name] * np.log(2)

    def says(of: Callable[[torch.Tensor], torch.Tensor], shift: float) -> None:
        margins = np.sort(g.uniform(start, dead - 1, 300))
        base = g.uniform(-3, 3, 300) + shift
        z = torch.from_numpy(np.stack([base + margins, base], 1)).to(dtype)
        exact = [true_loss(row, 0) for row in z]
        digits = [-np.log10(off_by(v, t) + 1e-18) for v, t in zip(of(z).tolist(), exact, strict=True)]
        # The median error of a rounding is a quarter of an ulp: u / 2, or 0.3 digits more than u.
        slope, at_dead = np.polyfit(margins - dead, digits, 1)
        assert abs(slope * np.log(10) + 1) < 0.12 and abs(at_dead - 0.3) < 0.5
        for beyond in (dead + 0.1, dead + 5, 2 * dead):
            assert of(torch.tensor([[beyond + shift, shift]], dtype=dtype))[0] == 0

    says(lambda z: -F.log_softmax(z, -1)[:, 0], 0.0)
    says(lambda z: -F.log_softmax(z, -1)[:, 0], 1000.0 if name == "float64" else 2.0)
    says(lambda z: -F.log_softmax(z[:, :, None].expand(-1, -1, 40).contiguous(), 1)[:, 0, 0], 0.0)
    for short in ("float16", "bfloat16"):
        images = torch.zeros(1, 2, 40, dtype=getattr(torch, short))
        images[:, 0] = 1.1 * DIGITS[short] * np.log(2)
        with refuted("images of 16 bits"):
            assert (F.log_softmax(images, 1)[:, 0] == 0).all()
    many = torch.zeros(1, 50_257, dtype=torch.float64)
    many[0, 0] = 37
    with refuted("a vocabulary, whose many small terms add up"):
        assert F.cross_entropy(many, torch.tensor([0])) == 0
    with refuted("the subtraction without a shift, near logits of 1,000"):
        says(lambda z: torch.logsumexp(z, -1) - z[:, 0], 1000.0)


@pytest.mark.claim(
    "05",
    "The gradient loses the right class's entry along with the loss, and the others once they underflow to 0.",
)
@pytest.mark.parametrize("name", DIGITS)
def test_the_right_classs_entry_dies_first(name: str) -> None:
    """Four formats, 2 to 100 classes, random margins beyond the one at which the loss dies, subnormal numbers and zero.

    Also means over rows and scaled losses. Would be refuted by a wrong class whose entry is lost before it underflows
    to 0, or kept afterwards, or a right one that is not lost, as before that margin. An entry that is no normal number
    does not suffice, nor does a probability that rounds to 0: a mean over 4,096 rows in float16 loses an entry whose
    probability is held, and a scaled loss in 16 bits keeps one whose probability is not.
    """
    g, dtype = rng(7), getattr(torch, name)
    info = torch.finfo(dtype)
    limit, zero = -np.log(info.tiny), np.log(2) - np.log(info.tiny) - np.log(info.eps)
    inside = torch.finfo(torch.promote_types(dtype, torch.float32))  # what PyTorch computes the softmax in
    gone = np.log(2) - np.log(inside.tiny) - np.log(inside.eps)

    def says(
        classes: int,
        margin: float,
        kept_to: float = zero,
        rows: int = 1,
        scale: float = 1.0,
        lost: bool | None = None,
    ) -> None:
        z = torch.zeros(rows, classes, dtype=dtype)
        right = int(g.integers(classes))
        z[:, right] = margin
        z.requires_grad_()
        (scale * F.cross_entropy(z, torch.full((rows,), right))).backward()
        assert z.grad is not None
        found, wrong = z.grad[0].double().numpy(), np.arange(classes) != right
        assert found[right] == 0
        stored = float(z.detach()[0, right])
        p = np.exp(-stored) / (1 + (classes - 1) * np.exp(-stored))
        expected = p * scale / rows
        if lost is None:
            lost = stored > min(gone, kept_to + np.log(scale / rows))
        if lost:
            assert not found[wrong].any()
            return
        assert found[wrong].all()
        # A few roundings, and one of the exponent, which multiplies it; a subnormal number is off by up to one step.
        allowed = (16 + 2 * margin) * 2.0 ** -DIGITS[name] * expected + info.tiny * info.eps
        assert np.abs(found[wrong] - expected).max() < allowed

    for classes in (2, 3, 20, 100):
        dead = DIGITS[name] * np.log(2) + np.log(classes)
        for margin in (
            dead + 0.6,
            *(g.uniform(dead + 0.6, min(2 * dead, limit), 3) if dead + 0.6 < limit else ()),
        ):
            if margin < limit:
                says(classes, margin)
        for margin in g.uniform(max(limit, dead) + 0.6, zero - 0.3, 4):
            says(classes, margin)
            with refuted("'once they underflow': subnormal numbers are kept"):
                says(classes, margin, kept_to=limit)
        says(classes, {"float64": 760.0, "float32": 110.0, "float16": 20.0, "bfloat16": 100.0}[name])
        with refuted("a margin at which the loss lives"):
            says(classes, dead / 2)
    for rows in (64, 4_096):
        for margin in (DIGITS[name] * np.log(2) + 1, zero - np.log(rows) - 0.5, zero - np.log(rows) + 0.5):
            if margin > DIGITS[name] * np.log(2) + 0.6:
                says(2, margin, rows=rows)
        with refuted("'once their probabilities round to 0', of a mean"):
            says(2, zero - 1, rows=rows, lost=False)
    for margin in (zero + 1, zero + 3):
        says(2, margin, scale=2.0**10)
        if dtype in (torch.float16, torch.bfloat16):
            with refuted("'once their probabilities round to 0', of a scaled loss"):
                says(2, margin, scale=2.0**10, lost=True)


@pytest.mark.claim(
    "05",
    "The entry of the right class becomes 0: its probability, computed as $e^{-\\ell}$, is 1, and $1 - 1$ is 0.",
)
@pytest.mark.parametrize("name", DIGITS)
def test_the_right_classs_entry_follows_the_loss(name: str) -> None:
    """Random margins on both sides of the one at which the loss dies, in four formats.

    Would be refuted by an entry other than exp(-loss) - 1, such as that of the softmax, which at a margin of 6 in
    bfloat16, and of 8 in float16, has not been rounded to 1.
    """
    g, dtype = rng(23), getattr(torch, name)
    dead = DIGITS[name] * np.log(2)

    def says(margin: float, p_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        z = torch.tensor([[margin, 0.0]], dtype=dtype, requires_grad=True)
        loss = F.cross_entropy(z, torch.tensor([0]))
        loss.backward()
        assert z.grad is not None
        assert (loss == 0) == (z.grad[0, 0] == 0) == (margin > dead)
        # Half precision takes its exponentials in float32; elsewhere each may be off by a unit in the last place.
        near = torch.finfo(dtype).eps / (4 if dtype.itemsize == 2 else 1)
        assert float(p_of(z.detach())) - 1 == pytest.approx(float(z.grad[0, 0]), abs=near)

    def from_loss(z: torch.Tensor) -> torch.Tensor:
        return torch.exp(-F.cross_entropy(z, torch.tensor([0])).double())

    for margin in (*g.uniform(dead + 0.1, 2 * dead, 10), *g.uniform(1, dead - 0.4, 10)):
        says(float(margin), from_loss)
    if name in ("float16", "bfloat16"):
        with refuted("the softmax, which has not been rounded to 1"):
            says(8.0 if name == "float16" else 6.0, lambda z: torch.softmax(z, -1)[0, 0])


@pytest.mark.claim(
    "05",
    "As long as that entry keeps its digits, the difference between the two entries is half of what it should be.",
)
def test_the_difference_of_the_entries_is_half_for_two_classes() -> None:
    """The gradient along the margin, against its closed form, at random margins in four formats, p a normal number.

    Would be refuted by a gradient of zero or a full push, as before 16, and nearly with ten classes or where the
    entry is left with one digit, as in a mean over 1,024 rows in float16. That training
    moves the margin half as far does not follow: near logits of 21 the step is rounded away, and through a layer
    below the logits any share of the push can be left.
    """

    def says(margin: float, classes: int = 2, dtype: torch.dtype = torch.float32, rows: int = 1) -> None:
        z = torch.tensor([[margin] + [0.0] * (classes - 1)] * rows, dtype=dtype, requires_grad=True)
        F.cross_entropy(z, torch.zeros(rows, dtype=torch.int64)).backward()
        along = rows * float(z.grad[0, 1:].mean() - z.grad[0, 0])
        p = np.exp(-z.detach()[0, 0].item())
        assert along / (p + (classes - 1) * p) == pytest.approx(0.5, rel=1e-4 + 4 * torch.finfo(dtype).eps)

    for dtype, least, most in (
        (torch.float64, 37.5, 700),
        (torch.float32, 17.4, 87),
        (torch.float16, 8, 9.6),
        (torch.bfloat16, 6, 86),
    ):
        for margin in rng(8).uniform(least, most, 30):
            says(float(margin), dtype=dtype)
    with refuted("a margin of ten"):
        says(10.0)
    with refuted("ten classes"):
        says(25.0, 10)
    says(8.5, dtype=torch.bfloat16, rows=1024)
    with refuted(
        "a mean in float16, whose entry is its smallest number though the probability keeps its digits"
    ):
        says(9.5, dtype=torch.float16, rows=1024)
    for margin in (17.0, 18.0):
        with refuted("float16 where the wrong class's probability is its smallest number, or 0"):
            says(margin, dtype=torch.float16)

    def moves(offset: float) -> None:
        z = torch.tensor([[18.0 + offset, offset]], requires_grad=True)
        start = z.detach().clone()
        for _ in range(50):
            (slope,) = torch.autograd.grad(F.cross_entropy(z, torch.tensor([0])), z)
            assert slope[0, 1] > 0
            z = (z.detach() - 0.1 * slope).requires_grad_()
        assert (z != start).any()

    moves(0.0)
    with refuted("training of the logits 21 and 3"):
        moves(3.0)

    def half_below(layer: list[list[float]]) -> None:
        slopes = []
        for dtype in (torch.float32, torch.float64):
            rows, hidden = torch.tensor(layer, dtype=dtype), torch.ones(2, dtype=dtype, requires_grad=True)
            F.cross_entropy((rows @ hidden)[None], torch.tensor([0])).backward()
            assert hidden.grad is not None
            slopes.append(hidden.grad.double() @ (rows[0] - rows[1]).double())
        assert float(slopes[0] / slopes[1]) == pytest.approx(0.5, rel=1e-4)

    half_below([[5.0, 5.0], [-5.0, -5.0]])
    with refuted("the push on a hidden layer that the wrong class does not read"):
        half_below([[10.0, 10.0], [0.0, 0.0]])


@pytest.mark.slow
@pytest.mark.claim(
    "05",
    "Where the target leads, leave it out of the sum and use `log1p`: the loss keeps its digits at both ends, up to "
    "the rounding of the margin and of the sum, until terms of a small loss underflow.",
)
def test_the_gap_form_keeps_its_digits_at_both_ends() -> None:
    """Random margins from -700 to 700, common shifts, 2 to 50,257 classes, two formats, against 60 digits.

    Would be refuted by a row that errs by more than the rounded margin explains; the package takes that back too.
    A vocabulary's terms underflow while their sum, the loss, is still a normal number. NumPy adds an inner class axis
    one term after another: a vocabulary's loss then errs by thousands of epsilons, as much as that sum does.
    """
    g = rng(9)

    def gap_form(z: Array) -> float:
        m, others = z.max(), np.exp(z[1:] - z.max()).sum()
        gap = m - z[0]
        return float(np.log1p(others) if gap == 0 else gap + np.log(np.exp(-gap) + others))

    def says(of: Callable[[Array], float], z: Array, truth: mpmath.mpf | None = None) -> None:
        margin = float(z[0] - z[1:].max())
        truth = true_loss(torch.from_numpy(z), 0) if truth is None else truth
        assert truth > np.finfo(z.dtype).tiny
        assert off_by(of(z), truth) < (8 + abs(margin)) * float(np.finfo(z.dtype).eps)

    for dtype, end in ((np.float64, 700), (np.float32, 80)):
        for classes in (2, 5, 1000):
            for margin in (0.0, -1e-9, *g.uniform(-end, end, 6)):
                z = g.normal(size=classes) + g.choice([0.0, 10.0])
                z[0] = z[1:].max() + margin
                z = z.astype(dtype)
                says(gap_form, z)
                # The package takes the rounding back: 4 ulp.
                truth = true_loss(torch.from_numpy(z), 0)
                assert off_by(float(xent.cross_entropy(z, 0)), truth) <= 4 * np.finfo(dtype).eps
    # A sum that NumPy takes along an inner axis, of one rival and a tail below the roundoff of its term.
    z = g.normal(-17, 1, (50_257, 2)).astype(np.float32)
    z[:2] = [[20.0], [0.0]]
    terms = np.exp(z[1:] - z.max(axis=0))
    for row, added, exactly in zip(z.T, terms.sum(axis=0), terms.sum(axis=0, dtype=np.float64), strict=True):
        with refuted("'up to the rounding of the margin' alone, of a vocabulary on an inner axis"):
            says(lambda z, r=added: float(np.log1p(r)), row)
        says(lambda z, r=exactly: float(np.log1p(r)), row)
        allowed = abs(added / exactly - 1) + 28 * np.finfo(np.float32).eps
        assert off_by(float(np.log1p(added)), true_loss(torch.from_numpy(row), 0)) < allowed
    # Terms that are normal numbers, up to the end, and then terms that are not, though their sum still is.
    for dtype, end in ((np.float32, 87.3), (np.float64, 708.3)):
        for margin in g.uniform(end / 2, end, 3):
            says(gap_form, *level(50_257, margin, dtype))
    for dtype, margin in ((np.float16, 17.5), (np.float32, 96.5), (np.float64, 717.5)):
        with refuted("a vocabulary whose terms underflow, though the loss does not"):
            for more in g.uniform(0, 1, 5):
                says(gap_form, *level(50_257, margin + more, dtype))
    with refuted("the target left out where another class leads"), np.errstate(over="ignore"):
        says(lambda z: float(np.log1p(np.exp(z[1:] - z[0]).sum())), np.array([-800.0, 0.0]))
    with refuted("the target left in the sum"):
        says(lambda z: float(np.log(np.exp(z - z.max()).sum()) + z.max() - z[0]), np.array([30.0, 0.0, 0.0]))
    with refuted("the logarithm of the softmax, for a wrong answer"), np.errstate(divide="ignore"):
        says(lambda z: float(-np.log(xent.softmax(z)[0])), np.array([-800.0, 0.0]))


@pytest.mark.slow
@pytest.mark.claim(
    "05",
    "In its tests `xent` computes a cross-entropy of arrays within 4 ulp of the true value (an ulp is $2u$ "
    "relative to the result) if the loss is at least $K$ times the smallest normal number of its format; on "
    "tensors, where speed matters more, it stays within $8 + |a|$ ulp, with $a$ the margin of the right class."
    " Rows whose terms round alike can exceed the first bound.",
)
def test_the_package_keeps_its_digits_but_where_terms_round_alike() -> None:
    """Level and random rows of 2 to 50,257 classes, losses from K times the smallest normal number up; both packages.

    Would be refuted by a larger error, also where the classes are an inner axis of images: of losses that are normal
    numbers, but sums of terms that are not; of arrays with a rival above terms that are each rounded away in the sum,
    or with equal logits, none zero, whose differences from the target's all err by the same amount.
    """
    g = rng(21)

    def says(z: Array, truths: list[mpmath.mpf], which: str, inner: bool = False) -> None:
        """Rows with the target first, computed together."""
        info, y = np.finfo(z.dtype), np.zeros((1, len(z)), int)
        if which == "arrays":
            rows = np.ascontiguousarray(z.T)[None] if inner else z[None]
            found = xent.cross_entropy(rows, y, axis=1 if inner else -1, reduction="none")[0]
        else:
            found = xent.torch.cross_entropy(
                torch.from_numpy(z), torch.from_numpy(y[0]), reduction="none"
            ).numpy()
        for row, value, truth in zip(z, found, truths, strict=True):
            assert truth >= info.tiny
            allowed = 4 if which == "arrays" else 8 + abs(float(row[0] - row[1:].max()))
            assert off_by(float(value), truth) <= allowed * float(info.eps)

    def noise(classes: int, dtype: type, scale: float, ahead: float) -> tuple[Array, list[mpmath.mpf]]:
        z = (scale * g.normal(size=(8, classes))).astype(dtype)
        z[:, 0] += dtype(ahead)
        return z, [true_loss(torch.from_numpy(row), 0) for row in z]

    def dropped(classes: int, dtype: type, lead: float, at: int = 1) -> tuple[Array, list[mpmath.mpf]]:
        """One rival, and beside it terms of 0.99 u, of which a sum of two keeps nothing."""
        z = np.full((8, classes), lead + np.log(0.99 * np.finfo(dtype).eps / 2), dtype)
        z[:, 0], z[:, at] = 0, lead
        return z, [true_loss(torch.from_numpy(z[0]), 0)] * 8

    def alike(classes: int, dtype: type) -> tuple[Array, list[mpmath.mpf]]:
        """Equal rivals: each z_j - z_y is rounded by the same amount, and no term of the sum is rounded away."""
        z = np.repeat(g.uniform(-4, 4, (400, 1)), classes, 1).astype(dtype)
        z[:, 0] += g.uniform(8, 12, 400).astype(dtype)
        with mpmath.workdps(60):
            pairs = [[mpmath.mpf(float(v)) for v in row[:2]] for row in z]
            return z, [mpmath.log1p((classes - 1) * mpmath.exp(b - a)) for a, b in pairs]

    for dtype, end in ((np.float32, 87.3), (np.float64, 708.3)):
        for classes in (30, 300, 1000):
            rows = alike(classes, dtype)
            says(*rows, "tensors")
            with refuted("terms that round alike, none of which is rounded away"):
                says(*rows, "arrays")
        for which in ("arrays", "tensors"):
            for classes in (2, 3, 10, 1000, 50_257):
                for margin in (*g.uniform(-end, end, 3), *g.uniform(end - 3, end, 3)):
                    z, truth = level(classes, margin, dtype)
                    says(z[None], [truth], which)
            for classes in (2, 10, 129, 1000):
                for scale, ahead in ((1.0, 0.0), (10.0, 5.0), (0.1, np.log(classes) + 3)):
                    rows = noise(classes, dtype, scale, ahead)
                    for inner in (False, True):
                        says(*rows, which, inner)
            rounded = [
                dropped(classes, dtype, lead, at)
                for classes in (64, 100, 128, 256, 1000)
                for lead in (0.0, -9.0)
                for at in (1, 2, classes // 2, classes - 1)
            ]
            if which == "tensors":
                for rows in rounded:
                    says(*rows, which)
            else:
                with refuted("terms that are each rounded away"):
                    for rows in rounded:
                        says(*rows, which)
        for classes in (1000, 50_257):
            with refuted("a loss that is a normal number, of terms that are not"):
                for margin in end + np.log(classes) - g.uniform(0.2, 2, 5):
                    z, truth = level(classes, margin, dtype)
                    says(z[None], [truth], "arrays")
    for classes in (1000, 10_000):  # a sum of one class after another was 7 to 24 ulp off
        says(*noise(classes, np.float32, 0.1, np.log(classes) + 3), "arrays", inner=True)


@pytest.mark.claim(
    "05",
    "Add up the losses of a batch in float32 or wider: a float16 sum overflows from 65,520 on, and a running bfloat16 "
    "sum of losses of a few nats stalls long before that.",
)
def test_sums_in_half_precision_overflow_or_stall() -> None:
    """Losses of random distributions and sizes, added one after another in four formats.

    Would be refuted by losses that a running bfloat16 sum keeps, or float32 does not; those of 300 nats it keeps on,
    and a running float32 sum of far more losses than a batch has stalls as well.
    """
    g = rng(10)
    for total in (65_504, 65_510, 65_519, 65_520, 65_536):
        # From half of the next spacing on, the largest number plus a float16 rounds to infinity.
        sum_ = torch.tensor(65_504.0).half() + torch.tensor(float(total - 65_504)).half()
        assert bool(sum_.isinf()) is (total >= 65_520)

    def says(losses: Array) -> None:
        total = torch.zeros((), dtype=torch.bfloat16)
        for loss in torch.from_numpy(losses).bfloat16():
            total = total + loss
        assert float(total) < losses.sum() / 3 and float(total) < 65_504
        # float32 keeps the sum: at most one rounding for each addition.
        wide = torch.from_numpy(losses).float().sum().item()
        assert wide == pytest.approx(losses.sum(), rel=len(losses) * 2.0**-24)

    for scale in (0.5, 3.0, 8.0):
        says(g.exponential(scale, 12_000))
        says(g.uniform(0, 2 * scale, 12_000))
    with refuted("losses of 300 nats"):
        says(np.full(1000, 300.0))
    with refuted("a running float32 sum that has reached 67 million"):
        start, more = np.float32(2**26), np.full(1_000_000, 1.9, np.float32)
        assert np.cumsum(np.append(start, more))[-1] > start


@pytest.mark.claim(
    "05", "float16 rounds whatever is below $2^{-25}$, half of its smallest positive number, to 0."
)
@pytest.mark.claim(
    "05",
    "No loss of the logits can do this for you: those of `xent.torch` lose the same entries. "
    "`xent.torch.linear_cross_entropy`, which takes the input and the weights of the layer, keeps the gradient of "
    "float16 logits in float32, and rounds only what it returns.",
)
@pytest.mark.claim("05", "In bfloat16, whose range is that of float32, nothing needs to be scaled.")
def test_the_gradient_of_float16_logits_needs_a_scaled_loss() -> None:
    """Losses computed in float32, of means over 256 to 4,096 rows of 2 to 1,000 classes, near 2^-25 and far below.

    Would be refuted by a loss that keeps such an entry in float16, or a scaled one that does not; bfloat16 keeps it.
    """
    g = rng(31)

    def loses(loss: Callable[..., torch.Tensor], dtype: torch.dtype, entry: float, scale: float) -> None:
        n = int(g.choice([256, 1024, 4096]))
        z = torch.zeros(n, int(g.choice([2, 10, 1000])), dtype=dtype)
        z[:, 0] = -np.log(entry * n)
        z.requires_grad_()
        (scale * loss(z, torch.zeros(n, dtype=torch.long))).backward()
        assert z.grad is not None and (z.grad[:, 1:] == 0).all()

    for loss in (lambda z, y: F.cross_entropy(z.float(), y), xent.torch.cross_entropy):
        for entry in (2.0**-25.1, *2.0 ** g.uniform(-34, -26, 10)):
            loses(loss, torch.float16, entry, 1.0)
            with refuted("a scaled loss"):
                loses(loss, torch.float16, entry, 2.0**14)
            with refuted("bfloat16"):
                loses(loss, torch.bfloat16, entry, 1.0)
        with refuted("a larger entry"):
            loses(loss, torch.float16, 2.0**-24.5, 1.0)

    def lost_on_the_way(loss: Callable[..., torch.Tensor]) -> None:
        """4,096 rows of entries near 2^-28, which add up to 2^-16 in the weights."""
        w = torch.zeros(10, 1, dtype=torch.float16)
        w[0] = 16 * np.log(2)
        w.requires_grad_()
        loss(torch.ones(4096, 1).half(), w, torch.zeros(4096, dtype=torch.long)).backward()
        assert w.grad is not None and (w.grad[1:] == 0).all()

    lost_on_the_way(lambda h, w, y: xent.torch.cross_entropy(h @ w.T, y))
    with refuted("a loss that takes the layer"):
        lost_on_the_way(xent.torch.linear_cross_entropy)


@pytest.mark.claim(
    "05", "In bfloat16 the sum does not overflow here, but a running total runs out of digits."
)
def test_a_running_total_in_bfloat16_runs_out_of_digits() -> None:
    """Losses of standard normal logits, 2 to 1,000 classes, as many as 30,000, added up in two ways.

    Would be refuted by an infinite sum, or a running total that reaches half of the sum; PyTorch's own sum, which
    adds in parts, has the digits of the format.
    """
    g = rng(18)

    def says(total: torch.Tensor, truth: float) -> None:
        assert total.isfinite() and float(total) < truth / 2

    for classes in (2, 10, 1000):
        z = torch.from_numpy(g.normal(size=(3_000, classes)))
        once = F.cross_entropy(z, torch.from_numpy(g.integers(0, classes, 3_000)), reduction="none")
        losses = once.repeat(10).bfloat16()
        truth, total = losses.double().sum().item(), torch.zeros((), dtype=torch.bfloat16)
        for loss in losses:
            total = total + loss
        says(total, truth)
        with refuted("PyTorch's own sum"):
            says(losses.sum(), truth)
        assert losses.sum().item() == pytest.approx(truth, rel=2.0**-7)


@pytest.mark.claim(
    "05",
    "For a row of bfloat16 logits with a margin of 6 (a probability of 0.998), PyTorch's loss on a CPU is already "
    "zero.",
)
def test_a_loss_in_bfloat16_is_zero_at_a_margin_of_six() -> None:
    """Rows of two logits with that margin and a random shift, one to a hundred of them.

    Would be refuted by a loss above zero, as at a margin of 5, or with the classes on an inner axis of images.
    """
    g = rng(19)

    def says(z: torch.Tensor) -> None:
        y = torch.zeros(z[:, 0].shape, dtype=torch.int64)
        assert (F.cross_entropy(z, y, reduction="none") == 0).all()

    for rows in (1, 2, 100):
        low = torch.from_numpy(g.integers(-20, 20, rows) / 4)
        z = torch.stack([low + 6, low], 1).bfloat16()
        assert (torch.softmax(z.double(), 1)[:, 0] - 0.998).abs().max() < 0.0005
        says(z)
        with refuted("a margin of 5"):
            says(torch.stack([low + 5, low], 1).bfloat16())
        with refuted("images, whose classes are an inner axis"):
            says(z[:, :, None].expand(-1, -1, 40).contiguous())


@pytest.mark.claim(
    "05",
    "Subtracting saves the top left corner, to the precision of the format: at least two digits in bfloat16 and "
    "three in float16.",
)
def test_the_subtraction_keeps_the_digits_of_the_format_in_the_wrong_corner() -> None:
    """2,000 random pairs of logits within 60 of zero, wrong by 10 or more, in both formats, against float64.

    Would be refuted by a loss with fewer digits, as the logarithm of a softmax has in float16. Many have more: the
    difference of two 16-bit numbers is often one itself.
    """
    g = rng(20)

    def says(name: str, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        z = torch.from_numpy(np.sort(g.uniform(-60, 60, (2_000, 2)), axis=1)).to(getattr(torch, name))
        z = z[z[:, 1] - z[:, 0] >= 10]
        true = F.cross_entropy(z.double(), torch.zeros(len(z), dtype=torch.int64), reduction="none")
        digits = -((of(z).double() / true - 1).abs() + 1e-17).log10()
        assert digits.min() >= (2 if name == "bfloat16" else 3)
        assert (digits > 4).double().mean() > 0.3

    for name in ("bfloat16", "float16"):
        says(name, lambda z: -F.log_softmax(z, -1)[:, 0])
    with refuted("the logarithm of a softmax"):
        says("float16", lambda z: -torch.log(torch.softmax(z, -1))[:, 0])


@pytest.mark.claim("05", "the mean 2.7304 of all these losses is 2.7344 in bfloat16")
def test_the_mean_is_one_rounding_away() -> None:
    """The nearest number of the format. Would be refuted by another one, such as its neighbour, or in float16."""

    def says(rounded: torch.Tensor) -> None:
        assert f"{rounded.item():.4f}" == "2.7344"

    rounded = torch.tensor(2.7304).bfloat16()
    says(rounded)
    with refuted("its neighbour"):
        says(torch.nextafter(rounded, torch.tensor(0.0).bfloat16()))
    with refuted("float16"):
        says(torch.tensor(2.7304).half())


@pytest.mark.claim(
    "05",
    "Clipping bounds the loss by $\\log(1/\\epsilon)$, and its gradient is zero wherever $p_y < \\epsilon$.",
)
def test_a_clipped_loss_is_bounded_and_flat() -> None:
    """Random epsilons, 2 to 1,000 classes, logits on both sides of the clip, by autograd.

    Would be refuted by a larger loss, or a gradient below the clip; BCELoss, which bounds the logarithm, keeps one.
    """
    g = rng(11)

    def says(eps: float, p: torch.Tensor, loss: torch.Tensor, z: torch.Tensor) -> None:
        assert loss.max().item() <= -np.log(eps) * (1 + 1e-15)
        (slope,) = torch.autograd.grad(loss.sum(), z)
        below = (p < eps).numpy()
        assert below.any() and not below.all()
        assert (
            slope.numpy()[below].any() == 0 and slope.numpy()[~below & (p < 0.9).numpy()].any(axis=-1).all()
        )

    for eps in (1e-15, 2.0**-52, 0.05, *10.0 ** g.uniform(-15, -2, 3)):
        for classes in (2, 6, 1000):
            z = torch.from_numpy(g.normal(size=(400, classes)) * 40)
            z[::2, 0] += 150
            z.requires_grad_()
            p = torch.softmax(z, -1)[:, 0]
            says(eps, p.detach(), -torch.log(p.clamp(min=eps)), z)
            with refuted("the loss without a clip"):
                says(eps, p.detach(), -torch.log(p.clamp(min=1e-320)), z)
    z = torch.full((1,), -110.0, dtype=torch.float64, requires_grad=True)
    F.binary_cross_entropy(torch.sigmoid(z), torch.ones(1, dtype=torch.float64)).backward()
    assert z.grad is not None and 0 < abs(z.grad.item()) < 1e-30


@pytest.mark.slow
@pytest.mark.claim(
    "05",
    "It is more accurate where the probability underflows far enough; for other wrong answers of two classes both keep "
    "their digits, and for answers that are certain and right both lose them.",
)
@pytest.mark.erratum("2.3", "conditional")
def test_log_softmax_is_more_accurate_on_one_side_only() -> None:
    """200 random rows each, wrong by 2 to 120 and right by 12 to 15, against 60 digits; underflow begins at 87.

    Would be refuted by a margin at which the other is better, or equal where one should be better; the source claims
    "more accurate" without a condition.
    """
    g = rng(12)

    def says(which: str, margin: float) -> None:
        z = torch.from_numpy(np.stack([g.normal(size=200) / 4 + margin, g.normal(size=200) / 4], 1)).float()
        truths = [true_loss(row, 0) for row in z]
        two, one = (
            np.median(
                [off_by(-v, t) if np.isfinite(v) else np.inf for v, t in zip(f(z), truths, strict=True)]
            )
            for f in (
                lambda z: torch.log(torch.softmax(z, -1))[:, 0].tolist(),
                lambda z: F.log_softmax(z, -1)[:, 0].tolist(),
            )
        )
        if which == "better":
            assert one < 1e-7 < two
        elif which == "both exact":
            assert max(one, two) < 2.0**-23
        else:
            assert min(one, two) > 1e-4

    assert torch.log(torch.softmax(torch.tensor([0.0, 200.0]), -1))[0] == -np.inf
    assert F.log_softmax(torch.tensor([0.0, 200.0]), -1)[0] == -200.0
    for margin in g.uniform(-120, -96, 3):
        says("better", margin)
        with refuted("an underflow where both are exact"):
            says("both exact", margin)
    for margin in (-1.5, *g.uniform(-80, -4, 4), *g.uniform(-90, -88.5, 2)):
        says("both exact", margin)
        with refuted("2.3: 'more accurate', where nothing underflows, or not far enough"):
            says("better", margin)
    # Both keep their digits, not equally many: wrong by a little, the median errors differ by a factor of three.
    z = torch.from_numpy(np.stack([shift := g.normal(size=400), shift + 0.1], 1)).float()
    truths = [true_loss(row, 0) for row in z]
    two, one = (
        np.median([off_by(-v, t) for v, t in zip(f(z, -1)[:, 0].tolist(), truths, strict=True)])
        for f in (lambda z, axis: torch.log(torch.softmax(z, axis)), F.log_softmax)
    )
    assert one < two < 2.0**-23
    with refuted("'equally accurate'"):
        assert two < 1.5 * one
    # A vocabulary's sum rounds away many a term beside the largest, and both lose two digits of a wrong answer.
    tail = torch.from_numpy(g.normal(-17, 1, 50_257)).float()
    tail[0], tail[1] = -1, 0
    for f in (F.log_softmax, lambda z, axis: torch.log(torch.softmax(z, axis))):
        with refuted("'for other wrong answers', of a vocabulary"):
            assert off_by(-f(tail, -1)[0].item(), true_loss(tail, 0)) < 2.0**-20
    # One row alone, of the post: both lose digits, not the same ones.
    row = torch.tensor([[3.2484, -3.3801]])
    two, one = (
        off_by(-f(row)[0, 0].item(), true_loss(row[0], 0))
        for f in (lambda z: torch.log(torch.softmax(z, 1)), lambda z: torch.log_softmax(z, 1))
    )
    assert min(one, two) > 2.0**-19 and two > 3 * one
    for margin in g.uniform(12, 15, 3):
        says("both poor", margin)
        with refuted("'more accurate', for a right answer"):
            says("better", margin)


@pytest.mark.claim(
    "05",
    "where the probability underflows far enough, from a gap of about 91 in float32 with two classes",
)
def test_the_gap_from_which_log_softmax_is_more_accurate() -> None:
    """log(softmax) of float32 beside log_softmax, and both beside the truth, at random gaps on both sides of 91.

    Would be refuted by a difference short of it, or none beyond: from 87 on the probability is subnormal, but its
    logarithm keeps every digit up to 91. Among a vocabulary of equal rivals the probability underflows earlier.
    """

    def says(low: float, high: float, classes: int, better: bool) -> None:
        gaps = torch.from_numpy(rng(15).uniform(low, high, 200)).float()
        z = torch.zeros(200, classes)
        z[:, 0] = -gaps
        two, one = torch.log(torch.softmax(z, -1))[:, 0].double(), F.log_softmax(z, -1)[:, 0].double()
        truth = -(gaps.double() + np.log(classes - 1))
        assert (one / truth - 1).abs().max() < 2.0**-23
        assert bool((two != one).double().mean() > 0.5) is better
        if better:
            assert (two / truth - 1).abs().mean() > 2 * (one / truth - 1).abs().mean()
        else:
            assert (two / truth - 1).abs().max() < 2.0**-23

    says(40, 86.5, 2, better=False)
    says(86.5, 91, 2, better=False)
    says(92, 103, 2, better=True)
    with refuted("'where the probability underflows, from a gap of about 87'"):
        says(87.4, 91, 2, better=True)
    with refuted("a vocabulary, whose probability underflows earlier"):
        says(84, 91, 50_257, better=False)


@pytest.mark.claim(
    "05",
    "Unless a step overflows, the error of a floating-point difference is itself a floating-point number, and is "
    "computed as follows",
)
def test_the_error_of_a_difference_is_a_number_of_the_format() -> None:
    """A million pairs of any two float16, and of two near zero, whose differences float64 holds exactly.

    Would be refuted by an error that has to be rounded, as that of a product near zero.
    """
    g = rng(14)

    def says(of: Callable[[Array, Array], Array], end: int) -> None:
        a, b = g.integers(0, end, (2, 1_000_000)).astype(np.uint16).view(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            found, exact = of(a, b), of(a.astype(float), b.astype(float))
            held = np.isfinite(found)
            lost = (exact - found)[held]
        assert held.mean() > 0.5 and (lost != 0).any() == (end > 2_048)
        assert (lost.astype(np.float16) == lost).all()

    for end in (65_536, 4_096, 2_048):
        says(np.subtract, end)
    with refuted("a product"):
        says(np.multiply, 16_384)

    def computed(a: Array, b: Array, steps: Callable[..., Array]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            d = a - b
            back = d + b
            e = (a - back) - (b - (back - d))
            held = steps(d, back)
            assert held.any()
            assert ((d.astype(float) + e.astype(float)) == a.astype(float) - b.astype(float))[held].all()

    every = np.isfinite(np.arange(65_536).astype(np.uint16).view(np.float16))
    finite = np.arange(65_536)[every].astype(np.uint16).view(np.float16)
    for near in (g.choice(finite, 1_000_000), np.full(finite.size, 65_504, np.float16)):
        other = g.choice(finite, near.size) if near.size > finite.size else finite
        computed(near, other, lambda d, back: np.isfinite(d) & np.isfinite(back))
    with refuted("65,504 less 48, a difference that does not overflow though a later step does"):
        computed(np.full(1, 65_504, np.float16), np.full(1, 48, np.float16), lambda d, back: np.isfinite(d))
