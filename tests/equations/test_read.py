"""Equations as their chapters print them, evaluated at random values: nobody transcribes them here.

`ROWS` says what the names in an equation stand for, computed in another way wherever the equation defines one of
them. What the reader leaves out of an equation its row lists, so that a change of it is noticed. In the second test
every sign and every number on the page is changed, one at a time, and the change has to be seen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import ledger
from equations.reader import Env, Let, Outcomes, Unreadable, derivative, failures, lookup

ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------- functions, in another form than is printed


def column(values: Any) -> Any:
    return np.array([mp.mpf(v) if isinstance(v, bool | int | float) else v for v in values], object)[:, None]


def softmax(z: Any) -> Any:
    return column(1 / mp.fsum(mp.exp(other - own) for other in z[:, 0]) for own in z[:, 0])


def softmax_rows(z: Any) -> Any:
    return np.hstack([softmax(row[:, None]) for row in z]).T


def lse(z: Any) -> Any:
    total = z[0, 0]
    for x in z[1:, 0]:
        total = max(total, x) + mp.log1p(mp.exp(-abs(total - x)))
    return total


def softplus(u: Any) -> Any:
    return lse(column([0, u]))


def sigmoid(z: Any) -> Any:
    return np.frompyfunc(lambda x: (1 + mp.tanh(x / 2)) / 2, 1, 1)(z)


def one_hot(y: Any, classes: int) -> Any:
    return column(int(k == y) for k in range(1, classes + 1))


def masses(p: Any) -> list[Any]:
    return list(p.values()) if isinstance(p, dict) else list(p[:, 0])


def entropy(p: Any, q: Any = None) -> Any:
    """The entropy of p, or the cross-entropy."""
    pairs = zip(masses(p), masses(p if q is None else q), strict=True)
    return mp.fsum(a * mp.log(1 / b) for a, b in pairs if a)


def kl(p: Any, q: Any) -> Any:
    return mp.fsum(a * mp.log(a / b) for a, b in zip(masses(p), masses(q), strict=True) if a)


def variance(p: Any, x: Any) -> Any:
    """Half the mean squared distance of two independent draws."""
    pairs = itertools.product(zip(p[:, 0], x[:, 0], strict=True), repeat=2)
    return mp.fsum(a * b * (u - v) ** 2 for (a, u), (b, v) in pairs) / 2


def mean(values: Any) -> Any:
    values = [*values]
    return mp.fsum(values) / len(values)


def test_the_functions_are_scipys() -> None:
    for seed, scale in ((0, 1.0), (1, 20.0)):
        d = Draw(seed, scale)
        z, u = d.column(5), d.column(5)
        p, q = softmax(z), softmax(u)
        x, a, b = (v.astype(float)[:, 0] for v in (z, p, q))
        pairs: list[tuple[Any, Any]] = [
            (p, scipy.special.softmax(x)[:, None]),
            (lse(z), scipy.special.logsumexp(x)),
            (sigmoid(z), scipy.special.expit(x)[:, None]),
            (softplus(z[0, 0]), np.logaddexp(0, x[0])),
            (entropy(p), scipy.stats.entropy(a)),
            (kl(p, q), scipy.stats.entropy(a, b)),
            (entropy(p, q), -a @ np.log(b)),
            (variance(p, z), np.cov(x, aweights=a, ddof=0)),
        ]
        for ours, theirs in pairs:
            assert np.allclose(np.asarray(ours, float), theirs, rtol=1e-12, atol=1e-300)


# ---------------------------------------------------------------------------- what the names stand for


class Draw(random.Random):
    """Random values that a float can hold; `scale` is how far logits spread."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed)
        self.scale = scale

    def real(self, low: float = 0.1, high: float = 2.0) -> Any:
        return mp.mpf(self.uniform(low, high))

    def share(self) -> Any:
        return self.real(0.05, 0.95)

    def column(self, n: int) -> Any:
        return column(self.gauss(0.0, self.scale) for _ in range(n))

    def positive(self, n: int) -> Any:
        return column(self.real() for _ in range(n))

    def matrix(self, n: int, m: int) -> Any:
        return np.hstack([self.column(n) for _ in range(m)])

    def probs(self, n: int) -> Any:
        return softmax(self.column(n))

    def label(self, n: int) -> int:
        return self.randint(1, n)


def is_class(*names: str) -> Callable[[Env], Any]:
    """The entry of a column by the index that some name holds."""
    return lambda e: lookup(e, names[0])[int(lookup(e, names[1])) - 1, 0]


def bernoulli(y: Any, p: Any) -> Any:
    return mp.mpf(float(scipy.stats.bernoulli.pmf(int(y), float(p))))


def coin(d: Draw) -> Env:
    y = column([1, 0, *(d.randint(0, 1) for _ in range(5))])
    p, q = (column(d.share() for _ in range(7)) for _ in range(2))
    likelihood = lambda p: mp.fprod(p if b else 1 - p for b in y[:, 0])  # noqa: E731
    best = mp.findroot(lambda p: mp.diff(lambda x: mp.log(likelihood(x)), p), 0.5)
    return {"y": y, "p": p[0, 0], "q": q[0, 0], "N": 7, "k": int(sum(y[:, 0])), "cal L": likelihood, "hat p": best}


def coins(d: Draw) -> Env:
    e = coin(d) | {"p": (p := column(d.share() for _ in range(7)))}
    return e | {"J": mean(mp.log(1 / bernoulli(b, q)) for b, q in zip(e["y"][:, 0], p[:, 0], strict=True))}


def missing_log(d: Draw) -> Env:
    f, p = d.share(), d.share()
    return {"f": f, "p": p, "tilde J": lambda p: f * mp.log(1 / p) + (f - 1) * (1 - p)}


def binary(d: Draw) -> Env:
    """One logit and its label; the loss is minus the logarithm of what the label's probability is."""
    z, y = d.column(1)[0, 0], d.randint(0, 1)
    of = lambda z, y: -mp.log(sigmoid(z if y == 1 else -z))  # noqa: E731
    return {"z": z, "y": y, "ell": of, "sigma": sigmoid, "softplus": softplus, "u": z}


def binary_loss(d: Draw) -> Env:
    e = binary(d)
    return e | {"ell": Let(lambda at: e["ell"](lookup(at, "z"), e["y"]))}


def logistic(d: Draw) -> Env:
    n, x, y = 5, d.matrix(5, 2), column([1, 0, 1, 0, d.randint(0, 1)])
    loss = lambda w: mean(softplus((1 - 2 * b) * u) for u, b in zip((x @ w)[:, 0], y[:, 0], strict=True))  # noqa: E731
    p = Let(lambda e: sigmoid(x @ lookup(e, "w")))
    return {"N": n, "X": x, "x": x, "y": y, "w": d.column(2), "J": loss, "nabla": "w", "sigma": sigmoid, "p": p}


def pos_weight(d: Draw) -> Env:
    """q minimises the loss in which a share pi of positives has the weight c."""
    c, pi = d.real(), d.share()
    q = mp.findroot(lambda q: c * pi * (1 - q) - (1 - pi) * q, pi)
    return {"c": c, "pi": pi, "q": q}


def one(d: Draw, classes: int = 4) -> Env:
    """Logits, p = softmax(z), a label with its one-hot t, the loss by definition, free indices, z + c."""
    y, other = d.sample(range(1, classes + 1), 2)
    indices = {name: d.label(classes) for name in "ijl"} | {"k": d.choice([y, other])}
    return indices | {
        "K": classes,
        "z": d.column(classes),
        "p": Let(lambda e: softmax(lookup(e, "z"))),
        "y": y,
        "t": Let(lambda e: one_hot(lookup(e, "y"), classes)),
        "ell": Let(lambda e: entropy(lookup(e, "t"), lookup(e, "p"))),
        "over": {name: range(1, classes + 1) for name in "ijkl"},
        "c": d.real(),
        "sigma": sigmoid,
        "softmax": softmax,
        "lse": lse,
        "bold 1": column([1] * classes),
        "J": Let(lambda e: derivative(lambda e: lookup(e, "p"), e, "z", [])),
        "delta": np.array(np.eye(classes, dtype=int), object),
    }  # fmt: skip


def loss_of(d: Draw) -> Env:
    return one(d) | {"ell": lambda z, y: -mp.log(softmax(z)[int(y) - 1, 0])}


def bounds(d: Draw) -> Env:
    z = column([1, 1, 1, 1]) if d.random() < 0.3 else d.column(4)
    e = one(d) | {"z": z}
    right = lambda e: z[int(e["y"]) - 1, 0] >= max(z[:, 0])  # noqa: E731
    return e | {"always": True, "right": Let(right), "wrong": Let(lambda e: not right(e) or z[0] == z[1]),
                "uniform": z[0, 0] == z[1, 0] == z[2, 0]}  # fmt: skip


def many(d: Draw, classes: int = 4) -> Env:
    """Three examples with weights; z, p and t have a row for each, and the loss is a column."""
    e, n = one(d, classes), 3
    y = column(d.label(classes) for _ in range(n))
    rows = Let(lambda e: np.hstack([one_hot(label, classes) for label in y[:, 0]]).T)
    losses = lambda e: column(entropy(t[:, None], p[:, None]) for t, p in zip(lookup(e, "t"), lookup(e, "p"), strict=True))  # noqa: E731,E501
    return e | {
        "N": n,
        "n": d.label(n),
        "z": d.matrix(n, classes),
        "p": Let(lambda e: softmax_rows(lookup(e, "z"))),
        "t": rows,
        "y": y,
        "w": d.positive(n),
        "ell": Let(losses),
        "over": e["over"] | {"n": range(1, n + 1), "m": range(1, n + 1)},
        "L": lambda theta: mp.fprod(p[int(label) - 1] for p, label in zip(softmax_rows(e["z"]), y[:, 0], strict=True)),
        "theta": 0,
    }


def label_likelihood(d: Draw) -> Env:
    e = many(d)
    e["p"] = softmax_rows(e["z"])
    return e | {"L": lambda _: mp.fprod(p[int(y) - 1] for p, y in zip(e["p"], e["y"][:, 0], strict=True)), "theta": 0}


def softmax_regression(d: Draw) -> Env:
    e, x = many(d), d.matrix(3, 2)
    z = Let(lambda e: x @ lookup(e, "W") + lookup(e, "b").T)
    return e | {"x": x, "W": d.matrix(2, 4), "b": d.column(4), "z": z,
                "cal L": Let(lambda e: mean(lookup(e, "ell")[:, 0]))}  # fmt: skip


def score(d: Draw) -> Env:
    """Brier's score of q on labels Y that follow pi; two losses as surfaces over the logits (u, v)."""
    e, pi = one(d), d.probs(4)
    brier = lambda q, y: 1 - 2 * q[int(y) - 1, 0] + mp.fsum(x * x for x in q[:, 0])  # noqa: E731
    (u, v), margin = d.column(2)[:, 0], d.real()
    return e | {
        "S": brier, "q": d.probs(4), "pi": pi, "E": Outcomes(lambda _: [(pi[y - 1, 0], {"Y": y, "y": y}) for y in range(1, 5)]),
        "u": u, "v": v, "ell_squared": mp.norm([u - 1, v + 1]) ** 2, "ell_cross": lse(column([u, v])) - u,
    }


def slopes(d: Draw) -> Env:
    return {"m": d.column(1)[0, 0], "p": Let(lambda e: sigmoid(lookup(e, "m")))}


def errors(d: Draw) -> Env:
    e = many(d)
    p = softmax_rows(e["z"])
    wrong = [max(row) > row[int(y) - 1] for row, y in zip(p, e["y"][:, 0], strict=True)]
    return {"N": 3, "E": sum(wrong), "cal L": mean(mp.log(1 / row[int(y) - 1]) for row, y in zip(p, e["y"][:, 0], strict=True))}


class Law(dict[Any, Any]):
    """A distribution: P(x) is a probability, P(y, x) a conditional one, P(..., x) the distribution given x."""

    def __call__(self, x: Any, given: Any = None) -> Any:
        x, given = (int(v) if isinstance(v, mp.mpf) else v for v in (x, given))
        if given is None:
            return self[x] if x in self else mp.fsum(p for key, p in self.items() if key[0] == x)
        row = Law({key[1]: p / self(given) for key, p in self.items() if key[0] == given})
        return row if x is ... else row[x]


def laws(d: Draw) -> Env:
    """Two distributions over four outcomes, with a mixture, the uniform one and code lengths."""
    p, q, weight = d.probs(4), d.probs(4), d.share()
    P, Q, M = (Law(zip(range(1, 5), r[:, 0], strict=True)) for r in (p, q, weight * p + (1 - weight) * q))
    lengths = column(d.randint(2, 7) for _ in range(4))
    total = mp.fsum(mp.mpf(2) ** -n for n in lengths[:, 0])
    mean_of = Outcomes(lambda _: [(P[x], {"X": x}) for x in P])
    return one(d) | {
        "P": P, "Q": Q, "M": M, "U": Law(dict.fromkeys(range(1, 5), mp.mpf(1) / 4)), "p": p, "q": q, "lambda": weight,
        "H": entropy, "KL": kl, "E_XsimP": mean_of, "E": mean_of, "t": d.real(),
    } | {"ell": lengths, "c": total}


def coded(d: Draw) -> Env:
    """Q is the distribution that a code with these lengths is best for."""
    e = laws(d)
    return e | {"Q": Law({k: mp.mpf(2) ** -n / e["c"] for k, n in enumerate(e["ell"][:, 0], 1)})}


def rounded_up(d: Draw) -> Env:
    e = laws(d)
    return e | {"ell": column(mp.ceil(-mp.log(p, 2)) for p in e["p"][:, 0])}


def surprise(d: Draw) -> Env:
    c, u, n = d.real(), d.share(), d.randint(1, 9)
    m = int(mp.floor(-n * mp.log(u, 2)))
    return {"s": lambda x: c * mp.log(1 / x), "u": u, "v": d.share(), "c": c, "n": n, "m": m}


def events(d: Draw) -> Env:
    law = dict(enumerate(d.probs(6)[:, 0]))
    probability = lambda a, given=frozenset(range(6)): mp.fsum(law[x] for x in a & given) / mp.fsum(law[x] for x in given)  # noqa: E731,E501
    return {"P": probability, "A": frozenset({0, 1, 2, 3}), "B": frozenset({2, 3, 4})}


def pairs(d: Draw) -> Env:
    """Two joint distributions of x and y; Q_theta has P's marginal of x."""
    keys = list(itertools.product((1, 2), (1, 2, 3)))
    P, Q = (Law(zip(keys, d.probs(6)[:, 0], strict=True)) for _ in range(2))
    mixed = Law({(x, y): P(x) * Q(y, x) for x, y in keys})
    margins = {f"{name}_X": Law({x: law(x) for x in (1, 2)}) for name, law in (("P", P), ("Q", Q))}
    data = [d.choice(keys) for _ in range(5)]
    x, y = (column(pair[i] for pair in data) for i in range(2))
    return margins | {
        "P": P, "Q": Q, "P_XY": P, "Q_XY": Q, "Q_theta": mixed, "KL": kl, "H": entropy, "x": x, "y": y, "n": 5, "theta": 0,
        "R_n": lambda _: mean(mp.log(P(b, a)) - mp.log(mixed(b, a)) for a, b in data),
        "over": {"x": (1, 2), "y": (1, 2, 3)}, "E_XsimP": Outcomes(lambda _: [(P(x), {"X": x}) for x in (1, 2)]),
    }


def empirical(d: Draw) -> Env:
    y = [d.randint(1, 3) for _ in range(7)]
    hat = Law({k: mp.mpf(y.count(k)) / 7 for k in (1, 2, 3)})
    return {"y": column(y), "n": 7, "Q_theta": Law(zip((1, 2, 3), d.probs(3)[:, 0], strict=True)), "hat P_n": hat, "H": entropy, "KL": kl}


def no_maximum(d: Draw) -> Env:
    """Two groups of n labels; there is no maximum when one of them has one label only."""
    n, shares = 3, (d.share(), d.share())
    total = mp.mpf(0)
    for labels in itertools.product((0, 1), repeat=2 * n):
        if min(len({*labels[:n]}), len({*labels[n:]})) == 1:
            total += mp.fprod(shares[i // n] if y else 1 - shares[i // n] for i, y in enumerate(labels))
    every = lambda a: mp.fsum(mp.binomial(n, k) * a**k * (1 - a) ** (n - k) for k in (0, n))  # noqa: E731
    return {"n": n, "a": shares[0], "a_0": shares[0], "a_1": shares[1], "pi_n": every, "P": lambda _: total, "nomaximum": 0}


def poisson(d: Draw) -> Env:
    """P on 0 to 4; every second draw has its mean as the rate."""
    p = Law(enumerate(d.probs(5)[:, 0]))
    mu = mp.fsum(k * q for k, q in p.items())
    rate = d.choice([mu, d.real()]) if d.scale < 3 else mu
    of = lambda r: (lambda x: mp.exp(-r) * r ** x / mp.factorial(x))  # noqa: E731
    on = lambda p: list(p.items()) if isinstance(p, dict) else [(k, p(k)) for k in range(150)]  # noqa: E731
    return {
        "P": p, "lambda": rate, "lambda^*": mu, "Poisson": of, "E": Outcomes(lambda _: [(q, {"X": k}) for k, q in p.items()]),
        "H": lambda p, q: -mp.fsum(a * mp.log(q(k)) for k, a in on(p)),
        "KL": lambda p, q: mp.fsum(a * (mp.log(a) - mp.log(q(k))) for k, a in on(p)),
    }


def same_mean(d: Draw) -> Env:
    """Q = exp(theta f) / Z, and P with the same mean of f."""
    f, q = (1, 2, 4), softmax(d.real(-0.5, 0.5) * column([1, 2, 4]))
    p = q + min(q[:, 0]) * d.share() / 3 * column([2, -3, 1])
    P, Q = (Law(zip(f, r[:, 0], strict=True)) for r in (p, q))
    return {"P": P, "Q": Q, "H": entropy, "KL": kl}


def gradient(d: Draw) -> Env:
    """Chapter 4's names: soft targets, an eigenvalue's name, variances, the largest logit."""
    e = one(d)
    t, x = softmax(column(d.gauss(0.0, 1.0) for _ in range(4))), d.column(4)
    hessian = Let(lambda e: mp_sum(lookup(e, "p")))
    return e | {
        "t": t, "x": x, "v": d.column(4), "a": d.column(4), "b": d.column(4), "m": max(e["z"][:, 0]), "H": hessian,
        "Sigma": Let(lambda e: mp.exp(lse(lookup(e, "z")))), "Var_p": Let(lambda e: lambda x: variance(lookup(e, "p"), x)),
        "lambda_max": lambda h: eigenvalues(h)[0], "r": Let(lambda e: lookup(e, "p") - t),
        "lambda": {i: (lambda h, i=i: eigenvalues(h)[i - 1]) for i in range(1, 4)},
    }


def hard_gradient(d: Draw) -> Env:
    e = gradient(d)
    return e | {"t": one_hot(e["y"], 4), "r": Let(lambda at: lookup(at, "p") - one_hot(e["y"], 4))}


def mp_sum(p: Any) -> Any:
    """The covariance of the one-hot vector of a class that follows p."""
    return sum(q * (one_hot(k, len(p)) - p) @ (one_hot(k, len(p)) - p).T for k, q in enumerate(p[:, 0], 1))


def eigenvalues(h: Any) -> list[Any]:
    return sorted(mp.eigsy(mp.matrix(h.tolist()), eigvals_only=True), reverse=True)


def weighted(d: Draw) -> Env:
    e, epsilon = many(d), d.share()
    uniform = lambda e: np.full_like(rows, mp.mpf(1) / 4)  # noqa: E731
    rows = np.hstack([one_hot(y, 4) for y in e["y"][:, 0]]).T
    e |= {"varepsilon": epsilon, "t": (1 - epsilon) * rows + epsilon * uniform(e)}
    return e | {"cal L": Let(lambda at: np.average(lookup(at, "ell")[:, 0], weights=e["w"][:, 0]))}


def smoothed(d: Draw) -> Env:
    """Targets that mix the one-hot label with the uniform distribution, and logits that are right for them."""
    e, epsilon = one(d), d.share()
    t = column(epsilon * u + (1 - epsilon) * h for u, h in zip([mp.mpf(1) / 4] * 4, one_hot(e["y"], 4)[:, 0], strict=True))
    p = d.probs(4)
    q = column(epsilon / 4 + (1 - epsilon) * x for x in p[:, 0])
    return e | {
        "varepsilon": epsilon, "t": t, "z": d.real() + np.frompyfunc(mp.log, 1, 1)(t), "k": e["y"] % 4 + 1,
        "eta": mp.fsum(x for k, x in enumerate(t[:, 0], 1) if k != e["y"]), "p": p, "q": q,
        "ell_in": Let(lambda at: -mp.log(epsilon / 4 + softmax(lookup(at, "z"))[e["y"] - 1, 0] * (1 - epsilon))),
    }


def any_class(d: Draw) -> Env:
    e = smoothed(d)
    return e | {"k": d.choice([e["y"], e["k"]])}


def inside(d: Draw) -> Env:
    e = any_class(d)
    return e | {"z": d.column(4), "p": Let(lambda e: softmax(lookup(e, "z")))}


def layer(d: Draw) -> Env:
    x, w, b = d.matrix(3, 2), d.matrix(4, 2), d.column(4)
    of = lambda e: sum(lse(lookup(e, "W") @ row[:, None] + lookup(e, "b")) for row in lookup(e, "x"))  # noqa: E731
    g = softmax_rows((w @ x.T + b).T)
    return {"x": x, "X": x, "W": w, "b": b, "cal L": Let(of), "g": g, "G": g, "bold 1": column([1] * 3), "n": d.label(3),
            "over": {"n": (1, 2, 3)}}


class Order:
    """What O(x) leaves open: a number plus at most a hundred times x."""

    def __init__(self, slack: Any, value: Any = 0) -> None:
        self.slack, self.value = slack, value

    def __radd__(self, value: Any) -> Order:
        return Order(self.slack, self.value + value)

    def __rmul__(self, factor: Any) -> Order:
        return Order(self.slack * factor, self.value * factor)

    def __eq__(self, other: object) -> bool:
        return bool(abs(other - self.value) <= 100 * abs(self.slack))

    def __sub__(self, other: Any) -> Any:
        return self.value - other

    def __rsub__(self, other: Any) -> Any:
        return other - self.value

    def __abs__(self) -> Any:
        return abs(self.value)

    __mul__, __hash__ = __rmul__, None


ROWS: dict[str, Any] = {
    "eq-bernoulli": (lambda d: {"p": d.share(), "y": d.randint(0, 1), "P": bernoulli},),
    "eq-coin-likelihood": (coin,),
    "eq-log-monotone": (coin, r"\text{if } \mathcal L(p)"),
    "eq-coin-mle": (coin,),
    "eq-bce": (coins,),
    "eq-missing-log": (missing_log, r"\operatorname*{arg\,min}_{0 \le p \le 1} \tilde J(p)", r"\min( \frac{f}{1 - f}, 1 )"),
    "eq-sigmoid": (binary,),
    "eq-bce-logits": (binary,),
    "eq-bce-symmetric": (binary,),
    "eq-bce-derivatives": (binary_loss,),
    "eq-softplus-stable": (binary,),
    "eq-weights-derivatives": (lambda d: logistic(d) | {"v": d.column(2)}, r"\nabla^2 J(w)",
                               r"\frac1N X^{\mathsf T} \operatorname{diag}( p_i (1 - p_i) ) X"),
    "eq-pos-weight": (pos_weight,),
    "eq-categorical": (one, "P(Y = k)"),
    "eq-label-likelihood": (label_likelihood,),
    "eq-one-hot": (one, r"0 \log 0", "0"),
    "eq-log-odds": (one,),
    "eq-softmax-map": (one,),
    "eq-softmax-shift": (one,),
    "eq-one-against-rest": (one, "p_1", r"\sigma(z_1 - z_0)", "(K = 2)"),
    "eq-nll-from-logits": (loss_of,),
    "eq-loss-bounds": (bounds,),
    "eq-prediction-minus-label": (loss_of,),
    "eq-softmax-regression-gradient": (softmax_regression,),
    "eq-brier-split": (score,),
    "eq-squared-error-mean": (score, r"\operatorname*{arg\,min}_{a} \mathbb E \sum_{k} (a_k - t_k)^2"),
    "eq-two-surfaces": (score,),
    "eq-margin-slopes": (slopes,),
    "eq-error-rate-bound": (errors,),
    "eq-surprise": (surprise,),
    "eq-surprise-chain": (events,),
    "eq-entropy": (laws, r"0 \log 0", "0"),
    "eq-code-length": (rounded_up,),
    "eq-cross-entropy-law": (laws,),
    "eq-kl": (laws,),
    "eq-gibbs": (laws, r"\text{equal only at } t = 1", r"\text{equal only if } P = Q"),
    "eq-entropy-bounds": (laws,),
    "eq-code-excess": (coded,),
    "eq-mixture": (laws,),
    "eq-kl-chain": (pairs,),
    "eq-kl-conditional": (pairs, r"Q_\theta(x, y)", r"P(x) Q_\theta(y \mid x)"),
    "eq-empirical": (empirical,),
    "eq-no-finite-mle": (no_maximum,),
    "eq-projection": (poisson,),
    "eq-pythagoras": (poisson,),
    "eq-maxent": (same_mean,),
    "eq-grad-softmax": (gradient,),
    "eq-grad-jacobian-cases": (gradient,),
    "eq-grad-jacobian": (gradient,),
    "eq-grad-chain": (gradient,),
    "eq-grad-residual": (gradient,),
    "eq-grad-lse": (gradient,),
    "eq-grad-complement": (gradient,),
    "eq-grad-mean": (weighted,),
    "eq-grad-smoothed-gap": (smoothed,),
    "eq-grad-layer": (layer,),
    "eq-grad-hessian": (gradient,),
    "eq-grad-variance": (gradient,),
    "eq-grad-curvature": (gradient,),
    "eq-grad-eigenproduct": (gradient,),
    "eq-grad-bound": (hard_gradient,),
    "eq-grad-lipschitz": (gradient,),
    "eq-grad-mse": (gradient,),
    "eq-grad-vjp": (gradient,),
}


@cache
def printed() -> dict[str, str]:
    return {equation.label: equation.tex for equation in ledger.read_equations(ROOT)[0]}


DRAWS = ((0, 1.0), (1, 1.0), (2, 3.0), (3, 20.0))


@pytest.mark.parametrize("label", ROWS)
def test_the_page_says(label: str) -> None:
    meaning, *unread = ROWS[label]
    draws = [meaning(Draw(seed, scale)) for seed, scale in DRAWS]
    if said := next(failures(printed()[label], draws, tuple(unread)), ""):
        pytest.fail(f"{label}, {said}", pytrace=False)
