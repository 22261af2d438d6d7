"""What the names in the equations of chapters 1 to 5 stand for, beside draws.py."""

# ruff: noqa: E731 (a lambda is a value of an environment here)

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import ml_dtypes
import mpmath as mp
import numpy as np

from equations import draws as m
from equations.draws import Draw, column, entropy, kl, lse, mean, one_hot, sigmoid, softmax
from equations.reader import Env, Let, lookup, near


def reports(best: Any) -> list[Any]:
    """A distribution and others near and far from it, every corner among them."""
    K = len(best)
    mixed = [(1 - by) * best + by * one_hot(k, K) for k in range(1, K + 1) for by in (mp.mpf("1e-4"), 0.3, 1)]
    return [best, *(q for q in mixed if not np.all(q == best))]


# ------------------------------------------------------------------------------------------- the line


def ten_answers(d: Draw) -> Env:
    """Seven of ten say 1; their likelihood by the binomial law, and its negative logarithm per answer."""
    per_answer = lambda p: -(mp.log(p) * 7 + mp.log1p(-p) * 3) / 10
    likelihood = lambda p: mp.exp(-10 * per_answer(p))
    y = column(d.sample([1] * 7 + [0] * 3, 10))
    return {"y": y, "p": d.share(), "L": likelihood, "cal L": per_answer}


def student(d: Draw) -> Env:
    """Logits v of a teacher and z of a student; t and p are their distributions at the temperature."""
    e = m.distil(d)
    return e | {"t": e["p"], "p": e["q"], "KL": kl}


# ------------------------------------------------------------------------------------------- 1, binary


def bernoulli(d: Draw) -> Env:
    p = [d.share(), d.share(), d.share(), mp.mpf("1e-30"), mp.mpf(0), mp.mpf(1)][d.number]
    return {"y": d.number % 2, "p": p, "P|": lambda y, p: p[0] if y[0] else 1 - p[0]}


def log_odds(d: Draw) -> Env:
    """A probability, also close to 0 and 1, and its log-odds, by log1p."""
    p = [d.share(), d.share(), d.share(), mp.mpf("1e-12"), mp.mpf("0.5"), 1 - mp.mpf("1e-6")][d.number]
    return {"p": p, "z": mp.log(p) - mp.log1p(-p)}


def missing_log(d: Draw) -> Env:
    f, p = mp.mpf([0.2, 0.5, 0.8, 0.999, 0.0, 0.4][d.number]), d.share()
    loss = lambda p: -(1 - f) * (1 - p) - (f * mp.log(p) if f else 0)
    stop = min(1, mp.findroot(lambda p: mp.diff(loss, p), (f + 0.1) * 1.2) if f else 0)
    others = [stop + 1e-5, stop - 1e-5, 0, 0.3, 0.9, 1, 1.5, 4]
    tried = [stop, *(mp.mpf(x) for x in others if x >= 0 and abs(x - stop) > 1e-9)]
    return {"f": f, "p": p, "tilde ell": loss, "over": {"p": tried}}


def descent(d: Draw) -> Env:
    """A parabola, on which the path of gradient descent is known for each of its axes."""
    a = d.matrix(3, 2)
    curved, eta = a.T @ a + np.eye(2, dtype=int), d.real(0.01, 0.5)
    rates, axes = mp.eigsy(mp.matrix(curved.tolist()))
    axes, best, start = np.array(axes.tolist(), object), d.column(2), d.column(2)
    path = [best + axes @ (column((1 - eta * r) ** t for r in rates) * (axes.T @ start)) for t in (1, 2, 3)]
    J = lambda w: ((w - best).T @ curved @ (w - best))[0, 0] / 2
    return {"w": np.hstack(path).T, "t": d.number % 2 + 1, "eta": eta, "cal L": J, "nabla": "w"}


# --------------------------------------------------------------------------------------- 2, multiclass


def many(d: Draw) -> Env:
    """N examples with their labels and the probabilities of a model."""
    N, K = (4, 1, 3, 5, 2, 3)[d.number], d.classes
    z, y = d.matrix(N, K), column(d.randint(1, K) for _ in range(N))
    e: Env = {"N": N, "K": K, "z": z, "y": y, "theta": 0}
    e["p"] = np.vstack([softmax(row[:, None]).T for row in z])
    e["losses"] = column(lse(row[:, None]) - row[k - 1] for row, k in zip(z, ints(y), strict=True))
    e["cal L"] = mean(e["losses"][:, 0])
    e["E"] = sum(any(x > row[k - 1] for x in row) for row, k in zip(z, ints(y), strict=True))
    return e | {
        "ell": lambda z, y: lse(z) - z[int(y) - 1, 0],
        "L": lambda theta: mp.exp(-sum(e["losses"][:, 0])),
    }


def ints(y: Any) -> list[int]:
    return [int(k) for k in y[:, 0]]


def errors(d: Draw) -> Env:
    """In one draw all predictions are wrong, and only just."""
    if d.number != 4:
        return many(d)
    z = np.array([[mp.mpf("1e-9"), mp.mpf(0)]] * 3)
    return {"N": 3, "E": 3, "cal L": mean(lse(row[:, None]) - row[1] for row in z)}


def bounds(d: Draw) -> Env:
    e = m.one(d)
    e["y"] = 1 + [*e["z"][:, 0]].index((max if d.number in {0, 4} else min)(e["z"][:, 0]))
    e["z"] = column([3, 3 + mp.mpf("1e-12"), -40][: e["K"]]) if d.number == 2 else e["z"]
    e["y"] = 1 if d.number == 2 else e["y"]
    right = e["z"][e["y"] - 1, 0] == max(e["z"][:, 0])
    return e | {'"always': True, '"ifright': right, '"ifwrong': not right, '"ifuniform': d.scale == 0}


def layer(d: Draw) -> Env:
    """Softmax regression: inputs x, weights W by class in rows, biases b."""
    N, K, inputs = (3, 1, 2, 2, 3, 2)[d.number], d.classes, (2, 3, 1)[d.number % 3] + 1
    x, t = d.matrix(N, inputs), np.vstack([d.some().T for _ in range(N)])
    rows = lambda e: x @ lookup(e, "W").T + lookup(e, "b").T
    e: Env = {"N": N, "x": x, "t": t, "W": d.matrix(K, inputs), "b": d.column(K)}
    e["p"] = Let(lambda e: np.vstack([softmax(row[:, None]).T for row in rows(e)]))
    e["cal L"] = Let(
        lambda e: mean(lse(z[:, None]) - sum(z * own) for z, own in zip(rows(e), t, strict=True))
    )
    return e


def text(d: Draw) -> Env:
    """A law of all texts of n tokens, and logits of the conditional probabilities that follow from it."""
    n, V = (3, 1, 2, 3, 2, 1)[d.number], (2, 3)[d.number % 2]
    texts = [*itertools.product(range(1, V + 1), repeat=n)]
    law = dict(zip(texts, d.probs(len(texts))[:, 0], strict=True))
    begins = lambda *x: mp.fsum(p for text, p in law.items() if text[: len(x)] == tuple(int(i) for i in x))
    given = lambda new, before: begins(*before, *new) / begins(*before)
    x = [d.randint(1, V) for _ in range(n)]
    z = np.array([[mp.log(given([k], x[:i])) + i + d.scale for k in range(1, V + 1)] for i in range(n)])
    e = {"n": n, "x": column(x), "z": z, "P(": begins, "P|": given}
    return e | {"ell": lambda z, y: lse(z) - z[int(y) - 1, 0]}


def posterior(d: Draw) -> Env:
    """Three possible weights, inputs with a law, labels by a softmax: every probability by enumeration."""
    N, K, weights = (2, 1, 3, 2, 2, 1)[d.number], d.classes, [d.column() for _ in range(3)]
    prior, law = d.probs(3)[:, 0], d.probs(2)[:, 0]
    x, y = [d.randint(0, 1) for _ in range(N)], [d.randint(1, K) for _ in range(N)]
    logits = lambda w, x: w * (x + 1)
    label = lambda n, w: softmax(logits(w, x[n]))[y[n] - 1, 0]
    data = [mp.fprod(law[x[n]] * label(n, w) for n in range(N)) for w in weights]
    evidence = mp.fsum(p * q for p, q in zip(prior, data, strict=True))
    e = {"p(w)": prior[0], "p(D|w)": data[0], "p(D)": evidence, "p(w|D)": prior[0] * data[0] / evidence}
    e["c(D)"] = mp.log(mp.fprod(law[i] for i in x) / evidence)
    e |= {
        "z": np.vstack([logits(weights[0], i).T for i in x]),
        "y": column(y),
        "over": {"n": range(1, N + 1)},
    }
    return e | {"ell": lambda z, y: lse(z) - z[int(y) - 1, 0]}


def penalty_names(d: Draw) -> Env:
    """The curvature of a Gaussian prior's logarithm, seen by programs that divide by different numbers."""
    N, tau, taken = (4, 1, 7, 5, 100, 2)[d.number], d.real(), d.number % 2
    curved = mp.diff(lambda w: -mp.log(mp.npdf(w, 0, tau)), 0.3, 2)
    e = {
        "N": N,
        "tau": tau,
        "lambda": curved / N,
        "C": 1 / curved,
        '"(mean)': not taken,
        '"(sum)': bool(taken),
    }
    return e | {"weight\\_decay": curved if taken else curved / N}


def forecast(d: Draw) -> Env:
    """A label of the law pi, its one-hot t, and a report q."""
    K, pi, q = d.classes, d.some(), d.probs()
    e = {"K": K, "q": q, "pi": pi, "t": Let(lambda e: one_hot(e["Y"], K))}
    e["law"] = [(pi[k - 1, 0], {"Y": k}) for k in range(1, K + 1)]
    return e | {"over": {"k": range(1, K + 1)}}


def surfaces(d: Draw) -> Env:
    u, v = d.gauss(0, d.scale), d.gauss(0, d.scale)
    cross = entropy(column([1, 0]), softmax(column([u, v])))
    return {"u": mp.mpf(u), "v": mp.mpf(v), "ell_squared": mp.norm([u - 1, v + 1]) ** 2, "ell_cross": cross}


def odds(d: Draw) -> Env:
    """The second class's name is 1 where there are two, 0 and 1."""
    e = m.one(d)
    z, p = e["z"][:, 0], softmax(e["z"])[:, 0]
    return e | {"z_0": z[0], "z_1": z[1], "p_1": p[1]}


# -------------------------------------------------------------------------------------- 3, information


def events(d: Draw) -> Env:
    """Two events in a space of eight points; in one draw they always come together."""
    law = d.probs(8)[:, 0]
    a, b = {0, 1, 2, 5}, ({0, 1, 2, 3, 5, 6} if d.number == 4 else {1, 2, 7})
    of = lambda s: mp.fsum(law[i] for i in s)
    return {"P(AcapB)": of(a & b), "P(A)": of(a), "P(B|A)": mp.fsum(law[i] / of(a) for i in a & b)}


def gibbs(d: Draw) -> Env:
    e = m.two(d)
    return e | {"t": mp.mpf(1) if d.number == 4 else d.real(0.01, 9)}


def sample(d: Draw) -> Env:
    """A sample of n from P, a family of four models, in one draw two of them alike, and frequencies."""
    n, K = (5, 1, 3, 7, 2, 4)[d.number], d.classes
    y, models = [d.randint(1, K) for _ in range(n)], [d.probs() for _ in range(4)]
    models[3] = models[0] if d.number == 4 else models[3]
    counts = column(mp.mpf(y.count(k)) / n for k in range(1, K + 1))
    e: Env = {
        "n": n,
        "K": K,
        "y": column(y),
        "hat P_n": counts,
        "theta": 1,
        "H": entropy,
        "KL": kl,
        "P": d.some(),
    }
    e["Q_theta"] = Let(lambda e: models[int(e["theta"]) - 1])
    e["Q_theta("] = Let(lambda e: lambda y: models[int(e["theta"]) - 1][int(y) - 1, 0])
    return e | {"over": {"theta": range(1, 5), "k": range(1, K + 1)}, "models": models}


def samples(d: Draw) -> Env:
    """All samples of n, with the best model of each."""
    e = sample(d)
    n, P, models, K = (1, 2, 2, 1, 3, 2)[d.number], e["P"], e["models"], e["K"]
    shares = lambda y: column(mp.mpf(y.count(k)) / n for k in range(1, K + 1))
    texts = itertools.product(range(1, K + 1), repeat=n)
    law = [(mp.fprod(P[k - 1, 0] for k in y), shares(y)) for y in texts]
    best = lambda counts: min(models, key=lambda q: entropy(counts, q))
    e["law"] = [(weight, {"hat P_n": counts, "Q_hat theta": best(counts)}) for weight, counts in law]
    return e


def pairs_law(d: Draw) -> Env:
    """Inputs x with labels y, their joint law and a family of models that share the law of x."""
    X, Y, n = (2, 3)[d.number % 2], d.classes, (4, 1, 3, 5, 2, 3)[d.number]
    marginal, rows = d.probs(X), [d.some() for _ in range(X)]
    models = [[d.probs() for _ in range(X)] for _ in range(4)]
    models[3] = models[0] if d.number == 4 else models[3]
    other = d.probs(X)
    own = lambda e: models[int(e["theta"]) - 1]
    pick = lambda rows: (
        lambda y, x: rows[int(x[0]) - 1] if y[0] is None else rows[int(x[0]) - 1][int(y[0]) - 1, 0]
    )
    flat = lambda marginal, rows: column(
        a * b for a, row in zip(marginal[:, 0], rows, strict=True) for b in row[:, 0]
    )
    e: Env = {
        "n": n,
        "theta": d.randint(1, 4),
        "x": column(d.randint(1, X) for _ in range(n)),
        "KL": kl,
        "H": entropy,
    }
    e |= {
        "y": column(d.randint(1, Y - (d.number in {2, 5})) for _ in range(n)),
        "P|": pick(rows),
        "P_X": marginal,
    }
    e |= {"P(": lambda x, y=None: marginal[int(x) - 1, 0] * (rows[int(x) - 1][int(y) - 1, 0] if y else 1)}
    e |= {
        "Q(": lambda x: other[int(x) - 1, 0],
        "Q|": Let(lambda e: pick(own(e))),
        "Q_X": other,
        "P_X(": e["P("],
    }
    e |= {"Q_theta(": Let(lambda e: lambda x, y: marginal[int(x) - 1, 0] * own(e)[int(x) - 1][int(y) - 1, 0])}
    e |= {"Q_theta|": Let(lambda e: pick(own(e))), "Q_theta": Let(lambda e: flat(marginal, own(e)))}
    e |= {
        "Q_XY": Let(lambda e: flat(other, own(e))),
        "P_XY": flat(marginal, rows),
        "P_X,Y": flat(marginal, rows),
    }
    e |= {"law_X": [(marginal[k - 1, 0], {"X": k}) for k in range(1, X + 1)]}
    cells = [*itertools.product(range(1, X + 1), range(1, Y + 1))]
    cells = [(x, y) for x, y in cells if rows[x - 1][y - 1, 0]]
    e["law_P"] = [(marginal[x - 1, 0] * rows[x - 1][y - 1, 0], {"X": x, "Y": y}) for x, y in cells]
    return e | {"over": {"theta": range(1, 5), "x": range(1, X + 1), "y": range(1, Y + 1)}}


def cell(d: Draw) -> Env:
    e = pairs_law(d)
    return e | {"x": d.randint(1, 2), "y": d.randint(1, d.classes)}


def log_ratios(d: Draw) -> Env:
    """Every sample of one or two pairs."""
    e = pairs_law(d)
    n = 1 + (d.number % 3 == 0)
    ratio = lambda at, x, y: mp.log(e["P|"]([y], [x]) / lookup(at, "Q_theta|")([y], [x]))
    draws = [*itertools.product(e["law_P"], repeat=n)]
    law = [
        (mp.fprod(w for w, _ in s), {"x": column(c["X"] for _, c in s), "y": column(c["Y"] for _, c in s)})
        for s in draws
    ]
    e |= {"n": n, "x": law[0][1]["x"], "y": law[0][1]["y"], "law": law}
    e["R_n"] = Let(
        lambda at: lambda theta: mean(ratio(at, *xy) for xy in zip(at["x"][:, 0], at["y"][:, 0], strict=True))
    )
    of = lambda at: m.variance(
        column(w for w, _ in e["law_P"]), column(ratio(at, c["X"], c["Y"]) for _, c in e["law_P"])
    )
    return e | {"sigma_theta": Let(lambda at: mp.sqrt(of(at)))}


def surprise(d: Draw) -> Env:
    """s by an integral, which no logarithm enters; u within the two powers or not."""
    c, u, v = d.real(), [mp.mpf(1), mp.mpf("1e-9"), *(d.share() for _ in "1234")][d.number], d.share()
    n = (3, 7, 1, 5, 20, 4)[d.number]
    steps = max(0, int(-n * mp.log(u) / mp.log(2)) + (0, 0, 0, 0, -1, 1)[d.number])
    ends = lambda u: [*(u * mp.mpf(2) ** k for k in range(80) if u * 2**k < 1), mp.mpf(1)]
    s = cache(lambda u: c * mp.quad(lambda x: 1 / x, ends(u)) if u < 1 else mp.mpf(0))
    return {"s": s, "u": u, "v": v, "m": steps, "n": n, "c": c}


def code(d: Draw) -> Env:
    """The shortest whole lengths that the probabilities allow, found by counting; powers of two in one draw."""
    p = column([0.5, 0.25, 0.125, 0.125]) if d.number == 4 else d.probs()
    p = column([mp.mpf(1) - mp.mpf("1e-9"), mp.mpf("1e-9")]) if d.number == 1 else p
    lengths = [next(n for n in range(400) if mp.mpf(2) ** -n <= x) for x in p[:, 0]]
    likely = 1 + [*p[:, 0]].index(max(p[:, 0]))
    return m.one(d) | {
        "P": p,
        "p": p,
        "ell": column(lengths),
        "H": entropy,
        **dict(zip("ki", (likely, len(p))[:: (-1) ** d.number], strict=True)),
    }


# ---------------------------------------------------------------------------------------- 4, gradients


def family(d: Draw) -> Env:
    """A binomial law, or a geometric one, whose mean and normaliser have closed forms."""
    if d.number % 2:
        most, z = (1, 3, 6)[d.number // 2], mp.mpf(d.gauss(0, 3))
        h, values = lambda y: mp.binomial(most, y), range(most + 1)
        psi, P = (
            lambda g: most * m.softplus(g),
            lambda y, g: mp.binomial(most, y) * sigmoid(g) ** y * sigmoid(-g) ** (most - y),
        )
        average = most * sigmoid(z)
    else:
        z, h, values = mp.mpf(-1.5) - d.share(), lambda y: 1, range(100)
        psi, P = lambda g: -mp.log(1 - mp.exp(g)), lambda y, g: (1 - mp.exp(g)) * mp.exp(g) ** y
        average = 1 / mp.expm1(-z)
    law = [(P(y, z), {"y": y}) for y in values]
    assert near(average, sum(p * at["y"] for p, at in law))
    e = {"P|": lambda y, g: P(y[0], g[0]), "h": h, "psi": psi, "z": z, "y": d.randint(0, 1), "law": law}
    return e | {"over": {"y": values}}


def backward(d: Draw) -> Env:
    """A loss of the outputs z = x W^T + b of a linear layer, whose slope G in them is known."""
    N, K, inputs = (3, 1, 2, 4, 3, 2)[d.number], d.classes, (2, 3)[d.number % 2]
    a = d.matrix(N, K) + mp.mpf(1)
    z = lambda e: lookup(e, "x") @ lookup(e, "W").T + lookup(e, "b").T
    e: Env = {
        "W": d.matrix(K, inputs),
        "b": d.column(),
        "x": d.matrix(N, inputs),
        "n": 1,
        "bold 1": column([1] * N),
    }
    e |= {"X": e["x"], "cal L": Let(lambda e: np.sum(a * m.softplus(z(e)))), "over": {"n": range(1, N + 1)}}
    g = a * sigmoid(z(e))
    return e | {"g": g, "G": g}


def certain_descent(d: Draw) -> Env:
    """Softmax regression; in the last two draws the curvature along the gradient is the largest there is."""
    tight = d.number > 3
    N, K, inputs = (3, 1, 2, 4, 2, 4)[d.number], 2 if tight else d.classes, 1 if tight else 2
    x = column([1] * N) if tight else d.matrix(N, inputs)
    y = [1 + n % 2 for n in range(N)] if tight else [d.randint(1, K) for _ in range(N)]
    theta = column([mp.mpf("1e-3"), 0]) if tight else d.matrix(K, inputs)
    f = lambda w: mean(lse(z[:, None]) - z[k - 1] for z, k in zip(x @ w.T, y, strict=True))
    p = np.vstack([softmax(z[:, None]).T for z in x @ theta.T])
    g = (p - np.vstack([one_hot(k, K).T for k in y])).T @ x / N
    e = {
        "N": N,
        "X": x,
        "theta": theta,
        "g": g,
        "f": f,
        "eta": d.real(),
        "L": mp.svd_r(mp.matrix(x.tolist()), compute_uv=False)[0] ** 2 / (2 * N),
    }
    e["eta"] *= 3 / (e["L"] * e["eta"]) if d.number == 5 else 1
    largest = lambda h: max(mp.eigsy(mp.matrix(h.tolist()), eigvals_only=True))
    return e | {"lambda_max": lambda h: largest(h) if isinstance(h, np.ndarray) else h}


def margins(d: Draw) -> Env:
    """Two classes, the first one right, and by how much the second one leads."""
    z = d.column(2)
    e: Env = {"z": z, "m": z[1, 0] - z[0, 0], "nabla": "z", "sigma": sigmoid, "s": softmax(z)[0, 0]}
    e["CE"] = Let(lambda e: entropy(column([1, 0]), softmax(lookup(e, "z"))))
    right = lambda e: (softmax(lookup(e, "z")) - column([1, 0]))[:, 0]
    return e | {"MSE": Let(lambda e: mp.fsum(x * x for x in right(e)))}


# ----------------------------------------------------------------------------------------- 5, numerics

FORMATS: list[tuple[Any, int]] = [
    (np.float16, 11),
    (np.float32, 24),
    (np.float64, 53),
    (ml_dtypes.bfloat16, 8),
]


def rounding(d: Draw) -> Env:
    """A format, and a number: at random, with a long fraction, or half-way between two neighbours."""
    kind, digits = FORMATS[d.number % 4]
    x = [d.gauss(0, 1), d.gauss(0, 1000), mp.mpf(1) + mp.mpf(2) ** -digits, d.gauss(0, 1) * 2.0**-9][
        d.number % 4
    ]
    x = (1 + mp.mpf(2) ** -digits) * (-1) ** d.number if d.number > 2 else mp.mpf(x)
    rounded = lambda x: mp.mpf(float(kind(float(x))))
    u = mp.mpf(2) / mp.mpf(2) ** (digits + 1)
    return {"fl": rounded, "x": x, "delta": (rounded(x) - x) / x, "d": digits, "u": u}


def dead(d: Draw) -> Env:
    """Margins on both sides of the end of a format."""
    kind, digits = FORMATS[d.number % 3]
    a = mp.log(2) * digits + [0.01, 1, 50, -1, 0.3, 200][d.number]
    return {"fl": lambda x: mp.mpf(float(kind(float(x)))), "a": a, "u": mp.mpf(2) ** -digits}


def clipped(d: Draw) -> Env:
    e, eps = m.one(d), mp.mpf("0.07")
    e["k"] = e["y"] if d.number % 2 else e["k"]
    if d.number < 4:  # below the clip, and above, whatever is drawn
        e["z"][e["y"] - 1, 0] = min(e["z"][:, 0]) - 3 if d.number in (1, 2) else max(e["z"][:, 0])
    if d.number == 2:  # where p_y is below and p_k is above
        e["z"][e["k"] - 1, 0] = max(e["z"][:, 0])
    own = lambda at: softmax(lookup(at, "z"))[e["y"] - 1, 0]
    return e | {"epsilon": eps, "ell_epsilon": Let(lambda at: min(-mp.log(own(at)), -mp.log(eps)))}
