"""What the names in the equations stand for: random values, and functions in another form than is printed.

Each function of a `Draw` returns an environment for reader.py; test_read.py says which equation takes which.
"""

# A lambda is a value of an environment here, and a row of it one line.
# ruff: noqa: E731
# fmt: off

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mpmath as mp
import numpy as np
import scipy.stats

from equations.values import Env, Let, Outcomes, derivative, log, lookup

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


# ---------------------------------------------------------------------------- what the names stand for


class Draw(random.Random):
    """Random values that a float can hold; `scale` is how far logits spread."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed)
        self.number, self.scale = seed, scale

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


def expectation(outcomes: Iterable[tuple[Any, Env]]) -> Outcomes:
    found = [*outcomes]
    return Outcomes(lambda _: found)


def bernoulli(y: Any, p: Any) -> Any:
    return mp.mpf(float(scipy.stats.bernoulli.pmf(int(y), float(p))))


def coin(d: Draw) -> Env:
    y = column([1, 0, *(d.randint(0, 1) for _ in range(5))])
    p, q = (column(d.share() for _ in range(7)) for _ in range(2))
    likelihood = lambda p: mp.fprod(p if b else 1 - p for b in y[:, 0])
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
    of = lambda z, y: -mp.log(sigmoid(z if y == 1 else -z))
    return {"z": z, "y": y, "ell": of, "sigma": sigmoid, "softplus": softplus, "u": z}


def binary_loss(d: Draw) -> Env:
    e = binary(d)
    return e | {"ell": Let(lambda at: e["ell"](lookup(at, "z"), e["y"]))}


def trial(d: Draw) -> Env:
    return {"p": d.share(), "y": d.randint(0, 1), "P": bernoulli}


def logistic(d: Draw) -> Env:
    """Labels, two features of each example, and the mean loss J as a function of the weights."""
    n, x, y = 5, d.matrix(5, 2), column([1, 0, 1, 0, d.randint(0, 1)])
    loss = lambda w: mean(softplus((1 - 2 * b) * u) for u, b in zip((x @ w)[:, 0], y[:, 0], strict=True))
    p = Let(lambda e: sigmoid(x @ lookup(e, "w")))
    names = {"w": d.column(2), "v": d.column(2), "nabla": "w", "sigma": sigmoid}
    return names | {"N": n, "X": x, "x": x, "y": y, "J": loss, "p": p}


def pos_weight(d: Draw) -> Env:
    """q minimises the loss in which a share pi of positives has the weight c."""
    c, pi = d.real(), d.share()
    q = mp.findroot(lambda q: c * pi * (1 - q) - (1 - pi) * q, pi)
    return {"c": c, "pi": pi, "q": q}


def one(d: Draw, classes: int = 4) -> Env:
    """Logits, p = softmax(z), a label with its one-hot t, the loss by definition, free indices, z + c."""
    y, other, third = (d.sample(range(1, classes + 1), classes) * 2)[:3]
    odd = d.number % 2
    indices = {"i": y if odd else other, "j": y if d.number % 3 else third, "k": other if odd else y, "l": third}
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
    }


def loss_of(d: Draw) -> Env:
    return one(d) | {"ell": lambda z, y: -mp.log(softmax(z)[int(y) - 1, 0])}


def bounds(d: Draw) -> Env:
    """Even logits, random ones, and a label that is wrong by as little as can be."""
    e = one(d)
    close = 99 * one_hot(e["y"], 4) + 99.01 * one_hot(e["y"] % 4 + 1, 4)
    z = (column([1, 1, 1, 1]), d.column(4), close)[d.number % 3]
    e = e | {"z": z + 99 * one_hot(e["y"], 4) if d.number == 4 else z}
    right = e["z"][e["y"] - 1, 0] >= max(e["z"][:, 0])
    return e | {"always": True, "right": right, "wrong": not right, "uniform": d.number % 3 == 0}


def many(d: Draw, classes: int = 4) -> Env:
    """Three examples with weights; z, p and t have a row for each, and the loss is a column."""
    e, n = one(d, classes), 3
    y = column(d.label(classes) for _ in range(n))
    rows = Let(lambda e: np.hstack([one_hot(label, classes) for label in y[:, 0]]).T)
    losses = lambda e: column(
        entropy(t[:, None], p[:, None]) for t, p in zip(lookup(e, "t"), lookup(e, "p"), strict=True)
    )
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
    }


def label_likelihood(d: Draw) -> Env:
    e = many(d)
    e["p"] = softmax_rows(e["z"])
    product = mp.fprod(p[int(y) - 1] for p, y in zip(e["p"], e["y"][:, 0], strict=True))
    return e | {"L": lambda _: product, "theta": 0}


def softmax_regression(d: Draw) -> Env:
    e, x = many(d), d.matrix(3, 2)
    z = Let(lambda e: x @ lookup(e, "W") + lookup(e, "b").T)
    return e | {"x": x, "W": d.matrix(2, 4), "b": d.column(4), "z": z,
                "cal L": Let(lambda e: mean(lookup(e, "ell")[:, 0]))}


def score(d: Draw) -> Env:
    """Brier's score of q on labels Y that follow pi; two losses as surfaces over the logits (u, v)."""
    e, pi = one(d), d.probs(4)
    brier = lambda q, y: 1 - 2 * q[int(y) - 1, 0] + mp.fsum(x * x for x in q[:, 0])
    u, v = d.column(2)[:, 0]
    return e | {
        "S": brier, "q": d.probs(4), "pi": pi, "E": expectation((pi[y - 1, 0], {"Y": y, "y": y}) for y in range(1, 5)),
        "u": u, "v": v, "ell_squared": mp.norm([u - 1, v + 1]) ** 2, "ell_cross": lse(column([u, v])) - u,
    }


def slopes(d: Draw) -> Env:
    return {"m": d.column(1)[0, 0], "p": Let(lambda e: sigmoid(lookup(e, "m")))}


def errors(d: Draw) -> Env:
    """How many of three examples are wrong; in the last draw each is, by as little as can be."""
    e = many(d)
    p = softmax_rows(e["z"])
    if d.number == 4:
        e["y"], p = column([1, 2, 1]), softmax_rows(np.hstack([column([1, 1, -99, -99])] * 3).T + d.matrix(3, 4) / 100)
        e["y"] = column(1 + int(row[1] < row[0]) for row in p)
    of_label = [(row, row[int(y) - 1]) for row, y in zip(p, e["y"][:, 0], strict=True)]
    return {"N": 3, "E": sum(max(row) > q for row, q in of_label), "cal L": mean(mp.log(1 / q) for _, q in of_label)}


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
    lengths = column(d.sample([1, 2, 3, 4], 4))
    total = mp.fsum(mp.mpf(2) ** -n for n in lengths[:, 0])
    mean_of = expectation((P[x], {"X": x}) for x in P)
    return one(d) | {
        "P": P, "Q": Q, "M": M, "U": Law(dict.fromkeys(range(1, 5), mp.mpf(1) / 4)), "p": p, "q": q, "lambda": weight,
        "H": entropy, "KL": kl, "E_XsimP": mean_of, "t": d.real(),
    } | {"ell": lengths, "c": total}


def with_a_zero(d: Draw) -> Env:
    e = laws(d)
    p = column([0, *(e["p"][1:, 0] / sum(e["p"][1:, 0]))])
    return e | {"p": p, "P": Law(zip(range(1, 5), p[:, 0], strict=True))}


def coded(d: Draw) -> Env:
    """Q is the distribution that a code with these lengths is best for."""
    e = laws(d)
    return e | {"Q": Law({k: mp.mpf(2) ** -n / e["c"] for k, n in enumerate(e["ell"][:, 0], 1)})}


def surprise(d: Draw) -> Env:
    c, u, n = d.real(), d.share(), d.randint(1, 9)
    m = int(mp.floor(-n * mp.log(u, 2))) + (d.number % 3 - 1)
    return {"s": lambda x: c * mp.log(1 / x), "u": u, "v": d.share(), "c": c, "n": n, "m": m}


def events(d: Draw) -> Env:
    law = dict(enumerate(d.probs(6)[:, 0]))
    mass = lambda event: mp.fsum(law[x] for x in event)
    probability = lambda event, given=frozenset(range(6)): mass(event & given) / mass(given)
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
        "P": P, "Q": Q, "P_XY": P, "Q_XY": Q, "Q_theta": mixed, "KL": kl, "H": entropy, "x": x, "y": y, "n": 5,
        "theta": 0,
        "R_n": lambda _: mean(mp.log(P(b, a)) - mp.log(mixed(b, a)) for a, b in data),
        "over": {"x": (1, 2), "y": (1, 2, 3)}, "E_XsimP": expectation((P(x), {"X": x}) for x in (1, 2)),
    }


def empirical(d: Draw) -> Env:
    y = [d.randint(1, 3) for _ in range(7)]
    hat = Law({k: mp.mpf(y.count(k)) / 7 for k in (1, 2, 3)})
    model = Law(zip((1, 2, 3), d.probs(3)[:, 0], strict=True))
    return {"y": column(y), "n": 7, "Q_theta": model, "hat P_n": hat, "H": entropy, "KL": kl}


def no_maximum(d: Draw) -> Env:
    """Two groups of n labels; there is no maximum when one of them has one label only."""
    n, shares = 3, (d.share(), d.share())
    total = mp.mpf(0)
    for labels in itertools.product((0, 1), repeat=2 * n):
        if min(len({*labels[:n]}), len({*labels[n:]})) == 1:
            total += mp.fprod(shares[i // n] if y else 1 - shares[i // n] for i, y in enumerate(labels))
    every = lambda a: mp.fsum(mp.binomial(n, k) * a**k * (1 - a) ** (n - k) for k in (0, n))
    a = dict(zip(("a_0", "a_1"), shares, strict=True)) | {"a": shares[0]}
    return a | {"n": n, "pi_n": every, "P": lambda _: total, "nomaximum": 0}


def poisson(d: Draw) -> Env:
    """P on 0 to 4; every second draw has its mean as the rate."""
    p = Law(enumerate(d.probs(5)[:, 0]))
    mu = mp.fsum(k * q for k, q in p.items())
    rate = d.choice([mu, d.real()]) if d.scale < 3 else mu
    of = lambda r: lambda x: mp.exp(-r) * r**x / mp.factorial(x)
    on = lambda p: list(p.items()) if isinstance(p, dict) else [(k, p(k)) for k in range(150)]
    return {
        "P": p, "lambda": rate, "lambda^*": mu, "Poisson": of, "E": expectation((q, {"X": k}) for k, q in p.items()),
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
    """Chapter 4's names: soft targets t, variances, eigenvalues; in the last draw the bounds are attained."""
    e = one(d)
    t, x = softmax(column(d.gauss(0.0, 1.0) for _ in range(4))), d.column(4)
    a = t
    if d.number == 4:
        e["z"] = a = column([1, 1, -99, -99])
        x = column([0.5, -0.5, 0, 0])
    return e | {
        "t": t, "x": x, "v": d.column(4), "a": a, "b": (-1) ** d.number * a + x / 10**6, "m": max(e["z"][:, 0]),
        "H": Let(lambda e: covariance(lookup(e, "p"))), "Var_p": Let(lambda e: lambda x: variance(lookup(e, "p"), x)),
        "Sigma": Let(lambda e: mp.exp(lse(lookup(e, "z")))),
        "lambda_max": lambda h: eigenvalues(h)[0], "r": Let(lambda e: lookup(e, "p") - t),
        "lambda": {i: (lambda h, i=i: eigenvalues(h)[i - 1]) for i in range(1, 4)},
    }


def hard_gradient(d: Draw) -> Env:
    e = gradient(d)
    return e | {"t": one_hot(e["y"], 4), "r": Let(lambda at: lookup(at, "p") - one_hot(e["y"], 4))}


def covariance(p: Any) -> Any:
    """The covariance of the one-hot vector of a class that follows p."""
    return sum(q * (one_hot(k, len(p)) - p) @ (one_hot(k, len(p)) - p).T for k, q in enumerate(p[:, 0], 1))


def eigenvalues(h: Any) -> list[Any]:
    return sorted(mp.eigsy(mp.matrix(h.tolist()), eigvals_only=True), reverse=True)


def weighted(d: Draw) -> Env:
    e, epsilon = many(d), d.share()
    uniform = lambda e: np.full_like(rows, mp.mpf(1) / 4)
    rows = np.hstack([one_hot(y, 4) for y in e["y"][:, 0]]).T
    e |= {"varepsilon": epsilon, "t": (1 - epsilon) * rows + epsilon * uniform(e)}
    return e | {"cal L": Let(lambda at: np.average(lookup(at, "ell")[:, 0], weights=e["w"][:, 0]))}


def smoothed(d: Draw) -> Env:
    """Targets that mix the one-hot label with the uniform distribution, and logits that are right for them."""
    e, epsilon = one(d), d.share()
    t = column(epsilon * mp.mpf(1) / 4 + (1 - epsilon) * h for h in one_hot(e["y"], 4)[:, 0])
    p = d.probs(4)
    q = column(epsilon / 4 + (1 - epsilon) * x for x in p[:, 0])
    return e | {
        "varepsilon": epsilon, "t": t, "z": d.real() + log(t), "k": e["y"] % 4 + 1,
        "eta": mp.fsum(x for k, x in enumerate(t[:, 0], 1) if k != e["y"]), "p": p, "q": q,
        "ell_in": Let(lambda at: -mp.log(epsilon / 4 + softmax(lookup(at, "z"))[e["y"] - 1, 0] * (1 - epsilon))),
    }


def any_class(d: Draw) -> Env:
    e = smoothed(d)
    return e | dict(zip("ki", (e["y"], e["k"]) if d.number % 2 else (e["k"], e["y"]), strict=True))


def inside(d: Draw) -> Env:
    e = any_class(d)
    return e | {"z": d.column(4), "p": Let(lambda e: softmax(lookup(e, "z")))}


def layer(d: Draw) -> Env:
    x, w, b = d.matrix(3, 2), d.matrix(4, 2), d.column(4)
    of = lambda e: sum(lse(lookup(e, "W") @ row[:, None] + lookup(e, "b")) for row in lookup(e, "x"))
    g = softmax_rows((w @ x.T + b).T)
    names = {"x": x, "X": x, "W": w, "b": b, "g": g, "G": g, "bold 1": column([1] * 3)}
    return names | {"cal L": Let(of), "n": d.label(3), "over": {"n": (1, 2, 3)}}


class Order:
    """What O(x) leaves open: a number, give or take 1e5 x."""

    def __init__(self, x: Any, value: Any = 0) -> None:
        self.x, self.value = x, value

    def __add__(self, other: Any) -> Order:
        return Order(self.x, self.value + other)

    def __mul__(self, factor: Any) -> Order:
        return Order(self.x * factor, self.value * factor)

    def __sub__(self, other: Any) -> Any:
        return 0 if abs(self.value - other) <= 10**5 * abs(self.x) else mp.inf

    def __abs__(self) -> Any:
        return abs(self.value)

    __rmul__ = __mul__


def rounded(x: Any, bits: int) -> Any:
    with mp.workprec(bits):
        return +mp.mpf(x)


def floats(d: Draw) -> Env:
    """float32, by NumPy: x and its error, and Dekker's difference of a and b."""
    x = mp.mpf(float(d.real() * 10 ** d.randint(-9, 9)))
    a, b = np.float32(d.gauss(0, d.scale)), np.float32(d.gauss(0, 1))
    diff = a - b
    back = diff + b
    e = (a - back) - (b - (back - diff))
    named = {name: mp.mpf(float(v)) for name, v in {"a": a, "b": b, "d": diff, "b'": back, "e": e}.items()}
    return named | {"x": x, "fl": lambda x: rounded(x, 24), "fl_32": lambda x: mp.mpf(float(np.float32(float(x))))}


def rounding(d: Draw) -> Env:
    e = floats(d)
    nearest, unit = (mp.mpf(float(v)) for v in (np.float32(float(e["x"])), np.finfo(np.float32).eps))
    return e | {"delta": nearest / e["x"] - 1, "u": unit / 2, "d": 24}


def gaps(d: Draw) -> Env:
    """The largest logit m, the label's gap g to it, and the sums s and r that the loss is made of."""
    e = one(d)
    z, y = e["z"][:, 0], e["y"]
    y = d.choice([y, 1 + list(z).index(max(z))])
    m = max(z)
    rest = lse(column(x for k, x in enumerate(z, 1) if k != y))
    return e | {"y": y, "m": m, "g": m - z[y - 1], "r": mp.exp(rest - m), "s": mp.exp(rest - z[y - 1])}


def clipped(d: Draw) -> Env:
    e = one(d)
    epsilon = mp.mpf(10) ** d.randint(-6, -1)
    p = lambda e: lookup(e, "p")[int(e["y"]) - 1, 0]
    return e | {"epsilon": epsilon, "ell_epsilon": Let(lambda at: mp.log(1 / (p(at) if p(at) > epsilon else epsilon)))}


def power_series(d: Draw) -> Env:
    delta = d.real() * mp.mpf("1e-9")
    return {"d": d.column(1)[0, 0], "delta": delta, "O": Order}


def certify(d: Draw) -> Env:
    """Soft targets, and a probability that is clipped."""
    e = one(d)
    eps = mp.mpf("0.07")
    clip = lambda p: sorted([eps, p, 1 - eps])[1]
    return e | {
        "t": d.probs(4), "p": softmax(e["z"]), "ell": entropy, "epsilon": eps, "c_epsilon": clip,
        "delta": d.real(-0.9, 0.9) / 10 ** d.randint(0, 9),
    }


def clip(d: Draw) -> Env:
    return certify(d) | {"p": [d.share(), mp.mpf("0.99"), mp.mpf("1e-9")][d.number % 3]}


def two_outcomes(d: Draw) -> Env:
    q, b = d.share(), d.share()
    t, p = column([1 - b, b]), column([1 - q, q])
    return {"q": q, "b": b, "t": t, "p": p, "ell": entropy(t, p)}


def list_of_two(d: Draw) -> Env:
    return list_of_binary(d, 2)


def rescaled(d: Draw) -> Env:
    return {"s": d.real(), "p": d.probs(4), "y": d.positive(4)}


def list_of_binary(d: Draw, classes: int = 4) -> Env:
    e = one(d, classes)
    p = softmax(e["z"])
    each = [bernoulli_log(int(k == e["y"]), q) for k, q in enumerate(p[:, 0], 1)]
    return e | {"p": p, "ell_list": mean(each)}


def bernoulli_log(y: int, p: Any) -> Any:
    return mp.log(1 / (p if y else 1 - p))


def batch(d: Draw) -> Env:
    e = many(d)
    t, p = np.hstack([d.probs(4) for _ in range(3)]).T, softmax_rows(e["z"])
    return e | {"t": t, "p": p, "ell": entropy, "L": -np.sum(t * log(p)) / 3}


def epsilons(d: Draw) -> Env:
    """The summed loss of a batch in which m labels have the probability zero, for two clips."""
    m, p = d.randint(1, 4), [d.share() for _ in range(3)]
    of = lambda eps: mp.fsum(-mp.log(max(q, eps)) for q in [*p, *[mp.mpf(0)] * m])
    eps, sums = d.real() / 100, {f"L_10^{n}": of(mp.mpf(10) ** n) for n in (-15, -7)}
    return sums | {"m": m, "epsilon": eps, "L_epsilon": of(eps), "const": -mp.log(mp.fprod(p))}


def keras(d: Draw) -> Env:
    e = certify(d)
    p = d.positive(4)
    q = [e["c_epsilon"](x) for x in (p / sum(p))[:, 0]]
    return e | {"p": p, "ell_Keras": mp.fsum(t * mp.log(1 / x) for t, x in zip(e["t"][:, 0], q, strict=True))}


def labels(d: Draw) -> Env:
    """Several labels at once: a softmax for each of them, or a sigmoid for each class."""
    e = certify(d)
    y = column(d.sample([1, 1, 0, d.randint(0, 1)], 4))
    z, on = e["z"], [k for k, v in enumerate(y[:, 0]) if v]
    return e | {
        "y": y, "r": sum(y[:, 0]), "ell_softmax": mp.fsum(mp.log(1 / softmax(z)[k, 0]) for k in on),
        "ell_sigmoids": mp.fsum(softplus(-x if k in on else x) for k, x in enumerate(z[:, 0])),
    }


def in_float64(d: Draw) -> Env:
    t, z = d.probs(4), d.column(4)
    p = column(float(x) for x in softmax(z)[:, 0])
    found = -sum(float(a) * np.log(float(b)) for a, b in zip(t[:, 0], p[:, 0], strict=True))
    t = column(float(x) for x in t[:, 0])
    return {"ell": entropy(t, p), "hat ell": mp.mpf(float(found)), "K": 4, "u": mp.mpf(2) ** -53}


def frameworks(d: Draw) -> Env:
    """Chapter 7's names: losses with weights, and targets' probabilities that do not sum to one."""
    ell, w, q, c, y = d.positive(3), d.positive(3), d.positive(4), d.positive(4), d.label(4)
    cost = lambda q: entropy(one_hot(y, 4), q / sum(q))
    return {
        "N": 3, "w": w, "ell": ell, "over": {"n": (1, 2, 3), "k": (1, 2, 3, 4)}, "K": 4,
        "L_w": np.average(ell[:, 0], weights=w[:, 0]), "L_N": np.mean(ell * w), "L_1": np.mean(ell @ w.T),
        "q": q, "c": c, "y": y, "ell_categorical": cost(q), "ell_sparse": cost(c),
        "ell_min": mp.log(1 / softmax(one_hot(1, 4))[0, 0]),
    }


def ragged(d: Draw) -> Env:
    """Two sequences of unequal length."""
    sizes = {i: d.randint(1, 4) for i in (1, 2)}
    losses = {(i, t): d.real() for i in (1, 2) for t in range(1, sizes[i] + 1)}
    return {"B": 2, "n": sizes, "ell": losses, "over": {"i": (1, 2), "t": lambda e: range(1, sizes[e["i"]] + 1)}}


def masked(d: Draw) -> Env:
    e, g = one(d), d.column(4)
    return e | {"g": g, "L": Let(lambda e: (g.T @ log(lookup(e, "p")))[0, 0])}


def class_weights(d: Draw) -> Env:
    e, w, epsilon = many(d), d.positive(4), d.share()
    p, y = softmax_rows(e["z"]), e["y"][:, 0]
    table = np.frompyfunc(lambda x: mp.log(1 / x), 1, 1)(p)
    t = (1 - epsilon) * np.hstack([one_hot(c, 4) for c in y]).T + epsilon / 4
    total = np.sum(t * w.T * table)
    losses = {(n, k): table[n - 1, k - 1] for n in (1, 2, 3) for k in (1, 2, 3, 4)}
    losses |= {n: losses[n, int(c)] for n, c in enumerate(y, 1)}
    return e | {"w": w, "varepsilon": epsilon, "ell": losses, "S": total, "L": total / sum(w[int(c) - 1, 0] for c in y)}


def unnormalised(d: Draw) -> Env:
    e, y = one(d), d.positive(4)
    loss = Let(lambda e: mp.fsum(v * mp.log(1 / p) for v, p in zip(y[:, 0], lookup(e, "p")[:, 0], strict=True)))
    return e | {"y": y, "t": y, "s": sum(y[:, 0]), "ell": loss}


def zero_row(d: Draw) -> Env:
    """A label, and its mean with the uniform distribution."""
    e = one(d)
    y = one_hot(e["y"], 4)
    return e | {"y": y, "t": column((v + mp.mpf(1) / 4) / 2 for v in y[:, 0])}


def reading(d: Draw) -> Env:
    each, s, u, D = d.matrix(3, 4), d.real(), d.real(), d.real()
    return {"ell": each, "N": 3, "K": 4, "s": s, "u": u, "D": D, "L": s / D * u * np.sum(each)}


def cost_of_nothing(d: Draw) -> Env:
    epsilon = mp.mpf(10) ** -d.randint(3, 15)
    return {"varepsilon": epsilon, "ell": mp.log(1 / epsilon)}


def between(d: Draw) -> Env:
    """The loss with smoothed labels, from the targets; hard labels and even ones give L_0 and L_1."""
    e = smoothed(d)
    p, label, even = d.probs(4), one_hot(e["y"], 4), column([mp.mpf(1) / 4] * 4)
    return e | {"L": entropy(e["t"], p), "L_0": entropy(label, p), "L_1": entropy(even, p)}


def distortion(d: Draw) -> Env:
    n = {i: d.randint(1, 9) for i in (1, 2, 3)}
    ratio = {i: mp.mpf(1) / (3 * n[i]) / (mp.mpf(1) / sum(n.values())) for i in n}
    return {"n": n, "i": d.randint(1, 3), "M": 3, "r": ratio, "over": {"j": (1, 2, 3)}}


RULES: dict[str, Callable[[Any, int], Any]] = {
    "log": lambda q, y: mp.log(1 / q[y - 1, 0]),
    "Brier": lambda q, y: 1 - 2 * q[y - 1, 0] + mp.fsum(x * x for x in q[:, 0]),
    "spherical": lambda q, y: 1 - q[y - 1, 0] / mp.sqrt(mp.fsum(x * x for x in q[:, 0])),
    "zero-one": lambda q, y: mp.mpf(list(q[:, 0]).index(max(q[:, 0])) + 1 != y),
}


def scoring(d: Draw, rule: str = "") -> Env:
    """The truth p, a report q, and what a rule expects of it; without a rule, one of the three by the draw."""
    p, q, y = d.probs(4), d.probs(4), d.label(4)
    s = RULES[rule or d.choice(["log", "Brier", "spherical"])]
    expected = lambda p, q: mp.fsum(a * s(q, k) for k, a in enumerate(p[:, 0], 1))
    excess = {f"D_{name}": (lambda p, q, r=r: mp.fsum(a * (r(q, k) - r(p, k)) for k, a in enumerate(p[:, 0], 1)))
              for name, r in RULES.items()}
    return one(d) | {
        "p": p, "q": q, "y": y, "s": lambda q, y: s(q, int(y)), "S": expected, "H": lambda q: expected(q, q), "KL": kl,
        "D": lambda p, q: expected(p, q) - expected(p, p), "f": lambda x: x * mp.log(x) + (x - 3) ** 2,
        "m": lambda q: list(q[:, 0]).index(max(q[:, 0])) + 1,
    } | {f"s_{name}": (lambda q, y, r=r: r(q, int(y))) for name, r in RULES.items()} | excess


def zero_one(d: Draw) -> Env:
    return scoring(d, "zero-one")


def gain(d: Draw) -> Env:
    """The logarithm without its last class: what an honest forecaster pays for not clipping."""
    e = scoring(d, "log")
    p = e["p"]
    q = column([*(p[:3, 0] / sum(p[:3, 0])), 0])
    return e | {"q": q, "S": lambda p, q: mp.fsum(a * mp.log(1 / b) for a, b in zip(p[:3, 0], q[:3, 0], strict=True))}


def absolute(d: Draw) -> Env:
    p, q = d.share(), d.share()
    return {"p": p, "q": q, "E": expectation([(p, {"Y": 1}), (1 - p, {"Y": 0})])}


def unequal_scores(d: Draw) -> Env:
    """A proper rule that treats the two classes in different ways."""
    p = d.share()
    return {"p": p, "s_1": lambda x: (x - 2) * mp.exp(x), "s_2": lambda x: -x * mp.exp(1 - x)}


def local_square(d: Draw) -> Env:
    """The minimum of sum p (1 - q)^2 where q sums to one: a linear system with a multiplier."""
    p = d.positive(4)
    system = [[*(2 * p[k, 0] * (k == j) for j in range(4)), 1] for k in range(4)] + [[1, 1, 1, 1, 0]]
    q = mp.lu_solve(mp.matrix(system), mp.matrix([*(2 * p[:, 0]), 1]))
    return one(d) | {"p": p, "q": column([*q][:4])}


def bent(d: Draw) -> Env:
    p, w = d.probs(4), d.positive(4)
    return one(d) | {"p": p, "w": w, "q": softmax(log(p) + log(w))}


def focal(d: Draw) -> Env:
    """p is what makes q stationary: p_k s'(q_k) is the same for all k, with the slope by differences."""
    gamma, q = d.real(), softmax(column(d.gauss(0, 1) for _ in range(4)))
    slope = lambda x: mp.diff(lambda v: (1 - v) ** gamma * mp.log(v), x)
    p = column(1 / slope(x) for x in q[:, 0])
    return one(d) | {"gamma": gamma, "q": q, "p": p / sum(p), "x": d.share(), "h": lambda x: 1 / slope(x)}


def calibration(d: Draw) -> Env:
    groups = [(p, d.share(), d.share()) for p in d.probs(3)[:, 0]]
    hits = {q: share for _, q, share in groups}
    cases = [(p * (y * s + (1 - y) * (1 - s)), {"q": q, "Y": y}) for p, q, s in groups for y in (0, 1)]
    return {"E": expectation(cases), "pi": lambda q: hits[q]}


def soft(d: Draw) -> Env:
    """Chapter 12's names: soft targets, the mean of m drawn labels, and weights."""
    e, m = one(d), 2
    t = d.probs(4)
    draws = list(itertools.product(range(1, 5), repeat=m))
    cases = [(mp.fprod(t[y - 1, 0] for y in ys), {"bar t": sum(one_hot(y, 4) for y in ys) / mp.mpf(m)}) for ys in draws]
    return e | {
        "t": t, "ell": lambda z, t: entropy(t, softmax(z)), "H": entropy, "KL": kl, "m": m, "E": expectation(cases),
        "E_ysimt": expectation((t[y - 1, 0], {"y": y}) for y in range(1, 5)), "e_y": Let(lambda e: one_hot(e["y"], 4)),
    }


def soft_gradient(d: Draw) -> Env:
    e = soft(d)
    return e | {"ell": Let(lambda at: entropy(e["t"], softmax(at["z"])))}


def conventions(d: Draw) -> Env:
    e = any_class(d)
    eta = d.share() if d.number in (0, 1) else e["eta"]
    other = column(1 - eta if k == e["y"] else eta / 3 for k in range(1, 5))
    return e | {"eta": eta, "t'": other}


def smoothed_bit(d: Draw) -> Env:
    y, epsilon = d.randint(0, 1), d.share()
    return {"y": y, "varepsilon": epsilon, "t": (1 - epsilon / 2) if y else epsilon / 2}


def soft_terms(d: Draw) -> Env:
    e = many(d)
    p, q, w = softmax_rows(e["z"]), softmax_rows(d.matrix(3, 4)), d.positive(4)
    ratio = np.frompyfunc(lambda a, b: a * mp.log(a / b), 2, 1)(p, q)
    t = softmax_rows(d.matrix(3, 4))
    torch_loss = mean((w[:, 0] * t[n] * np.frompyfunc(lambda x: mp.log(1 / x), 1, 1)(p[n])).sum() for n in range(3))
    return e | {"p": p, "q": q, "d": ratio, "w": w, "t": t, "L_torch": torch_loss}


def distil(d: Draw) -> Env:
    """Teacher's logits v, student's z, a temperature; p and q are the two distributions at it."""
    e, alpha = one(d), d.share()
    v, z, T = d.column(4), e["z"], d.real(1, 5)
    at = lambda name: Let(lambda e: softmax(lookup(e, name) / lookup(e, "T")))
    loss = lambda e, z: e["T"] ** 2 * kl(softmax(v / e["T"]), softmax(z / e["T"]))
    return e | {
        "v": v, "z": z, "T": T, "p": at("v"), "q": at("z"), "ell_T": Let(lambda e: loss(e, lookup(e, "z"))), "O": Order,
        "d": z - v, "bar d": mean((z - v)[:, 0]), "alpha": alpha,
    }


def distil_from(d: Draw) -> Env:
    e = distil(d)
    of = lambda z, v: e["T"] ** 2 * kl(softmax(v / e["T"]), softmax(z / e["T"]))
    mixed = (1 - e["alpha"]) * entropy(one_hot(e["y"], 4), softmax(e["z"])) + e["alpha"] * of(e["z"], e["v"])
    return e | {"ell_T": of, "ell": mixed, "P": softmax(e["z"] / e["T"])}


def hot(d: Draw) -> Env:
    e = distil(d)
    at = lambda name: Let(lambda e: softmax(e[name] / e["T"]))
    z, v = (e[name] - mean(e[name][:, 0]) for name in "zv")
    squares = {"m_z": mean(x * x for x in z[:, 0]), "m_v": mean(x * x for x in v[:, 0])}
    return e | squares | {"T": mp.mpf("1e12"), "z": z, "v": v, "p": at("v"), "q": at("z")}


def hotter(d: Draw) -> Env:
    e = distil(d)
    at = lambda e, x: softmax(x / e["T"])
    return e | {"ell_T": Let(lambda e: lambda z, v: e["T"] ** 2 * kl(at(e, v), at(e, z)))}


def teachers(d: Draw) -> Env:
    """Three teachers' distributions, their mean at a temperature, and what a student makes of it at one."""
    e, T = one(d), d.real(1, 5)
    p = {i: d.probs(4) for i in (1, 2, 3)}
    logs = {i: log(q) for i, q in p.items()}
    bar = Let(lambda e: sum(softmax(x / e["T"]) for x in logs.values()) / mp.mpf(3))
    q = Let(lambda e: softmax(log(lookup(e, "bar p")) * e["T"]))
    over = e["over"] | {"i": (1, 2, 3)}
    g = softmax(sum(logs.values()) / mp.mpf(3))
    return e | {"M": 3, "T": T, "p": p, "bar p": bar, "q": q, "over": over, "g": g, "KL": kl}


def pooled(d: Draw) -> Env:
    return teachers(d) | {"q": d.probs(4)}


class Language(dict[Any, Any]):
    """What follows each prefix, of at most three tokens: P(c), P(v, c), and P[c], a distribution."""

    def __call__(self, x: Any, prefix: Any = None) -> Any:
        if prefix is None:
            return mp.fprod(self[x[:i]][v] for i, v in enumerate(x))
        return self[prefix][x]

    def sequences(self, prefix: Any = ()) -> Iterator[Any]:
        for token in self[prefix]:
            x = (*prefix, token)
            yield from self.sequences(x) if x in self else [x]


def language(d: Draw) -> Env:
    """P and Q over sequences of a and b with an end, which is certain behind three tokens."""
    prefixes = [c for n in range(3) for c in itertools.product("ab", repeat=n)]
    new = lambda: Language({c: Law(zip("abE", d.probs(3)[:, 0], strict=True)) for c in prefixes})
    P, Q = new(), new()
    whole = list(P.sequences())
    of_whole = lambda p, q: mp.fsum(p(x) * mp.log(p(x) / q(x)) for x in whole)
    divergence = lambda p, q: of_whole(p, q) if isinstance(p, Language) else kl(p, q)
    case = lambda x: {"x": dict(enumerate(x, 1)), "n": len(x)}
    prefix = lambda name: Let(lambda e: tuple(e["x"][k] for k in range(1, int(e[name]))))
    share = lambda c, v: mp.fsum(P(x) / len(x) for x in whole if x[: len(c) + 1] == (*c, v)) / P((*c, v))
    weight = lambda c, v=None: share(c, v) if v else mp.fsum(P(x) / len(x) for x in whole if x[: len(c)] == c) / P(c)
    over = {"c": prefixes, "v": "abE", "i": lambda e: range(1, e["n"] + 1)}
    mean_of = expectation((P(x), case(x)) for x in whole)
    return {
        "P": P, "Q": Q, "KL": divergence, "E_xsimP": mean_of, "E_P": mean_of, "x_<i": prefix("i"), "W": weight,
        "over": over, "c": d.choice([(), ("a",), ("b", "a")]),
    }


def teacher_mix(d: Draw) -> Env:
    """The minimum of a share of the length-weighted hard loss and the soft one in a prefix c."""
    e, v, weight = language(d), d.choice("abE"), d.share()
    P, W, c = e["P"], e["W"], e["c"]
    wanted = {u: weight * P[c][u] * W(c, u) / W(c) + (1 - weight) * P[c][u] for u in "abE"}
    return e | {"v": v, "lambda": weight, "Q": {c: Law(wanted)}}


def cut(d: Draw) -> Env:
    """The k most probable classes of six, and what is left of p and q beyond them."""
    p, q, k = d.probs(6), d.probs(6), 3
    p, q = column(sorted(p[:, 0], reverse=True)), column(q[:, 0])
    S, S_q = mp.fsum(p[:k, 0]), mp.fsum(q[:k, 0])
    rest = {f"{name}_>k": x[k:] / mp.fsum(x[k:, 0]) for name, x in (("p", p), ("q", q))}
    return rest | {"p": p, "q": q, "k": k, "S": S, "S_q": S_q, "KL": kl, "tilde p": p / S, "over": {"i": range(1, 7)}}


def sampled(d: Draw) -> Env:
    p, q, r = (Law(zip((1, 2, 3), d.probs(3)[:, 0], strict=True)) for _ in range(3))
    cases = [(r[a] * r[b], {"v": {1: a, 2: b}}) for a in r for b in r]
    return {"p": p, "q": q, "r": r, "m": 2, "E_vsimr": expectation(cases), "over": {"i": (1, 2, 3)}}


class Chain(dict[Any, Any]):
    """The distributions behind each state of a Markov chain."""


def markov(d: Draw) -> Env:
    """Three states and an end: the divergence by backward recursion, the visits by adding up powers."""
    row = lambda: softmax(column([*(d.gauss(0, 1) for _ in range(3)), 2]))
    P, Q = (Chain({s: row() for s in (1, 2, 3)}) for _ in range(2))
    start, other = d.probs(3), d.probs(3)
    T = mp.matrix([[*P[s][:3, 0]] for s in (1, 2, 3)])
    to_go = mp.lu_solve(mp.eye(3) - T, mp.matrix([kl(P[s], Q[s]) for s in (1, 2, 3)]))
    whole = kl(start, other) + mp.fsum(a * b for a, b in zip(start[:, 0], to_go, strict=True))
    visits, now = mp.zeros(1, 3), mp.matrix([[*start[:, 0]]])
    for _ in range(400):
        visits, now = visits + now, now * T
    return {
        "P": P, "Q": Q, "pi_P": start, "pi_Q": other,
        "KL": lambda a, b: {(id(P), id(Q)): whole}[id(a), id(b)] if isinstance(a, Chain) else kl(a, b),
        "v_P": lambda s: visits[int(s) - 1], "over": {"s": (1, 2, 3)},
    }


def blocks(d: Draw) -> Env:
    """The logits of two blocks A and B of a vocabulary of seven, each with its largest and its sum."""
    z = d.column(7)
    A, B = frozenset({1, 2, 5}), frozenset({3, 4, 6, 7})
    part = lambda block: [z[j - 1, 0] for j in block]
    named: Env = {}
    for name, block in (("_A", A), ("_B", B), ("", A | B)):
        m = max(part(block))
        named |= {f"m{name}": m, f"s{name}": mp.exp(lse(column(part(block))) - m)}
    return named | {"z": z, "A": A, "B": B, "n": 7, "LSE_AcupB": lse(z), "over": {"j": range(1, 8)}}


def vocabulary(d: Draw) -> Env:
    """Hidden states, a matrix of weights, labels: the mean loss, from all logits at once."""
    e, h, w, n = many(d), d.matrix(3, 2), d.matrix(4, 2), 3
    y = e["y"]
    logits = lambda e: lookup(e, "h") @ lookup(e, "w").T
    losses = lambda e: [mp.log(1 / p[int(c) - 1]) for p, c in zip(softmax_rows(logits(e)), y[:, 0], strict=True)]
    p = softmax_rows(h @ w.T)
    g = np.array([[(p[i, j] - (j + 1 == y[i, 0])) / n for j in range(4)] for i in range(n)], object)
    over = e["over"] | {"i": (1, 2, 3), "blocks": [frozenset({1, 4}), frozenset({2, 3})]}
    i = d.label(3)
    return e | {
        "h": h, "w": w, "L": Let(lambda e: mean(losses(e))), "ell": Let(lambda e: column(losses(e))), "G": g,
        "LSE": column(lse(row[:, None]) for row in h @ w.T), "i": i,
        "j": int(y[i - 1, 0]) if d.number % 2 else d.label(4),
        "over": over, "B": Let(lambda e: e["blocks"]),
    }


def z_loss(d: Draw) -> Env:
    e, strength, truth = loss_of(d), d.share(), d.probs(4)
    plain = e["ell"]
    return e | {
        "J": Let(lambda at: lambda z: plain(z, at["y"]) + strength * lse(z) ** 2), "lambda": strength, "a": d.real(),
        "Z": Let(lambda e: mp.exp(lse(e["z"]))), "E_P": expectation((truth[y - 1, 0], {"y": y}) for y in range(1, 5)),
    }


def z_loss_minimum(d: Draw) -> Env:
    """Two classes with the logits z and 0; p is the truth for which z is the minimum."""
    z, strength = d.column(1)[0, 0], d.share()
    total = lambda z: softplus(z) + strength * softplus(z) ** 2
    p = mp.diff(total, z)
    return {"z": z, "lambda": strength, "Z": 1 + mp.exp(z), "q": sigmoid(z), "p": p,
            "J": p * softplus(-z) + (1 - p) * softplus(z) + strength * softplus(z) ** 2}


def softcap(d: Draw) -> Env:
    e, c = one(d), d.real() if d.number else mp.mpf("0.3")
    capped = lambda z: c * (1 - 2 / (mp.exp(2 * z / c) + 1))
    extreme = 10 * c * column([1, -1, -1, -1])  # as far from uniform as a cap allows
    P = softmax(np.frompyfunc(capped, 1, 1)(e["z"] if d.number % 2 else extreme))
    j = e["j"] if d.number % 2 else 1
    return e | {"j": j, "c": c, "z": d.column(1)[0, 0], "tilde z": Let(lambda e: capped(e["z"])), "p": P, "P": P}


def rounded_logits(d: Draw) -> Env:
    e = loss_of(d)
    e["z"] = e["z"] * column([1, 30, 0.1, 5])
    delta = column(rounded(x, 8) - x for x in e["z"][:, 0])
    far, near = (f(range(4), key=lambda k: abs(x[k, 0])) + 1 for f, x in ((max, delta), (min, e["z"])))
    return e | {"delta": delta, "u": mp.mpf(2) ** -8} | ({"j": near, "k": far}, {"j": far, "k": near}, {})[d.number % 3]


def central(d: Draw) -> Env:
    a, b = d.real(), d.real()
    return {"f": lambda x: mp.exp(a * x) + mp.sin(b * x + 1) + x**3, "h": mp.mpf("1e-7"), "O": Order}


def margins(d: Draw) -> Env:
    """Two logits, the loss and its square, by the margin m; times to a margin by quadrature of 1 / speed."""
    z = d.column(2) if d.scale < 9 else column([3, -4])
    t = column([1, 0])
    m = z[1, 0] - z[0, 0]
    ce = lambda e: entropy(t, softmax(e["z"]))
    mse = lambda e: mp.fsum(x * x for x in (softmax(e["z"]) - t)[:, 0])
    return {"z": z, "nabla": "z", "m": m, "s": 1 / (1 + mp.exp(m)), "sigma": sigmoid, "CE": Let(ce), "MSE": Let(mse)}


def best_step(d: Draw) -> Env:
    third, size, u = d.real(), d.real(), d.real() * mp.mpf("1e-9")
    error = lambda h: (h**3 * third + 6 * u * size) / (6 * h)
    best = mp.findroot(lambda h: mp.diff(error, h), mp.cbrt(3 * u * size / third) * mp.mpf("1.01"))
    return {"E": error, "h": d.real(), "h^*": best, "u": u, "f": size, "f'''": third}

def only(value: Any, *arguments: Any) -> Any:
    """A function whose value is known for these arguments."""
    return lambda *given: {arguments: value}[given]


def geometric(d: Draw) -> Env:
    """Sequences of m letters that end with the probability beta, and a model that ends with q."""
    beta, q, m = d.real(0.75, 0.95), d.share(), d.randint(1, 5)
    share = lambda n, beta=beta: beta * (1 - beta) ** (n - 1)
    loss = lambda n: (1 - n) * mp.log(1 - q) - mp.log(q) + (n - 1) * mp.log(m)
    cross = mp.fsum(share(n) * loss(n) for n in range(1, 100))
    entropy = entropy_of_end(beta) / beta + (1 / beta - 1) * mp.log(m)
    average = Let(lambda e: mp.fsum(share(n) / n * of_length(n, e["q"], m) for n in range(1, 100)))
    best = beta * mp.hyp2f1(1, 1, 2, 1 - beta)
    both = mp.fsum(p * mp.log(p / r) for p, r in ((beta, q), (1 - beta, 1 - q)))
    other = lambda n: share(n, q)
    losses = {"cal L_CE": only(cross, share, other), "cal L_avg": average, "D_KL": only(cross - entropy, share, other)}
    return losses | {
        "kl": only(both, beta, q),
        "beta": beta, "q": q, "m": m, "P": share, "Q": other, "H": only(entropy, share), "A": best, "q^*": best,
        "E": expectation((share(n), {"n": n}) for n in range(1, 81)), "n": d.randint(1, 6),
        "over": {"k": range(1, 81)},
    }


def entropy_of_end(beta: Any) -> Any:
    return -beta * mp.log(beta) - (1 - beta) * mp.log(1 - beta)


def of_length(n: int, q: Any, m: int) -> Any:
    """The loss of a sequence of n tokens."""
    return -mp.log(q * ((1 - q) / m) ** (n - 1))


def averaged(d: Draw) -> Env:
    e = geometric(d)
    return e | {"cal L_avg": only(e["cal L_avg"].of(e), e["P"], e["Q"])}


def at_the_optimum(d: Draw) -> Env:
    e = geometric(d)
    return e | ({"q": e["A"]} if d.number % 2 else {})


def limits(d: Draw) -> Env:
    return {"q^*": Let(lambda e: e["beta"] * mp.hyp2f1(1, 1, 2, 1 - e["beta"]))}


def log_law(d: Draw) -> Env:
    """The distribution of lengths with weights 1/n, and its hazard."""
    e = geometric(d)
    Q = lambda n: e["P"](n) / n / e["A"]
    return e | {"Q^*": Q, "h^*": lambda n: Q(n) / (1 - mp.fsum(Q(k) for k in range(1, int(n))))}


class Weight(mp.mpf):  # type: ignore[misc]
    """A weight, which may be asked for that of another outcome: w is w(y)."""

    def __call__(self, y: Any) -> Any:
        return self.table[int(y)]


def tilted(d: Draw) -> Env:
    """P, a model Q, and P with weights, divided by their mean."""
    P, Q = (Law(zip((1, 2, 3), d.probs(3)[:, 0], strict=True)) for _ in range(2))
    table = {y: d.real() for y in P}
    total = mp.fsum(table[y] * p for y, p in P.items())
    best = Law({y: mp.exp(mp.log(p) + mp.log(table[y]) - mp.log(total)) for y, p in P.items()})

    def weight(e: Env) -> Any:
        w = Weight(table[int(e["y"])])
        w.table = table
        return w

    by_P, by_best = (expectation((p, {"y": y, "x": y}) for y, p in law.items()) for law in (P, best))
    means = {"E_P": by_P, "E_Q^*": by_best}
    return means | {"P": P, "Q": Q, "Q^*": best, "H": entropy, "D_KL": kl, "w": Let(weight), "y": d.label(3)}


def harmonic(d: Draw) -> Env:
    """Three sequences with their lengths, each weighted by one over its length."""
    e, lengths = tilted(d), {x: d.randint(1, 9) for x in (1, 2, 3)}
    total = mp.fsum(p / lengths[x] for x, p in e["P"].items())
    best = Law({x: mp.exp(mp.log(p / lengths[x]) - mp.log(total)) for x, p in e["P"].items()})
    means = {"E_Q^*": expectation((p, {"x": x}) for x, p in best.items())}
    return e | means | {"Q^*": best, "n": Let(lambda e: mp.mpf(lengths[int(e["x"])])), "x": d.label(3)}


def batches(d: Draw) -> Env:
    """q*(B, beta) by quadrature of the generating function."""
    of = lambda B, beta: B * mp.quad(lambda u: (beta * u / (1 - (1 - beta) * u)) ** B / u, [0, 1])
    K, B, beta = 2, d.randint(2, 5), d.share()
    return {"K": K, "B": B, "beta": beta, "q^*": of, "b": of(K * B, beta) / beta - 1}


def denominators(d: Draw) -> Env:
    """Micro-batches with n_k tokens and mean losses m_k, which follow theta; k and r run through ranks as well."""
    K, theta = 3, d.column(2)
    n, at = column(d.randint(1, 9) for _ in range(K)), d.matrix(K, 2)
    of = lambda e: np.frompyfunc(softplus, 1, 1)(at @ lookup(e, "theta"))
    N = sum(n[:, 0])
    m = of({"theta": theta})
    grid = {"n": n, "S": Let(lambda e: n * of(e))}
    return grid | {
        "K": K, "W": K, "N": N, "theta": theta, "nabla": "theta", "m": m, "k": d.label(K), "bar n": N / K,
        "bar m": mean(m[:, 0]),
        "L": Let(lambda e: (n * of(e)).sum() / N), "Cov_k": lambda n, m: covariance_by_pairs(n, m), "d": d.real(),
        "over": {"k": range(1, K + 1), "r": range(1, K + 1)},
    }


def covariance_by_pairs(n: Any, m: Any) -> Any:
    """The covariance, by pairs."""
    pairs = itertools.product(zip(n[:, 0], m[:, 0], strict=True), repeat=2)
    return mean((a - b) * (u - v) / 2 for (a, u), (b, v) in pairs)


def numbers(d: Draw) -> Env:
    """The same as numbers: L over all tokens, M the mean of means."""
    e = denominators(d)
    return e | {"L": e["L"].of(e), "M": e["bar m"]}


def two_batches(d: Draw) -> Env:
    n, m = (column([f(1, 9), f(1, 9)]) for f in (d.randint, d.real))
    return {"n": n, "m": m, "L": np.average(m[:, 0], weights=n[:, 0]), "M": mean(m[:, 0])}


def ranks(d: Draw) -> Env:
    """Three ranks with two micro-batches each."""
    theta, at = d.column(2), d.matrix(6, 2)
    n = np.array([[mp.mpf(d.randint(1, 9)) for _ in range(2)] for _ in range(3)], object)
    S = lambda e: n * np.frompyfunc(softplus, 1, 1)(at @ lookup(e, "theta")).reshape(3, 2)
    divisor = d.real()
    return {
        "n": n, "N": n.sum(), "W": 3, "theta": theta, "nabla": "theta", "S": Let(S),
        "L": Let(lambda e: S(e).sum() / n.sum()),
        "over": {"r": (1, 2, 3), "k": (1, 2)}, "d": divisor, "c": divisor / n.sum(),
    }


def class_weighted(d: Draw) -> Env:
    e = many(d)
    w, ell = d.positive(4), d.positive(3)
    weights = [w[int(y) - 1, 0] for y in e["y"][:, 0]]
    over = {"k": [frozenset({1, 3}), frozenset({2})], "i": (1, 2, 3)}
    return e | {"w": w, "ell": ell, "L": np.average(ell[:, 0], weights=weights), "over": over}


def drift(d: Draw) -> Env:
    """An answer o of |o| tokens ends with the probability sigma(theta) at each; its gradient by its length."""
    theta = mp.log(d.real(3, 9))
    beta = sigmoid(theta)
    policy = Let(lambda e: lambda o: sigmoid(e["theta"]) * (1 - sigmoid(e["theta"])) ** (o - 1))
    best = lambda B, beta: beta * mp.hyp2f1(1, 1, B + 1, 1 - beta)
    lengths = expectation((beta * (1 - beta) ** (n - 1), {"o": {1: mp.mpf(n)}}) for n in range(1, 81))
    return {
        "theta": theta, "beta": Let(lambda e: sigmoid(e["theta"])), "pi": policy, "o": d.randint(1, 9), "i": 1,
        "q^*": best, "E": lengths,
    }


def gaussian(d: Draw) -> Env:
    return one(d) | {"a": d.column(4), "t": d.column(4), "s": d.real()}


def family(d: Draw) -> Env:
    """An exponential family over three values of y."""
    h = {y: d.real() for y in (0, 1, 2)}
    masses = lambda eta: softmax(column(mp.log(h[y]) + eta * y for y in h))
    A = lambda eta: lse(column(mp.log(h[y]) + eta * y for y in h))
    P = lambda y, eta: masses(eta)[int(y), 0]
    eta, y = d.column(1)[0, 0] / 9, d.randint(0, 2)
    return {"h": lambda y: h[int(y)], "A": A, "P": P, "eta": eta, "y": y, "over": {"y": (0, 1, 2)}}


def escape(d: Draw) -> Env:
    """The time from an even start to a margin m against the label: quadrature of one over the speed."""
    m = d.real(0.5, 5)
    losses = {"CE": softplus, "MSE": lambda x: 2 * sigmoid(x) ** 2}
    time = lambda loss: mp.quad(lambda x: 1 / (2 * mp.diff(loss, x)), [0, m])
    return {"m": m} | {f"T_{name}": time(loss) for name, loss in losses.items()}
