"""The equations of chapter 02, each as printed, against something that does not come from it."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
from scipy import special, stats
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import xent
from equations.symbolic import vanishes

ROUNDING = "a few roundings in float64"


def softmax_of(z: list[sp.Expr]) -> list[sp.Expr]:
    """The right-hand side of eq-softmax-map, transcribed."""
    total = sum(sp.exp(z_j) for z_j in z)
    # wrong[eq-softmax-map]: sp.exp(z_k) -> z_k
    return [sp.exp(z_k) / total for z_k in z]


def is_zero(expression: sp.Expr) -> bool:
    return bool(sp.simplify(sp.expand_log(expression, force=True)) == 0)


# ------------------------------------------------------------------------- likelihood and one-hot labels


@pytest.mark.equation("eq-categorical", by="reference")
def test_one_draw_of_a_categorical_is_a_multinomial_of_size_one(worst_error):
    r"""
    $$
    P(Y = k) = \prod_{j=1}^{K} p_j^{[j = k]} = p_k .
    $$ (eq-categorical)
    """
    p = np.array([0.2, 0.5, 0.05, 0.25])
    assert p.sum() == 1
    # wrong: j == k -> j != k
    product = [np.prod([p[j] ** (j == k) for j in range(4)]) for k in range(4)]
    one_draw = [stats.multinomial.pmf(np.eye(4, dtype=int)[k], n=1, p=p) for k in range(4)]
    worst_error(product, one_draw, rtol=1e-14, why=ROUNDING)
    worst_error(p, one_draw, rtol=1e-14, why=ROUNDING)
    # A multinomial of two draws is another thing: its coefficient is 2 here.
    assert not np.isclose(stats.multinomial.pmf([1, 1, 0, 0], n=2, p=p), p[0] * p[1])


@pytest.mark.equation("eq-label-likelihood", by="reference")
def test_the_likelihood_is_an_entry_of_the_joint_distribution(worst_error):
    r"""
    $$
    \begin{aligned}
    L(\theta) &= \prod_{n=1}^{N} p_{n,y_n} \\
    \log L(\theta) &= \sum_{n=1}^{N} \log p_{n,y_n} \\
    -\tfrac{1}{N} \log L(\theta) &= -\tfrac{1}{N} \sum_{n=1}^{N} \log p_{n,y_n}
    \end{aligned}
    $$ (eq-label-likelihood)
    """
    rng = np.random.default_rng(0)
    n, classes = 5, 3
    p = rng.dirichlet(np.ones(classes), size=n)
    # The distribution of all five labels at once, as a table with 3^5 entries that sum to one.
    joint = np.array(1.0)
    for row in p:
        joint = np.multiply.outer(joint, row)
    assert abs(joint.sum() - 1) < 1e-14
    for labels in itertools.islice(itertools.product(range(classes), repeat=n), 0, None, 17):
        # wrong: np.prod -> np.sum
        likelihood = np.prod([p[i, label] for i, label in enumerate(labels)])
        log_likelihood = sum(np.log(p[i, label]) for i, label in enumerate(labels))
        mean = -log_likelihood / n
        worst_error(likelihood, joint[labels], rtol=1e-13, why=ROUNDING)
        worst_error(log_likelihood, np.log(joint[labels]), rtol=1e-13, why=ROUNDING)
        nll = torch.nn.functional.nll_loss(torch.tensor(p).log(), torch.tensor(labels))
        worst_error(mean, nll, rtol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-one-hot", by="reference")
def test_the_sum_over_classes_collapses(worst_error):
    r"""
    $$
    -\sum_{k=1}^{K} t_k \log p_k = -\log p_y, \quad 0 \log 0 = 0 .
    $$ (eq-one-hot)
    """
    rng = np.random.default_rng(1)
    for p in (*rng.dirichlet(np.ones(4), size=5), np.array([0.7, 0.3, 0.0, 0.0])):
        for y in np.flatnonzero(p):
            t = np.array([float(k == y) for k in range(4)])
            # xlogy has the convention 0 log 0 = 0 that the equation states.
            # wrong: special.xlogy(t, p) -> special.xlogy(p, t)
            observed = -special.xlogy(t, p).sum()
            worst_error(observed, -mpmath.log(mpmath.mpf(p[y])), rtol=1e-14, why=ROUNDING)
    with np.errstate(all="ignore"):
        assert np.isnan(-(np.eye(4)[0] * np.log([0.7, 0.3, 0.0, 0.0])).sum()), "without the convention"


# ---------------------------------------------------------------------------------------------- softmax


@pytest.mark.equation("eq-log-odds", by="symbolic")
@pytest.mark.equation("eq-softmax-map", by="symbolic")
def test_softmax_is_the_one_solution_of_the_log_odds():
    r"""
    $$
    \log \frac{p_j}{p_k} = z_j - z_k .
    $$ (eq-log-odds)

    $$
    p_k = \operatorname{softmax}(z)_k = \frac{e^{z_k}}{\sum_{j=1}^{K} e^{z_j}} .
    $$ (eq-softmax-map)
    """
    z = sp.symbols("z1:5", real=True)
    p = sp.symbols("p1:5", positive=True)
    # The log-odds against the last class determine all others, because they are differences.
    conditions = [p[j] - p[3] * sp.exp(z[j] - z[3]) for j in range(3)] + [sum(p) - 1]
    solutions = sp.solve(conditions, p, dict=True)
    assert len(solutions) == 1
    for p_k, formula in zip(p, softmax_of(list(z)), strict=True):
        assert sp.simplify(solutions[0][p_k] - formula) == 0
    formulas = softmax_of(list(z))
    for j, k in itertools.permutations(range(4), 2):
        # wrong[eq-log-odds]: z[j] - z[k] -> z[j] + z[k]
        assert is_zero(sp.log(formulas[j] / formulas[k]) - (z[j] - z[k]))
        assert not is_zero(sp.log(formulas[j] / formulas[k]) - (z[k] - z[j])), "the sign matters"


@pytest.mark.equation("eq-softmax-shift", by="symbolic")
def test_a_shift_cancels():
    r"""
    $$
    \begin{aligned}
    \operatorname{softmax}(z + c)_k &= \frac{e^{c} e^{z_k}}{e^{c} \sum_j e^{z_j}} \\
    &= \operatorname{softmax}(z)_k .
    \end{aligned}
    $$ (eq-softmax-shift)
    """
    z, c = sp.symbols("z1:5", real=True), sp.symbols("c", real=True)
    total = sum(sp.exp(z_j) for z_j in z)
    shifted = softmax_of([z_k + c for z_k in z])
    for k in range(4):
        # wrong: sp.exp(c) * sp.exp(z[k]) / (sp.exp(c) * total) -> sp.exp(c) * sp.exp(z[k]) / total
        middle = sp.exp(c) * sp.exp(z[k]) / (sp.exp(c) * total)
        assert vanishes(shifted[k] - middle, z)
        assert vanishes(middle - softmax_of(list(z))[k], z)
    # A shift of one class alone does not cancel.
    one = softmax_of([z[0] + c, *z[1:]])
    assert not vanishes(one[0] - softmax_of(list(z))[0], z)


@pytest.mark.equation("eq-one-against-rest", by="reference")
def test_each_class_is_a_sigmoid_against_the_rest(worst_error):
    r"""
    $$
    \begin{aligned}
    p_k &= \sigma\Bigl(z_k - \log \sum_{j \ne k} e^{z_j}\Bigr) \\
    p_1 &= \sigma(z_1 - z_0) \quad (K = 2)
    \end{aligned}
    $$ (eq-one-against-rest)
    """
    rng = np.random.default_rng(2)
    for z in rng.normal(scale=3, size=(10, 5)):
        p = torch.softmax(torch.tensor(z), dim=0)
        for k in range(5):
            # wrong: (np.exp(z[j]) for j in range(5) if j != k) -> (np.exp(z[j]) for j in range(5))
            rest = np.log(sum(np.exp(z[j]) for j in range(5) if j != k))
            worst_error(1 / (1 + np.exp(-(z[k] - rest))), p[k], rtol=1e-13, why=ROUNDING)
        two = torch.softmax(torch.tensor(z[:2]), dim=0)
        worst_error(1 / (1 + np.exp(-(z[1] - z[0]))), two[1], rtol=1e-13, why=ROUNDING)
        assert not np.isclose(1 / (1 + np.exp(-(z[0] - z[1]))), two[1]), "the sign matters"


@pytest.mark.equation("eq-nll-from-logits", by="reference")
def test_the_loss_is_a_log_sum_exp_minus_a_logit(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell(z, y) &= -\log \operatorname{softmax}(z)_y \\
    &= \operatorname{lse}(z) - z_y, \\
    \operatorname{lse}(z) &= \log \sum_{k=1}^{K} e^{z_k} .
    \end{aligned}
    $$ (eq-nll-from-logits)
    """
    rng = np.random.default_rng(3)
    rows = [*rng.normal(scale=4, size=(10, 6)), np.array([0.0, 800.0]), np.array([-1e4, 1e4, 3.0])]
    with mpmath.workdps(60):
        for z in rows:
            exact = [mpmath.mpf(z_k) for z_k in z]
            total = mpmath.fsum(mpmath.exp(z_k) for z_k in exact)
            # Of a prediction that is nearly certain only the leading digits of 1 - p are left at 60 places.
            for y in range(len(z)):
                definition = -mpmath.log(mpmath.exp(exact[y]) / total)
                # wrong: mpmath.log(total) - exact[y] -> mpmath.log(total) + exact[y]
                printed = mpmath.log(total) - exact[y]
                assert abs(printed - definition) < mpmath.mpf(10) ** -50
                if definition > 1e-30:
                    observed = xent.cross_entropy([z], [y])
                    worst_error(observed, definition, rtol=1e-13, why=ROUNDING)


# ------------------------------------------------------------------------------------------- the bounds


def losses_and_verdicts(classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of many predictions, and whether each is right and whether each is wrong."""
    rng = np.random.default_rng(classes)
    scale = rng.uniform(0.01, 6, size=(20_000, 1))
    z = rng.normal(size=(20_000, classes)) * scale
    y = rng.integers(0, classes, size=len(z))
    own = np.take_along_axis(z, y[:, None], 1)[:, 0]
    losses = torch.nn.functional.cross_entropy(torch.tensor(z), torch.tensor(y), reduction="none").numpy()
    return losses, own == z.max(axis=1), own < z.max(axis=1)


@pytest.mark.equation("eq-loss-bounds", by="property")
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_bounds_hold_and_are_sharp(classes: int):
    r"""
    $$
    \begin{aligned}
    0 &< \ell < \infty && \text{always} \\
    \ell &\le \log K && \text{if right} \\
    \ell &\ge \log 2 && \text{if wrong} \\
    \ell &= \log K && \text{if uniform}
    \end{aligned}
    $$ (eq-loss-bounds)
    """
    losses, right, wrong = losses_and_verdicts(classes)
    assert right.sum() > 1000 and wrong.sum() > 1000
    assert (losses > 0).all() and np.isfinite(losses).all()
    assert losses[right].max() <= np.log(classes) + 1e-12
    # wrong: np.log(2) -> np.log(classes)
    assert losses[wrong].min() >= np.log(2) - 1e-12
    assert np.isclose(xent.cross_entropy([np.zeros(classes)], [0]), np.log(classes), rtol=1e-15)
    # Sharp: the bounds are approached, so no better constant is true.
    nearly = np.zeros(classes)
    nearly[0] = 1e-9
    assert np.isclose(xent.cross_entropy([nearly], [0]), np.log(classes))
    two = np.full(classes, -40.0)
    two[:2] = 0.0, 1e-9
    assert np.isclose(xent.cross_entropy([two], [0]), np.log(2))
    # Zero is approached and not reached in exact arithmetic, and there is no upper end.
    with mpmath.workdps(400):
        loss = mpmath.log1p((classes - 1) * mpmath.exp(-800))
        assert 0 < loss < mpmath.mpf(10) ** -340
    assert xent.cross_entropy([[0.0, *np.full(classes - 1, 1e6)]], [0]) >= 1e6
    if classes > 2:
        assert losses[wrong].min() < np.log(classes), "a wrong prediction may cost less than log K"


@pytest.mark.equation("eq-error-rate-bound", by="property")
def test_the_error_rate_is_bounded_by_the_loss():
    r"""
    $$
    \frac{E}{N} \le \frac{\mathcal L}{\log 2} .
    $$ (eq-error-rate-bound)
    """
    rng = np.random.default_rng(4)
    for _ in range(300):
        classes, n = rng.integers(2, 8), rng.integers(1, 30)
        z = rng.normal(size=(n, classes)) * rng.uniform(0.01, 5)
        y = rng.integers(0, classes, size=n)
        errors = np.sum(np.take_along_axis(z, y[:, None], 1)[:, 0] < z.max(axis=1))
        # wrong: np.log(2) -> np.log(classes)
        assert errors / n <= xent.cross_entropy(z, y) / np.log(2)
    # Sharp: one barely wrong row and one row that is right beyond doubt.
    z = np.array([[0.0, 1e-9], [50.0, 0.0]])
    assert np.isclose(0.5, xent.cross_entropy(z, [0, 0]) / np.log(2))
    assert not xent.cross_entropy(z, [0, 0]) / np.log(3) >= 0.5, "log K in the place of log 2 is no bound"


# --------------------------------------------------------------------------------------------- gradients


@pytest.mark.equation("eq-prediction-minus-label", by="symbolic")
def test_the_derivative_of_the_loss():
    r"""
    $$
    \frac{\partial \ell(z, y)}{\partial z_k} = p_k - t_k .
    $$ (eq-prediction-minus-label)
    """
    z = sp.symbols("z1:5", real=True)
    p = softmax_of(list(z))
    for y in range(4):
        loss = -sp.log(p[y])
        for k in range(4):
            t_k = int(k == y)
            # wrong: p[k] - t_k -> p[k] + t_k
            assert vanishes(sp.diff(loss, z[k]) - (p[k] - t_k), z)
            assert not vanishes(sp.diff(loss, z[k]) + (p[k] - t_k), z), "the sign matters"


@pytest.mark.equation("eq-softmax-regression-gradient", by="reference")
def test_the_gradient_of_softmax_regression_is_autograds(worst_error):
    r"""
    $$
    \begin{aligned}
    \nabla_W \mathcal L &= \frac{1}{N} \sum_{n=1}^{N} x_n (p_n - t_n)^\top \\
    \nabla_b \mathcal L &= \frac{1}{N} \sum_{n=1}^{N} (p_n - t_n) .
    \end{aligned}
    $$ (eq-softmax-regression-gradient)
    """
    rng = np.random.default_rng(5)
    n, d, classes = 7, 4, 3
    x, y = rng.normal(size=(n, d)), rng.integers(0, classes, size=n)
    weights = torch.tensor(rng.normal(size=(d, classes)), requires_grad=True)
    bias = torch.tensor(rng.normal(size=classes), requires_grad=True)
    z = torch.tensor(x) @ weights + bias
    torch.nn.functional.cross_entropy(z, torch.tensor(y)).backward()

    p, t = torch.softmax(z, dim=1).detach().numpy(), np.eye(classes)[y]
    # wrong: p[i] - t[i] -> t[i] - p[i]
    of_weights = sum(np.outer(x[i], p[i] - t[i]) for i in range(n)) / n
    of_bias = sum(p[i] - t[i] for i in range(n)) / n
    worst_error(of_weights, weights.grad, rtol=1e-12, atol=1e-15, why=ROUNDING)
    worst_error(of_bias, bias.grad, rtol=1e-12, atol=1e-15, why=ROUNDING)


# -------------------------------------------------------------------------------------------- the prior


def small_world() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A prior over three weight matrices, a distribution of two inputs, and the logits table z[w, x, class]."""
    rng = np.random.default_rng(6)
    return np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4]), rng.normal(scale=1.5, size=(3, 2, 3))


def enumerated_posterior(law_of_x: np.ndarray, data: list[tuple[int, int]]) -> tuple[np.ndarray, float]:
    """The posterior and the evidence out of the full table of P(w, x_1, y_1, ..., x_N, y_N).

    `law_of_x` has a row for each w, so that it may depend on w.
    """
    prior, _, z = small_world()
    pair = law_of_x[:, :, None] * special.softmax(z, axis=-1)  # P(x, y | w)
    joint = prior.reshape(3, *[1] * (2 * len(data)))
    for i in range(len(data)):
        shape = [1] * (2 * len(data))
        shape[2 * i : 2 * i + 2] = pair.shape[1:]
        joint = joint * pair.reshape(3, *shape)
    assert abs(joint.sum() - 1) < 1e-13
    column = joint[(slice(None), *itertools.chain(*data))]
    return column / column.sum(), float(column.sum())


DATA = [(0, 2), (1, 1), (1, 0)]


@pytest.mark.equation("eq-next-token", by="reference")
def test_the_losses_along_a_text_add_up(worst_error):
    r"""A random joint distribution of three tokens, as a table: its conditionals as logits, all texts enumerated.

    $$
    \begin{aligned}
    P(x_1, \dots, x_n) &= \prod_{i=1}^{n} P(x_i \mid x_1, \dots, x_{i-1}), \\
    -\log P(x_1, \dots, x_n) &= \sum_{i=1}^{n} \ell(z_i, x_i) .
    \end{aligned}
    $$ (eq-next-token)
    """
    vocabulary = 4
    joint = np.random.default_rng(0).dirichlet(np.ones(vocabulary**3)).reshape((vocabulary,) * 3)
    for text in itertools.product(range(vocabulary), repeat=3):
        conditionals, losses = [], []
        for i in range(3):
            # P(x_1, ..., x_i): the table with the later tokens summed out.
            beginnings = joint.sum(axis=tuple(range(i + 1, 3)))
            row = beginnings[text[:i]]
            conditionals.append(row[text[i]] / row.sum())
            z = np.log(row) + 7.0 * i  # logits are log-probabilities up to a shift
            losses.append(special.logsumexp(z) - z[text[i]])
        worst_error(np.prod(conditionals), joint[text], rtol=1e-13, why=ROUNDING)
        # wrong: sum(losses) -> sum(losses) / len(losses)
        worst_error(sum(losses), -np.log(joint[text]), rtol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-gaussian-nll", by="reference")
def test_squared_error_is_a_gaussian_likelihood(worst_error):
    r"""
    $$
    \begin{aligned}
    &-\log \prod_{k=1}^{K} \frac{1}{\sqrt{2 \pi}\, s}\, e^{-(t_k - a_k)^2 / (2 s^2)} \\
    &\quad = \frac{1}{2 s^2} \sum_{k=1}^{K} (t_k - a_k)^2 + \frac{K}{2} \log (2 \pi s^2) .
    \end{aligned}
    $$ (eq-gaussian-nll)
    """
    rng = np.random.default_rng(1)
    for classes, s in [(1, 1.0), (3, 0.4), (6, 2.5)]:
        t, a = np.eye(classes)[0], rng.normal(size=classes)
        expected = -stats.norm.logpdf(t, loc=a, scale=s).sum()
        density = np.exp(-((t - a) ** 2) / (2 * s**2)) / (np.sqrt(2 * np.pi) * s)
        worst_error(-np.log(np.prod(density)), expected, rtol=1e-12, atol=1e-13, why=ROUNDING)
        # wrong: classes / 2 * np.log(2 * np.pi * s**2) -> np.log(2 * np.pi * s**2)
        printed = ((t - a) ** 2).sum() / (2 * s**2) + classes / 2 * np.log(2 * np.pi * s**2)
        worst_error(printed, expected, rtol=1e-12, atol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-log-posterior", by="reference")
def test_the_log_posterior_chain_against_a_full_enumeration(worst_error):
    r"""
    $$
    \begin{aligned}
    \log p(&w \mid D) \\
    &= \log p(D \mid w) + \log p(w) - \log p(D) \\
    &= \sum_{n} \log p(x_n, y_n \mid w) + \log p(w) \\
    &\qquad - \log p(D) \\
    &= \sum_{n} \log p(y_n \mid x_n, w) + \log p(w) \\
    &\qquad + \sum_{n} \log p(x_n) - \log p(D) \\
    &= -\underbrace{\sum_{n} \ell(z_n, y_n)}_{\text{loss}} + \underbrace{\log p(w)}_{\text{minus the penalty}} +
    \underbrace{c(D)}_{\text{constant}}
    \end{aligned}
    $$ (eq-log-posterior)
    """
    prior, law, z = small_world()
    posterior, evidence = enumerated_posterior(np.tile(law, (3, 1)), DATA)
    p = special.softmax(z, axis=-1)
    for w in range(3):
        joint = [np.log(law[x] * p[w, x, y]) for x, y in DATA]
        conditional = [np.log(p[w, x, y]) for x, y in DATA]
        inputs = [np.log(law[x]) for x, _ in DATA]
        losses = [special.logsumexp(z[w, x]) - z[w, x, y] for x, y in DATA]
        constant = sum(inputs) - np.log(evidence)
        # wrong: -sum(losses) + np.log(prior[w]) -> -sum(losses) - np.log(prior[w])
        lines = [
            np.log(np.prod(np.exp(joint))) + np.log(prior[w]) - np.log(evidence),
            sum(joint) + np.log(prior[w]) - np.log(evidence),
            sum(conditional) + np.log(prior[w]) + sum(inputs) - np.log(evidence),
            -sum(losses) + np.log(prior[w]) + constant,
        ]
        worst_error(lines, [np.log(posterior[w])] * 4, rtol=1e-12, why=ROUNDING)


def test_inputs_that_depend_on_the_weights_break_the_chain():
    prior, _, z = small_world()
    depends = np.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])
    posterior, _ = enumerated_posterior(depends, DATA)
    p = special.softmax(z, axis=-1)
    unnormalised = [np.log(prior[w]) + sum(np.log(p[w, x, y]) for x, y in DATA) for w in range(3)]
    # Were only a constant missing, the differences between weights would agree.
    assert not np.allclose(np.diff(unnormalised), np.diff(np.log(posterior)), atol=0.1)


@pytest.mark.equation("eq-map-gaussian", by="reference")
def test_the_gaussian_prior_with_its_exact_constant(worst_error):
    # One feature, two classes, no intercept: two weights, so that the posterior can be put on a grid.
    r"""
    $$
    \begin{aligned}
    -\log p(w \mid D) &= \sum_{n=1}^{N} \ell(z_n, y_n) + \frac{\lVert w \rVert^2}{2 \tau^2} \\
    &\quad + \frac{d}{2} \log(2 \pi \tau^2) - c(D) .
    \end{aligned}
    $$ (eq-map-gaussian)
    """
    x, y, tau = np.array([0.5, -1.2, 2.0]), np.array([0, 1, 1]), 0.8
    log_law_of_x = stats.norm.logpdf(x).sum()

    def losses(w: np.ndarray) -> np.ndarray:
        z = x[:, None] * w[..., None, :]
        return (special.logsumexp(z, axis=-1) - z[..., np.arange(3), y]).sum(axis=-1)

    # The posterior by brute force: likelihood times prior on a fine grid, normalised by its own sum. The
    # trapezoidal rule converges faster than any power for a function that dies out like a Gaussian.
    axis = np.linspace(-9, 9, 241)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    density = np.exp(-losses(grid)) * stats.norm.pdf(grid, scale=tau).prod(axis=-1)
    density /= density.sum() * (axis[1] - axis[0]) ** 2

    # The evidence by another rule, Gauss-Hermite.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    points = tau * np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
    likelihood = np.exp(-losses(points) + log_law_of_x)
    evidence = np.einsum("i,j,ij", weights, weights, likelihood) / (2 * np.pi)

    constant = log_law_of_x - np.log(evidence)
    for i, j in [(120, 120), (100, 137), (113, 130), (140, 110)]:
        w = grid[i, j]
        # wrong: (w**2).sum() / (2 * tau**2) -> (w**2).sum() / tau**2
        printed = losses(w) + (w**2).sum() / (2 * tau**2) + 2 / 2 * np.log(2 * np.pi * tau**2) - constant
        worst_error(printed, -np.log(density[i, j]), rtol=1e-9, why="two quadrature rules agree")
        halved = losses(w) + (w**2).sum() / tau**2 + np.log(2 * np.pi * tau**2) - constant
        assert w.any() == (not np.isclose(halved, -np.log(density[i, j]))), "the factor 2 matters"


@pytest.mark.equation("eq-lambda-to-c", by="framework")
@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_lambda_c_and_weight_decay_describe_one_prior(worst_error, tau: float):
    r"""
    $$
    \begin{aligned}
    \lambda &= \frac{1}{N \tau^2} \\
    C &= \tau^2 = \frac{1}{N \lambda} \\
    \mathtt{weight\_decay} &= \lambda && \text{(mean)} \\
    \mathtt{weight\_decay} &= N \lambda = \frac{1}{\tau^2} && \text{(sum)}
    \end{aligned}
    $$ (eq-lambda-to-c)
    """
    data, labels = load_iris(return_X_y=True)
    x, y = torch.tensor((data - data.mean(0)) / data.std(0)), torch.tensor(labels)
    n = len(y)

    def sum_of_losses(w: torch.Tensor, b: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ w + b, y, reduction=reduction)

    def slope_of_the_posterior(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        w = w.clone().requires_grad_()
        (sum_of_losses(w, b) + (w**2).sum() / (2 * tau**2)).backward()
        return w.grad

    # scikit-learn's minimum for C = tau^2 is where the posterior's slope is zero.
    fitted = LogisticRegression(C=tau**2, tol=1e-10, max_iter=10_000).fit(x.numpy(), labels)
    w, b = torch.tensor(fitted.coef_.T.copy()), torch.tensor(fitted.intercept_)
    slope = slope_of_the_posterior(w, b)
    worst_error(slope, torch.zeros_like(w), atol=1e-4, why="scikit-learn's solver stops at a small gradient")
    wrong = LogisticRegression(C=1 / (2 * tau**2 + 1), tol=1e-10, max_iter=10_000).fit(x.numpy(), labels)
    off = slope_of_the_posterior(torch.tensor(wrong.coef_.T.copy()), torch.tensor(wrong.intercept_))
    assert off.abs().max() > 0.1

    # One step of SGD moves by the gradient that it follows: 1/N of the posterior's slope for a mean with
    # weight_decay = lambda, the whole of it for a sum with weight_decay = N lambda.
    # wrong: n * tau**2 -> 2 * n * tau**2
    lam = 1 / (n * tau**2)
    assert np.isclose(tau**2, 1 / (n * lam)) and np.isclose(n * lam, 1 / tau**2)
    start = torch.tensor(np.random.default_rng(7).normal(size=w.shape))
    for reduction, decay, scale in (("mean", lam, n), ("sum", n * lam, 1)):
        moved = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([moved], lr=1.0, weight_decay=decay)
        sum_of_losses(moved, b, reduction).backward()
        optimiser.step()
        step = (start - moved.detach()) * scale
        worst_error(step, slope_of_the_posterior(start, b), rtol=1e-10, atol=1e-10, why=ROUNDING)


@pytest.mark.equation("eq-two-class-penalty", by="symbolic")
def test_the_cheapest_split_of_a_difference():
    # The squares add up coordinate by coordinate, so one coordinate stands for all.
    r"""
    $$
    \begin{aligned}
    \min_{w_1 - w_0 = w} & \frac{\lambda}{2} \bigl(\lVert w_0 \rVert^2 + \lVert w_1 \rVert^2\bigr) \\
    &= \frac{\lambda}{4} \lVert w \rVert^2 .
    \end{aligned}
    $$ (eq-two-class-penalty)
    """
    w, w0 = sp.symbols("w w0", real=True)
    lam = sp.symbols("lam", positive=True)
    cost = lam / 2 * (w0**2 + (w0 + w) ** 2)  # w1 = w0 + w
    (best,) = sp.solve(sp.diff(cost, w0), w0)
    assert sp.diff(cost, w0, 2).is_positive
    assert sp.simplify(best + w / 2) == 0
    # wrong: lam / 4 -> lam / 2
    assert sp.simplify(cost.subs(w0, best) - lam / 4 * w**2) == 0
    assert sp.simplify(cost.subs(w0, best) - lam / 2 * w**2) != 0


# -------------------------------------------------------------------------- squared error, cross-entropy


def expected_square(q: tuple[sp.Symbol, ...], pi: list[sp.Expr]) -> sp.Expr:
    """E sum_k (q_k - t_k)^2 by going through the outcomes."""
    return sum(pi[y] * sum((q[k] - int(k == y)) ** 2 for k in range(len(q))) for y in range(len(q)))


@pytest.mark.equation("eq-brier-split", by="symbolic")
def test_briers_score_splits():
    r"""
    $$
    \begin{aligned}
    S(q, y) &= \sum_{k=1}^{K} (q_k - t_k)^2 \\
    \mathbb E\, S(q, Y) &= \sum_{k=1}^{K} (q_k - \pi_k)^2 \\
    &\quad + \sum_{k=1}^{K} \pi_k (1 - \pi_k)
    \end{aligned}
    $$ (eq-brier-split)
    """
    q = sp.symbols("q1:5", real=True)
    free = sp.symbols("pi1:4", positive=True)
    pi = [*free, 1 - sum(free)]
    # wrong: + sum(pi[k] -> - sum(pi[k]
    printed = sum((q[k] - pi[k]) ** 2 for k in range(4)) + sum(pi[k] * (1 - pi[k]) for k in range(4))
    assert sp.expand(expected_square(q, pi) - printed) == 0
    wrong = sum((q[k] - pi[k]) ** 2 for k in range(4)) - sum(pi[k] * (1 - pi[k]) for k in range(4))
    assert sp.expand(expected_square(q, pi) - wrong) != 0


@pytest.mark.equation("eq-squared-error-mean", by="symbolic")
def test_squared_error_is_minimised_by_the_posterior():
    r"""
    $$
    \operatorname*{arg\,min}_{a} \mathbb E \sum_{k} (a_k - t_k)^2 = \mathbb E\, t = \pi .
    $$ (eq-squared-error-mean)
    """
    a = sp.symbols("a1:5", real=True)
    free = sp.symbols("pi1:4", positive=True)
    pi = [*free, 1 - sum(free)]
    loss = expected_square(a, pi)
    minimum = sp.solve([sp.diff(loss, a_k) for a_k in a], a, dict=True)
    assert len(minimum) == 1
    assert all(sp.simplify(minimum[0][a_k] - pi_k) == 0 for a_k, pi_k in zip(a, pi, strict=True))
    assert sp.hessian(loss, a) == 2 * sp.eye(4), "a minimum, and the only one"
    # wrong: k == y -> k != y
    mean_of_t = [sum(pi[y] * int(k == y) for y in range(4)) for k in range(4)]
    assert mean_of_t == pi


@pytest.mark.equation("eq-two-surfaces", by="framework")
def test_the_two_surfaces_are_torchs_losses(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell_{\text{squared}} &= (u - 1)^2 + (v + 1)^2 \\
    \ell_{\text{cross}} &= -\log \frac{e^u}{e^u + e^v} \\
    &= \log(1 + e^{v - u})
    \end{aligned}
    $$ (eq-two-surfaces)
    """
    functional = torch.nn.functional
    for u, v in itertools.product([-5.0, -1.0, 0.0, 0.7, 5.0], repeat=2):
        outputs = torch.tensor([[u, v]], dtype=torch.float64)
        squared = (u - 1) ** 2 + (v + 1) ** 2
        targets = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        worst_error(squared, functional.mse_loss(outputs, targets, reduction="sum"), rtol=1e-13, why=ROUNDING)
        expected = functional.cross_entropy(outputs, torch.tensor([0]))
        first = -np.log(np.exp(u) / (np.exp(u) + np.exp(v)))
        # wrong: v - u -> u - v
        second = np.log(1 + np.exp(v - u))
        # Far on the right side the loss is small, and the plain forms keep only its absolute digits.
        worst_error([first, second], [expected] * 2, rtol=1e-12, atol=1e-15, why=ROUNDING)


@pytest.mark.equation("eq-margin-slopes", by="symbolic")
def test_the_slopes_along_the_margin():
    r"""
    $$
    \begin{aligned}
    \frac{d}{dm} \bigl[-\log p\bigr] &= -(1 - p) \\[4pt]
    \frac{d}{dm} \bigl[2 (1 - p)^2\bigr] &= -4\, p\, (1 - p)^2 .
    \end{aligned}
    $$ (eq-margin-slopes)
    """
    m, u, v = sp.symbols("m u v", real=True)
    p = 1 / (1 + sp.exp(-m))
    assert sp.simplify(sp.diff(-sp.log(p), m) - (-(1 - p))) == 0
    # wrong: -4 * p * (1 - p) ** 2 -> -4 * p * (1 - p)
    assert sp.simplify(sp.diff(2 * (1 - p) ** 2, m) - (-4 * p * (1 - p) ** 2)) == 0
    assert sp.simplify(sp.diff(2 * (1 - p) ** 2, m) - (-4 * (1 - p) ** 2)) != 0, "the factor p matters"
    # The bracket is Brier's score of a two-class softmax with the margin m = u - v.
    right, other = softmax_of([u, v])
    brier = (right - 1) ** 2 + other**2
    assert sp.simplify(brier - (2 * (1 - p) ** 2).subs(m, u - v)) == 0
