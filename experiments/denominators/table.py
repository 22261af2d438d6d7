"""Which set shares the divisor, and what is then learnt: exact, simulated, trained. Writes table.json.

    python -m experiments.denominators.table

Each row is a loss as somebody computes it. Three numbers:

exact      the theorem, by `xent.denominators.learnt_distribution` or by an enumeration of all batches;
simulated  batches are drawn and the *items* in them counted, each with one over its divisor (NumPy), or, where the
           theorem does not apply, a Newton step from the exact answer on drawn batches, which move it if it is
           wrong; both with a standard error;
trained    logits are fitted to other draws, through the loss as a framework has it: token losses by `F.cross_entropy`,
           padded, masked, averaged (PyTorch), eight seeds.

Sequences have 1, 2, 4 or 8 tokens, their <eos> included, with probabilities .4, .3, .2 and .1. The model has a logit
for each position, so it can represent any distribution of these lengths. Runs for about four minutes on one core.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from experiments.shared import made, save
from xent.denominators import learnt_distribution

Array = NDArray[np.float64]
Draws = NDArray[np.int64]
Loss = Callable[[Tensor, Tensor], Tensor]
HERE = Path(__file__).parent

LENGTHS = np.array([1, 2, 4, 8])
P = np.array([0.4, 0.3, 0.2, 0.1])
SEEDS, SIMULATED, TRAINED = 8, 400_000, 10_000
ROW = 10  # tokens of a packed row


@dataclass(frozen=True)
class Row:
    """One way to divide, and how to compute what it teaches."""

    name: str
    learns: str  # in words, for the table
    exact: Callable[[], float]
    simulated: Callable[[np.random.Generator], tuple[float, float]]
    trained: Callable[[int], float]
    truth: float = float(P[0])


# ------------------------------------------------------------------------------------------ supervised


def tokens(kinds: Draws) -> tuple[Tensor, Tensor]:
    """Targets and mask of sequences, shape (..., 8): 0 is to go on, 1 is <eos>, -100 is padding."""
    n = torch.as_tensor(LENGTHS[kinds])[..., None]
    position = torch.arange(1, LENGTHS.max() + 1)
    targets = torch.where(position == n, 1, 0).masked_fill(position > n, -100)
    return targets, position <= n


def every_position(free: Tensor) -> Tensor:
    """Log-odds of stopping at all positions, from those at 1, 2 and 4; no sequence ends at the others, all do at 8."""
    never = torch.full((1,), -40.0, dtype=torch.float64)
    return torch.cat([free[:2], never, free[2:], never, never, never, -never])


def minimise(loss: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Fit logits, from zero, by L-BFGS."""
    logits = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    close = {"tolerance_grad": 1e-9, "tolerance_change": 1e-13}
    optimiser = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe", **close)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(logits)
        value.backward()
        return value

    optimiser.step(closure)
    return logits


def fitted(loss: Callable[[Tensor], Tensor], of: int = 0) -> float:
    """The probability of one of four outcomes, after a fit of their logits."""
    return float(minimise(loss, 4).detach().softmax(0)[of])


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each token, zero where it is padded."""
    logits = every_position(logits)
    two = torch.stack([torch.zeros_like(logits), logits], -1).expand(*targets.shape, 2)
    return F.cross_entropy(two.reshape(-1, 2), targets.reshape(-1), reduction="none").view(targets.shape)


def fit_lengths(kinds: Draws, aggregate: Callable[[Tensor, Tensor], Tensor]) -> float:
    """P(one token) after training on sets of sequences, shape (sets, B); aggregate(losses, mask) -> (sets,)."""
    # Sets that are equal but for the order give equal losses: fit their shares, the same objective and quicker.
    in_order = np.sort(kinds.reshape(len(kinds), -1, 4), axis=2).reshape(kinds.shape)
    different, share = np.unique(in_order, axis=0, return_counts=True)
    weight = torch.as_tensor(share / share.sum())
    targets, mask = tokens(different)
    fitted = minimise(lambda z: weight @ aggregate(token_losses(z, targets), mask), 3)
    return float(fitted[0].sigmoid())


def ratio(mine: Array, all_: Array) -> tuple[float, float]:
    """The quotient of two sums over sets, and its standard error."""
    q = mine.sum() / all_.sum()
    return float(q), float(np.sqrt(np.square(mine - q * all_).sum()) / all_.sum())


def counted(kinds: Draws, scale: Array, of: int = 0) -> tuple[float, float]:
    """The share of an outcome among items that count `scale` each, shape (sets, B), and its standard error."""
    return ratio(((kinds == of) * scale).sum(1), (scale * np.ones(kinds.shape)).sum(1))


# What is divided by what: (losses, mask) of shape (sets, B, T) -> (sets,). As the frameworks write it.
def by_tokens(losses: Tensor, mask: Tensor) -> Tensor:
    return (losses * mask).sum((1, 2)) / mask.sum((1, 2))


def square_averaging(losses: Tensor, mask: Tensor) -> Tensor:
    """Token weights of one over the square root of the length, over their sum, as InternVL's."""
    root = mask.sum(2).sqrt()
    return ((losses * mask).sum(2) / root).sum(1) / root.sum(1)


def draw(rng: np.random.Generator, *shape: int) -> Draws:
    return rng.choice(4, size=shape, p=P)


def of_tokens(
    name: str, learns: str, size: int, exact: Callable[[], float], scale: Callable[[Draws], Array],
    aggregate: Callable[[Tensor, Tensor], Tensor], prepare: Callable[[Draws], Draws] = lambda kinds: kinds,
) -> Row:  # fmt: skip
    """A row about sequences; scale(lengths) is one over the divisor of each, `prepare` regroups what is drawn."""

    def simulated(rng: np.random.Generator) -> tuple[float, float]:
        kinds = prepare(draw(rng, SIMULATED // size, size))
        return counted(kinds, scale(LENGTHS[kinds]))

    def trained(seed: int) -> float:
        rng = np.random.default_rng(1000 + seed)
        return fit_lengths(prepare(draw(rng, TRAINED, size)), aggregate)

    return Row(name, learns, exact, simulated, trained)


def additive(size: int) -> Callable[[], float]:
    return lambda: float(learnt_distribution(P, LENGTHS, size)[0])


def enumerated(size: int, divisor: Callable[[Array], float]) -> float:
    """The learnt P(one token), from all batches of `size` sequences, each with its probability."""
    q = np.zeros(4)
    for batch in itertools.product(range(4), repeat=size):
        share = float(np.prod(P[list(batch)])) / divisor(LENGTHS[list(batch)])
        for kind in batch:
            q[kind] += share
    return float(q[0] / q.sum())


# Packing: sequences are put into a row until the next does not fit, and that one starts the next row.
def packed_exact() -> float:
    """From the renewal process of a row and the Markov chain of the sequences that start rows."""
    visit = np.zeros(ROW + 1)  # that the running length meets s, from 0
    visit[0] = 1.0
    for s in range(1, ROW + 1):
        visit[s] = sum(p * visit[s - n] for n, p in zip(LENGTHS, P, strict=True) if n <= s)
    over = np.array([P[ROW - s < LENGTHS].sum() for s in range(ROW + 1)])  # that the next does not fit
    step, count = np.zeros((4, 4)), np.zeros((4, 4))
    for first, f in enumerate(LENGTHS):
        for s in range(f, ROW + 1):
            step[first] += visit[s - f] * np.where(ROW - s < LENGTHS, P, 0)
            count[first, first] += visit[s - f] * over[s] / s
            for kind, n in enumerate(LENGTHS):
                for r in range(f, s - n + 1):
                    count[first, kind] += visit[r - f] * P[kind] * visit[s - r - n] * over[s] / s
    start = np.linalg.matrix_power(step, 200)[0]
    q = start @ count
    return float(q[0] / q.sum())


def pack(stream: Draws) -> tuple[Draws, Draws]:
    """Row and number of rows: the row of each sequence of a stream."""
    row, filled, rows = np.empty(len(stream), dtype=np.int64), 0, 0
    for i, n in enumerate(LENGTHS[stream]):
        if filled + n > ROW:
            rows, filled = rows + 1, 0
        row[i], filled = rows, filled + n
    return row, np.bincount(row, LENGTHS[stream])


def packed_simulated(rng: np.random.Generator) -> tuple[float, float]:
    stream = draw(rng, SIMULATED // 2)
    row, total = pack(stream)
    scale = 1 / total[row]
    # Rows depend on their neighbours: the error is that of blocks of a hundred.
    blocks = np.arange(0, len(total), 100)
    mine, all_ = np.bincount(row, scale * (stream == 0)), np.bincount(row, scale)
    return ratio(np.add.reduceat(mine, blocks), np.add.reduceat(all_, blocks))


def packed_trained(seed: int, weights: bool) -> float:
    """Rows of tokens with position ids that start again; each row's mean, or the weights of LongAlign."""
    stream = draw(np.random.default_rng(1000 + seed), TRAINED)
    row, total = pack(stream)
    rows, items = len(total), len(stream)
    n = torch.as_tensor(LENGTHS[stream])
    own, where = n.repeat_interleave(n), torch.as_tensor(row).repeat_interleave(n)
    position = torch.cat([torch.arange(m) for m in n])
    target = (position + 1 == own).double()

    def loss(z: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(every_position(z)[position], target, reduction="none")
        if weights:  # each sequence's sum times rows / (its tokens x sequences), then the mean over the rows
            return (each * rows / (own * items)).sum() / rows
        of_row = torch.zeros(rows, dtype=torch.float64).index_add(0, where, each)
        return (of_row / torch.as_tensor(total)).mean()

    return float(minimise(loss, 3)[0].sigmoid())


# Prompts of 1 or 6 tokens, as likely; their tokens count in the divisor and cost something, or are masked.
PROMPTS = np.array([1, 6])


def prompted_exact() -> float:
    sizes = np.add.outer(PROMPTS, LENGTHS)
    joint = learnt_distribution(np.tile(P / 2, 2), sizes.ravel(), 4).reshape(2, 4)
    return float(joint[0, 0] / joint[0].sum())


def prompted_simulated(rng: np.random.Generator) -> tuple[float, float]:
    kinds, prompt = draw(rng, SIMULATED // 4, 4), rng.integers(2, size=(SIMULATED // 4, 4))
    scale = 1 / (LENGTHS[kinds] + PROMPTS[prompt]).sum(1, keepdims=True)
    return ratio(((kinds == 0) * (prompt == 0) * scale).sum(1), ((prompt == 0) * scale).sum(1))


def prompted_trained(seed: int) -> float:
    """The model sees which prompt it was; the prompts' own tokens do not depend on its parameters."""
    rng = np.random.default_rng(1000 + seed)
    kinds, prompt = draw(rng, TRAINED, 4), rng.integers(2, size=(TRAINED, 4))
    targets, mask = tokens(kinds)
    divisor = mask.sum((1, 2)) + torch.as_tensor(PROMPTS[prompt]).sum(1)
    short = torch.as_tensor(prompt == 0)

    def loss(z: Tensor) -> Tensor:
        after_short, after_long = (token_losses(part, targets) for part in z.split(3))
        each = torch.where(short[..., None], after_short, after_long)
        return ((each * mask).sum((1, 2)) / divisor).mean()

    return float(minimise(loss, 6)[0].sigmoid())


# Masked language models: a mask that does not look at the token.
def masked_simulated(rng: np.random.Generator) -> tuple[float, float]:
    kinds, mask = draw(rng, SIMULATED // 8, 8), rng.random((SIMULATED // 8, 8)) < 0.3
    some = mask.any(1)
    kinds, mask = kinds[some], mask[some]
    return counted(kinds, mask / mask.sum(1, keepdims=True))


def masked_trained(seed: int) -> float:
    rng = np.random.default_rng(1000 + seed)
    kinds = torch.as_tensor(draw(rng, TRAINED, 8))
    mask = torch.as_tensor(rng.random(kinds.shape) < 0.3)
    kinds, mask = kinds[mask.any(1)], mask[mask.any(1)]

    def loss(z: Tensor) -> Tensor:
        return ((-F.log_softmax(z, 0)[kinds] * mask).sum(1) / mask.sum(1)).mean()

    return fitted(loss)


# --------------------------------------------------------------------------------------- class weights

RARE, WEIGHT = np.array([0.95, 0.05]), np.array([1.0, 20.0])


def weighted_row(size: int, repaired: bool) -> Row:
    """Classes 95 : 5 with weights 1 : 20; the report for the rare one."""
    truth = float(RARE[1] * WEIGHT[1] / (RARE @ WEIGHT))
    name = f"class weights, over {'the expected' if repaired else 'their own'} sum, batches of {size}"

    def exact() -> float:
        return truth if repaired else float(learnt_distribution(RARE, WEIGHT, size, weight=WEIGHT)[1])

    def simulated(rng: np.random.Generator) -> tuple[float, float]:
        y = (rng.random((SIMULATED // size, size)) < RARE[1]).astype(np.int64)
        w = WEIGHT[y]
        return counted(y, w if repaired else w / w.sum(1, keepdims=True), of=1)

    def trained(seed: int) -> float:
        """Plain SGD, batch after batch, with the mean that PyTorch computes; the rate falls to zero."""
        generator = torch.Generator().manual_seed(1000 + seed)
        # As many steps whatever the batch, and batches side by side: 64 models that see different data.
        steps, models, rate = 3000, 64, 0.1
        z = torch.zeros(models, 2, dtype=torch.float64, requires_grad=True)
        w = torch.as_tensor(WEIGHT)
        for step in range(steps):
            y = (torch.rand(models, size, generator=generator) < RARE[1]).long()
            scores = z[:, :, None].expand(models, 2, size)
            each = F.cross_entropy(scores, y, weight=w, reduction="none")
            divisor = size * float(RARE @ WEIGHT) if repaired else w[y].sum(1)
            (gradient,) = torch.autograd.grad((each.sum(1) / divisor).sum(), z)
            with torch.no_grad():
                z -= rate * (1 - step / steps) * gradient
        return float(z.detach().softmax(1)[:, 1].mean())

    return Row(name, "w p" if repaired else "w p E[1/(w + W)]", exact, simulated, trained, truth)


# ------------------------------------------------------------------------------------ sampled negatives

NOISE, NEGATIVES = np.array([0.1, 0.2, 0.3, 0.4]), 3


def sampled_loss(z: Tensor, candidates: Tensor, corrected: bool, drop: bool) -> Tensor:
    """-log softmax of the first candidate among all, shape (draws,)."""
    scores = z[candidates]
    if corrected:
        scores = scores - torch.as_tensor(np.log(NOISE))[candidates]
    if drop:  # a negative that is the target itself is taken out
        hit = candidates == candidates[:, :1]
        hit[:, 0] = False
        scores = scores.masked_fill(hit, -torch.inf)
    return scores.logsumexp(1) - scores[:, 0]


def sampled_exact(corrected: bool, drop: bool) -> Tensor:
    """The minimiser, from all draws of a target and its negatives; the sum of the logits is fixed at 0."""
    candidates = torch.tensor(list(itertools.product(range(4), repeat=1 + NEGATIVES)))
    chance = torch.as_tensor(P)[candidates[:, 0]] * torch.as_tensor(NOISE)[candidates[:, 1:]].prod(1)
    return minimise(lambda z: chance @ sampled_loss(z, candidates, corrected, drop), 4)


def candidates_of(rng: np.random.Generator, draws: int) -> Tensor:
    return torch.as_tensor(np.hstack([draw(rng, draws, 1), rng.choice(4, size=(draws, NEGATIVES), p=NOISE)]))


def stationary(loss: Loss, z: Tensor, drawn: Tensor, of: int = 0) -> tuple[float, float]:
    """The probability of an outcome after a Newton step from `z` on fresh draws, and its standard error."""
    z = z.detach().clone()
    eye = torch.eye(len(z), dtype=z.dtype)
    steps = 1e-4 * eye  # central differences: errors of 1e-8, far below the noise
    jacobian = torch.stack([(loss(z + h, drawn) - loss(z - h, drawn)) / 2e-4 for h in steps], 1)

    def slope(t: Tensor) -> Tensor:
        t = t.clone().requires_grad_()
        return torch.autograd.grad(loss(t, drawn).mean(), t)[0]

    hessian = torch.stack([(slope(z + h) - slope(z - h)) / 2e-4 for h in steps])
    hessian = (hessian + hessian.T) / 2
    inverse = torch.linalg.pinv(hessian, hermitian=True, rtol=1e-6)
    p = z.softmax(0)
    influence = jacobian @ inverse @ (p[of] * (eye[of] - p))
    value = float(p[of] - influence.mean())
    return value, float(influence.std() / len(influence) ** 0.5)


# ------------------------------------------------------------------------------------------ preferences

REWARD, BETA = np.array([0.0, 0.6, 0.3, 1.0]), 1.0
REFERENCE = np.array([0.4, 0.3, 0.2, 0.1])


def preference_loss(z: Tensor, pairs: Tensor, normalised: bool, reference: bool) -> Tensor:
    log_ratio = F.log_softmax(z, 0) - (torch.as_tensor(np.log(REFERENCE)) if reference else 0.0)
    reward = BETA * (log_ratio / torch.as_tensor(LENGTHS) if normalised else log_ratio)
    return -F.logsigmoid(reward[pairs[:, 0]] - reward[pairs[:, 1]])


def preference_exact(normalised: bool, reference: bool) -> Array:
    """The reference times exp(reward / beta), or with the length in the exponent: c makes it a distribution."""
    scale = LENGTHS if normalised else np.ones(4)

    def at(c: float) -> Array:
        return np.asarray((REFERENCE if reference else 1) * np.exp(scale * (REWARD + c) / BETA))

    return at(brentq(lambda c: at(c).sum() - 1, -50.0, 50.0, xtol=1e-14))


def pairs_of(rng: np.random.Generator, draws: int) -> Tensor:
    """(preferred, other) by Bradley and Terry."""
    first = rng.integers(4, size=draws)
    second = (first + rng.integers(1, 4, size=draws)) % 4
    wins = rng.random(draws) < 1 / (1 + np.exp(REWARD[second] - REWARD[first]))
    return torch.as_tensor(np.where(wins, (first, second), (second, first)).T)


def of_logits(
    name: str, learns: str, loss: Loss, drawn: Callable[[np.random.Generator, int], Tensor],
    optimum: Callable[[], Tensor], truth: float, of: int = 0,
) -> Row:  # fmt: skip
    """A row about a loss of four logits along what is drawn."""

    def trained(seed: int) -> float:
        seen = drawn(np.random.default_rng(1000 + seed), 4 * TRAINED)
        return fitted(lambda z: loss(z, seen).mean(), of)

    def simulated(rng: np.random.Generator) -> tuple[float, float]:
        return stationary(loss, optimum(), drawn(rng, 50_000), of)

    return Row(name, learns, lambda: float(optimum().detach().softmax(0)[of]), simulated, trained, truth)


def sampled_row(name: str, learns: str, law: Array | None, corrected: bool, drop: bool, of: int = 0) -> Row:
    loss = partial(sampled_loss, corrected=corrected, drop=drop)

    def optimum() -> Tensor:
        return sampled_exact(corrected, drop) if law is None else torch.as_tensor(np.log(law))

    return of_logits(name, learns, loss, candidates_of, optimum, float(P[of]), of)


def preference_row(name: str, learns: str, normalised: bool, reference: bool) -> Row:
    loss = partial(preference_loss, normalised=normalised, reference=reference)
    truth = float(preference_exact(False, reference)[0])

    def optimum() -> Tensor:
        return torch.as_tensor(np.log(preference_exact(normalised, reference)))

    return of_logits(name, learns, loss, pairs_of, optimum, truth)


# ---------------------------------------------------------------------------------------------- rows


def sums(n: Draws) -> Array:
    return np.asarray(1 / n.sum(1, keepdims=True))


def bucketed(kinds: Draws) -> Draws:
    """The same sequences, sorted by length before they are cut into batches."""
    return np.sort(kinds, axis=None).reshape(kinds.shape)


def by_sequence(losses: Tensor, mask: Tensor) -> Tensor:
    return ((losses * mask).sum(2) / mask.sum(2)).mean(1)


def by_rank(losses: Tensor, mask: Tensor) -> Tensor:
    return by_tokens(losses.view(-1, 4, 8), mask.view(-1, 4, 8)).view(-1, 2).mean(1)


def by_padded(losses: Tensor, mask: Tensor) -> Tensor:
    return (losses * mask).sum((1, 2)) / (mask.shape[1] * mask.sum(2).max(1).values)


def constant() -> float:
    return float(P[0])


ROWS = [
    of_tokens("mean over each sequence", "P / n", 4, additive(1), lambda n: 1 / n, by_sequence),
    of_tokens(
        "square averaging over a micro-batch of 4", "P E[1/(r + R)] / r, r = sqrt(n), B = 4", 4,
        lambda: float(learnt_distribution(P, np.sqrt(LENGTHS), 4, weight=1 / np.sqrt(LENGTHS))[0]),
        lambda n: 1 / np.sqrt(n) / np.sqrt(n).sum(1, keepdims=True), square_averaging,
    ),
    of_tokens("token mean over a micro-batch of 4", "P E[1/(n + S)], B = 4", 4, additive(4), sums, by_tokens),
    of_tokens(
        "token mean of each of 2 ranks of 4, averaged", "P E[1/(n + S)], B = 4", 8, additive(4),
        lambda n: np.repeat(1 / n.reshape(-1, 2, 4).sum(2), 4, 1), by_rank,
    ),
    of_tokens("one denominator for 2 ranks of 4", "P E[1/(n + S)], B = 8", 8, additive(8), sums, by_tokens),
    of_tokens("token mean in buckets of one length", "P / n", 4, additive(1), sums, by_tokens, bucketed),
    of_tokens(
        "mean over 4 padded rows, padding counted", "P E[1/max n]", 4,
        lambda: enumerated(4, lambda n: float(n.max())), lambda n: 1 / n.max(1, keepdims=True), by_padded,
    ),
    of_tokens(
        "sum over a constant, or over the sequences", "P", 4, constant, np.ones_like,
        lambda losses, mask: (losses * mask).sum(2).mean(1),
    ),
    Row(
        "prompts of 1 or 6 tokens counted, batches of 4", "P E[1/(m + n + S)], given the prompt",
        prompted_exact, prompted_simulated, prompted_trained,
    ),
    Row("a mask that does not look at the token", "P", constant, masked_simulated, masked_trained),
    Row(
        f"packed rows of {ROW} tokens, each its mean", "P E[1/tokens of its row]",
        packed_exact, packed_simulated, partial(packed_trained, weights=False),
    ),
    Row(
        "packed rows with LongAlign's weights", "P / n", additive(1),
        lambda rng: (lambda kinds: counted(kinds, 1 / LENGTHS[kinds]))(draw(rng, SIMULATED, 1)),
        partial(packed_trained, weights=True),
    ),
    *(weighted_row(size, repaired) for repaired in (False, True) for size in (4, 16, 64)),
    sampled_row("sampled softmax, corrected by -log q", "P", P, True, False),
    sampled_row("sampled softmax, not corrected", "P / q", P / NOISE / (P / NOISE).sum(), False, False),
    sampled_row("sampled softmax, corrected, hits removed", "no closed form", None, True, True, 3),
    preference_row("DPO", "ref exp(r / b)", False, True),
    preference_row("DPO, averaged over the length", "ref exp(n (r + c) / b)", True, True),
    preference_row("SimPO without margin", "exp(n (r + c) / b)", True, False),
]  # fmt: skip


def measure(row: Row, seed: int = 0) -> dict[str, object]:
    """Compute the three numbers of a row."""
    simulated, error = row.simulated(np.random.default_rng([seed, ROWS.index(row)]))
    fits = np.array([row.trained(k) for k in range(SEEDS)])
    return {
        "row": row.name,
        "learns": row.learns,
        "truth": round(row.truth, 6),
        "exact": round(row.exact(), 6),
        "simulated": round(simulated, 6),
        "simulated_error": float(f"{error:.2g}"),
        "trained": round(float(fits.mean()), 6),
        "trained_error": float(f"{fits.std(ddof=1) / np.sqrt(SEEDS):.2g}"),
    }


def main() -> None:
    torch.set_num_threads(1)
    settings = {"seeds": SEEDS, "simulated": SIMULATED, "trained": TRAINED}
    settings |= {"lengths": LENGTHS.tolist(), "probabilities": P.tolist()}
    record = {**made(np, scipy, torch), "settings": settings, "rows": [measure(row) for row in ROWS]}
    save(record, HERE / "table.json")


if __name__ == "__main__":
    main()
