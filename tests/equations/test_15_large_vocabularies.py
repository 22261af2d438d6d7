"""The equations of chapter 15, each as printed, against something that does not come from it."""

from __future__ import annotations

import ast
import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from scipy.optimize import minimize, minimize_scalar

import scripts

ROUNDING = "a few roundings in float64"
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "large_vocabularies" / "memory.py"
State = tuple[float, float]


memory = scripts.load(SCRIPT)


def problem(rows: int = 20, words: int = 57, width: int = 6) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(words, width, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(words, (rows,), generator=generator)


# --------------------------------------------------------------------------------- the code and its memory


def test_the_chapter_prints_the_code_that_the_experiment_measures():
    cells = json.loads((ROOT / "chapters" / "15_large_vocabularies.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (printed,) = [source for source in sources if source.startswith("class Blocked")]
    measured = next(
        node for node in ast.parse(SCRIPT.read_text()).body if getattr(node, "name", "") == "Blocked"
    )
    (shown,) = ast.parse(printed).body
    assert ast.dump(shown.body[1]) == ast.dump(measured.body[1])
    assert ast.dump(shown.body[2]) == ast.dump(measured.body[2])


@pytest.mark.parametrize("name", memory.WAYS)
def test_every_way_has_the_gradients_of_the_plain_one(name):
    inputs = memory.data(300, 2500, torch.float64)
    expected, found = memory.step(memory.plain, inputs), memory.step(memory.WAYS[name], inputs)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-12


@pytest.mark.slow
def test_the_blocked_loss_takes_a_tenth_of_the_memory():
    """Measured in fresh processes, at V = 32,000 and enough rows that the gradients do not decide."""
    # Where there is no high-water mark to reset, count what PyTorch allocates.
    measure = memory.peak if Path("/proc/self/clear_refs").exists() else held
    plain, ours = (measure(name, 1024, 32_000) for name in ("plain", "blocked"))
    assert plain > 2.5 * 1024 * 32_000 * 4  # the measure sees the arrays at all
    assert ours < plain / 10


def test_the_committed_result_meets_the_target():
    result = json.loads(memory.RESULT.read_text())
    assert max(result["gradients in float64, relative error"].values()) < 1e-12
    (case,) = [c for c in result["cases"] if (c["rows"], c["vocabulary"]) == (4096, 32_000)]
    assert case["bytes"]["blocked"] < case["bytes"]["plain"] / 10
    assert case["bytes"]["torch, options"] < case["bytes"]["plain"] / 10
    assert set(case["bytes"]) == set(memory.WAYS)


def held(name: str, rows: int, words: int) -> int:
    """Return the most bytes that PyTorch's allocator held at once, beyond the inputs and the gradients."""
    inputs = memory.data(rows, words)
    memory.step(memory.WAYS[name], memory.data(8, 64))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        memory.step(memory.WAYS[name], inputs)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(itertools.accumulate(e.nbytes() for e in events))


@pytest.mark.equation("eq-vocab-bytes", by="framework")
def test_what_the_allocator_counts(worst_error):
    r"""
    $$
    \begin{aligned}
    M_{\text{plain}} &= 3\, N V b, \\
    M_{\text{blocked}} &= 2\, N B b .
    \end{aligned}
    $$ (eq-vocab-bytes)
    """
    N, V, H, b, B = 256, 8192, memory.FEATURES, 4, memory.BLOCK
    # The plain peak comes before the gradients are made, the blocked one when both are there.
    gradients = (N + V) * H * b
    # wrong: 3 * N -> 2 * N
    observed = [3 * N * V * b, 2 * N * B * b + gradients]
    counted = [held("plain", N, V), held("blocked", N, V)]
    worst_error(observed, counted, rtol=5e-3, why="vectors of length N beside the arrays")
    assert abs(4 * N * V * b / held("plain, logits kept", N, V) - 1) < 5e-3


# --------------------------------------------------------------------------------- the state of a stream


def state(z: np.ndarray) -> State:
    return float(z.max()), float(np.exp(z - z.max()).sum())


def merge(a: State, b: State) -> State:
    (m_A, s_A), (m_B, s_B) = a, b
    m = max(m_A, m_B)
    # wrong[eq-vocab-associative]: m_B -> m_A
    # wrong[eq-vocab-state]: s_A * math.exp(m_A - m) + s_B * math.exp(m_B - m) -> s_A + s_B
    s = s_A * math.exp(m_A - m) + s_B * math.exp(m_B - m)
    return m, s


BLOCKS = [
    np.random.default_rng(seed).normal(loc, 5, size=n)
    for seed, (loc, n) in enumerate([(0, 3), (800, 7), (-900, 1), (795, 40)])
]


@pytest.mark.equation("eq-vocab-state", by="reference")
@pytest.mark.equation("eq-vocab-invariant", by="reference")
def test_the_state_of_two_blocks_is_that_of_their_union(worst_error):
    r"""
    $$
    \begin{aligned}
    m_A &= \max_{j \in A} z_j, \quad
    s_A = \sum_{j \in A} e^{z_j - m_A}, \\
    (m_A, s_A) &\oplus (m_B, s_B) = (m, s), \\
    m &= \max(m_A, m_B), \\
    s &= s_A\, e^{m_A - m} + s_B\, e^{m_B - m} .
    \end{aligned}
    $$ (eq-vocab-state)

    $$
    \begin{aligned}
    e^{m} s &= \sum_{j \in A \cup B} e^{z_j}, \\
    \mathrm{LSE}_{A \cup B} &= m + \log s .
    \end{aligned}
    $$ (eq-vocab-invariant)
    """
    for A, B in itertools.product(BLOCKS, BLOCKS):
        together = np.concatenate([A, B])
        m, s = merge(state(A), state(B))
        worst_error([m, s], state(together), rtol=1e-13, why=ROUNDING)
        with mpmath.workdps(400):
            total = sum(mpmath.exp(mpmath.mpf(z)) for z in together)
            worst_error(float(mpmath.exp(m) * mpmath.mpf(s) / total), 1.0, rtol=1e-12, why=ROUNDING)
            # wrong[eq-vocab-invariant]: m + math.log(s) -> m - math.log(s)
            worst_error(m + math.log(s), float(mpmath.log(total)), rtol=1e-13, why=ROUNDING)
    s_A, s_B = state(BLOCKS[1])[1], state(BLOCKS[3])[1]
    assert abs(s_A + s_B - state(np.concatenate([BLOCKS[1], BLOCKS[3]]))[1]) > 0.1


@pytest.mark.equation("eq-vocab-range", by="property")
def test_the_sum_lies_between_one_and_the_number_of_logits():
    r"""
    $$
    1 \le s \le n .
    $$ (eq-vocab-range)
    """
    for block in [*BLOCKS, np.zeros(9), np.array([0.0, -800.0])]:
        # wrong: len(block) -> len(block) - 1
        assert 1 <= state(block)[1] <= len(block)
    assert state(np.zeros(9))[1] == 9
    assert state(np.array([0.0, -800.0]))[1] == 1


@pytest.mark.equation("eq-vocab-associative", by="property")
def test_blocks_may_be_merged_in_any_order():
    r"""
    $$
    \begin{aligned}
    (a \oplus b) \oplus c &= a \oplus (b \oplus c), \\
    a \oplus (-\infty, 0) &= a .
    \end{aligned}
    $$ (eq-vocab-associative)
    """
    a, b, c = (state(block) for block in BLOCKS[:3])
    for x, y, z in itertools.permutations([a, b, c]):
        assert merge(merge(x, y), z) == pytest.approx(merge(x, merge(y, z)), rel=1e-14, abs=0)
        assert merge(merge(x, y), z) == pytest.approx(merge(merge(a, b), c), rel=1e-13, abs=0)
    for x in (a, b, c):
        assert merge(x, (-math.inf, 0.0)) == x


# ------------------------------------------------------------------------------------- loss and gradient


@pytest.mark.equation("eq-vocab-loss", by="framework")
def test_the_loss_needs_two_numbers_for_each_token(worst_error):
    r"""
    $$
    \begin{aligned}
    L &= \frac1N \sum_i \ell_i, \\
    \ell_i &= \mathrm{LSE}_i - h_i \cdot w_{y_i} .
    \end{aligned}
    $$ (eq-vocab-loss)
    """
    hidden, weight, target = problem()
    h, w, y = hidden.detach().numpy(), weight.detach().numpy(), target.numpy()
    lse = [math.log(sum(math.exp(h[i] @ w[j]) for j in range(len(w)))) for i in range(len(h))]
    # wrong: lse[i] - h[i] @ w[y[i]] -> lse[i] + h[i] @ w[y[i]]
    each = [lse[i] - h[i] @ w[y[i]] for i in range(len(h))]
    expected = F.cross_entropy(hidden @ weight.T, target).item()
    worst_error(sum(each) / len(h), expected, rtol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-vocab-gradient", by="framework")
def test_the_gradient_block_by_block(worst_error):
    r"""
    $$
    \begin{aligned}
    G_{ij} &= \frac{e^{h_i \cdot w_j - \mathrm{LSE}_i} - [\, j = y_i ]}{N}, \\
    \frac{\partial L}{\partial h_i} &= \sum_{\text{blocks}} \sum_{j \in B} G_{ij}\, w_j, \\
    \frac{\partial L}{\partial w_j} &= \sum_i G_{ij}\, h_i .
    \end{aligned}
    $$ (eq-vocab-gradient)
    """
    hidden, weight, target = problem()
    F.cross_entropy(hidden @ weight.T, target).backward()
    h, w, y = hidden.detach().numpy(), weight.detach().numpy(), target.numpy()
    N, V = len(h), len(w)
    lse = np.log(np.exp(h @ w.T).sum(1))
    # wrong: math.exp(h[i] @ w[j] - lse[i]) - (j == y[i]) -> math.exp(h[i] @ w[j] - lse[i]) + (j == y[i])
    G = np.array([[(math.exp(h[i] @ w[j] - lse[i]) - (j == y[i])) / N for j in range(V)] for i in range(N)])
    to_hidden = sum(G[:, B] @ w[B] for B in np.array_split(np.arange(V), 4))
    to_weight = np.array([sum(G[i, j] * h[i] for i in range(N)) for j in range(V)])
    worst_error(to_hidden, hidden.grad.numpy(), atol=1e-14, why=ROUNDING)
    worst_error(to_weight, weight.grad.numpy(), atol=1e-14, why=ROUNDING)
    assert not np.allclose(G.T @ h * N, weight.grad.numpy())


# ------------------------------------------------------------------------------------------ sixteen bits


@pytest.mark.equation("eq-vocab-rounding", by="property")
def test_what_a_stored_logit_costs():
    r"""
    $$
    \begin{aligned}
    |\delta_j| &\le u\, |z_j|, \\
    |\ell(z + \delta, y) - \ell(z, y)| &\le 2 \max_j |\delta_j| \\
    &\le 2 u \max_j |z_j| .
    \end{aligned}
    $$ (eq-vocab-rounding)
    """
    generator = torch.Generator().manual_seed(5)
    for dtype, u in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        for scale, shift in ((1, 0), (5, 0), (3, 60)):
            z = torch.randn(200, 300, generator=generator, dtype=torch.float64) * scale + shift
            y = torch.randint(300, (200,), generator=generator)
            delta = z.to(dtype).double() - z
            # A logit near zero may be subnormal in float16, where the error is absolute.
            assert (delta.abs() <= u * z.abs() + 2**-25).all()
            change = F.cross_entropy(z + delta, y, reduction="none") - F.cross_entropy(z, y, reduction="none")
            # wrong: 2 * delta.abs().amax(1) -> delta.abs().amax(1)
            assert (change.abs() <= 2 * delta.abs().amax(1) + 1e-12).all()
            assert (change.abs() <= 2 * u * z.abs().amax(1) + 1e-12).all()
            # Rounding errors do come near the first bound, so that half of u would be wrong.
            assert (delta.abs() > u * z.abs() / 2).any()
    # The 2 is needed: one class up by d, the target down by d.
    z, d = torch.tensor([[40.0, 0.0]], dtype=torch.float64), 0.1
    y, moved = torch.tensor([1]), torch.tensor([[d, -d]], dtype=torch.float64)
    change = F.cross_entropy(z + moved, y) - F.cross_entropy(z, y)
    assert 1.99 * d < change.item() <= 2 * d + 1e-12


# ------------------------------------------------------------------------------------------------ z-loss


@pytest.mark.equation("eq-vocab-zloss", by="reference")
def test_the_gradient_with_a_z_loss(worst_error):
    r"""
    $$
    \begin{aligned}
    J(z) &= \ell(z, y) + \lambda \log^2 Z, \\
    \frac{\partial J}{\partial z_j} &= p_j - [\, j = y ] + 2 \lambda \log Z\; p_j, \\
    \sum_j \frac{\partial J}{\partial z_j} &= 2 \lambda \log Z .
    \end{aligned}
    $$ (eq-vocab-zloss)
    """
    z = torch.tensor([0.3, -1.2, 2.5, 0.9], dtype=torch.float64, requires_grad=True)
    lam, y = 0.3, 1
    (F.cross_entropy(z[None], torch.tensor([y])) + lam * z.logsumexp(0) ** 2).backward()
    p, log_z = z.detach().softmax(0).numpy(), float(z.detach().logsumexp(0))
    # wrong: log_z * p[j] -> log_z
    gradient = [p[j] - (j == y) + 2 * lam * log_z * p[j] for j in range(4)]
    worst_error(gradient, z.grad.numpy(), rtol=1e-13, why=ROUNDING)
    worst_error(2 * lam * log_z, z.grad.sum().item(), rtol=1e-12, why=ROUNDING)


def expected_loss(z: np.ndarray, P: np.ndarray, lam: float) -> float:
    log_z = float(np.log(np.exp(z).sum()))
    return log_z - float(P @ z) + lam * log_z**2


@pytest.mark.equation("eq-vocab-zloss-free", by="reference")
def test_a_shift_pays_the_penalty(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm E_P\, J(z + a) &= \mathrm E_P\, \ell(z, y) \\
    &\quad + \lambda (\log Z + a)^2, \\
    \min_a \mathrm E_P\, J(z + a) &= \mathrm E_P\, \ell(z, y) .
    \end{aligned}
    $$ (eq-vocab-zloss-free)
    """
    rng = np.random.default_rng(2)
    P, z, lam = rng.dirichlet(np.ones(5)), rng.normal(1, 2, size=5), 0.7
    plain, log_z = expected_loss(z, P, 0.0), math.log(np.exp(z).sum())
    for a in (-2.0, 0.0, 1.3):
        # wrong: log_z + a -> log_z - a
        right = plain + lam * (log_z + a) ** 2
        worst_error(right, expected_loss(z + a, P, lam), rtol=1e-12, why=ROUNDING)
    best = minimize_scalar(lambda a: expected_loss(z + a, P, lam), bounds=(-20, 20), method="bounded")
    worst_error(plain, best.fun, rtol=1e-8, why=ROUNDING)
    # And with free logits, the whole minimum is at the data's law with Z = 1.
    found = minimize(lambda z: expected_loss(z, P, lam), z, tol=1e-12).x
    assert np.allclose(np.exp(found), P, atol=1e-4)


@pytest.mark.equation("eq-vocab-zloss-fixed", by="reference")
def test_a_reference_class_bends_the_optimum(worst_error):
    r"""
    $$
    \begin{aligned}
    J &= -p z + \log Z + \lambda \log^2 Z, \\
    0 &= -p + q + 2 \lambda\, q \log Z, \\
    p &= q\, \bigl(1 - 2 \lambda \log(1 - q)\bigr) .
    \end{aligned}
    $$ (eq-vocab-zloss-fixed)
    """
    for lam in (1e-3, 0.1, 1.0):
        for p in (0.2, 0.6, 0.95):
            J = lambda z, p=p, lam=lam: -p * z + np.logaddexp(0, z) + lam * np.logaddexp(0, z) ** 2  # noqa: E731
            z = minimize_scalar(J, bounds=(-30, 30), method="bounded", options={"xatol": 1e-10}).x
            q = 1 / (1 + math.exp(-z))
            # wrong: 1 - 2 * lam * math.log(1 - q) -> 1 + 2 * lam * math.log(1 - q)
            worst_error(q * (1 - 2 * lam * math.log(1 - q)), p, rtol=1e-6, why="the minimiser's tolerance")
            assert q < p
            log_z = math.log1p(math.exp(z))
            assert abs(-p + q + 2 * lam * q * log_z) < 1e-6
            assert abs(J(z) - (expected_loss(np.array([z, 0.0]), np.array([p, 1 - p]), lam))) < 1e-12


# ---------------------------------------------------------------------------------------------- soft cap


@pytest.mark.equation("eq-vocab-softcap", by="symbolic")
def test_the_slope_of_the_soft_cap():
    r"""
    $$
    \begin{aligned}
    \tilde z &= c \tanh(z / c), \\
    \frac{\mathrm d \tilde z}{\mathrm d z} &= \operatorname{sech}^2(z / c) \\
    &= 1 - (\tilde z / c)^2 .
    \end{aligned}
    $$ (eq-vocab-softcap)
    """
    z, c = sp.symbols("z c", positive=True)
    capped = c * sp.tanh(z / c)
    slope = sp.diff(capped, z)
    assert sp.simplify(slope - sp.sech(z / c).rewrite(sp.exp) ** 2).rewrite(sp.exp).simplify() == 0
    # wrong: (capped / c) ** 2 -> capped / c
    assert sp.simplify(slope - (1 - (capped / c) ** 2)) == 0
    assert abs(float(slope.subs({z: 2, c: 1})) - 0.0707) < 1e-4


@pytest.mark.equation("eq-vocab-cap-bound", by="property")
def test_no_probability_reaches_the_ceiling():
    r"""
    $$
    p_j < \frac{1}{1 + (K - 1)\, e^{-2c}} .
    $$ (eq-vocab-cap-bound)
    """
    rng = np.random.default_rng(4)
    for K, c in itertools.product((2, 10, 500), (0.5, 2.0, 4.0)):
        # wrong: -2 * c -> -c
        bound = 1 / (1 + (K - 1) * math.exp(-2 * c))
        for _ in range(50):
            z = c * np.tanh(rng.normal(0, 5, size=K))
            assert (np.exp(z) / np.exp(z).sum()).max() < bound
        # It is the least bound: the corner of the cube comes as near as one likes.
        z = np.full(K, -c * (1 - 1e-9))
        z[0] = c * (1 - 1e-9)
        assert np.exp(z[0]) / np.exp(z).sum() > bound * (1 - 1e-6)


@pytest.mark.equation("eq-vocab-cap-fits", by="property")
def test_which_laws_a_capped_model_can_match():
    r"""Minimise over free logits behind the cap: the law comes out if, and only if, it fits.

    $$
    \max_j \log P_j - \min_j \log P_j < 2c .
    $$ (eq-vocab-cap-fits)
    """
    c, rng = 1.0, np.random.default_rng(6)
    outcomes = set()
    for spread in (0.5, 1.5, 1.9, 2.1, 2.6, 4.0):
        z = rng.uniform(0, spread, size=4)
        z[:2] = 0, spread
        P = np.exp(z) / np.exp(z).sum()
        # wrong: 2 * c -> c
        fits = np.log(P).max() - np.log(P).min() < 2 * c

        def loss(x: np.ndarray, P: np.ndarray = P) -> float:
            capped = c * np.tanh(x / c)
            return float(np.log(np.exp(capped).sum()) - P @ capped)

        x = minimize(loss, np.zeros(4), tol=1e-12, options={"maxiter": 2000}).x
        excess = loss(x) + float(P @ np.log(P))
        assert (excess < 1e-7) == fits, (spread, excess)
        outcomes.add(fits)
    assert outcomes == {True, False}
