"""What chapter 5 claims about lost digits, tried on other logits, formats and class counts."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

import xent
import xent.torch

F = torch.nn.functional
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
RNG = np.random.default_rng(505)


def true_loss(row: torch.Tensor, y: int) -> mpmath.mpf:
    """The loss with 60 digits, from the definition, of a row as it is stored."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(v) for v in row.double().tolist()]
        return mpmath.log1p(mpmath.fsum(mpmath.exp(v - z[y]) for j, v in enumerate(z) if j != y))


def off_by(value: float, truth: mpmath.mpf) -> float:
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(value) - truth) / truth)


@pytest.mark.claim(
    "05",
    "One rounding is off by at most $u$ relative to the result, within the range of the format: $2^{-24}$ in "
    "float32, $2^{-11}$ in float16, $2^{-8}$ in bfloat16.",
)
def test_a_rounding_errs_by_at_most_u_and_comes_close_to_it() -> None:
    """20,000 random numbers in each format, the worst of which comes close to u; subnormal numbers break the bound."""
    for dtype, digits in ((torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)):
        x = torch.from_numpy(RNG.uniform(1, 2, 20_000) * 2.0 ** RNG.integers(-8, 8, 20_000))
        error = ((x.to(dtype).double() - x) / x).abs().max().item() * 2**digits
        assert 0.95 < error <= 1
        # The bound ends where the range ends: a subnormal number has fewer digits.
        tiny = 1.3 * torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        assert abs(float(torch.tensor(tiny, dtype=torch.float64).to(dtype)) / tiny - 1) > 0.1


@pytest.mark.claim(
    "05",
    "From one power of two to the next there are equally many numbers, except close to zero, where digits run out; "
    "so the gaps double each time.",
)
@pytest.mark.parametrize("dtype", DIGITS, ids=str)
def test_each_octave_holds_equally_many_numbers(dtype: torch.dtype) -> None:
    """The gap above five powers of two, in each format; below the smallest normal number the gaps stay the same."""
    for power in (-12, -3, 0, 5, 14):
        start = torch.tensor(2.0**power, dtype=dtype)
        gap = torch.nextafter(start, 2 * start) - start
        assert float(gap) == 2.0 ** (power + 1 - DIGITS[dtype])
    info, gaps = torch.finfo(dtype), []
    for factor in (1.0, 0.5, 0.25):
        start = torch.tensor(factor * info.tiny, dtype=dtype)
        gaps.append(float(torch.nextafter(start, 2 * start) - start))
    assert gaps[0] == gaps[1] == gaps[2] == info.tiny * info.eps


@pytest.mark.claim(
    "05", "Shifting the logits by their maximum changes no probability, and no exponential can then overflow."
)
def test_the_shift_changes_nothing_and_prevents_overflow() -> None:
    """Rows of logits up to 1e30, with overflow raised as an error, against 60 digits."""
    for scale in (1.0, 1e2, 1e4, 1e30):
        z = RNG.normal(size=(50, 7)) * scale
        shifted = z - z.max(1, keepdims=True)
        with np.errstate(over="raise", invalid="raise"):
            assert np.exp(shifted.astype(np.float32)).max() == 1
        with mpmath.workdps(60):
            row, moved = ([mpmath.mpf(v) for v in x] for x in (z[0].tolist(), z[0].tolist()))
            top = max(row)
            moved = [v - top for v in moved]
            p, q = ([mpmath.exp(v) / mpmath.fsum(map(mpmath.exp, x)) for v in x] for x in (row, moved))
            assert all(abs(a - b) <= mpmath.mpf(10) ** -25 * a for a, b in zip(p, q, strict=True))


@pytest.mark.claim(
    "05",
    "a term that is too small for the format is far too small to change a sum of at least 1. (In float16, tens of "
    "thousands of them together are not.)",
)
def test_what_underflows_is_missed_in_float16_only() -> None:
    """60,000 terms just below half of the smallest number: one of them, and all, against the roundoff of 1."""
    for dtype, together in ((torch.float16, True), (torch.bfloat16, False), (torch.float32, False)):
        info = torch.finfo(dtype)
        term = 0.45 * info.tiny * info.eps
        assert float(torch.tensor(term, dtype=torch.float64).to(dtype)) == 0
        assert term < info.eps / 1000
        assert (60_000 * term > info.eps) == together


@pytest.mark.claim("05", "The logarithm of a float32 softmax is infinite once the gap passes 104.")
def test_log_of_softmax_is_lost_beyond_104_for_any_number_of_classes() -> None:
    """Gaps on both sides of 104, with 2, 10 and 1,000 classes."""
    for classes in (2, 10, 1000):
        for gap, finite in ((100.0, classes == 2), (104.5, False), (1e4, False)):
            z = torch.zeros(classes)
            z[0] = -gap
            # More classes share the probability, so that it is lost earlier still.
            lost = torch.isinf(torch.log(torch.softmax(z, -1)))[0].item()
            assert lost or finite or gap < 104
            kept = F.log_softmax(z, -1)[0].item()
            assert kept == pytest.approx(-gap - np.log(classes - 1 + np.exp(-gap)), rel=1e-6)
    assert torch.isfinite(torch.log(torch.softmax(torch.tensor([-103.0, 0.0]), -1))).all()


@pytest.mark.claim(
    "05",
    "For a right answer the subtraction loses a digit for every 2.3 of margin and has none left from "
    "$\\log(1/u)$ on.",
)
@pytest.mark.parametrize(("dtype", "start"), [(torch.float64, 8.0), (torch.float32, 4.0)])
def test_the_subtraction_loses_digits_along_a_line(dtype: torch.dtype, start: float) -> None:
    """300 margins off the grid, in two formats, against 60 digits: the slope, and margins beyond the end."""
    dead = DIGITS[dtype] * np.log(2)
    margins = np.linspace(start, dead - 1, 300)
    base = RNG.uniform(-3, 3, margins.size)
    z = torch.from_numpy(np.stack([base + margins, base], 1)).to(dtype)
    seen = -F.log_softmax(z, -1)[:, 0]
    digits = [-np.log10(off_by(v, true_loss(r, 0)) + 1e-18) for v, r in zip(seen.tolist(), z, strict=True)]
    slope = np.polyfit(margins, digits, 1)[0]
    assert abs(slope * np.log(10) + 1) < 0.1
    for beyond in (dead + 0.1, dead + 5, 2 * dead):
        assert F.log_softmax(torch.tensor([beyond, 0.0], dtype=dtype), -1)[0] == 0


@pytest.mark.claim("05", "Of the gradient, only the right class's entry is lost with it.")
@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_only_the_right_classs_entry_dies(dtype: torch.dtype, classes: int) -> None:
    """Four formats, 2 to 20 classes, just beyond the margin at which the loss dies."""
    margin = DIGITS[dtype] * np.log(2) + np.log(classes) + 0.6
    z = torch.zeros(1, classes, dtype=dtype)
    z[0, 1] = margin
    z.requires_grad_()
    F.cross_entropy(z, torch.tensor([1])).backward()
    found, wrong = z.grad[0].double().numpy(), np.arange(classes) != 1
    assert found[1] == 0
    stored = float(z.detach()[0, 1])
    expected = np.exp(-stored) / (1 + (classes - 1) * np.exp(-stored))
    # A few roundings; the exponent is up to 40 and multiplies one of them.
    assert np.abs(found[wrong] / expected - 1).max() < 64 * 2.0 ** -DIGITS[dtype]


@pytest.mark.claim(
    "05", "So training does not stop; with two classes the margin grows half as fast as it should."
)
def test_the_margin_grows_at_half_speed_for_two_classes() -> None:
    """The gradient along the margin, against its closed form."""
    z = torch.tensor([[18.0, 0.0]], requires_grad=True)
    F.cross_entropy(z, torch.tensor([0])).backward()
    true = 2 * np.exp(-18.0)
    assert float(z.grad[0, 1] - z.grad[0, 0]) / true == pytest.approx(0.5, rel=1e-5)


@pytest.mark.claim(
    "05", "Leave the target out of the sum and use `log1p`: the loss then keeps its digits at both ends."
)
def test_the_gap_form_keeps_its_digits_at_both_ends() -> None:
    """Margins from -700 to 600 and up to 300 classes, against 60 digits."""
    for classes in (2, 5, 300):
        for margin in (-700.0, -40.0, -1e-9, 0.0, 3.0, 40.0, 600.0):
            z = RNG.normal(size=classes)
            z[0] = z[1:].max() + margin
            row = torch.from_numpy(z)
            m, others = z.max(), np.exp(z[1:] - z.max()).sum()
            gap = m - z[0]
            by_hand = np.log1p(others) if gap == 0 else gap + np.log(np.exp(-gap) + others)
            # The exponent is a difference that was rounded, and multiplies that rounding.
            assert off_by(float(by_hand), true_loss(row, 0)) < (8 + abs(margin)) * 2.0**-52
            # The package takes the rounding back: 4 ulp.
            assert off_by(float(xent.cross_entropy(z, 0)), true_loss(row, 0)) <= 4 * 2.0**-52


@pytest.mark.claim(
    "05",
    "Add losses up in float32 or wider: a float16 sum overflows beyond 65,504, and a running bfloat16 sum of losses "
    "of a few nats stands still long before that.",
)
def test_sums_in_half_precision_overflow_or_stand_still() -> None:
    """Losses of other distributions and sizes, added one after another; of 300 nats each, the sum goes on beyond."""
    assert torch.isinf(torch.tensor(65_504.0).half() + torch.tensor(32.0).half())
    total = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(1000):
        total = total + 300
    assert float(total) > 65_504
    for seed, scale in ((1, 0.5), (2, 3.0), (3, 8.0)):
        losses = np.random.default_rng(seed).exponential(scale, 12_000)
        total = torch.zeros((), dtype=torch.bfloat16)
        for loss in torch.from_numpy(losses).bfloat16():
            total = total + loss
        assert float(total) < losses.sum() / 3 and float(total) < 65_504
        # float32 keeps the sum: at most one rounding for each of 12,000 additions.
        wide = torch.from_numpy(losses).float().sum().item()
        assert wide == pytest.approx(losses.sum(), rel=12_000 * 2.0**-24)


@pytest.mark.claim("05", "the mean 2.7304 of all these losses is 2.7344 in bfloat16")
def test_the_mean_is_one_rounding_away() -> None:
    """The nearest number of the format, and its neighbour."""
    rounded = torch.tensor(2.7304).bfloat16()
    assert f"{rounded.item():.4f}" == "2.7344"
    assert torch.nextafter(rounded, torch.tensor(0.0).bfloat16()) == rounded - 1 / 64


@pytest.mark.claim(
    "05",
    "Clipping bounds the loss by $\\log(1/\\epsilon)$, and its gradient is zero wherever $p_y < \\epsilon$.",
)
def test_a_clipped_loss_is_bounded_and_flat() -> None:
    """Four epsilons, two and six classes, logits on both sides of the clip, by autograd."""
    for eps in (1e-7, 1e-15, 2.0**-52, 0.05):
        for classes in (2, 6):
            z = torch.from_numpy(RNG.normal(size=(400, classes)) * 40).requires_grad_()
            p = torch.softmax(z, -1)
            loss = -torch.log(p[:, 0].clamp(min=eps))
            assert loss.max().item() <= -np.log(eps) * (1 + 1e-15)
            loss.sum().backward()
            below = (p[:, 0] < eps).numpy()
            assert below.any() and not below.all()
            assert np.abs(z.grad.numpy()[below]).max() == 0
            assert np.abs(z.grad.numpy()[~below & (p[:, 0] < 0.9).numpy()]).min() > 0


@pytest.mark.claim(
    "05",
    "It is more accurate where the probability underflows; for other wrong answers the two are equally accurate, and "
    "for answers that are certain and right both lose the same digits.",
)
def test_log_softmax_is_more_accurate_on_one_side_only() -> None:
    """200 rows each, wrong by 5 to 110 and right by 12 and 15, against 60 digits."""
    for margin, better in ((-110.0, True), (-95.0, True), (-80.0, None), (-20.0, None), (-5.0, None)):
        _compare_with_log_of_softmax(margin, better)
    for margin in (12.0, 15.0):
        _compare_with_log_of_softmax(margin, False)


def _compare_with_log_of_softmax(margin: float, better: bool | None) -> None:
    """Better by log_softmax, equally exact (None), or equally poor."""
    z = torch.from_numpy(np.stack([RNG.normal(size=200) + margin, RNG.normal(size=200)], 1)).float()
    truths = [true_loss(row, 0) for row in z]
    two, one = (
        np.array([off_by(-v, t) if np.isfinite(v) else np.inf for v, t in zip(f(z), truths, strict=True)])
        for f in (
            lambda z: torch.log(torch.softmax(z, -1))[:, 0].tolist(),
            lambda z: F.log_softmax(z, -1)[:, 0].tolist(),
        )
    )
    if better is None:
        assert max(np.median(one), np.median(two)) < 2.0**-24
    elif better:
        assert np.median(one) < 1e-7 < np.median(two)
    else:
        assert np.median(one) > 1e-4 and 0.5 < np.median(one) / np.median(two) < 2
