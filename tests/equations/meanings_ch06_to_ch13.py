"""What the names in the equations of chapters 6 to 9 and 11 to 13 stand for, beside draws.py."""

# ruff: noqa: E731 (a lambda is a value of an environment here)

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np

from equations import draws as m
from equations.draws import Draw, column, entropy, kl, log, lse, mean, one_hot, sigmoid, softmax, softplus
from equations.meanings_ch01_to_ch05 import FORMATS, pairs_law, reports
from equations.reader import Env, Let, lookup

SIZES = (4, 1, 3, 5, 2, 3)  # examples, by the number of the draw


def rows(matrix: Any) -> Any:
    """The softmax of each row."""
    return np.vstack([softmax(row[:, None]).T for row in matrix])


def masses(d: Draw, n: int) -> Any:
    return np.vstack([d.some().T for _ in range(n)])


# ------------------------------------------------------------------------------------------ 6, certify


def one_list(d: Draw) -> Env:
    """One row of probabilities, read as K binary labels; in one draw with a zero beside the label."""
    p, y = d.some(), 1
    each = [
        entropy(column([1 - t, t]), column([1 - q, q]))
        for t, q in zip(one_hot(y, len(p))[:, 0], p[:, 0], strict=True)
    ]
    return m.one(d) | {"p": p, "y": y, "k": len(p), "ell_list": mean(each)}


def batch(d: Draw) -> Env:
    N = SIZES[d.number]
    t, p = masses(d, N), rows(d.matrix(N, d.classes))
    each = [mp.fsum(a * mp.log(1 / b) for a, b in zip(*row, strict=True)) for row in zip(t, p, strict=True)]
    return {"N": N, "t": t, "p": p, "ell": entropy, "cal L": mean(each)}


def keras(d: Draw) -> Env:
    """Probabilities that need not sum to one, a zero among them, and a clip."""
    e = m.certify(d)
    p = d.positive() * [1, 1, 5, 1, 0.1, 1][d.number]
    p[0, 0] *= d.number != 3
    bounded = column(sorted([e["epsilon"], x / sum(p[:, 0]), 1 - e["epsilon"]])[1] for x in p[:, 0])
    return e | {"p": p, "ell_Keras": entropy(e["t"], bounded)}


def epsilon(d: Draw) -> Env:
    """Rows of which some have a zero under their label, and what the others cost."""
    N = 6
    p = [d.share() for _ in range(N)]
    p = [x * (n >= d.number) for n, x in enumerate(p)]
    cost = lambda eps: mean(-mp.log(max(x, eps)) for x in p)
    e = {
        "epsilon": mp.mpf("1e-3"),
        "m": mp.mpf(d.number) / N,
        "cal L_epsilon": Let(lambda e: cost(lookup(e, "epsilon"))),
    }
    e |= {"cal L_10^-15": cost(mp.mpf("1e-15")), "cal L_10^-7": cost(mp.mpf("1e-7"))}
    return e | {"const": sum(-mp.log(x) for x in p if x) / N}


def rounded_loss(d: Draw) -> Env:
    """The loss as a program of some format computes it, one term after the other."""
    K, (kind, digits) = (2, 3, 10, 1, 50, 2)[d.number], FORMATS[d.number % 3]
    t, p = (kind(1) * softmax(column(d.gauss(0, 1) for _ in range(K)))[:, 0].astype(float) for _ in "tp")
    t, p = t.astype(kind), p.astype(kind)
    total = kind(0)
    for a, b in zip(t, p, strict=True):
        total = kind(total - kind(a * kind(np.log(b))))
    exact = mp.fsum(-mp.mpf(float(a)) * mp.log(mp.mpf(float(b))) for a, b in zip(t, p, strict=True))
    return {"K": K, "u": mp.mpf(2) ** -digits, "hat ell": mp.mpf(float(total)), "ell": exact}


def small(d: Draw) -> Env:
    """A small epsilon, and the number in float32 that is next to what is asked for."""
    eps = d.real()
    return {
        "epsilon": eps,
        "closer": lambda s: {"epsilon": s * eps},
        "fl_32": lambda x: mp.mpf(float(np.float32(float(x)))),
    }


# --------------------------------------------------------------------------------------- 7, frameworks


def divergences(d: Draw) -> Env:
    """Rows of two laws, in some draws with zeros in the first."""
    N, K = SIZES[d.number], d.classes
    p, q = masses(d, N), rows(d.matrix(N, K))
    each = [kl(a[:, None], b[:, None]) for a, b in zip(p, q, strict=True)]
    term = np.array(
        [
            [a * (mp.log(a) - mp.log(b)) if a else mp.mpf(0) for a, b in zip(*r, strict=True)]
            for r in zip(p, q, strict=True)
        ]
    )
    e = {"N": N, "K": K, "M": N * K, "p": p, "q": q, "d": term, "n": 1, "k": K, "none": term[0, K - 1]}
    e |= {"cal L": mean(each) / K, "sum": mp.fsum(each), "mean": mean(term.ravel()), "batchmean": mean(each)}
    e |= {"m": N, "i": 1}  # another row and another class
    return e | {"over": {**dict.fromkeys("nm", range(1, N + 1)), **dict.fromkeys("ki", range(1, K + 1))}}


def single(d: Draw) -> Env:
    z = d.column(1)
    return {"z": z[0, 0], "ell": entropy(column([1]), softmax(z))}


# -------------------------------------------------------------------------------------- 8, which loss


def distortion(d: Draw) -> Env:
    """Micro-batches; what a target adds to the mean of the means, beside what it adds to the pooled mean."""
    M = SIZES[d.number]
    n = [d.randint(1, 9) for _ in range(M)]
    means = lambda extra: mean((1 + extra * (i == 0)) / mp.mpf(size) for i, size in enumerate(n))
    pooled = lambda extra: (M + extra) / mp.mpf(sum(n))
    r = (means(1) - means(0)) / (pooled(1) - pooled(0))
    return {"M": M, "n": column(n), "i": 1, "r": column([r, *[0] * (M - 1)]), "over": {"j": range(1, M + 1)}}


def start(d: Draw) -> Env:
    """Independent Gaussian logits, by a quadrature that knows their first moments."""
    K, sigma = (2, 3, 4, 5, 2, 1)[d.number], mp.mpf([1, 2, 0.5, 0.3, 0, 3][d.number])
    nodes, weights = np.polynomial.hermite_e.hermegauss(5 if K > 3 else 9)
    total = sum(weights)
    points = [(mp.mpf(w / total), sigma * mp.mpf(x)) for x, w in zip(nodes, weights, strict=True)]
    law = [
        (mp.fprod(w for w, _ in p), {"ell": lse(column(x for _, x in p)) - p[0][1]})
        for p in itertools.product(points, repeat=K)
    ]
    expected = mp.fsum(w * at["ell"] for w, at in law)  # once, not for every relation
    return {"K": K, "sigma": sigma, "law": [(mp.mpf(1), {"ell": expected})]}


# ---------------------------------------------------------------------------------- 9, proper scoring


def absolute(d: Draw) -> Env:
    p, q = [d.share(), mp.mpf(0), mp.mpf(1)][d.number % 3], d.share()
    return {"p": p, "q": q, "law": [(p, {"Y": 1}), (1 - p, {"Y": 0})]}


def properness(d: Draw) -> Env:
    """Rules of each kind, with the report that would refute the wrong kind."""
    kind = ["log", "Brier", "spherical", "zero-one", "linear", "log"][d.number]
    p = softmax(column([1, 0.3, -0.5]))
    honest = [d.probs(3), d.probs(3), d.probs(3), softmax(column([3, 0, 0])), column([1, 0, 0]), p]
    rule = m.RULES.get(kind, lambda q, y: 1 - q[int(y) - 1, 0])
    S = lambda p, q: mp.fsum(a * rule(q, k) for k, a in enumerate(p[:, 0], 1))
    return {
        "p": p,
        "q": honest[d.number],
        "S": S,
        "proper": kind != "linear",
        "strictly": kind not in {"linear", "zero-one"},
    }


def clipping(d: Draw) -> Env:
    """One class below the clip, the others within it after they share its mass."""
    K = (4, 3, 5, 8, 3, 4)[d.number]
    eps, rare = mp.mpf("0.01"), d.real(0.001, 0.009)
    shares = softmax(column(d.gauss(0, 0.4) for _ in range(K - 1)))
    p = np.vstack([(1 - rare) * shares, column([rare])])
    q = np.vstack([shares, column([0])])
    charge = lambda p, q: mp.fsum(
        -a * mp.log(sorted([eps, b, 1 - eps])[1]) for a, b in zip(p[:, 0], q[:, 0], strict=True)
    )
    return {"K": K, "p": p, "q": q, "S": charge}


def bent(d: Draw) -> Env:
    """What class weights, or smoothing, make of p: where the expected loss has no slope in the logits."""
    e, p, w, eps = m.one(d), d.some(), d.positive(), d.share()
    weights = d.number % 2 == 0
    pull = w * p if weights else eps / len(p) + (1 - eps) * p
    total = mp.fsum(pull[:, 0])
    q = column(x / total for x in pull[:, 0])
    return e | {"p": p, "w": w, "varepsilon": eps, "q": q, '"(weights)': weights, '"(smoothing)': not weights}


def focal(d: Draw) -> Env:
    """p from q by the slopes of the focal loss, taken numerically."""
    e, gamma, x = m.one(d), mp.mpf([2, 0, 0.5, 1, 5, 3][d.number]), d.share()
    q = softmax(column(d.gauss(0, 2) for _ in range(d.classes)))
    slope = lambda x: -1 / mp.diff(lambda x: -((1 - x) ** gamma) * mp.log(x), x)
    each = column(slope(x) for x in q[:, 0])
    return e | {"q": q, "p": each / sum(each[:, 0]), "h": slope, "x": x, "gamma": gamma}


def convex(d: Draw) -> Env:
    f = [
        lambda t: -mp.sqrt(t), lambda t: (t - 1) ** 2, lambda t: abs(t - 1), lambda t: t + 2,
        lambda t: mp.exp(t), lambda t: t * mp.log(t) if t else mp.mpf(0),
    ][d.number]  # fmt: skip
    e = m.two(d)
    return e | {"f": f, "i": 1 + [*e["q"][:, 0]].index(min(e["q"][:, 0]))}


def local(d: Draw) -> Env:
    """A local rule by the integral of c / x."""
    e, c, x = m.one(d), d.real(), d.share()
    b, p = d.column(), softmax(column(d.gauss(0, 1) for _ in range(d.classes)))
    area = cache(lambda x: mp.quad(lambda t: c / t, [x, mp.sqrt(x), 1]))
    rules = np.array([[lambda x, k=k: area(x) + b[k, 0]] for k in range(d.classes)], object)
    return e | {"s": rules, "c": c, "b": b, "x": x, "p": p}


def calibration(d: Draw) -> Env:
    """Forecasts of a few kinds, each with its own frequency; in one draw a frequency of 0."""
    shares, q = d.probs(3)[:, 0], [d.share() for _ in range(3)]
    true = dict(zip(q, [d.share(), d.share(), mp.mpf(0) if d.number == 2 else d.share()], strict=True))
    law = [
        (w * p, {"q": x, "Y": y})
        for w, x in zip(shares, q, strict=True)
        for y, p in ((1, true[x]), (0, 1 - true[x]))
    ]
    return {"law": law, "pi": lambda x: true[x]}


# ----------------------------------------------------------------------------------- 11, denominators


@cache
def stop(B: int, beta: Any) -> Any:
    """B E[1/N], where N tokens hold B stops of probability beta: what the mean over B sequences learns."""
    term, total, n = beta**B, mp.mpf(0), B
    while term > mp.mpf("1e-30") or n < B / beta:
        total += term / n
        term *= (1 - beta) * n / (n + 1 - B)
        n += 1
    return B * total


def two_losses(d: Draw) -> Env:
    K = SIZES[d.number]
    n, S = column(d.randint(1, 9) for _ in range(K)), softplus(d.column(K))
    each = [s / k for s, k in zip(S[:, 0], n[:, 0], strict=True)]
    return {
        "K": K,
        "n": n,
        "S": S,
        "N": int(sum(n[:, 0])),
        "cal L": np.average(each, weights=n[:, 0]),
        "M": mean(each),
    }


def ranks(d: Draw) -> Env:
    """W ranks with K micro-batches each, their sums of losses as functions of theta, and a divisor d."""
    W, K, theta = (2, 1, 3, 2, 1, 4)[d.number], SIZES[d.number], d.column(2)
    n = np.array([[mp.mpf(d.randint(1, 9)) for _ in range(K)] for _ in range(W)])
    slopes = [[d.column(2) + mp.mpf(1) for _ in range(K)] for _ in range(W)]
    N, by = np.sum(n), mp.mpf([W, 1, 7, W, 3, 0.5][d.number])
    of = lambda e, r, k: softplus(np.sum(slopes[r - 1][k - 1] * lookup(e, "theta")))
    e: Env = {"W": W, "K": K, "N": N, "n": n, "theta": theta, "nabla": "theta", "d": by, "c": by / N}
    e["S_rk"] = Let(lambda e: of(e, e["r"], e["k"]))
    e["cal L"] = Let(lambda e: mp.fsum(of(e, r, k) for r in range(1, W + 1) for k in range(1, K + 1)) / N)
    return e | {"over": {"r": range(1, W + 1), "k": range(1, K + 1)}}


def relative_bias(d: Draw) -> Env:
    K, B, beta = [(2, 1, 0.3), (1, 2, 0.01), (4, 8, 0.5), (3, 1, 1.0), (1, 1, 0.4), (4, 4, 0.05)][d.number]
    beta = mp.mpf(beta)
    return {
        "K": K,
        "B": B,
        "beta": beta,
        "q^*": lambda B, beta: stop(int(B), beta),
        "b": (stop(K * B, beta) - beta) / beta,
    }


def class_weights(d: Draw) -> Env:
    """Examples in micro-batches, a class whose weight is zero among them."""
    N, classes = 2 + SIZES[d.number], d.classes
    y, w, ell = [d.randint(1, classes) for _ in range(N)], d.positive(), softplus(d.column(N))
    w[y[0] % classes, 0] *= d.number != 1
    own = [w[k - 1, 0] for k in y]
    batches = [frozenset(range(1, 3)), frozenset(range(3, N + 1))]
    e = {
        "y": column(y),
        "w": w,
        "ell": ell,
        "cal L": np.average(ell[:, 0], weights=own) if sum(own) else mp.nan,
    }
    return e | {"over": {"k": batches, "i": range(1, N + 1)}}


def ignoring(d: Draw) -> Env:
    N = 1 + SIZES[d.number]
    ell, y = softplus(d.column(N)), column([2, *(d.choice([-100, 1, 3]) for _ in range(N - 1))])
    kept = [x for x, k in zip(ell[:, 0], y[:, 0], strict=True) if k != -100]
    return {"ell": ell, "y": y, "ignore": -100, "cal L": mean(kept), "over": {"i": range(1, N + 1)}}


def responses(d: Draw) -> Env:
    """A group of responses, of which only the lengths matter to a policy with one stop probability."""
    G, C, theta = SIZES[d.number], d.real(1, 9), mp.mpf(d.gauss(0, 1))
    o, A = column(d.randint(1, 30) for _ in range(G)), d.column(G) + mp.mpf(0)
    score = [1 - sigmoid(theta) * n for n in o[:, 0]]
    pushes = [a * s for a, s in zip(A[:, 0], score, strict=True)]
    chance = lambda e: lambda n: sigmoid(lookup(e, "theta")) * sigmoid(-lookup(e, "theta")) ** (n - 1)
    e: Env = {"G": G, "C": C, "o": o, "A": A, "theta": theta, "nabla": "theta", "pi": Let(chance)}
    e["GRPO"] = mean(x / n for x, n in zip(pushes, o[:, 0], strict=True))
    e["DAPO"], e["Dr.GRPO"] = sum(pushes) / sum(o[:, 0]), mean(pushes) / C
    return e | {"over": dict.fromkeys("ij", range(1, G + 1))}


def drift(d: Draw) -> Env:
    """Groups of one or two responses whose lengths are geometric, cut where nothing is left."""
    G, beta = (1, 2, 1, 1, 1, 1)[d.number], mp.mpf([0.6, 0.9, 0.3, 1, 0.95, 0.5][d.number])
    theta = mp.log(beta / (1 - beta)) if beta < 1 else mp.mpf(20)
    beta = sigmoid(theta)
    lengths = range(1, 2 + int(mp.log(1e-25) / mp.log(1 - beta)))
    tokens = lambda n: beta * (1 - beta) ** (n - 1)
    law = [(mp.fprod(tokens(n) for n in o), {"o": column(o)}) for o in itertools.product(lengths, repeat=G)]
    chance = lambda e: lambda n: sigmoid(lookup(e, "theta")) * sigmoid(-lookup(e, "theta")) ** (n - 1)
    e: Env = {
        "G": G,
        "beta": beta,
        "theta": theta,
        "law": law,
        "i": 1,
        "q^*": lambda B, beta: stop(int(B), beta),
    }
    return e | {"o": mp.mpf(d.randint(1, 9)), "pi": Let(chance), "over": {"j": range(1, G + 1)}}


# ----------------------------------------------------------------------------------- 12, soft targets


def drawn_label(d: Draw) -> Env:
    e, K = m.soft(d), d.classes
    e |= {"law_y": [(e["t"][k - 1, 0], {"y": k}) for k in range(1, K + 1)]}
    return e | {"e_y": Let(lambda e: one_hot(e["y"], K))}


def soft_family(d: Draw) -> Env:
    e = pairs_law(d)
    own = lambda e: lambda x: log(lookup(e, "Q_theta|")([None], [x]))
    return e | {"z_theta": Let(own), "ell": lambda z, t: entropy(t, softmax(z))}


def votes(d: Draw) -> Env:
    """Every outcome of m votes."""
    K, cast, t, p = d.classes, (1, 2, 3, 2, 3, 2)[d.number], d.some(), d.probs()
    law = [
        (
            mp.fprod(t[k - 1, 0] for k in ks),
            {"bar t": column(mp.mpf(ks.count(k)) / cast for k in range(1, K + 1))},
        )
        for ks in itertools.product(range(1, K + 1), repeat=cast)
    ]
    return {"K": K, "m": cast, "t": t, "p": p, "law": law}


def conventions(d: Draw) -> Env:
    """The share that leaves the label, by both conventions: the same in half of the draws."""
    e, eps = m.any_class(d), [mp.mpf(0), *(d.share() for _ in "12345")][d.number]
    K, y = e["K"], e["y"]
    eta = mp.fsum(eps / K for k in range(1, K)) if d.number % 2 == 0 else d.share()
    mixed = (1 - eps) * one_hot(y, K) + column([eps / K] * K)
    other = column(1 - eta if k == y else eta / (K - 1) for k in range(1, K + 1))
    return e | {"varepsilon": eps, "eta": eta, "t": mixed, "t'": other}


def elicited(d: Draw) -> Env:
    e, p, eps = m.any_class(d), d.some(), d.share()
    best = column((1 - eps) * x + eps / len(p) for x in p[:, 0])
    return e | {"p": p, "varepsilon": eps, "over": e["over"] | {"q": reports(best)}}


def torch_weights(d: Draw) -> Env:
    N, K, w = SIZES[d.number], d.classes, d.positive()
    t, p = masses(d, N), rows(d.matrix(N, K))
    return {"N": N, "K": K, "w": w, "t": t, "p": p, "cal L_torch": -mp.fsum((t * log(p) @ w)[:, 0]) / N}


# ----------------------------------------------------------------------------------- 13, distillation


def far(d: Draw) -> Env:
    """Teacher and student at any temperature."""
    K, v, z, T = d.classes, d.column() + d.real(), d.column(), d.real(1, 5)
    e = {"K": K, "z": z, "v": v, "T": T, "d": z - v, "bar d": mean((z - v)[:, 0]), "k": 1 + d.number % K}
    e |= {"p": Let(lambda e: softmax(v / lookup(e, "T"))), "q": Let(lambda e: softmax(z / lookup(e, "T")))}
    e |= {"ell_T": Let(lambda e: lambda z, v: lookup(e, "T") ** 2 * kl(lookup(e, "p"), lookup(e, "q")))}
    closer = lambda s: {"T": (1 + max(abs(np.vstack([z, v])[:, 0]))) / s}
    return e | {"closer": closer, "over": {"k": range(1, K + 1)}}


def shifted(d: Draw) -> Env:
    """The student's logits are the teacher's but for a shift, in half of the draws."""
    e = m.distil(d)
    z = e["v"] + d.gauss(0, 3) if d.number % 2 else e["v"] + one_hot(1, d.classes) * mp.mpf("1e-4")
    return e | {"z": z, "c": z[0, 0] - e["v"][0, 0], "over": {"k": range(1, d.classes + 1)}}


def moments(d: Draw) -> Env:
    """The Gaussian student that minimises the expected loss of a teacher's law."""
    x, P = softplus(d.column(5) + column(range(5))), softmax(column(d.gauss(0, 1) for _ in range(5)))
    law = [(p, {"X": v}) for p, v in zip(P[:, 0], x[:, 0], strict=True)]
    cost = lambda mu, s: mp.fsum(p * ((at["X"] - mu) ** 2 / s**2 / 2 + mp.log(s)) for p, at in law)
    slopes = lambda mu, s: [mp.diff(cost, (mu, s), (1, 0)), mp.diff(cost, (mu, s), (0, 1))]
    start = (mean(x[:, 0]), (max(x[:, 0]) - min(x[:, 0])) / 3)
    mu, sigma = mp.findroot(slopes, start, maxsteps=99)
    return {"law_P": law, "mu": mu, "sigma": sigma}


# ------------------------------------------------------------------------------- 16, the same loss elsewhere


def preferences(d: Draw) -> Env:
    """Scores of items, of which a beats b, and log-ratios h of two answers; costs by the probability."""
    r, h, beta = d.column(), d.column(), d.real()
    a, b = d.sample(range(1, d.classes + 1), 2)
    z = Let(lambda at: beta * (lookup(at, "h")[a - 1, 0] - lookup(at, "h")[b - 1, 0]))
    of = Let(lambda at: -mp.log(1 / (1 + mp.exp(-lookup(at, "z")))))
    return {"r": r, "h": h, "beta": beta, "a": a, "b": b, "sigma": sigmoid, "z": z, "ell": of}


def duel(d: Draw) -> Env:
    """Who of two wins is drawn from the softmax of their two scores."""
    e = preferences(d)
    wins = softmax(column(e["r"][i - 1, 0] for i in (e["a"], e["b"])))[0, 0]
    return e | {"P_a": wins, "ell": mp.log(1 / wins)}


def batch_of_pairs(d: Draw) -> Env:
    """Similarities of N views with N others; each row is a softmax, and its own column the label."""
    N = d.classes
    S = d.matrix(N, N)
    costs = column(lse(row[:, None]) - row[i] for i, row in enumerate(S))
    return {"N": N, "S": S, "ell": costs, "i": d.randint(1, N), "over": {"j": range(1, N + 1)}}


def own_labels(d: Draw) -> Env:
    """A label 0 or 1 for each class, and a coin for each."""
    K, z = d.classes, d.column()
    y = column(d.randint(0, 1) for _ in range(K))
    cost = mp.fsum(
        -mp.log(sigmoid(column([a if b else -a]))[0, 0]) for a, b in zip(z[:, 0], y[:, 0], strict=True)
    )
    return {"K": K, "z": z, "y": y, "ell": cost}


def other_frequencies(d: Draw) -> Env:
    """How likely each class makes what is seen, and Bayes' rule with two sets of frequencies."""
    seen, old, new, K = d.positive(), d.probs(), d.probs(), d.classes
    post = lambda prior: column(
        a * b for a, b in zip(prior[:, 0], (seen / (prior.T @ seen)[0, 0])[:, 0], strict=True)
    )
    e: Env = {"z": log(old * seen) + d.real(), "p": post(old), "tilde p": post(new), "softmax": softmax}
    return e | {"f": old, "tilde f": new, "k": d.randint(1, K), "over": {"j": range(1, K + 1)}}


def bits(d: Draw) -> Env:
    """The bits of a code for the whole text, by the probability of all its tokens, for each of its bytes."""
    p, M = d.positive(7), d.randint(1, 30)
    chance = mp.fprod(mp.exp(-x) for x in p[:, 0])
    return {"ell": p, "M": M, "b": -mp.log(chance, 2) / M, "over": {"i": range(1, 8)}}
