"""What the names in the equations stand for: random values, and functions in another form than is printed.

Each function of a `Draw` returns an environment for reader.py; test_read.py says which equation takes which.
"""

# ruff: noqa: E731 (a lambda is a value of an environment here)

from __future__ import annotations

import itertools
import random
from typing import Any

import mpmath as mp
import numpy as np

from adversary import SEED
from equations.reader import Env, Let, derivative, log, lookup

# --------------------------------------------------------------- functions, in another form than is printed


def column(values: Any) -> Any:
    return np.array([mp.mpf(v) if isinstance(v, bool | int | float) else v for v in values], object)[:, None]


def softmax(z: Any) -> Any:
    return column(1 / mp.fsum(mp.exp(other - own) for other in z[:, 0]) for own in z[:, 0])


def lse(z: Any) -> Any:
    total = z[0, 0]
    for x in z[1:, 0]:
        total = max(total, x) + mp.log1p(mp.exp(-abs(total - x)))
    return total


def softplus(u: Any) -> Any:
    return np.frompyfunc(lambda x: lse(column([0, x])), 1, 1)(u)


def sigmoid(z: Any) -> Any:
    return np.frompyfunc(lambda x: mp.exp(x / 2) / mp.cosh(x / 2) / 2, 1, 1)(z)


def one_hot(y: Any, classes: int) -> Any:
    return column(int(k == y) for k in range(1, classes + 1))


def entropy(p: Any, q: Any = None) -> Any:
    """The entropy of p, or the cross-entropy."""
    pairs = zip(p[:, 0], (p if q is None else q)[:, 0], strict=True)
    return mp.fsum(a * mp.log(1 / b) for a, b in pairs if a)


def kl(p: Any, q: Any) -> Any:
    return mp.fsum(a * mp.log(a / b) for a, b in zip(p[:, 0], q[:, 0], strict=True) if a)


def variance(p: Any, x: Any) -> Any:
    """Half the mean squared distance of two independent draws."""
    pairs = itertools.product(zip(p[:, 0], x[:, 0], strict=True), repeat=2)
    return mp.fsum(a * b * (u - v) ** 2 for (a, u), (b, v) in pairs) / 2


def mean(values: Any) -> Any:
    values = [*values]
    return mp.fsum(values) / len(values)


# ---------------------------------------------------------------------------- what the names stand for


class Draw(random.Random):
    """Random values that a float can hold; `scale` is how far logits spread, 0 for ties."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed + 100 * SEED)
        self.number, self.scale, self.classes = seed, scale, (4, 2, 3, 5, 4, 3)[seed % 6]

    def real(self, low: float = 0.1, high: float = 2.0) -> Any:
        return mp.mpf(self.uniform(low, high))

    def share(self) -> Any:
        return self.real(0.05, 0.95)

    def column(self, n: int = 0) -> Any:
        return column(self.gauss(0.0, self.scale) for _ in range(n or self.classes))

    def positive(self, n: int = 0) -> Any:
        return column(self.real() for _ in range(n or self.classes))

    def matrix(self, n: int, m: int) -> Any:
        return np.hstack([self.column(n) for _ in range(m)])

    def probs(self, n: int = 0) -> Any:
        return softmax(self.column(n))

    def some(self, n: int = 0) -> Any:
        """Probabilities, in two of the draws with a zero."""
        p = self.probs(n)
        return column([*(p[:-1, 0] / (1 - p[-1, 0])), mp.mpf(0)]) if self.number in {2, 5} else p


def coin(d: Draw) -> Env:
    y, p = column([1, 0, *(d.randint(0, 1) for _ in range(5))]), d.share()
    likelihood = lambda p: mp.fprod(p if b else 1 - p for b in y[:, 0])
    best = mp.findroot(lambda p: mp.diff(lambda x: mp.log(likelihood(x)), p), 0.5)
    return {"y": y, "p": p, "N": 7, "k": int(sum(y[:, 0])), "L": likelihood, "hat p": best}


def binary(d: Draw) -> Env:
    """One logit and its label; the loss is minus the logarithm of what the label's probability is."""
    z, y = d.column(1)[0, 0], d.randint(0, 1)
    of = lambda z, y: -mp.log(sigmoid(z if y == 1 else -z))
    return {"z": z, "y": y, "ell": of, "sigma": sigmoid, "softplus": softplus, "u": z}


def binary_loss(d: Draw) -> Env:
    e = binary(d)
    return e | {"ell": Let(lambda at: e["ell"](lookup(at, "z"), e["y"]))}


def logistic(d: Draw) -> Env:
    """Labels, two features of each example, and the mean loss J as a function of the weights."""
    x, y = d.matrix(5, 2), column([1, 0, 1, 0, d.randint(0, 1)])
    loss = lambda w: mean(softplus((1 - 2 * y) * (x @ w))[:, 0])
    e = {"N": 5, "X": x, "x": x, "y": y, "w": d.column(2), "v": d.column(2), "nabla": "w", "sigma": sigmoid}
    return e | {"cal L": loss, "p": Let(lambda at: sigmoid(x @ lookup(at, "w")))}


def coins(d: Draw) -> Env:
    y, p = column([1, 0, d.randint(0, 1)]), column(d.share() for _ in range(3))
    of = lambda b, q: entropy(column([b, 1 - b]), column([q, 1 - q]))
    return {"N": 3, "y": y, "p": p, "cal L": mean(of(b, q) for b, q in zip(y[:, 0], p[:, 0], strict=True))}


def one(d: Draw) -> Env:
    """Logits, p = softmax(z), a label with its one-hot t, the loss by definition, free indices."""
    K = d.classes
    y, other, *rest = d.sample(range(1, K + 1), K)
    third = rest[0] if rest else other
    e: Env = {
        "K": K,
        "y": y,
        "z": d.column(),
        "c": d.real(-2),
        "over": dict.fromkeys("ijkl", range(1, K + 1)),
    }
    free = [(other, other, y, third), (y, other, third, third), (other, y, third, other)][d.number % 3]
    e |= dict(zip("ijkl", free, strict=True))
    e |= {"p": Let(lambda at: softmax(lookup(at, "z"))), "t": Let(lambda at: one_hot(at["y"], K))}
    e |= {"ell": Let(lambda at: entropy(lookup(at, "t"), lookup(at, "p"))), "bold 1": column([1] * K)}
    e |= {"J": Let(lambda at: derivative(lambda at: lookup(at, "p"), at, "z", []))}
    e |= {"delta": np.array(np.eye(K, dtype=int), object)}
    return e | {"sigma": sigmoid, "softmax": softmax, "lse": lse}


def loss_of(d: Draw) -> Env:
    return one(d) | {"ell": lambda z, y: -mp.log(softmax(z)[int(y) - 1, 0])}


def gaussian(d: Draw) -> Env:
    return one(d) | {"a": d.column(), "t": d.column(), "s": d.real()}


def two(d: Draw) -> Env:
    """Two distributions with a mixture and the uniform one, and a code whose lengths fit Q."""
    K = d.classes
    lengths, weight, p, q = column(d.sample(range(1, K + 1), K)), d.share(), d.some(), d.probs()
    powers = column(mp.mpf(2) ** -n for n in lengths[:, 0])
    c = sum(powers[:, 0])
    q = powers / c if d.number % 2 else q
    lengths = lengths if d.number % 2 else -log(q * c) / mp.log(2)
    p = q if d.number == 4 else p
    e = one(d) | {"P": p, "Q": q, "p": p, "q": q, "U": column([mp.mpf(1) / K] * K), "ell": lengths, "c": c}
    return e | {"lambda": weight, "M": weight * p + (1 - weight) * q, "H": entropy, "KL": kl, "t": d.real()}


def gradient(d: Draw) -> Env:
    """Chapter 4's names: soft targets t, variances, eigenvalues; in the last draw the bounds are attained."""
    e, t, x = one(d), softmax(column(d.gauss(0.0, 1.0) for _ in range(d.classes))), d.column()
    e["z"], x = (column([1, 1, -99, -99]), column([0.5, -0.5, 0, 0])) if d.number == 4 else (e["z"], x)
    a = e["z"] if d.number == 4 else t
    e |= {"t": t, "x": x, "a": a, "b": (-1) ** d.number * a + x / 10**6}
    e |= {"i": 3 if d.number == 4 else e["i"], "H": Let(lambda at: covariance(lookup(at, "p")))}
    e |= {"Var_p": Let(lambda at: lambda x: variance(lookup(at, "p"), x))}
    return e | {"lambda_max": lambda h: max(mp.eigsy(mp.matrix(h.tolist()), eigvals_only=True))}


def covariance(p: Any) -> Any:
    """The covariance of the one-hot vector of a class that follows p."""
    return sum(q * (one_hot(k, len(p)) - p) @ (one_hot(k, len(p)) - p).T for k, q in enumerate(p[:, 0], 1))


def smoothed(d: Draw) -> Env:
    """Targets that mix the one-hot label with the uniform distribution, and logits that are right for them."""
    e, epsilon, p, K = one(d), d.share(), d.probs(), d.classes
    e["k"], label = e["y"] % K + 1, one_hot(e["y"], K)
    t = column(epsilon * mp.mpf(1) / K + (1 - epsilon) * h for h in label[:, 0])
    inside = Let(lambda at: -mp.log(epsilon / K + softmax(lookup(at, "z"))[e["y"] - 1, 0] * (1 - epsilon)))
    e |= {"varepsilon": epsilon, "eta": sum(t[:, 0]) - t[e["y"] - 1, 0], "t": t, "z": d.real() + log(t)}
    e |= {"p": p, "q": column(epsilon / K + (1 - epsilon) * x for x in p[:, 0]), "ell_in": inside}
    return e | {"cal L": entropy(t, p), "cal L_0": entropy(label, p), "cal L_1": mean(-log(p)[:, 0])}


def any_class(d: Draw) -> Env:
    e = smoothed(d)
    return e | dict(zip("ki", (e["y"], e["k"]) if d.number % 2 else (e["k"], e["y"]), strict=True))


def inside(d: Draw) -> Env:
    return any_class(d) | {"z": d.column(), "p": Let(lambda e: softmax(lookup(e, "z")))}


def gaps(d: Draw) -> Env:
    """The largest logit m, the label's gap g to it, and the sums s and r that the loss is made of."""
    e = one(d)
    z = e["z"][:, 0]
    y, m = (e["y"] if d.number in (0, 3) else 1 + list(z).index(max(z))), max(z)
    rest = lse(column(x for k, x in enumerate(z, 1) if k != y))
    return e | {"y": y, "m": m, "g": m - z[y - 1], "r": mp.exp(rest - m), "s": mp.exp(rest - z[y - 1])}


def certify(d: Draw) -> Env:
    """Soft targets, a probability that is clipped, and its loss; an error delta of it."""
    e, eps = one(d), mp.mpf("0.07")
    if d.number == 1:  # below the clip, whatever is drawn
        e["z"][e["y"] - 1, 0] = min(e["z"][:, 0]) - 3
    p = softmax(e["z"])
    clip = lambda p: sorted([eps, p, 1 - eps])[1]
    e |= {"t": d.some(), "p": p, "ell": entropy, "epsilon": eps, "c_epsilon": clip}
    return e | {"ell_epsilon": min(-mp.log(p[e["y"] - 1, 0]), -mp.log(eps))}


def clip(d: Draw) -> Env:
    """A probability inside the clip or beyond it, both ends included, and a relative error of any size."""
    p = [d.share(), mp.mpf("0.99"), mp.mpf("1e-9"), mp.mpf(0), mp.mpf(1), d.share()][d.number]
    eps = mp.mpf([0.07, 0.7, 1e-3, 1e-7, 1e-9, 0.5][d.number])
    delta = [-0.5, 0.9, -0.99, 2, 1e-9, -1e-5][d.number] * d.real(0.5, 1)
    clip = lambda p: 1 - eps if p > 1 - eps or eps > 1 - eps else eps if p < eps else p
    return certify(d) | {"p": p, "delta": delta, "epsilon": eps, "c_epsilon": clip}


def two_outcomes(d: Draw) -> Env:
    q, b = d.share(), [d.share(), mp.mpf(0), mp.mpf(1)][d.number % 3]
    t, p = column([1 - b, b]), column([1 - q, q])
    return {"q": q, "b": b, "t": t, "p": p, "ell": entropy(t, p)}


def labels(d: Draw) -> Env:
    """Several labels at once: a softmax for each of them, or a sigmoid for each class."""
    K = d.classes
    e, y = one(d), column(d.sample([1, *(d.randint(0, 1) for _ in range(K - 1))], K))
    per_class = mp.fsum(softplus((1 - 2 * y) * e["z"])[:, 0])
    each = mp.fsum(-log(softmax(e["z"]))[y == 1])
    return e | {"y": y, "ell_softmax": each, "ell_sigmoids": per_class}


def frameworks(d: Draw) -> Env:
    """Chapter 7's names: losses with weights, and targets' probabilities that do not sum to one."""
    N, K = (4, 2, 1, 5, 3, 6)[d.number], d.classes
    ell, w, q, c, y = d.positive(N), d.positive(N), d.positive(), d.positive(), d.randint(1, K)
    w[-1, 0] *= d.number != 5  # a weight of zero
    e = {"K": K, "N": N, "w": w, "ell": ell, "q": q, "c": c, "y": y}
    e["over"] = {"n": range(1, N + 1), "k": range(1, K + 1)}
    e |= {"cal L_w": np.average(ell[:, 0], weights=w[:, 0]), "cal L_N": np.mean(ell * w)}
    e |= {"cal L_1": np.mean(ell @ w.T)}
    e |= {name: entropy(one_hot(y, K), x / sum(x)) for name, x in (("ell_categorical", q), ("ell_sparse", c))}
    return e | {"ell_min": mp.log(1 / softmax(one_hot(1, K))[0, 0])}


def ignored(d: Draw) -> Env:
    g = d.column()
    return one(d) | {"g": g, "cal L": Let(lambda e: (g.T @ log(lookup(e, "p")))[0, 0])}


def unnormalised(d: Draw) -> Env:
    y = d.positive()
    return one(d) | {"y": y, "t": y, "s": sum(y[:, 0]), "ell": Let(lambda e: entropy(y, lookup(e, "p")))}


RULES: dict[str, Any] = {
    "log": lambda q, y: -mp.log(q[int(y) - 1, 0]),
    "Brier": lambda q, y: 1 - 2 * q[int(y) - 1, 0] + mp.fsum(x * x for x in q[:, 0]),
    "spherical": lambda q, y: 1 - q[int(y) - 1, 0] / mp.norm(list(q[:, 0])),
    "zero-one": lambda q, y: mp.mpf(list(q[:, 0]).index(max(q[:, 0])) + 1 != y),
}


def scoring(d: Draw, rule: str = "") -> Env:
    """The truth p, a report q, and what a rule expects of it; without a rule, one of the three by the draw."""
    s = RULES[rule or d.choice(["log", "Brier", "spherical"])]
    expect = lambda p, q, r=s: mp.fsum(a * r(q, k) for k, a in enumerate(p[:, 0], 1) if a)
    e = one(d) | {"p": d.some(), "q": d.probs(), "w": d.positive(), "s": s, "S": expect, "KL": kl}
    e |= {"H": lambda q: expect(q, q), "D": lambda p, q: expect(p, q) - expect(p, p)}
    e |= {f"s_{name}": r for name, r in RULES.items()}
    e |= {f"D_{name}": (lambda p, q, r=r: expect(p, q, r) - expect(p, p, r)) for name, r in RULES.items()}
    highest = lambda q: list(q[:, 0]).index(max(q[:, 0])) + 1
    return e | {"m": highest}


def zero_one(d: Draw) -> Env:
    return scoring(d, "zero-one")


def denominators(d: Draw) -> Env:
    """Micro-batches with n_k tokens and mean losses m_k, which follow theta; k and r run through ranks as well."""
    n, at, theta = column(d.randint(1, 9) for _ in range(3)), d.matrix(3, 2), d.column(2)
    of, N = lambda e: softplus(at @ lookup(e, "theta")), sum(n[:, 0])
    m = of({"theta": theta})
    e = {"K": 3, "W": 3, "k": d.randint(1, 3), "over": dict.fromkeys("kr", range(1, 4)), "nabla": "theta"}
    e |= {"n": n, "N": N, "bar n": N / 3, "theta": theta, "m": m, "bar m": mean(m[:, 0])}
    return e | {"S": Let(lambda e: n * of(e)), "cal L": Let(lambda e: (n * of(e)).sum() / N)}


def soft(d: Draw) -> Env:
    return one(d) | {"t": d.some(), "ell": lambda z, t: entropy(t, softmax(z)), "H": entropy, "KL": kl}


def distil(d: Draw) -> Env:
    """Teacher's logits v, student's z, a temperature; p and q are the two distributions at it."""
    e, v, T, alpha = one(d), d.column(), d.real(1, 5), d.share()
    loss = lambda z, v: T**2 * kl(softmax(v / T), softmax(z / T))
    mixed = (1 - alpha) * entropy(one_hot(e["y"], d.classes), softmax(e["z"])) + alpha * loss(e["z"], v)
    e |= {"v": v, "T": T, "alpha": alpha, "ell_T": loss, "ell": mixed, "P": softmax(e["z"] / T)}
    return e | {"p": softmax(v / T), "q": Let(lambda at: softmax(lookup(at, "z") / T))}


def distil_loss(d: Draw) -> Env:
    e = distil(d)
    return e | {"ell_T": Let(lambda at: e["ell_T"](lookup(at, "z"), e["v"]))}


def z_loss(d: Draw) -> Env:
    e, strength = loss_of(d), d.share()
    total = Let(lambda at: lambda z: e["ell"](z, e["y"]) + strength * lse(z) ** 2)
    return e | {"J": total, "lambda": strength, "Z": Let(lambda at: mp.exp(lse(at["z"])))}


WEAKER = "a weaker bound, which holds too"
NARROWER = "a narrower condition, under which it holds too"
FACTOR = "a positive factor moves no minimum"
EVERY = "it holds for every class, so for this one"
# The changes that leave a true statement, and why they do.
# fmt: off
HARMLESS: dict[str, dict[str, str]] = {
    "eq-softmax-shift": {r"ftmax}(z ⟨+ → -⟩ c)_k &=": "any shift will do"},
    "eq-gibbs": {r"- 1 \le ⟨0 → 1⟩ \\ \math": WEAKER, r"t &\le t ⟨- → +⟩ 1, \quad": WEAKER},
    "eq-conditional-problems": {r"eta \frac⟨1 → 2⟩n \sum_{i": FACTOR, r"l[ -\frac⟨1 → 2⟩n \sum_{i": FACTOR},
    "eq-surprise": {r"&< u \le ⟨2 → 3⟩^{-m/n}": NARROWER, r"s(\tfrac⟨12 → 13⟩) \\ s(u)": WEAKER,
        r"tfrac{m+⟨1 → 2⟩}{n}\, s(": WEAKER,
        r"{-m/n} \;⟨\Rightarrow → \Leftarrow⟩ \\ \tfra": "s is strictly decreasing, so each follows from the other"},
    "eq-code-length": {r"d \sum_k ⟨2 → 3⟩^{-\ell_k": WEAKER, r"P)}{\log ⟨2 → 3⟩} \;&\le": WEAKER,
        r"log 2} + ⟨1 → 2⟩ \end{ali": WEAKER},
    "eq-grad-lipschitz": {r") \rVert_⟨2 → 3⟩ \\ &\qqu": WEAKER},
    "eq-dead-margin": {r"log\frac⟨1 → 2⟩u ,": NARROWER},
    "eq-probability-gap": {r"} \le e^{⟨- → +⟩g}, \qqua": WEAKER},
    "eq-clipped-loss": {r"log\frac⟨1 → 2⟩\epsilon": WEAKER},
    "eq-certify-clip": {r"(p) &\le ⟨1 → 2⟩ - \epsil": WEAKER, r") &\le 1 ⟨- → +⟩ \epsilon": WEAKER,
        r"ac12, \\ ⟨- → +⟩\log c_\e": WEAKER,
        r"le \tfrac⟨12 → 13⟩ . \end{a": NARROWER, r"le \tfrac⟨12 → 13⟩, \\ -\lo": NARROWER,
        r"log\tfrac⟨1 → 2⟩\epsilon": WEAKER},
    "eq-certify-relative": {r"le (K + ⟨3 → 4⟩)\,u\,\el": WEAKER},
    "eq-certify-top32": {r"1 - 10^{-⟨15 → 16⟩}) = 1 .": "another small number", r"}_{32}(1 ⟨- → +⟩ 10^{-15}":
        "another small number", r"{32}(1 - ⟨10 → 11⟩^{-15}) =": "another small number"},
    "eq-certify-absolute": {r"gl(p\,(1 ⟨+ → -⟩ \delta)": "the bound is even in delta"},
    "eq-den-left": {r"frac{1 ⟨- → +⟩ \beta}{K (2)": WEAKER, r"} KB \ge ⟨2 → 3⟩ . \end{a": NARROWER,
        r"le \frac{⟨1 → 2⟩ - \beta}": WEAKER, r"ta}{KB + ⟨1 → 2⟩} &\le b": WEAKER},
    "eq-local-condition": {r"p_1\, s_⟨1 → 2⟩'(p_1) =": "the rules differ by a constant"},
    "eq-soft-argmin": {r"mid x) ⟨+ → -⟩ \log P_X": "it does not depend on theta"},
    "eq-soft-reach": {r"⟨\min → \max⟩_k q_k \g": WEAKER,
        r"min_⟨k → i⟩ q_k \ge": EVERY, r"min_k q_⟨k → i⟩ \ge \fra": EVERY},
}
# fmt: on
