"""The claims of chapter 12, each with an attempt to refute it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import logsumexp, xlogy

import xent

RNG = np.random.default_rng(12)


def distributions(rows: int, classes: int, sharpness: float = 1.0) -> np.ndarray:
    return RNG.dirichlet(np.full(classes, sharpness), size=rows)


@pytest.mark.claim(
    "12",
    "Cross-entropy against a distribution is the mean cross-entropy over its labels, its floor is the entropy of the "
    "target, and its gradient is $p - t$.",
)
def test_mean_floor_and_gradient() -> None:
    """Sharp, flat and one-hot targets, logits up to a standard deviation of 30; the gradient against differences."""
    for sharpness in (0.05, 1.0, 20.0):
        for scale in (0.1, 3.0, 30.0):
            z, t = scale * RNG.normal(size=7), distributions(1, 7, sharpness)[0]
            log_p = z - logsumexp(z)
            loss = xent.soft_cross_entropy(z, t)
            labels = [xent.cross_entropy(z, k) for k in range(7)]
            assert loss == pytest.approx(t @ labels, rel=1e-12)
            assert loss >= -xlogy(t, t).sum() - 1e-12
            h = 1e-6
            shifted = [
                (xent.soft_cross_entropy(z + h * e, t) - xent.soft_cross_entropy(z - h * e, t)) / (2 * h)
                for e in np.eye(7)
            ]
            # Differences of numbers of size |loss| lose 1e-16 |loss| / h.
            np.testing.assert_allclose(shifted, np.exp(log_p) - t, atol=1e-8 + 1e-9 * abs(loss))
    z = np.log(t)
    assert xent.soft_cross_entropy(z, t) == pytest.approx(-xlogy(t, t).sum(), rel=1e-12)


@pytest.mark.claim(
    "12",
    "A soft label removes the noise of drawing one, $1 - \\sum_k t_k^2$ per draw, and not the noise of having few "
    "inputs.",
)
def test_a_soft_label_removes_one_of_two_noises() -> None:
    """Three targets' drawn variance; then exact targets on 10 and on 1,000 inputs, whose fits still scatter."""
    for t in distributions(3, 5):
        drawn = np.eye(5)[RNG.choice(5, size=200_000, p=t)]
        far = ((drawn - t) ** 2).sum(1)
        assert abs(far.mean() - (1 - t @ t)) < 5 * far.std() / np.sqrt(len(far))
    # A model with one distribution for all inputs: its best is the mean of the exact targets it has seen.
    all_targets = distributions(20_000, 5)
    scatter = [
        np.std([all_targets[RNG.choice(20_000, n)].mean(0) for _ in range(300)], axis=0).mean()
        for n in (10, 1000)
    ]
    assert scatter[0] == pytest.approx(10 * scatter[1], rel=0.2)  # each known to some 4 %


@pytest.mark.claim("12", "One vote on each of 900 pictures wins here.")
@pytest.mark.claim("12", "The gap times $m$ stays about the same, so $1/m$ is what happens")
def test_more_pictures_or_more_votes() -> None:
    """Another family: 30 inputs in 8 dimensions, a linear truth, 24 repetitions, paired differences."""
    truth = RNG.normal(size=(9, 4))

    def divergence(n: int, m: int, seed: int) -> float:
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.normal(size=(n + 500, 8)), np.ones(n + 500)])
        p = xent.softmax(x @ truth)
        t = p[:n] if m == 0 else np.stack([rng.multinomial(m, row) for row in p[:n]]) / m

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            z = x[:n] @ w.reshape(9, 4)
            q = xent.softmax(z)
            slope = x[:n].T @ (q - t) / n + 1e-3 * w.reshape(9, 4)
            return xent.soft_cross_entropy(z, t) + 5e-4 * w @ w, slope.ravel()

        w = minimize(objective, np.zeros(36), jac=True, method="L-BFGS-B").x.reshape(9, 4)
        return float((p[n:] * (np.log(p[n:]) - xent.log_softmax(x[n:] @ w))).sum(1).mean())

    spent = np.array([[divergence(n, 240 // n, s) for n in (20, 240)] for s in range(24)])
    gain = spent[:, 0] - spent[:, 1]
    assert gain.mean() > 3 * gain.std(ddof=1) / np.sqrt(len(gain))
    gaps = np.array([[divergence(240, m, s) - divergence(240, 0, s) for m in (2, 8)] for s in range(12)])
    ratio = gaps[:, 0].mean() / gaps[:, 1].mean()
    assert 2.5 < ratio < 6.5  # 4 if it falls like 1/m


@pytest.mark.claim(
    "12",
    "Label smoothing has two conventions: $\\varepsilon$ over all $K$ classes is $\\eta = \\varepsilon (K - 1)/K$ over "
    "the others.",
)
@pytest.mark.claim(
    "12",
    "Put 0.9 into a framework's `label_smoothing`, and of ten classes the right one keeps less than a fifth:",
)
def test_two_conventions() -> None:
    """PyTorch's smoothing at several K and epsilon, against targets written by the other convention."""
    for K in (2, 3, 10, 1000):
        for eps in (0.01, 0.1, 0.9):
            z, y = torch.tensor(RNG.normal(size=(4, K))), torch.tensor(RNG.integers(K, size=4))
            eta = eps * (K - 1) / K
            t = np.full((4, K), eta / (K - 1))
            t[range(4), y] = 1 - eta
            found = F.cross_entropy(z, y, label_smoothing=eps)
            assert found.item() == pytest.approx(xent.soft_cross_entropy(z.numpy(), t), rel=1e-12)
    # What the label keeps is minus the slope of PyTorch's loss in its log-probability.
    log_p = torch.full((1, 10), 0.1, dtype=torch.float64).log().requires_grad_()
    F.cross_entropy(log_p, torch.tensor([3]), label_smoothing=0.9).backward()
    assert log_p.grad is not None and 0.1 < 0.1 - log_p.grad[0, 3].item() < 0.2


@pytest.mark.claim(
    "12", "With smoothing the best logit gap is finite, and more confidence than that is punished."
)
def test_the_best_gap_is_finite() -> None:
    """Two to a thousand classes: the loss has one minimum over the gap and rises without end beyond it."""
    for K in (2, 10, 1000):
        for eps in (0.001, 0.1, 0.5):
            gaps = np.linspace(0, 60, 6001)
            z = gaps[:, None] * np.eye(K)[0]
            loss = xent.cross_entropy(z, np.zeros(len(z), int), label_smoothing=eps, reduction="none")
            least = int(loss.argmin())
            assert 0 < least < len(gaps) - 1
            assert gaps[least] == pytest.approx(np.log1p(K * (1 - eps) / eps), abs=0.02)
            assert (np.diff(loss[least + 1 :]) > 0).all()


@pytest.mark.claim(
    "12",
    "`kl_div` takes the logarithm of the model first; its default mean divides by the classes too, and `batchmean` on "
    "$(B, T, V)$ by $B$ only.",
)
@pytest.mark.claim(
    "12",
    "With probabilities as targets, PyTorch's `cross_entropy` divides $(B, V, T)$ by $B\\,T$, whatever the weights.",
)
def test_what_pytorch_divides_by() -> None:
    """Unequal B, T and V, so that no two divisors agree by chance; weights of a thousand."""
    B, T, V = 2, 3, 5
    p = distributions(B * T, V).reshape(B, T, V)
    q = distributions(B * T, V).reshape(B, T, V)
    total = (p * np.log(p / q)).sum()
    log_q, target = torch.tensor(np.log(q)), torch.tensor(p)
    assert F.kl_div(log_q, target, reduction="batchmean").item() == pytest.approx(total / B)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that mean is not the mathematical one
        assert F.kl_div(log_q, target).item() == pytest.approx(total / (B * T * V))
    swapped = F.kl_div(target.log(), log_q.exp(), reduction="batchmean").item()
    assert swapped == pytest.approx((q * np.log(q / p)).sum() / B) and swapped != pytest.approx(total / B)
    z, t = log_q.movedim(-1, 1), target.movedim(-1, 1)
    for w in (np.ones(V), np.array([1, 1000, 1, 0.5, 3.0])):
        found = F.cross_entropy(z, t, torch.tensor(w)).item()
        assert found == pytest.approx(-(w * p * np.log(q)).sum() / (B * T))


@pytest.mark.claim("12", "A model that can express the mixture finds it.")
@pytest.mark.claim("12", "Up to the accuracy of the optimiser the votes come back.")
def test_a_table_reports_the_smoothed_votes() -> None:
    """Cells with one vote and with a class that nobody chose, three epsilons, from two starts."""
    votes = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.96, 0.04, 0, 0]])
    for eps in (0.05, 0.2, 0.6):
        for start in (np.zeros(16), RNG.normal(size=16)):
            t = (1 - eps) * votes + eps / 4

            def objective(w: np.ndarray, t: np.ndarray = t) -> tuple[float, np.ndarray]:
                z = w.reshape(4, 4)
                return xent.soft_cross_entropy(z, t), (xent.softmax(z) - t).ravel() / 4

            w = minimize(objective, start, jac=True, options={"gtol": 1e-9}).x.reshape(4, 4)
            np.testing.assert_allclose((xent.softmax(w) - eps / 4) / (1 - eps), votes, atol=1e-5)


@pytest.mark.claim(
    "12", "For one-hot targets the two agree; for others, with unequal weights, they generally do not."
)
def test_two_ways_to_weigh_a_soft_target() -> None:
    """A row's weight by its largest entry against PyTorch's weights of terms; equal weights too."""
    w, z = np.array([1.0, 4.0, 0.5]), RNG.normal(size=(6, 3))
    soft, hard = distributions(6, 3), np.eye(3)[RNG.integers(3, size=6)]
    for t, weights, agree in ((hard, w, True), (soft, w, False), (soft, np.full(3, 2.0), True)):
        terms = F.cross_entropy(torch.tensor(z), torch.tensor(t), torch.tensor(weights)).item()
        rows = -(weights[t.argmax(1)][:, None] * t * xent.log_softmax(z)).sum() / 6
        assert (terms == pytest.approx(rows, rel=1e-9)) == agree


@pytest.mark.claim("12", "A linear logit does not level off, so it cannot be flat.")
def test_a_linear_logit_does_not_level_off() -> None:
    """Any direction in which a difference of logits changes takes the report below the floor, far enough out."""
    for _ in range(5):
        w = RNG.normal(size=(3, 5))
        x = RNG.normal(size=3)
        far = xent.softmax(np.outer([1, 10, 100], x) @ w)
        assert far[-1].min() < 0.2 / 5 and far[-1].max() > 1 - 0.2 + 0.2 / 5


@pytest.mark.claim("12", "The second overweights the common input.")
def test_the_inputs_probability_weighs_once() -> None:
    """Random pairs of inputs: weighing twice moves the fit towards the common one, every time."""
    for _ in range(200):
        p_x = RNG.dirichlet([1, 1])
        p_y = distributions(2, 3)
        once, twice = p_x @ p_y, p_x**2 @ p_y / (p_x**2).sum()
        common = p_y[p_x.argmax()]
        assert np.abs(twice - common).sum() <= np.abs(once - common).sum() + 1e-12
