"""The claims of chapter 15, each with an attempt to refute it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import brentq, minimize
from scipy.special import logsumexp
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import scripts
import xent
import xent.torch as xt

FOLDER = Path(__file__).parents[2] / "experiments" / "large_vocabularies"
RNG = np.random.default_rng(15)


class Largest(TorchDispatchMode):
    """Remember the largest tensor that any operation returns, in numbers."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(found) if isinstance(x, Tensor))])
        return found


def largest(run: Callable[[], Tensor]) -> int:
    with Largest() as mode:
        run().backward()
    return mode.numel


def layer(rows: int, classes: int, width: int, **given: Any) -> tuple[Tensor, Tensor]:
    hidden, weight = torch.randn(rows, width, **given), torch.randn(classes, width, **given)
    return hidden.requires_grad_(), weight.requires_grad_()


@pytest.mark.claim(
    "15",
    "A plain cross-entropy over a vocabulary holds three arrays of the size of the logits, and a fourth if you keep "
    "them.",
)
@pytest.mark.claim(
    "15",
    "Chunks of rows alone keep one array of the logits' size; checkpointing, or gradients computed on the spot, does "
    "away with it.",
)
def test_arrays_of_the_logits_size() -> None:
    """The measured bytes of every case with large logits, in arrays; each to a tenth of an array or so."""
    for case in json.loads((FOLDER / "memory.json").read_text())["cases"]:
        if case["vocabulary"] < 16_000:
            continue
        arrays = {name: used / case["logits"] for name, used in case["bytes"].items()}
        assert arrays["plain"] == pytest.approx(3, abs=0.25)
        assert arrays["plain, logits kept"] == pytest.approx(4, abs=0.25)
        assert 1 < arrays["chunks alone"] < 1 + 5 * 256 / case["rows"]  # a chunk has 256 rows
        for name in ("chunks, checkpointed", "torch, options", "torch, chunks of 256", "blocked"):
            if case["rows"] > 1024:
                assert arrays[name] < 0.5  # the gradients of the inputs are in it


@pytest.mark.claim(
    "15",
    "A log-sum-exp needs one look at each block, with a maximum and a sum as its state.",
)
def test_one_look_is_enough() -> None:
    """Blocks in random order and of random sizes, logits at 800 and at -800, blocks that are masked."""
    for level in (-800.0, 0.0, 800.0):
        z = level + 5 * RNG.normal(size=500)
        z[:40] = -np.inf
        for _ in range(10):
            cuts = np.sort(RNG.choice(np.arange(1, 500), 7, replace=False))
            m, s = -np.inf, 0.0
            for part in RNG.permutation(np.array(np.split(RNG.permutation(z), cuts), dtype=object)):
                part = np.asarray(part, dtype=float)
                top = max(m, part.max())
                if top > -np.inf:
                    s = s * np.exp(m - top) + np.exp(part - top).sum()
                    m = top
            assert m + np.log(s) == pytest.approx(logsumexp(z), rel=1e-13)
            assert 1 <= s <= 500


@pytest.mark.claim(
    "15",
    "A linear loss has the same gradients as the plain one, with a teacher too, and its memory does not grow with the "
    "vocabulary beyond what the weight's own gradient takes.",
)
def test_linear_losses_never_hold_the_logits() -> None:
    """Gradients in float64 with ignored rows; then the largest tensor that is made, for two vocabularies."""
    torch.manual_seed(0)
    hidden, weight = layer(40, 301, 16, dtype=torch.float64)
    taught, teacher = (x.detach() for x in layer(40, 301, 24, dtype=torch.float64))
    targets = torch.randint(301, (40,))
    targets[::3] = -100
    live = targets >= 0
    z, v = hidden @ weight.T, taught @ teacher.T
    pairs = [
        (F.cross_entropy(z, targets), xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100)),
        (
            F.kl_div(z[live].log_softmax(1), v[live].softmax(1), reduction="batchmean"),
            xt.linear_distillation_loss(hidden, weight, taught, teacher, targets=targets, ignore_index=-100),
        ),
    ]
    for plain, ours in pairs:
        assert ours.item() == pytest.approx(plain.item(), rel=1e-12)
        expected = torch.autograd.grad(plain, (hidden, weight), retain_graph=True)
        for a, b in zip(torch.autograd.grad(ours, (hidden, weight)), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for classes in (5000, 10_000):
        rows = 800  # 4 and 8 million logits
        hidden, weight = layer(rows, classes, 2)
        targets = torch.randint(classes, (rows,))
        if classes == 5000:
            assert (
                largest(lambda h=hidden, w=weight, y=targets: F.cross_entropy(h @ w.T, y)) >= rows * classes
            )
        assert largest(lambda h=hidden, w=weight, y=targets: xt.linear_cross_entropy(h, w, y)) <= 3_200_000


@pytest.mark.claim(
    "15",
    "Beside the gradients, which every method has to make, the linear losses take some tens of MiB at every "
    "width, with a teacher and without.",
)
def test_memory_over_the_width() -> None:
    """The stored measurement: less than 40 MiB each, where the plain pair needs ten times it."""
    result = json.loads((FOLDER / "widths.json").read_text())
    assert {case["width"] for case in result["cases"]} == {128, 512, 2048}
    for case in result["cases"]:
        own = 4 * case["width"] * (result["rows"] + result["classes"])
        assert case["bytes"]["xent"] < 40 * 2**20
        assert case["bytes"]["plain"] + own > 370 * 2**20


@pytest.mark.claim(
    "15", "bfloat16 loses digits when logits are stored, and no later conversion brings them back."
)
def test_digits_lost_in_storage() -> None:
    """Three draws: converting afterwards keeps much of the error; the linear loss has none of it."""
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        h = torch.randn(64, 64, generator=g).bfloat16()
        w = (torch.randn(20_000, 64, generator=g) * 0.4).bfloat16()
        z = h.double() @ w.double().T
        y = torch.multinomial(z.softmax(1), 1, generator=g)[:, 0]
        exact = F.cross_entropy(z, y, reduction="none")

        def error(loss: Tensor, exact: Tensor = exact) -> float:
            return float((loss.double() - exact).abs().mean())

        throughout = error(F.cross_entropy(z.bfloat16(), y, reduction="none"))
        after = error(F.cross_entropy(z.bfloat16().float(), y, reduction="none"))
        assert after > 0.4 * throughout
        assert error(xt.linear_cross_entropy(h, w, y, reduction="none")) < after / 1000


@pytest.mark.claim("15", "A z-loss leaves the optimum alone if every context can shift its logits.")
@pytest.mark.claim(
    "15", "at a weight of $10^{-4}$ by little more than a thousandth at most in the smallest example"
)
def test_when_the_z_loss_is_free() -> None:
    """Large weights and sharp truths with free logits; then a reference class, off the grid of the chapter."""
    for weight in (1e-4, 0.3, 5.0):
        for P in RNG.dirichlet(np.full(5, 0.7), size=3):

            def objective(
                z: np.ndarray, P: np.ndarray = P, weight: float = weight
            ) -> tuple[float, np.ndarray]:
                log_z = logsumexp(z)
                p = np.exp(z - log_z)
                return -P @ z + log_z + weight * log_z**2, p - P + 2 * weight * log_z * p

            z = minimize(objective, np.zeros(5), jac=True, options={"gtol": 1e-10}).x
            np.testing.assert_allclose(xent.softmax(z), P, atol=1e-4)
            assert abs(logsumexp(z)) < 0.02
    lam = 1e-4
    gaps = [
        p - brentq(lambda q, p=p: q * (1 - 2 * lam * math.log1p(-q)) - p, 0.0, 1 - 1e-15)
        for p in np.r_[RNG.uniform(size=500), 1 - 10.0 ** -np.arange(2, 12)]
    ]
    assert 0.001 < max(gaps) < 0.0015


@pytest.mark.claim(
    "15",
    "A soft cap leaves the optimum alone if the log-probabilities fit into an interval shorter than $2c$.",
)
@pytest.mark.claim(
    "15",
    "A logit at twice the cap learns at a fourteenth of the speed, and this holds for a *wrong* logit as well.",
)
def test_when_a_soft_cap_is_harmless() -> None:
    """Truths whose log-probabilities span just less and just more than 2c; the slope at twice the cap, both signs."""
    for c in (1.0, 3.0):
        for factor, fits in ((0.95, True), (1.2, False)):
            log_p = np.array([0.0, -0.3, -2 * c * factor])
            P = np.exp(log_p) / np.exp(log_p).sum()

            def objective(z: np.ndarray, P: np.ndarray = P, c: float = c) -> float:
                return xent.soft_cross_entropy(c * np.tanh(z / c), P)

            best = min(
                (minimize(objective, s, method="BFGS") for s in RNG.normal(size=(3, 3))), key=lambda r: r.fun
            )
            off = np.abs(xent.log_softmax(c * np.tanh(best.x / c)) - np.log(P)).max()
            assert off < 0.05 if fits else off > 0.1
    z = torch.tensor([60.0, -60.0], requires_grad=True)
    (30 * torch.tanh(z / 30)).sum().backward()
    assert z.grad is not None and (1 / z.grad).tolist() == pytest.approx([14.15, 14.15], abs=0.1)


@pytest.mark.claim(
    "15",
    "the estimate of $\\log Z$ is too small on average, at every $m$, unless $r$ is the model's own softmax; so the "
    "loss is too small as well.",
)
@pytest.mark.claim("15", "The sum inside is unbiased. Its logarithm is not")
def test_sampled_softmax_is_biased() -> None:
    """All draws enumerated for small vocabularies and random proposals, so that the means are exact."""
    for m in (1, 2, 3):
        for _ in range(10):
            z, r = 2 * RNG.normal(size=5), RNG.dirichlet(np.full(5, 3.0))
            draws = np.stack(np.meshgrid(*[np.arange(5)] * m, indexing="ij"), -1).reshape(-1, m)
            weight = r[draws].prod(1)
            log_sums = logsumexp(z[draws] - np.log(m * r[draws]), axis=1)
            assert weight @ np.exp(log_sums) == pytest.approx(np.exp(z).sum(), rel=1e-12)
            assert weight @ log_sums < logsumexp(z) - 1e-9
            own = z[draws] - np.log(m * xent.softmax(z)[draws])
            np.testing.assert_allclose(logsumexp(own, axis=1), logsumexp(z), rtol=1e-12)


@pytest.mark.claim("15", "a label of $-100$ indexes the weight from its end, in silence.")
@pytest.mark.claim(
    "15",
    "`xent.torch.linear_cross_entropy` refuses a label out of range, leaves ignored ones out, and works under "
    "autocast.",
)
def test_the_sketch_and_the_library() -> None:
    """The same label to both, the chapter's sketch taken from the experiment that measures it."""
    memory = scripts.load(FOLDER / "memory.py")
    hidden, weight = layer(6, 300, 4)
    targets = torch.tensor([1, 2, 3, 4, 5, -100])
    padded = memory.Blocked.apply(hidden, weight, targets, 64)
    live = F.cross_entropy(hidden @ weight.T, targets)
    assert torch.isfinite(padded) and abs(padded.item() - live.item()) > 1e-3
    assert xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100).item() == pytest.approx(
        live.item()
    )
    with pytest.raises(ValueError, match="targets"):
        xt.linear_cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100).backward()
    assert hidden.grad is not None


@pytest.mark.claim(
    "15", "No two logits differ by $2c$ or more, so no probability reaches that of one logit at $c$"
)
def test_what_a_cap_cannot_say() -> None:
    """Logits far out, of both signs; then an optimiser that asks for certainty comes close and does not pass."""
    for c, classes in ((1.0, 3), (3.0, 10), (5.0, 1000)):
        bound = 1 / (1 + (classes - 1) * np.exp(-2 * c))
        # Beyond |z| of some 18 c, tanh is 1 in float64, and the bound is met: hence not below but at most.
        for scale in (1.0, 10.0, 1000.0):
            capped = c * np.tanh(scale * c * RNG.normal(size=(200, classes)) / c)
            assert np.ptp(capped, axis=1).max() <= 2 * c
            assert xent.softmax(capped).max() <= bound * (1 + 1e-12)
        z = np.full(classes, -4 * c)
        z[0] = 4 * c
        assert 0.98 * bound < xent.softmax(c * np.tanh(z / c))[0] < bound


def on_gpu() -> list[dict[str, Any]]:
    """The six cases of a GPU: two losses, three sizes."""
    stored = json.loads((FOLDER.parent / "bench" / "linear.json").read_text())
    found = [case for case in stored["cases"] if case["device"] != "cpu"]
    assert len(found) == 6 and {case["dtype"] for case in found} == {"bfloat16"}
    return found


@pytest.mark.claim(
    "15",
    "Compiled, the plain pair was the fastest in each of our six cases, with less than a fifth of the memory that it "
    "takes as written.",
)
def test_compile_first() -> None:
    """Against every other way; what remains at 128,256 classes is one array of logits in bfloat16, to 1 %."""
    for case in on_gpu():
        assert min(case["seconds"], key=lambda way: case["seconds"][way]) == "plain, compiled"
        assert case["memory"]["plain, compiled"] < 0.2 * case["memory"]["plain"]
    case = next(c for c in on_gpu() if c["width"] == 4096 and c["loss"] == "cross_entropy")
    logits = 2 * case["rows"] * case["classes"]
    assert case["memory"]["plain, compiled"] == pytest.approx(logits, rel=0.01)


@pytest.mark.claim(
    "15", "With sums in float32 it is as exact, and needs what `xent` does: $H V$ numbers of four bytes."
)
@pytest.mark.claim(
    "15",
    "Cut cross-entropy held at most two MiB beside the gradients and took two to three times as long as the plain pair",
)
def test_kernels_made_for_the_loss() -> None:
    """Errors to 5 %; what xent holds is that gradient and a block's logits, once in float32 and once in bfloat16."""
    for case in on_gpu():
        if case["loss"] == "distillation":
            continue
        memory, error = case["memory"], case["error"]
        for way in ("xent", "Liger, sums in float32"):
            assert error[way] == pytest.approx(error["plain"], rel=0.05)
            gradient, block = 4 * case["width"] * case["classes"], 6 * max(1024 * case["classes"], 2**26)
            assert 0.99 * gradient < memory[way] < gradient + block
        assert 1.6 < error["Liger"] / error["plain"] < 2.45
        for way in ("cut cross-entropy", "cut cross-entropy, unfiltered"):
            assert memory[way] < 2.5 * 2**20
            assert 2 < case["seconds"][way] / case["seconds"]["plain"] < 3.15


@pytest.mark.claim("15", "For distillation the rounding of the logits costs more than for labels.")
def test_rounded_logits_of_a_distillation() -> None:
    """In every size; and a loss that keeps a block's logits in float32 is rid of five sixths of it."""
    cases = {(c["loss"], c["classes"], c["width"]): c for c in on_gpu()}
    for (loss, *size), case in cases.items():
        if loss == "distillation":
            labels = cases["cross_entropy", size[0], size[1]]
            assert case["error"]["plain"] > 5 * labels["error"]["plain"]
            assert case["error"]["xent"] < case["error"]["plain"] / 5
            assert 1.6 < case["seconds"]["xent"] / case["seconds"]["plain"] < 1.95


def test_rounded_logits_on_this_machine() -> None:
    """The same claim without a GPU: round the logits, and look at the gradients of small layers in float64."""
    generator = torch.Generator().manual_seed(0)
    h, w, g, u = (
        torch.randn(n, 64, generator=generator, dtype=torch.float64) for n in (256, 4000, 256, 4000)
    )
    w, u, y = w / 4, u / 4, torch.randint(4000, (256,), generator=generator)

    def error(loss: Callable[[Tensor, Tensor], Tensor]) -> float:
        found = []
        for kind in (torch.float64, torch.bfloat16):
            z, v = ((a @ b.T).to(kind).double().requires_grad_() for a, b in ((h, w), (g, u)))
            (gradient,) = torch.autograd.grad(loss(z, v), z)
            found.append(gradient.T @ h)
        return float((found[1] - found[0]).norm() / found[0].norm())

    assert error(lambda z, v: xt.distillation_loss(z, v)) > 3 * error(lambda z, v: F.cross_entropy(z, y))
