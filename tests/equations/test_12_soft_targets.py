"""The equations of chapter 12, each as printed, against something that does not come from it."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

import xent
from xent import gradients, scoring
from xent.information import kl_divergence

ROUNDING = "a few roundings in float64"
Array = np.ndarray


def laws(classes: int, size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), size=size)


def logits(classes: int, size: int, seed: int = 1) -> Array:
    return 3 * np.random.default_rng(seed).normal(size=(size, classes))


def autograd(loss, z: Array) -> Array:
    """The gradient of a torch function of the logits."""
    tensor = torch.tensor(z, requires_grad=True)
    loss(tensor).backward()
    return tensor.grad.numpy()


def agrees(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-12))


# ------------------------------------------------------------------------------------------- the loss


@pytest.mark.equation("eq-soft-loss", by="reference")
def test_the_loss_is_both_lines(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell(z, t) &= -\sum_{k=1}^{K} t_k \log p_k \\
    &= \log \sum_{j=1}^{K} e^{z_j} - \sum_{k=1}^{K} t_k z_k ,
    \end{aligned}
    $$ (eq-soft-loss)
    """
    z, t = logits(5, 20), laws(5, 20)
    expected = []
    with mpmath.workdps(50):
        for row, target in zip(z, t, strict=True):
            e = [mpmath.exp(mpmath.mpf(x)) for x in row]
            expected.append(
                -sum(mpmath.mpf(b) * mpmath.log(a / sum(e)) for a, b in zip(e, target, strict=True))
            )
    # wrong: np.log(np.exp(z).sum(1)) - (t * z).sum(1) -> np.log(np.exp(z).sum(1)) + (t * z).sum(1)
    second = np.log(np.exp(z).sum(1)) - (t * z).sum(1)
    why = "targets sum to one up to rounding"
    worst_error(second, expected, rtol=1e-12, atol=1e-12, why=why)
    worst_error(xent.soft_cross_entropy(z, t, reduction="none"), expected, rtol=1e-12, atol=1e-12, why=why)
    assert not agrees(np.log(np.exp(z).sum(1)) + (t * z).sum(1), second)
    # The second line needs targets that sum to one.
    first = -(2 * t * np.log(xent.softmax(z))).sum(1)
    assert not agrees(np.log(np.exp(z).sum(1)) - (2 * t * z).sum(1), first)


@pytest.mark.equation("eq-soft-linear", by="montecarlo")
def test_a_distribution_costs_the_mean_of_its_labels(worst_error):
    r"""
    $$
    \mathbb E_{y \sim t}\, \ell(z, e_y) = \ell(z, t) ,
    $$ (eq-soft-linear)
    """
    z, t = logits(4, 1)[0], laws(4, 1)[0]
    n = 400_000
    y = np.random.default_rng(2).choice(4, size=n, p=t)
    # wrong: np.log(np.exp(z) / np.exp(z).sum()) -> (np.exp(z) / np.exp(z).sum())
    cost = -np.log(np.exp(z) / np.exp(z).sum())[y]
    right = xent.soft_cross_entropy(z, t)
    worst_error(cost.mean(), right, atol=4 * cost.std() / np.sqrt(n), why="four standard errors")
    # The loss of the most probable label is another number.
    assert abs(xent.cross_entropy(z[None], [int(t.argmax())]) - right) > 0.01


@pytest.mark.equation("eq-soft-floor", by="symbolic")
def test_the_floor_is_the_entropy():
    r"""
    $$
    \ell(z, t) = H(t) + \mathrm{KL}(t \,\|\, p) .
    $$ (eq-soft-floor)
    """
    t, p = sp.symbols("t1:4", positive=True), sp.symbols("p1:4", positive=True)
    loss = -sum(a * sp.log(b) for a, b in zip(t, p, strict=True))
    entropy = -sum(a * sp.log(a) for a in t)
    # wrong: a * sp.log(a / b) -> b * sp.log(a / b)
    kl = sum(a * sp.log(a / b) for a, b in zip(t, p, strict=True))
    assert sp.simplify(sp.expand_log(loss - entropy - kl, force=True)) == 0
    assert sp.simplify(sp.expand_log(loss - entropy + kl, force=True)) != 0
    reverse = sum(b * sp.log(b / a) for a, b in zip(t, p, strict=True))
    assert sp.simplify(sp.expand_log(loss - entropy - reverse, force=True)) != 0


@pytest.mark.equation("eq-soft-gradient", by="reference")
def test_the_gradient_is_p_minus_t(worst_error):
    r"""
    $$
    \frac{\partial \ell}{\partial z_k} = p_k - t_k .
    $$ (eq-soft-gradient)
    """
    z, t = logits(5, 20), laws(5, 20)
    target = torch.tensor(t)
    expected = autograd(lambda x: F.cross_entropy(x, target, reduction="sum"), z)
    # wrong: keepdims=True) - t -> keepdims=True) + t
    transcribed = np.exp(z) / np.exp(z).sum(1, keepdims=True) - t
    worst_error(transcribed, expected, rtol=1e-12, atol=1e-13, why=ROUNDING)
    ours = gradients.soft_cross_entropy_gradient(z, t, reduction="sum")
    worst_error(ours, expected, rtol=1e-12, atol=1e-13, why=ROUNDING)
    assert not agrees(-transcribed, expected)


# ------------------------------------------------------------------------------------- the derivation


def random_problem(seed: int) -> tuple[Array, Array, Array]:
    """A joint law of 3 inputs and 2 classes, and features for a model of one parameter."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(2), size=3), rng.normal(size=(3, 2))


@pytest.mark.equation("eq-soft-argmin", by="property")
def test_each_line_is_lowest_at_the_same_parameter():
    r"""
    $$
    \begin{aligned}
    &\operatorname*{argmin}_\theta\, \mathrm{KL}(P_{X,Y} \,\|\, Q_\theta) \\
    &= \operatorname*{argmin}_\theta\, -\sum_{x, y} P(x, y) \log Q_\theta(x, y) \\
    &= \operatorname*{argmin}_\theta\, -\sum_x P_X(x) \sum_y P(y \mid x) \\
    &\qquad \bigl( \log Q_\theta(y \mid x) + \log P_X(x) \bigr) \\
    &= \operatorname*{argmin}_\theta\, -\sum_x P_X(x) \\
    &\qquad \sum_y P(y \mid x) \log Q_\theta(y \mid x) \\
    &= \operatorname*{argmin}_\theta\, \mathbb E_X\, \ell\bigl( z_\theta(X), P(\cdot \mid X) \bigr) .
    \end{aligned}
    $$ (eq-soft-argmin)
    """
    thetas = np.linspace(-3, 3, 301)
    for seed in range(20):
        p_x, p_y, feature = random_problem(seed)
        joint = p_x[:, None] * p_y
        z = thetas[:, None, None] * feature
        log_q = xent.log_softmax(z)
        log_joint = log_q + np.log(p_x)[:, None]
        kl = (joint * (np.log(joint) - log_joint)).sum((1, 2))
        # wrong: (p_x * (p_y * log_q).sum(2)).sum -> (p_y * log_q).sum(2).sum
        lines = [
            -(joint * log_joint).sum((1, 2)),
            -(p_x * (p_y * (log_q + np.log(p_x)[:, None])).sum(2)).sum(1),
            -(p_x * (p_y * log_q).sum(2)).sum(1),
            xent.soft_cross_entropy(z, np.broadcast_to(p_y, z.shape), reduction="none") @ p_x,
        ]
        for line in lines:  # they differ by constants only, so they share the minimum
            assert np.ptp(line - kl) < 1e-12 + 1e-10 * np.abs(kl).max()
        # With P_X on the sum twice it is another function of theta.
        twice = -(p_x**2 * (p_y * log_q).sum(2)).sum(1)
        assert np.ptp(twice - kl) > 1e-3


@pytest.mark.equation("eq-soft-empirical", by="montecarlo")
def test_the_mean_converges_to_the_expectation(worst_error):
    r"""
    $$
    \begin{aligned}
    J_N(\theta) &= \frac{1}{N} \sum_{i=1}^{N} \ell\bigl( z_\theta(x_i), t_i \bigr) \\
    &\to\; \mathbb E_X\, \ell \quad (N \to \infty) .
    \end{aligned}
    $$ (eq-soft-empirical)
    """
    p_x, p_y, feature = random_problem(3)
    each = np.array([xent.soft_cross_entropy(0.7 * f, q) for f, q in zip(feature, p_y, strict=True)])
    # wrong: p_x @ each -> each.mean()
    expectation = p_x @ each
    spread = np.sqrt(p_x @ (each - expectation) ** 2)
    rng = np.random.default_rng(4)
    for n in (100, 10_000, 1_000_000):
        mean = each[rng.choice(3, size=n, p=p_x)].mean()
        worst_error(mean, expectation, atol=4 * spread / np.sqrt(n), why="four standard errors")
    assert spread > 0.05  # so that a forgotten 1/N or another law would show


# ------------------------------------------------------------------------------------------ the noise


@pytest.mark.equation("eq-soft-variance", by="reference")
def test_the_noise_of_votes_by_counting_all_of_them(worst_error):
    r"""Sum over all ways in which m annotators can vote.

    $$
    \begin{aligned}
    \mathbb E\, (p - \bar t) &= p - t , \\
    \mathbb E\, \lVert \bar t - t \rVert^2 &= \frac{1}{m} \Bigl( 1 - \sum_{k=1}^{K} t_k^2 \Bigr) .
    \end{aligned}
    $$ (eq-soft-variance)
    """
    from itertools import product

    for seed, m in ((0, 1), (1, 2), (2, 4)):
        t, p = laws(3, 1, seed)[0], laws(3, 1, seed + 9)[0]
        mean, noise = np.zeros(3), 0.0
        for votes in product(range(3), repeat=m):
            probability = np.prod(t[list(votes)])
            shares = np.bincount(votes, minlength=3) / m
            mean += probability * (p - shares)
            noise += probability * ((shares - t) ** 2).sum()
        worst_error(mean, p - t, atol=1e-14, rtol=1e-12, why=ROUNDING)
        # wrong: (1 - (t**2).sum()) / m -> 1 - (t**2).sum()
        formula = (1 - (t**2).sum()) / m
        worst_error(noise, formula, rtol=1e-12, why=ROUNDING)
        assert not agrees(noise, (1 + (t**2).sum()) / m)
        assert m == 1 or not agrees(noise, formula / m)


# -------------------------------------------------------------------------------------------- smoothing


def one_convention(classes: int, y: int, eps: float) -> Array:
    hot = np.arange(classes) == y
    return (1 - eps) * hot + eps / classes


def other_convention(classes: int, y: int, eta: float) -> Array:
    hot = np.arange(classes) == y
    return (1 - eta) * hot + eta / (classes - 1) * ~hot


@pytest.mark.equation("eq-soft-conventions", by="symbolic")
def test_the_conventions_agree_at_one_eta_only():
    r"""
    $$
    \begin{aligned}
    t_k &= (1 - \varepsilon)\, [k = y] + \frac{\varepsilon}{K} \\[1ex]
    t'_k &= (1 - \eta)\, [k = y] + \frac{\eta}{K - 1}\, [k \ne y] \\[1ex]
    t &= t' \iff \eta = \varepsilon\, \frac{K - 1}{K}
    \end{aligned}
    $$ (eq-soft-conventions)
    """
    k, eps, eta = sp.symbols("K epsilon eta", positive=True)
    of_label = sp.solve(sp.Eq((1 - eps) + eps / k, 1 - eta), eta)
    of_others = sp.solve(sp.Eq(eps / k, eta / (k - 1)), eta)
    for solution in (of_label, of_others):
        assert len(solution) == 1
        # wrong: eps * (k - 1) / k -> eps * k / (k - 1)
        assert sp.simplify(solution[0] - eps * (k - 1) / k) == 0
        assert sp.simplify(solution[0] - eps * k / (k - 1)) != 0


@pytest.mark.equation("eq-soft-conventions", by="framework")
def test_torch_uses_the_first_convention(worst_error):
    r"""
    $$
    \begin{aligned}
    t_k &= (1 - \varepsilon)\, [k = y] + \frac{\varepsilon}{K} \\[1ex]
    t'_k &= (1 - \eta)\, [k = y] + \frac{\eta}{K - 1}\, [k \ne y] \\[1ex]
    t &= t' \iff \eta = \varepsilon\, \frac{K - 1}{K}
    \end{aligned}
    $$ (eq-soft-conventions)
    """
    z = logits(5, 8)
    y = np.random.default_rng(0).integers(5, size=8)
    for eps in (0.1, 0.4):
        told = F.cross_entropy(torch.tensor(z), torch.tensor(y), label_smoothing=eps, reduction="none")
        log_p = xent.log_softmax(z)
        first = [-(one_convention(5, c, eps) * row).sum() for c, row in zip(y, log_p, strict=True)]
        same = [-(other_convention(5, c, eps * 4 / 5) * row).sum() for c, row in zip(y, log_p, strict=True)]
        other = [-(other_convention(5, c, eps) * row).sum() for c, row in zip(y, log_p, strict=True)]
        worst_error(first, told, rtol=1e-12, why=ROUNDING)
        worst_error(same, told, rtol=1e-12, why=ROUNDING)
        assert not agrees(np.array(other), told.numpy())


@pytest.mark.equation("eq-soft-binary", by="framework")
def test_keras_smooths_a_binary_label_by_half(worst_error):
    r"""
    $$
    t = (1 - \varepsilon)\, y + \frac{\varepsilon}{2} ,
    $$ (eq-soft-binary)
    """
    from xent_book import frameworks

    keras = frameworks.keras()
    z, y = np.array([[-1.0], [0.3], [2.0]], np.float32), np.array([[1.0], [0.0], [1.0]], np.float32)
    for eps in (0.1, 0.4):
        loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=eps)
        told = float(np.asarray(loss(y, z)))
        # wrong: eps / 2 -> eps / 3
        t = (1 - eps) * y.astype(float) + eps / 2
        expected = xent.binary_cross_entropy(z.astype(float), t)
        worst_error(expected, told, rtol=1e-6, why="Keras computes in float32")
        wrong = xent.binary_cross_entropy(z.astype(float), (1 - eps) * y.astype(float) + eps / 3)
        assert abs(wrong - told) > 1e-3
    # And it is the first convention with two classes.
    assert agrees(one_convention(2, 1, 0.1), np.array([0.05, 0.95]))


@pytest.mark.equation("eq-soft-gap", by="reference")
def test_the_gap_is_where_the_loss_is_lowest(worst_error):
    r"""
    $$
    \begin{aligned}
    z_y - z_k &= \log \Bigl( 1 + \frac{K (1 - \varepsilon)}{\varepsilon} \Bigr) \\[1ex]
    &= \log \frac{(1 - \eta)(K - 1)}{\eta} .
    \end{aligned}
    $$ (eq-soft-gap)
    """
    for classes, eps in ((2, 0.1), (10, 0.1), (10, 0.3), (1000, 0.2)):
        with mpmath.workdps(30):
            label = mpmath.mpf(1 - eps) + mpmath.mpf(eps) / classes

            def slope(gap, label=label, classes=classes):  # p_y - t_y, the derivative in the gap
                return mpmath.exp(gap) / (mpmath.exp(gap) + classes - 1) - label

            found = mpmath.findroot(slope, (0, 20), solver="anderson")
        # wrong: 1 + classes * (1 - eps) / eps -> classes * (1 - eps) / eps
        first = np.log(1 + classes * (1 - eps) / eps)
        eta = eps * (classes - 1) / classes
        worst_error(first, found, rtol=1e-12, why=ROUNDING)
        worst_error(np.log((1 - eta) * (classes - 1) / eta), found, rtol=1e-12, why=ROUNDING)
        assert not agrees(np.log(classes * (1 - eps) / eps), first)


@pytest.mark.equation("eq-soft-elicits", by="property")
@pytest.mark.equation("eq-soft-inverse", by="reference")
def test_a_search_ends_at_the_mixture_and_the_inverse_undoes_it(worst_error):
    r"""
    $$
    \begin{aligned}
    &-\sum_{k=1}^{K} \Bigl( (1 - \varepsilon)\, p_k + \frac{\varepsilon}{K} \Bigr) \log q_k , \\
    &\text{lowest at } q_k = (1 - \varepsilon)\, p_k + \frac{\varepsilon}{K} .
    \end{aligned}
    $$ (eq-soft-elicits)

    $$
    p_k = \frac{q_k - \varepsilon / K}{1 - \varepsilon} .
    $$ (eq-soft-inverse)
    """
    for p, eps in zip(laws(4, 5), (0.05, 0.1, 0.3, 0.5, 0.9), strict=True):
        # The first line is the mean over y of the smoothed losses themselves.
        q = laws(4, 1, 7)[0]
        mean = sum(p[y] * -(one_convention(4, y, eps) * np.log(q)).sum() for y in range(4))
        assert agrees(mean, -(((1 - eps) * p + eps / 4) * np.log(q)).sum())

        def cost(z, p=p, eps=eps):
            tensor = torch.tensor(z, requires_grad=True)
            each = [F.cross_entropy(tensor[None], torch.tensor([y]), label_smoothing=eps) for y in range(4)]
            loss = sum(weight * value for weight, value in zip(p, each, strict=True))
            loss.backward()
            return loss.item(), tensor.grad.numpy()

        found = minimize(cost, np.zeros(4), jac=True, tol=1e-10, method="BFGS")
        report = xent.softmax(found.x)
        why = "the search ends where the cost no longer changes"
        # wrong[eq-soft-elicits]: eps / 4 -> eps / 3
        np.testing.assert_allclose(report, (1 - eps) * p + eps / 4, atol=1e-6)
        assert not np.allclose(report, (1 - eps) * p + eps / 3, atol=1e-3)
        # wrong[eq-soft-inverse]: (report - eps / 4) / (1 - eps) -> (report - eps / 4) * (1 - eps)
        worst_error((report - eps / 4) / (1 - eps), p, atol=1e-5, why=why)
        assert not np.allclose((report + eps / 4) / (1 - eps), p, atol=1e-3)


@pytest.mark.equation("eq-soft-reach", by="property")
def test_the_inverse_is_a_distribution_exactly_above_the_floor():
    r"""
    $$
    \min_k q_k \ge \frac{\varepsilon}{K} .
    $$ (eq-soft-reach)
    """
    rng = np.random.default_rng(5)
    inside = outside = 0
    for q in rng.dirichlet(np.ones(4), size=500):
        eps = rng.uniform(0.01, 0.9)
        p = (q - eps / 4) / (1 - eps)
        assert abs(p.sum() - 1) < 1e-12
        # wrong: eps / 4 -> eps
        reachable = q.min() >= eps / 4
        assert reachable == bool((p >= 0).all() and (p <= 1).all())
        if reachable:
            inside += 1
            np.testing.assert_allclose(scoring.invert_smoothing(q, label_smoothing=eps), p, atol=1e-12)
        else:
            outside += 1
            with pytest.raises(ValueError, match="probs"):
                scoring.invert_smoothing(q, label_smoothing=eps)
    assert min(inside, outside) > 20


@pytest.mark.equation("eq-soft-inside", by="reference")
def test_the_gradient_through_the_mixture(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell_{\text{in}} &= -\log \Bigl( (1 - \varepsilon)\, p_y + \frac{\varepsilon}{K} \Bigr) \\[1ex]
    \frac{\partial \ell_{\text{in}}}{\partial z_k} &= \frac{(1 - \varepsilon)\, p_y\, (p_k - [k = y])}{(1 -
    \varepsilon)\, p_y + \varepsilon / K} .
    \end{aligned}
    $$ (eq-soft-inside)
    """
    eps, z, y = 0.2, logits(5, 12), np.random.default_rng(6).integers(5, size=12)
    rows = torch.arange(12)

    def loss(x):
        p = x.softmax(1)
        return -((1 - eps) * p[rows, torch.tensor(y)] + eps / 5).log().sum()

    expected = autograd(loss, z)
    p = xent.softmax(z)
    right = p[np.arange(12), y][:, None]
    # wrong: eps / 5 -> eps
    transcribed = (1 - eps) * right * (p - np.eye(5)[y]) / ((1 - eps) * right + eps / 5)
    worst_error(transcribed, expected, rtol=1e-11, atol=1e-13, why=ROUNDING)
    assert not agrees(p - np.eye(5)[y], expected)


@pytest.mark.equation("eq-soft-inside", by="property")
def test_under_labels_of_the_mixture_it_elicits_the_clean_law():
    r"""
    $$
    \begin{aligned}
    \ell_{\text{in}} &= -\log \Bigl( (1 - \varepsilon)\, p_y + \frac{\varepsilon}{K} \Bigr) \\[1ex]
    \frac{\partial \ell_{\text{in}}}{\partial z_k} &= \frac{(1 - \varepsilon)\, p_y\, (p_k - [k = y])}{(1 -
    \varepsilon)\, p_y + \varepsilon / K} .
    \end{aligned}
    $$ (eq-soft-inside)
    """
    eps = 0.2
    for p in laws(4, 5):
        label = (1 - eps) * p + eps / 4

        def cost(z, label=label):
            return float(-(label * np.log((1 - eps) * xent.softmax(z) + eps / 4)).sum())

        found = minimize(cost, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(xent.softmax(found.x), p, atol=2e-4)
    # With clean labels it asks for more than they support.
    p = np.array([0.7, 0.2, 0.1])

    def at_clean_labels(z):
        return float(-(p * np.log((1 - eps) * xent.softmax(z) + eps / 3)).sum())

    clean = minimize(at_clean_labels, np.zeros(3), method="BFGS")
    assert xent.softmax(clean.x).max() > 0.75


# ------------------------------------------------------------------------------------------------- KL


@pytest.mark.equation("eq-soft-kl-terms", by="framework")
@pytest.mark.equation("eq-soft-kl-reductions", by="framework")
def test_kl_div_and_its_reductions(worst_error):
    r"""
    $$
    d_{nk} = p_{nk} \bigl( \log p_{nk} - \log q_{nk} \bigr) .
    $$ (eq-soft-kl-terms)

    $$
    \begin{aligned}
    \text{none} &: \; d_{nk} \\
    \text{sum} &: \; \textstyle\sum_{n,k} d_{nk} \\
    \text{mean} &: \; \textstyle\sum_{n,k} d_{nk} \,/\, M \\
    \text{batchmean} &: \; \textstyle\sum_{n,k} d_{nk} \,/\, N
    \end{aligned}
    $$ (eq-soft-kl-reductions)
    """
    for shape in ((6, 5), (2, 3, 5)):
        rng = np.random.default_rng(8)
        p = rng.dirichlet(np.ones(5), size=shape[:-1])
        log_q = xent.log_softmax(rng.normal(size=shape))
        # wrong[eq-soft-kl-terms]: np.log(p) - log_q -> np.log(p) + log_q
        d = p * (np.log(p) - log_q)
        # wrong[eq-soft-kl-reductions]: d.size -> shape[0]
        printed = {"none": d, "sum": d.sum(), "mean": d.sum() / d.size, "batchmean": d.sum() / shape[0]}
        for reduction, expected in printed.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the default mean
                told = F.kl_div(torch.tensor(log_q), torch.tensor(p), reduction=reduction)
            worst_error(expected, told, rtol=1e-12, atol=1e-14, why=ROUNDING)
        assert not agrees(p * (np.log(p) + log_q), d)
        # What the chapter says: mean is K times too small, batchmean of three axes T times too large.
        true = kl_divergence(p, np.exp(log_q)).mean()
        assert agrees(printed["mean"] * 5, true)
        assert agrees(printed["batchmean"], true * (1 if len(shape) == 2 else shape[1]))


# --------------------------------------------------------------------------------------- the frameworks


@pytest.mark.equation("eq-soft-torch-weights", by="framework")
def test_torch_weighs_the_terms_and_divides_by_n(worst_error):
    r"""
    $$
    L_{\text{torch}} = -\frac{1}{N} \sum_{n=1}^{N} \sum_{k=1}^{K} w_k\, t_{nk} \log p_{nk} .
    $$ (eq-soft-torch-weights)
    """
    z, t, w = logits(4, 7), laws(4, 7), np.array([1.0, 10.0, 0.5, 2.0])
    told = F.cross_entropy(torch.tensor(z), torch.tensor(t), weight=torch.tensor(w))
    log_p = xent.log_softmax(z)
    # wrong: -(w * t * log_p).sum() / 7 -> -(w * t * log_p).sum() / w.sum()
    worst_error(-(w * t * log_p).sum() / 7, told, rtol=1e-12, why=ROUNDING)
    assert not agrees(-(w * t * log_p).sum() / (w * t).sum(), told.numpy())
    assert not agrees(-(w * log_p).sum() / 7, told.numpy())


@pytest.mark.equation("eq-soft-unnormalised", by="reference")
def test_targets_of_any_sum(worst_error):
    r"""
    $$
    -\frac{\partial}{\partial z_k} \sum_{j=1}^{K} t_j \log p_j = s\, p_k - t_k .
    $$ (eq-soft-unnormalised)
    """
    z = logits(4, 9)
    t = np.random.default_rng(9).uniform(0, 2, size=(9, 4))
    t[0] = 0
    target = torch.tensor(t)
    expected = autograd(lambda x: -(target * x.log_softmax(1)).sum(), z)
    # wrong: t.sum(1, keepdims=True) * xent.softmax(z) -> xent.softmax(z)
    transcribed = t.sum(1, keepdims=True) * xent.softmax(z) - t
    worst_error(transcribed, expected, rtol=1e-11, atol=1e-13, why=ROUNDING)
    assert not agrees(xent.softmax(z) - t, expected)
