"""Sources of sequences that end with <eos>, whose entropy, divergence and tilt are known exactly.

A sequence x_1 ... x_n ends with <eos>, and n counts it. What a loss that is averaged over lengths makes of
any distribution of lengths, `xent.denominators` computes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate, denominators
from .denominators import stop_probability
from .information import excess

__all__ = ["GeometricSource", "MarkovSource"]

Array = NDArray[np.float64]


class GeometricSource:
    r"""A coin decides before every token whether the sequence ends; letters are uniform.

    .. math:: P(x_{1:n}) = \beta \Big(\frac{1 - \beta}{m}\Big)^{n-1}, \qquad P(n) = \beta (1 - \beta)^{n-1},
              \qquad n = 1, 2, \dots

    with `stop` beta = P(<eos>), in (0, 1], and m `letters` besides <eos>. The models are of the same family with the
    stop probability q, the same at each step.

    Examples
    --------
    >>> from xent.sequences import GeometricSource
    >>> coin = GeometricSource(0.5)
    >>> coin.mean_length(), coin.harmonic_mean_length()
    (2.0, 1.442695...)
    """

    @np.errstate(all="ignore")
    def __init__(self, stop: float, letters: int = 1) -> None:
        self.stop = stop_probability(stop, "stop")
        self.letters = _validate.integer(letters, "letters")
        if self.letters < 1:
            raise ValueError(f"letters: expected at least one letter, got {_validate.shown(letters)}")

    @np.errstate(all="ignore")
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Draw lengths, <eos> included, from `rng`; the letters carry no information about them."""
        sizes = size if isinstance(size, tuple) else (size,)
        shape = tuple(_validate.count(n, "size", least=0) for n in sizes)
        _validate.count(math.prod(shape), "size", least=0)
        return _validate.generator(rng).geometric(self.stop, size=shape)

    @np.errstate(all="ignore")
    def length_probabilities(self, n_max: int) -> Array:
        """Return P(1), ..., P(n_max), which sum to 1 - (1 - stop)**n_max."""
        return self.stop * (1.0 - self.stop) ** np.arange(_validate.count(n_max, "n_max"), dtype=np.float64)

    def mean_length(self) -> float:
        """E[n] = 1/beta."""
        return 1.0 / self.stop

    def harmonic_mean_length(self, batch_size: int = 1) -> float:
        """1 / E[1/n̄] for the mean length n̄ of a batch: the mean length that its token mean teaches."""
        return 1.0 / denominators.eos_optimum(self.stop, batch_size)

    def entropy(self) -> float:
        r"""Entropy of a sequence in nats, :math:`(h(\beta) + (1 - \beta) \log m) / \beta`."""
        return self.cross_entropy(self.stop)

    def cross_entropy(self, q: float) -> float:
        r"""Cross-entropy of a sequence, :math:`-\log q - (1/\beta - 1) \log((1 - q)/m)`, in nats."""
        return self._loss(q, self.stop) / self.stop

    @np.errstate(all="ignore")
    def kl(self, q: float) -> float:
        r"""Divergence KL(P||Q_q) per sequence, :math:`\mathrm{kl}(\beta \| q) / \beta`, in nats."""
        q = _validate.setting(q, "q")
        p = np.array([self.stop, 1.0 - self.stop])
        return float(excess(p, np.array([q, 1.0 - q])).sum()) / self.stop

    def averaged_cross_entropy(self, q: float, batch_size: int = 1) -> float:
        r"""Expected token mean over a batch, :math:`-q^* \log q - (1 - q^*) \log((1 - q)/m)`, in nats.

        It is smallest at q* = `eos_optimum`, above the true stop probability unless that is 1.
        """
        return self._loss(q, denominators.eos_optimum(self.stop, batch_size))

    @np.errstate(all="ignore")
    def tilted_lengths(self, n_max: int) -> Array:
        r"""Distribution of lengths that the per-sequence mean teaches a flexible model: the logarithmic one.

        .. math:: Q^*(n) = \frac{(1 - \beta)^n}{-n \log \beta}
        """
        n = np.arange(1, _validate.count(n_max, "n_max") + 1, dtype=np.float64)
        if self.stop == 1.0:
            return np.where(n == 1, 1.0, 0.0)
        return np.asarray((1.0 - self.stop) ** n / (-n * math.log(self.stop)))

    @np.errstate(all="ignore")
    def _loss(self, q: float, share: float) -> float:
        """Return -share log q - (1 - share) log((1 - q)/m), with 0 log 0 = 0."""
        q = _validate.setting(q, "q")
        letters = math.log(self.letters)
        # An impossible token that the data do not hold costs nothing; one that they hold costs inf.
        end = -math.log(q) * share if q > 0 else math.inf
        rest = (letters - math.log1p(-q)) * (1.0 - share) if q < 1 else math.inf
        return end + (rest if share < 1.0 else 0.0)


class MarkovSource:
    r"""Letters from a Markov chain that may end after each of them: a bigram model with <eos>, exactly.

    Letters are 0, ..., K - 1 and <eos> is K. With P the letters' columns of `transition` and pi the letters' part of
    `initial`, in a divergence both with <eos>, the expected number of visits to each letter is

    .. math:: v = \pi (I - P)^{-1}, \qquad \mathrm E[n] = 1 + \textstyle\sum_s v_s, \qquad
              \mathrm{KL}(P \| Q) = \mathrm{KL}(\pi \| \pi_Q) + \sum_s v_s\, \mathrm{KL}(P_s \| Q_s)

    Parameters
    ----------
    initial : array_like, shape (K + 1,)
        Distribution of the first token; the last entry is P(the sequence is <eos> alone).
    transition : array_like, shape (K, K + 1)
        Row s is the distribution of the token after letter s; its last entry is P(<eos> | s). From every letter
        that occurs, <eos> has to be within reach.

    Notes
    -----
    Kemeny and Snell, *Finite Markov Chains* (1960), for the fundamental matrix (I - P)^-1.

    Examples
    --------
    >>> from xent.sequences import MarkovSource
    >>> words = MarkovSource([0.6, 0.4, 0.0], [[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]])
    >>> round(words.mean_length(), 4)
    3.5333
    """

    @np.errstate(all="ignore")
    def __init__(self, initial: ArrayLike, transition: ArrayLike) -> None:
        first = _validate.probabilities(initial, "initial", -1)
        if first.ndim != 1:
            raise ValueError(f"initial: expected one dimension, got shape {first.shape}")
        self.initial = first.astype(np.float64)
        letters = self.initial.size - 1
        if letters < 1:
            raise ValueError(f"initial: expected K + 1 >= 2 tokens, <eos> last, got {self.initial.size}")
        rows = _validate.real_array(transition, "transition")
        if rows.shape != (letters, letters + 1):
            raise ValueError(
                f"transition: expected shape {(letters, letters + 1)}, a row for each letter of initial and "
                f"<eos> last, got {rows.shape}"
            )
        self.transition = _validate.probabilities(rows, "transition", -1).astype(np.float64)
        self._reached = self._check_that_it_ends()
        self._check_how_often_it_visits()

    @np.errstate(all="ignore")
    def sample(self, rng: np.random.Generator, size: int) -> list[list[int]]:
        """Draw `size` sequences of letters; the <eos> that ends each is left out."""
        eos = self.initial.size - 1
        size, rng = _validate.count(size, "size"), _validate.generator(rng)
        cumulative = np.cumsum(np.vstack([self.transition, self.initial]), axis=1)
        sequences: list[list[int]] = [[] for _ in range(size)]
        running, state = np.arange(size), np.full(size, eos)
        while running.size:
            uniform = rng.random(running.size) * cumulative[state, -1]
            state = (cumulative[state] <= uniform[:, None]).sum(axis=1)
            running, state = running[state < eos], state[state < eos]
            for i, letter in zip(running, state, strict=True):
                sequences[i].append(int(letter))
        return sequences

    @np.errstate(all="ignore")
    def visits(self) -> Array:
        """Expected number of visits to each letter in a sequence."""
        on = self._reached
        inner = np.eye(int(on.sum())) - self.transition[:, :-1][np.ix_(on, on)]
        visits = np.zeros(on.size)
        visits[on] = np.linalg.solve(inner.T, self.initial[:-1][on])
        return visits

    def mean_length(self) -> float:
        """E[n], <eos> included."""
        return 1.0 + float(self.visits().sum())

    @np.errstate(all="ignore")
    def kl(self, model: MarkovSource) -> float:
        """Divergence KL(P||Q) between the distributions of whole sequences, in nats."""
        if not isinstance(model, MarkovSource):
            raise TypeError(f"model: expected a MarkovSource, got {type(model).__name__}")
        if model.initial.shape != self.initial.shape:
            raise ValueError(f"model: expected {self.initial.size - 1} letters, got {model.initial.size - 1}")
        first, rows = excess(self.initial, model.initial), excess(self.transition, model.transition)
        visits = self.visits()
        reached = visits > 0  # 0 visits times an infinite cost is no cost
        return float(first.sum() + visits[reached] @ rows[reached].sum(axis=1))

    def _check_that_it_ends(self) -> NDArray[np.bool_]:
        """Return the letters that occur; from each of them <eos> has to be within reach."""
        step = self.transition[:, :-1] > 0
        reached = self.initial[:-1] > 0
        ends = self.transition[:, -1] > 0
        for _ in range(reached.size):
            reached = reached | (reached @ step)
            ends = ends | (step @ ends)
        if not ends[reached].all():
            stuck = int(np.flatnonzero(reached & ~ends)[0])
            raise ValueError(
                f"transition: expected every sequence to end, got no way from letter {stuck} to <eos>"
            )
        return np.asarray(reached)

    def _check_how_often_it_visits(self) -> None:
        """Refuse rows that sum to one within the tolerance and still let sequences go on for ever."""
        try:
            visits = self.visits()
        except np.linalg.LinAlgError:
            visits = np.full(1, np.inf)
        if not (np.isfinite(visits).all() and (visits >= 0).all()):
            raise ValueError(
                "transition: expected every sequence to end, got rows under which the expected number of "
                f"letters is {visits.sum():g}"
            )
