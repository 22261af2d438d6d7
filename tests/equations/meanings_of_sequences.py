"""What the names stand for where losses have denominators: chapters 10, 14 and 15 and the note.

A law is a list of outcomes, of whole batches and whole sequences, so that a mean is a sum over all of them; and what
a model learns is found by a search that knows nothing of what is printed.
"""

# ruff: noqa: E731 (a lambda is a value of an environment here)

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import torch
from scipy.optimize import minimize

from equations.draws import Draw, column, entropy, kl, lse, mean, sigmoid, softmax, softplus, variance
from equations.numeric import lowest
from equations.reader import Env, Let, Of, lookup

Outcomes = list[tuple[Any, Env]]
Batches = list[tuple[Any, "Word"]]
END, SMALL = 3, mp.mpf("1e-19")


class Word(tuple[int, ...]):
    """Tokens, counted from 1; `x_{<i}` and `x_{1:n}` are parts of it."""

    def at(self, i: Any) -> Any:
        if not 1 <= (i.stop + 1 if isinstance(i, slice) else i) <= len(self) + isinstance(i, slice):
            raise IndexError(i)
        return Word(self[i]) if isinstance(i, slice) else self[int(i) - 1]


class Law(np.ndarray):  # type: ignore[type-arg]
    """A column of probabilities; p(v) is the entry p_v."""

    def __call__(self, v: Any) -> Any:
        return self[int(v) - 1, 0]


def pick(d: Draw, *options: Any) -> Any:
    """One of the options, the next for each draw."""
    return options[d.number % len(options)]


def law(values: Iterable[Any]) -> Any:
    return column(values).view(Law)


def probs(d: Draw, n: int = 3) -> Any:
    return law(d.probs(n)[:, 0])


def mild(d: Draw, n: int = 3) -> Any:
    """Probabilities that are not far from each other, whatever the scale."""
    return law(softmax(column(d.gauss(0, 1) for _ in range(n)))[:, 0])


def normal(values: Iterable[Any]) -> Any:
    values = [*values]
    return law(v / mp.fsum(values) for v in values)


def entry(v: Any) -> Callable[[Any], Any]:
    return lambda k: v[int(k) - 1, 0]


def single(p: Any, name: str = "x", **more: Any) -> Outcomes:
    """One outcome of p, with what depends on it."""
    return [(a, {name: k} | {n: v[k - 1, 0] for n, v in more.items()}) for k, a in enumerate(p[:, 0], 1)]


def simplex(x: Any) -> Any:
    return law(softmax(column([*x[:, 0], mp.mpf(0)]))[:, 0])


def shares(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows, whose first entries are weights, with weights that sum to one: a search stops at a small slope."""
    rows = [*rows]
    total = mp.fsum(a for a, *_ in rows)
    return [(a / total, *rest) for a, *rest in rows]


def learnt(loss: Callable[[Any], Any], n: int = 3) -> Any:
    """The distribution at which a loss is least."""
    return simplex(lowest(lambda x: loss(simplex(x)), n - 1))


def best_coin(loss: Callable[[Any], Any]) -> Any:
    """The probability at which a loss is least."""
    return sigmoid(lowest(lambda x: loss(sigmoid(x[0, 0])), 1)[0, 0])


def log_loss(weighted: Iterable[tuple[Any, Iterable[int]]], a: Any = None) -> Callable[[Any], Any]:
    """The sum over batches of a weight times the losses of their items."""

    def loss(q: Any) -> Any:
        cost = [-mp.log(p) * (1 if a is None else a[k, 0]) for k, p in enumerate(q[:, 0])]
        return mp.fsum(w * mp.fsum(cost[k - 1] for k in x) for w, x in weighted)

    weighted = [*weighted]
    return loss


def independent(p: Any, size: int) -> Batches:
    words = itertools.product(range(1, len(p) + 1), repeat=size)
    return [(mp.fprod(p[k - 1, 0] for k in x), Word(x)) for x in words]


def together(batches: Batches) -> Batches:
    """The same batches without their order."""
    found: dict[Word, Any] = defaultdict(mp.mpf)
    for chance, x in batches:
        found[Word(sorted(x))] += chance
    return [(chance, x) for x, chance in found.items()]


def sums(p: Any, x: Any, size: int, more: dict[int, Any] | None = None) -> dict[int, Any]:
    """The law of the sum of independent draws of x, added to another."""
    found: dict[int, Any] = more or {0: mp.mpf(1)}
    for _ in range(size):
        after: dict[int, Any] = defaultdict(mp.mpf)
        for (s, a), (b, k) in itertools.product(found.items(), zip(p[:, 0], x[:, 0], strict=True)):
            after[s + int(k)] += a * b
        found = after
    return found


# ------------------------------------------------------------------------------------ chapter 10: the coin


class Coin:
    """Stops with one probability, or else has one of m letters, of which each is as likely."""

    def __init__(self, stop: Any, letters: int) -> None:
        self.stop, self.letters = stop, letters
        self.costs = -mp.log(stop), -mp.log((1 - stop) / letters)

    def __call__(self, x: Any, before: Any = None) -> Any:
        if isinstance(x, Word):
            return mp.fprod(self(v, ()) for v in x)
        if before is None:  # all sequences of x tokens
            return mp.fsum(map(self, self.words(int(x))))
        return (1 - self.stop) / self.letters if x else self.stop

    def words(self, n: int) -> Iterator[Word]:
        return (Word([*x, 0]) for x in itertools.product(range(1, self.letters + 1), repeat=n - 1))

    def lengths(self) -> Iterator[tuple[Any, int]]:
        """Stop or go on, until next to nothing is left."""
        left = mp.mpf(1)
        for n in itertools.count(1):
            yield left * self.stop, n
            if (left := left * (1 - self.stop)) < SMALL:
                return

    def mean(self, f: Callable[[int], Any]) -> Any:
        return mp.fsum(a * f(n) for a, n in self.lengths())

    def cost(self, n: int) -> Any:
        return mp.fsum([self.costs[0], *[self.costs[1]] * (n - 1)])


def stop(d: Draw) -> Any:
    return mp.mpf(pick(d, 0.5, 0.45, 0.9, 0.75, 0.6))


def toss(a: Any, b: Any) -> Any:
    return kl(column([a, 1 - a]), column([b, 1 - b]))


def coin(d: Draw) -> Env:
    """A coin P with letters, a model Q of the same form, and the losses, summed over the lengths."""
    m, n = d.randint(1, 3), d.randint(1, 5)
    P, Q = Coin(stop(d), m), Coin(d.share(), m)
    e = {"beta": P.stop, "q": Q.stop, "m": m, "n": n, "P": P, "Q": Q, "x": d.choice([*P.words(n)])}
    e |= {"law": [(a, {"n": n}) for a, n in P.lengths()], "A": P.mean(lambda n: mp.mpf(1) / n), "kl": toss}
    e |= {"cal L_CE": lambda p, q: p.mean(q.cost), "H": lambda p: p.mean(p.cost)}
    return e | {"KL": lambda p, q: p.mean(lambda n: q.cost(n) - p.cost(n))}


def fair_coin(d: Draw) -> Env:
    """The coin of the first section."""
    P = Coin(mp.mpf("0.5"), d.randint(1, 3))
    return {"law": [(a, {"n": n}) for a, n in P.lengths()], "A": P.mean(lambda n: mp.mpf(1) / n)}


def optimum(d: Draw) -> Env:
    """Where the averaged loss is least."""
    e = coin(d)

    def loss(q: Any) -> Any:
        model = Coin(q, e["m"])
        return e["P"].mean(lambda n: model.cost(n) / n)

    return e | {"q^*": best_coin(loss)}


def two_losses(d: Draw) -> Env:
    """A coin's two losses, with one letter."""
    e, model = coin(d), Coin(d.share(), 1)
    cost = {"cal L_sum": e["P"].mean(model.cost), "cal L_avg": e["P"].mean(lambda n: model.cost(n) / n)}
    return e | cost | {"q": model.stop}


def batch_of_coins(d: Draw) -> Env:
    """The learnt stop probability of a batch of B, from the law of its S tokens."""
    b, size, left = stop(d), pick(d, 1, 2, 1, 3, 5), mp.mpf(1)
    found, n = Outcomes(), size
    while left > SMALL:  # the last of n tosses is the B-th that stops
        chance = mp.binomial(n - 1, size - 1) * b**size * (1 - b) ** (n - size)
        found, left, n = [*found, (chance, {"S": n})], left - chance, n + 1
    share = mp.fsum(a * size / e["S"] for a, e in found)
    best = best_coin(lambda q: -share * mp.log(q) - (1 - share) * mp.log(1 - q))
    return {"beta": b, "B": size, "law": found, "rho": mp.expm1(-mp.log(b)), "q^*": lambda *_: best}


def bounds(d: Draw) -> Env:
    """Batches of any size, and stop probabilities next to 0 and 1, where the bounds are approached."""
    b, size = pick(d, ("1e-12", 3), ("0.3", 2), ("0.999999999999", 3), ("0.97", 300), ("0.001", 17))
    cuts = lambda b: [0, *(b * 10**k for k in range(13) if b * 10**k < 1), 1]
    share = lambda B, b: B * mp.quad(lambda v: v ** (int(B) - 1) * b / (b + (1 - b) * v), cuts(b))
    return {"beta": mp.mpf(b), "B": size, "q^*": share, "sharp": True}


# --------------------------------------------------------------------------- chapter 10: weights and batches


def tilt(d: Draw) -> Env:
    """A weight for each outcome; it is the same for all in one draw."""
    P, Q, w = probs(d, 4), probs(d, 4), column([d.real()] * 4) if d.number == 4 else d.positive(4)
    best = learnt(log_loss(((p, [k]) for k, p in enumerate(P[:, 0], 1)), w), 4)
    e = {"y": d.randint(1, 4), "P": P, "Q": Q, "Q^*": best, "w": Of(entry(w), "y"), "H": entropy, "KL": kl}
    return e | {"law_P": single(P, "y"), "law_Q^*": single(best, "y")}


def harmonic(d: Draw) -> Env:
    """Sequences, some of one length, and what the mean over each teaches."""
    P, n = probs(d, 4), column(d.choice([1, 2, 7, 60]) for _ in range(4))
    best = learnt(log_loss((p / n[k - 1, 0], [k]) for k, p in enumerate(P[:, 0], 1)), 4)
    e = {"x": d.randint(1, 4), "P": P, "Q^*": best, "n": Of(entry(n), "x")}
    return e | {"law_P": single(P), "law_Q^*": single(best)}


def shared(d: Draw) -> Env:
    """Batches of B sequences, three kinds with lengths and losses."""
    p, ell, size = probs(d), d.positive(3), pick(d, 2, 1, 3, 4, 3)
    n = column(d.sample([1, 2, 5, 5, 9], 3))
    of = lambda x: mp.fsum(n[k - 1, 0] for k in x)
    weight = lambda a: mp.fsum(c / (a + of(x)) for c, x in together(independent(p, size - 1)))
    e: Env = {"B": size, "law": [(c, {"x": x}) for c, x in independent(p, size)], "law_P": single(p, n=n)}
    e |= {"n_b": Let(lambda e: n[e["x"].at(e["b"]) - 1, 0]), "ell": entry(ell), "w_B": weight}
    e |= {"S_B-1": Let(lambda e: of(e["x"][1:])), "n": n[d.randint(0, 2), 0]}
    return e | {"G": lambda u: mp.fsum(a * u ** int(k) for a, k in zip(p[:, 0], n[:, 0], strict=True))}


def companions(p: Any, n: Any, size: int) -> tuple[dict[int, Any], Any]:
    """The law of the summed length of the others in a batch, and the mean of one over it and each length."""
    others = sums(p, n, size - 1)
    return others, column(mp.fsum(a / (k + s) for s, a in others.items()) for k in n[:, 0])


def doubling(at: Callable[[int], Env], size: int) -> Env:
    """Three batch sizes, each twice the one before."""
    first = at(size)
    return first | {"sizes": [first, at(2 * size), at(4 * size)]}


def lengths(d: Draw) -> Env:
    """All sums of lengths; in one draw all lengths are equal."""
    p, n = mild(d), column([4] * 3 if d.number == 2 else d.sample([1, 2, 3, 5, 8, 9], 3))
    mu, sigma = (p.T @ n)[0, 0], mp.sqrt(variance(p, n))

    def at(size: int) -> Env:
        others, w = companions(p, n, size)
        batch = sums(p, n, 1, others)
        best = normal((w * p)[:, 0])
        e: Env = {"B": size, "law": [(a, {"bar n": mp.mpf(s) / size}) for s, a in batch.items()], "KL": kl}
        e |= {"law_Q^*": single(best, n=n), "P": p, "Q^*": best, "mu": mu, "sigma": sigma}
        return e | {"CV": mp.sqrt((p.T @ (n - mu) ** 2)[0, 0]) / mu}

    return doubling(at, 24)


def prompted(d: Draw) -> Env:
    """Answers to two prompts, three to the one that is asked; in one draw they are of one length."""
    p, n = mild(d, 5), column([*([4] * 3 if d.number == 2 else d.sample([1, 2, 3, 5, 8, 9], 3)), 2, 11])
    own, mu = normal(p[:3, 0]), (p.T @ n)[0, 0]

    def at(size: int) -> Env:
        w = companions(p, n, size)[1]
        weight = dict(zip(n[:, 0], w[:, 0], strict=True)).__getitem__
        best = learnt(log_loss((a * w[k, 0], [k + 1]) for k, a in enumerate(own[:, 0])))
        e: Env = {
            "B": size,
            "mu": mu,
            "w_B": weight,
            "y": 1 + d.number % 3,
            "n": Of(entry(n), "y"),
            "c": mp.mpf(1),
        }
        e |= {
            "P": lambda y, c: own(y),
            "Q^*": lambda y, c: best(y),
            "d": e["n"],
            "w": lambda c, y: entry(w)(y),
        }
        return e | {"law": single(own, "y"), "law_Q^*": single(best, "y")}

    return doubling(at, 24)


def ratios(d: Draw) -> Env:
    """The loss per token of batches, from how often each kind of sequence is in them."""
    kinds = 3 if d.number == 0 else 2
    p, ell = mild(d, kinds), d.positive(kinds)
    n = column(d.sample([4, 5, 7] if kinds == 3 else [1, 2, 5, 9], kinds))
    mu = (p.T @ n)[0, 0]
    e = {"n": n, "ell": ell, "mu": mu, "sigma": mp.sqrt(variance(p, n)), "R": (p.T @ ell)[0, 0] / mu}
    e |= {"Cov": lambda x, y: (variance(p, x + y) - variance(p, x - y)) / 4}

    def at(size: int) -> Env:
        found = Outcomes()
        for c in itertools.product(range(size + 1), repeat=kinds):
            if sum(c) == size:
                chance = mp.fprod(p[k, 0] ** j / mp.factorial(j) for k, j in enumerate(c))
                batch = [k for k, j in enumerate(c) for _ in range(j)]
                found.append((chance * mp.factorial(size), {"batch": batch}))
        of = lambda v: Let(lambda e: v[e["batch"][e["b"] - 1], 0])
        e_b = {"ell_b": of(ell), "n_b": of(n), "over": {"b": range(1, size + 1)}}
        return e | {"B": size, "law": found} | e_b

    return doubling(at, 4 if kinds == 3 else 10)


def contexts(d: Draw) -> Env:
    """Three tokens of two kinds, weights of the whole sequence; a context is the prefix, or the last token."""
    seen = (lambda x: x) if d.number % 2 else (lambda x: x[-1:])
    words = [Word(x) for x in itertools.product((1, 2), repeat=3)]
    P, rows = probs(d, 8), {seen(x[:i]): probs(d, 2) for x in words for i in range(3)}
    w = {x: d.positive(3) for x in words}
    tokens = [
        (a, {"x": x, "w": w[x], "i": i}) for a, x in zip(P[:, 0], words, strict=True) for i in (1, 2, 3)
    ]
    last, own = (lambda e: e["x"][e["i"] - 1]), (lambda e: e["w"][e["i"] - 1, 0])
    at = lambda c: [(a, e) for a, e in tokens if seen(e["x"][: e["i"] - 1]) == c]
    chance = lambda v, c: mp.fsum(a for a, e in at(c) if last(e) == v)
    weighted = lambda v, c: mp.fsum(a * own(e) for a, e in at(c) if last(e) == v)
    best = cache(lambda c: learnt(log_loss((a * own(e), [last(e)]) for a, e in at(c)), 2))
    e: Env = {"law": [(a, e) for a, e in tokens if e["i"] == 1], "law|": tokens, "free": "v"}
    e |= {"over": {"i": (1, 2, 3), "v": (1, 2), "c": [*rows]}, "v": d.randint(1, 2), "c": d.choice([*rows])}
    e |= {"c_i": Let(lambda e: seen(e["x"][: e["i"] - 1])), "Q": lambda v, c: rows[c](v)}
    e |= {
        "P": lambda v, c: chance(v, c) / mp.fsum(chance(k, c) for k in (1, 2)),
        "Q^*": lambda v, c: best(c)(v),
    }
    return e | {"W": lambda v, c: weighted(v, c) / chance(v, c)}


# -------------------------------------------------------------------------------- chapter 14: languages


class Language:
    """A law of whole sequences; P(c) and P(v | c) add up those that begin alike, and P_c is the next token's law."""

    def __init__(self, words: dict[Word, Any]) -> None:
        self.words, self.begins = words, defaultdict(mp.mpf)
        for x, a in words.items():
            for i in range(len(x) + 1):
                self.begins[x[:i]] += a

    def __call__(self, x: Any, before: Any = None) -> Any:
        return self.begins[x] if before is None else self.begins[(*before, int(x))] / self.begins[before]

    def at(self, c: Any) -> Any:
        return law(self(v, c) for v in (1, 2, END))

    def outcomes(self) -> Outcomes:
        return [(a, {"x": x, "n": len(x)}) for x, a in self.words.items()]

    def after(self, c: Any) -> list[tuple[Any, Word]]:
        return [(a, x) for x, a in self.words.items() if x[: len(c)] == c]


PREFIXES = [Word(c) for n in range(3) for c in itertools.product((1, 2), repeat=n)]
CERTAIN = law([0, 0, 1])


def tree(row: Callable[[Word], Any], ends: bool) -> Language:
    """Sequences of two letters at most, and then the end; or without it, what a third letter begins."""
    words, go = {}, {Word(): mp.mpf(1)}
    for c in PREFIXES:
        p = CERTAIN if ends and len(c) == 2 else row(c)
        for v in (1, 2, END):
            further = Word([*c, v])
            if v != END and len(c) < 2:
                go[further] = go[c] * p(v)
            elif p(v):
                words[further] = go[c] * p(v)
    return Language(words)


def divergence(p: Any, q: Any) -> Any:
    """Of distributions; of languages by their whole sequences."""
    if isinstance(p, Language):
        return mp.fsum(a * mp.log(a / q.begins[x]) for x, a in p.words.items())
    return kl(p, q)


def languages(d: Draw, p_ends: bool = True, q_ends: bool = False) -> Env:
    P, Q = tree(lambda c: probs(d), p_ends), tree(lambda c: probs(d), q_ends)
    e: Env = {"P": P, "Q": Q, "law_x": P.outcomes(), "law_P": P.outcomes(), "KL": divergence, "free": "v"}
    return e | {"over": {"c": PREFIXES, "v": (1, 2, END), "i": Let(lambda e: range(1, e["n"] + 1))}}


def chain(d: Draw) -> Env:
    """Any two languages, and the losses of whole sequences."""
    e = languages(d)
    x = d.choice([*e["P"].words])
    cross = lambda p, q: mp.fsum(-a * mp.log(q.begins[x]) for x, a in p.words.items())
    e |= {"x": x, "n": len(x), "KL": divergence, "cal L_CE": cross, "H": lambda p: cross(p, p)}
    return e | {"ell": lambda x: -mp.log(e["Q"].begins[x])}


def reverse(d: Draw) -> Env:
    return languages(d, False, True)


def student(d: Draw, ends: bool) -> Env:
    """A language whose rows depend on three numbers and the last letter; the other ends if this one does not."""
    slopes, scale = {c: d.matrix(3, 3) for c in (0, 1, 2)}, 1 / max(1, d.scale / 2)
    row = lambda t, c: law(softmax(scale * slopes[c[-1] if c else 0] @ column(t))[:, 0])
    made = cache(lambda t: tree(lambda c: row(t, c), ends))
    Q = Let(lambda e: made(tuple(lookup(e, "theta")[:, 0])))
    return languages(d, not ends) | {"Q": Q, "nabla": "theta", "theta": d.column(3)}


def reverse_gradient(d: Draw) -> Env:
    e = student(d, True)
    Q, P = e["Q"].of(e), e["P"]
    x = d.choice([x for x in Q.words if len(x) > 1])
    e["over"] |= {"j": Let(lambda e: range(1, e["n"] + 1))}
    later = lambda e: [kl(Q.at(e["x"][:j]), P.at(e["x"][:j])) for j in range(int(e["i"]), int(e["n"]))]
    e |= {"x": x, "n": len(x), "i": d.randint(1, len(x)), "C_i": Let(lambda e: mp.fsum(later(e)))}
    return e | {"law_Q": Q.outcomes()}


def tied(d: Draw, p_ends: bool, cost: Callable[[Env, Any, list[tuple[Any, Word, int]]], Any], by: str) -> Env:
    """One row for all prefixes that end in a letter: where the loss of whole sequences is least."""
    d.scale = min(d.scale, 4)  # the search takes differences of a loss, which see no probability of e^-100
    e, s, w = languages(d, p_ends, False), d.randint(1, 2), {c: d.real() for c in PREFIXES}
    words = e[by].words.items()
    own = shares((a, x[:i], x[i]) for x, a in words for i in range(1, len(x)) if x[i - 1] == s)
    e |= {"w": w.__getitem__, "s": s, "v": d.randint(1, END), "search": {"q": (simplex, 2)}}
    return e | {"Q_s": learnt(lambda q: cost(e, q, own))}


def arithmetic(d: Draw) -> Env:
    cost = lambda e, q, own: mp.fsum(-a * e["w"](c) * mp.log(q(v)) for a, c, v in own)
    return tied(d, True, cost, "P")


def geometric(d: Draw) -> Env:
    return tied(d, False, lambda e, q, own: mp.fsum(a * kl(q, e["P"].at(c)) for a, c, _ in own), "Q")


def top_k(d: Draw) -> Env:
    """The k first of five probabilities, the tail of both, and what the loss of these k alone teaches."""
    k, p, q = pick(d, 2, 1, 4, 3, 2), probs(d, 5), probs(d, 5)
    loss = lambda q: mp.fsum(-p[i, 0] * mp.log(q[i, 0]) for i in range(k))
    kept = learnt(loss, k) if k > 1 else law([1])
    worse = [loss((1 - tail) * kept) for tail in (mp.mpf("1e-9"), mp.mpf("0.1"), mp.mpf("0.9"))]
    assert loss(kept) < min(worse)  # whatever the tail takes costs something
    best = [*kept[:, 0], *[mp.mpf(0)] * (5 - k)]
    e: Env = {
        "p": p,
        "q": q,
        "k": k,
        "i": pick(d, 1, 5, 3, 4, 2),
        "q_i^*": Let(lambda e: best[int(e["i"]) - 1]),
    }
    e |= {"S": sum(p[:k, 0]), "S_q": sum(q[:k, 0]), "tilde p": normal(p[:k, 0]), "over": {"i": range(1, 6)}}
    return e | {"p_>k": normal(p[k:, 0]), "q_>k": normal(q[k:, 0]), "KL": kl}


def bare(d: Draw) -> Env:
    """The reverse terms of the k first of five tokens alone, and the best student, whose other tokens are alike."""
    k, p, q = pick(d, 2, 1, 4, 3), mild(d, 5), mild(d, 5)
    if k == 2:  # the terms from the second on, at their least
        p = normal([1, 1, 2, 2, 2])
        q = law([1 - sum(p[1:, 0]) / mp.e, *(p[1:, 0] / mp.e)])
    best = learnt(lambda q: mp.fsum(q[i, 0] * mp.log(q[i, 0] / p[i, 0]) for i in range(k)), k + 1)
    each = [*best[:k, 0], *[best[k, 0] / (5 - k)] * (5 - k)]
    e: Env = {"p": p, "q": q, "k": k, "S": sum(p[:k, 0]), "i": d.randint(1, 5)}
    return e | {"q_i^*": Let(lambda e: each[int(e["i"]) - 1]), "over": {"i": range(1, 6)}}


def sampled(d: Draw) -> Env:
    p, r, q, m = probs(d), probs(d), probs(d), d.randint(1, 3)
    drawn = [(a, {"v": x}) for a, x in independent(r, m)]
    return {"p": p, "q": q, "r": r, "m": m, "over": {"i": range(1, 4)}, "law_v": drawn}


def denominator(d: Draw) -> Env:
    """The mean over each sequence, and what hard labels teach after a prefix."""
    e, c = languages(d), d.choice([c for c in PREFIXES if len(c) < 2])
    P = e["P"]

    @cache
    def weight(c: Any, v: Any = None) -> Any:
        own = [(a, len(x)) for a, x in P.after(c if v is None else (*c, int(v)))]
        return mp.fsum(a / n for a, n in own) / mp.fsum(a for a, _ in own) if own else mp.mpf(0)

    def best() -> Any:
        own = shares((a / len(x), x[len(c)]) for a, x in P.after(c))
        return learnt(lambda q: mp.fsum(-a * mp.log(q(v)) for a, v in own))

    return e | {"c": c, "v": d.randint(1, END), "W": weight, "Q_c^*": Let(lambda e: best())}


class Table:
    """The law of the first of three letters or the end, and of what follows each."""

    def __init__(self, d: Draw) -> None:
        self.rows = [mild(d, 4) for _ in range(4)]
        self.first, *rest = (row[:3].T.view(np.ndarray) for row in self.rows)
        self.on = np.vstack(rest)

    def at(self, s: Any) -> Any:
        return self.rows[int(s)]


def bigrams(d: Draw) -> Env:
    """Two bigram tables; their divergence, by prefixes of each length, those with one last letter together."""

    def sequences(P: Table, Q: Table) -> Any:
        total, now = (
            mp.mpf(0),
            {0: (mp.mpf(1), mp.mpf(0))},
        )  # probability, and its mean of the log-ratio so far
        while max(a for a, _ in now.values()) > SMALL:
            after: dict[int, Any] = dict.fromkeys((1, 2, 3), (mp.mpf(0), mp.mpf(0)))
            for (s, (a, r)), v in itertools.product(now.items(), (1, 2, 3, 4)):
                p = P.at(s)(v)
                ratio = (r + a * mp.log(p / Q.at(s)(v))) * p
                if v < 4:
                    after[v] = (after[v][0] + a * p, after[v][1] + ratio)
                else:
                    total += ratio
            now = after
        return total

    def compare(p: Any, q: Any) -> Any:
        whole = lambda v: column([*v[0], 1 - sum(v[0])]) if len(v) == 1 else v  # the end is the rest
        return sequences(p, q) if isinstance(p, Table) else kl(whole(p), whole(q))

    P, Q = Table(d), Table(d)
    visits, now = P.first, P.first
    while max(now[0]) > SMALL:
        now = now @ P.on
        visits = visits + now
    e: Env = {"P": P, "Q": Q, "pi_P": P.first, "pi_Q": Q.first, "T_P": P.on, "KL": compare, "v_P": visits}
    e |= {"I": np.array(np.eye(3, dtype=int), object), "over": {"s": (1, 2, 3)}}
    return e | {"v_P(": lambda s: visits[0, int(s) - 1]}


# --------------------------------------------------------------------------- chapter 15: large vocabularies


def state_of(z: Any) -> Any:
    """The largest, and the sum of the exponentials without it."""
    return column([max(z), mp.fsum(mp.exp(x) for x in z) / mp.exp(max(z))])


def circled(a: Any, b: Any) -> Any:
    """The state that two states have together, from the sums that they stand for."""
    top = max(a[0, 0], b[0, 0])
    return column([top, mp.fsum(s * mp.exp(m) for m, s in (a[:, 0], b[:, 0])) / mp.exp(top)])


def states(d: Draw) -> Env:
    """Two blocks of logits, one of them of one logit or of ties at times; and three states."""
    cut, z = d.randint(1, 6), d.column(7)
    z = column([*[1] * cut, *z[cut:, 0]]) if d.number == 4 else z
    e: Env = {"z": z, "A": {*range(1, cut + 1)}, "B": {*range(cut + 1, 8)}, "over": {"j": range(1, 8)}}
    for name, part in (("_A", z[:cut]), ("_B", z[cut:]), ("", z)):
        e |= dict(zip((f"m{name}", f"s{name}"), state_of(part[:, 0])[:, 0], strict=True))
    e |= {name: state_of(d.column(d.randint(1, 3))[:, 0]) for name in "abc"}
    return e | {"oplus": circled, "LSE_AcupB": lse(z)}


def head(d: Draw) -> Env:
    """Three hidden states of two numbers, a vocabulary of four in two blocks; the loss from softmax."""
    h, w, y, i = d.matrix(3, 2), d.matrix(4, 2), column(d.randint(1, 4) for _ in range(3)), d.randint(1, 3)
    p = lambda e, i: softmax(lookup(e, "w") @ lookup(e, "h")[i][:, None])
    each = lambda e: [-mp.log(p(e, i)[int(y[i, 0]) - 1, 0]) for i in range(3)]
    hot = lambda i: column(int(k == y[i, 0]) for k in range(1, 5))
    G = np.vstack([(p({"h": h, "w": w}, i) - hot(i)).T / 3 for i in range(3)])
    e: Env = {"h": h, "w": w, "y": y, "N": 3, "i": i, "j": y[i - 1, 0] if d.number % 2 else d.randint(1, 4)}
    e |= {"over": {"i": (1, 2, 3), "j": (1, 2, 3, 4), "blocksB": [{"B": {1, 3}}, {"B": {2, 4}}]}, "G": G}
    e |= {"cal L": Let(lambda e: mean(each(e))), "LSE": column(lse(w @ row[:, None]) for row in h)}
    return e | {"ell": Let(lambda e: column(each(e)))}


def rounded(d: Draw) -> Env:
    """Logits as bfloat16 or float16 keeps them: small, large, and half-way between two numbers."""
    kind, u = ((torch.bfloat16, 8), (torch.float16, 11))[d.number % 2]
    z = [d.gauss(0, d.scale) + pick(d, 0, 0, 60, 0, 9000) for _ in range(5)]
    z[0] = 1 + 2.0**-u if d.number == 3 else z[0]
    stored = torch.tensor(z, dtype=torch.float64)
    delta = column((stored.to(kind).double() - stored).tolist())
    worst = lambda v: 1 + int(np.argmax(v[:, 0]))
    e: Env = {"z": column(z), "delta": delta, "u": mp.mpf(2) ** -u, "over": {"j": range(1, 6)}}
    e |= dict(zip("jk", (worst(-abs(e["z"])), worst(abs(delta)))[:: (-1) ** d.number], strict=True))
    e |= {"y": worst(delta * (-1) ** d.number)}
    return e | {"ell": lambda z, y: -mp.log(softmax(z)[int(y) - 1, 0])}


def shifted(d: Draw) -> Env:
    """A penalty on log Z, and a shift of all logits."""
    P, z, strength = probs(d, 4), d.column(4), d.share()
    ell = lambda z, y: -mp.log(softmax(z)[int(y) - 1, 0])
    J = Let(lambda e: lambda z: ell(z, e["y"]) + strength * lse(z) ** 2)
    e: Env = {"z": z, "a": d.column(1)[0, 0], "lambda": strength, "law_P": single(P, "y"), "ell": ell, "J": J}
    return e | {"Z": mp.exp(lse(z)), "search": {"a": (lambda x: x[0, 0], 1)}}


def capped(d: Draw) -> Env:
    """Logits behind the soft cap: in the last draws one at the upper end, and all others at the lower."""
    K, c = pick(d, 3, 10, 2, 10, 2), d.real(0.5, 0.9) if d.number == 3 else d.real(0.5, 3)
    tanh = np.frompyfunc(lambda x: 1 - 2 / (mp.exp(2 * x) + 1), 1, 1)
    p = softmax(c * tanh(d.column(K) if d.number < 3 else column([45, *[-45] * (K - 1)])))
    e: Env = {
        "K": K,
        "c": c,
        "z": d.column(1)[0, 0] / 5,
        "p": p,
        "j": 1 + int(np.argmax(p[:, 0])),
        "sharp": True,
    }
    return e | {"tilde z": Let(lambda e: c * tanh(lookup(e, "z") / c))}


def fits(d: Draw) -> Env:
    """A law, and whether a capped model comes to it, by a search in float64; on either side of the edge."""
    spread = pick(d, 1.8, 2.2, 0.5, 4.0, 1.9)
    P = softmax(column([0, spread, d.uniform(0, spread), d.uniform(0, spread)]))
    p = P[:, 0].astype(float)
    loss = lambda x: float(np.log(np.exp(np.tanh(x)).sum()) - p @ np.tanh(x))
    found = minimize(loss, np.zeros(4), tol=1e-12, options={"maxiter": 2000}).fun
    return {"P": P, "c": 1, "over": {"j": range(1, 5)}, "holds": bool(found + p @ np.log(p) < 1e-7)}


# ---------------------------------------------------------------------------------------------- the note


def exchangeable(d: Draw) -> Batches:
    """Three kinds of items: independent, of one of two sources, without replacement, a batch of one, of three."""
    p, q, s, size = probs(d), probs(d), d.share(), pick(d, 2, 2, 2, 1, 3)
    if d.number == 1:
        both = zip(independent(p, size), independent(q, size), strict=True)
        return [(s * a + (1 - s) * b, x) for (a, x), (b, _) in both]
    if d.number == 2:
        drawn = [Word(x) for x in itertools.permutations([1, 1, 2, 3, 3, 3], size)]
        return [(mp.mpf(1) / len(drawn), x) for x in drawn]
    return independent(p, size)


def note(d: Draw, own: bool = False, batches: Batches | None = None) -> Env:
    """A loss with a random divisor, over all batches; one weight is zero in the last draw."""
    batches = batches or exchangeable(d)
    size, sizes, a = len(batches[0][1]), d.positive(3), d.positive(3)
    a[0, 0] = 0 if d.number == 4 else a[0, 0]
    a = sizes if own else a
    divide = [sum, lambda v: len(v) * max(v), mp.norm, sum, sum][0 if own else d.number % 5]
    divisor = lambda x: divide([sizes[k - 1, 0] for k in x])
    P = law(mp.fsum(c for c, x in batches if x[-1] == k) for k in (1, 2, 3))
    w = column(mp.fsum(c / divisor(x) for c, x in batches if x[-1] == k) / P(k) for k in (1, 2, 3))
    L = log_loss(((c / divisor(x), x) for c, x in together(batches)), a)
    best, x = learnt(L), 1 + list(sizes[:, 0]).index(max(sizes[:, 0]))
    e: Env = {
        "B": size,
        "P": P,
        "Q": probs(d),
        "Q^*": best,
        "cal L": L,
        "KL": kl,
        "x": x,
        "x'": x % 3 + 1,
        "free": "x",
    }
    e |= {name: Of(entry(v), "x") for name, v in (("a", a), ("d", sizes), ("w", w), ("f", d.column(3)))}
    e |= {"law": [(c, {"batch": x, "D": divisor(x)}) for c, x in batches]}
    e |= {"x_i": Let(lambda e: e["batch"].at(e["i"])), "over": {"x": (1, 2, 3), "i": range(1, size + 1)}}
    e |= {"law_P": single(P), "law_Q^*": single(best)}
    return e | {"M": lambda t: mp.fsum(p * mp.exp(-t * s) for p, s in zip(P[:, 0], sizes[:, 0], strict=True))}


def own_weights(d: Draw) -> Env:
    return note(d, True)


def summed(d: Draw) -> Env:
    """Independent draws over the sum of their sizes."""
    return note(d, True, independent(probs(d), pick(d, 2, 1, 3, 2, 4)))


def packed(d: Draw) -> Env:
    """Rows that are filled until the next item does not go in: how many there are depends on what they are."""
    p, a, sizes, room = probs(d), d.positive(3), [1, 2, 3], 4
    rows: Batches = []

    def fill(chance: Any, row: Word) -> None:
        for k in (1, 2, 3):
            if sum(sizes[j - 1] for j in (*row, k)) > room:
                rows.append((chance * p(k), row))
            else:
                fill(chance * p(k), Word((*row, k)))

    fill(mp.mpf(1), Word())
    found = [(c, {"batch": row, "D": sum(sizes[k - 1] for k in row)}) for c, row in rows]
    best = learnt(log_loss(((c / e["D"], e["batch"]) for c, e in found), a))
    e: Env = {
        "law": found,
        "Q^*": best,
        "a": entry(a),
        "free": "x",
        "x_i": Let(lambda e: e["batch"].at(e["i"])),
    }
    return e | {"over": {"x": (1, 2, 3), "i": Let(lambda e: range(1, len(e["batch"]) + 1))}}


def first_order(d: Draw) -> Env:
    """Sizes of items that are whole numbers, at times all equal."""
    p, sizes, a = (
        mild(d),
        column([3] * 3 if d.number == 2 else d.sample([1, 2, 3, 5, 8, 9], 3)),
        d.positive(3),
    )
    P_a, mu, sigma = normal((p * a)[:, 0]), (p.T @ sizes)[0, 0], mp.sqrt(variance(p, sizes))

    def at(size: int) -> Env:
        w = companions(p, sizes, size)[1]
        e: Env = {"B": size, "mu": mu, "sigma": sigma, "KL": kl, "x": 1 + d.number % 3, "law_a": single(P_a)}
        e |= {"w": Of(entry(w), "x"), "d": Of(entry(sizes), "x")}
        return e | {"P_a": P_a, "Q^*": normal((P_a * w)[:, 0])}

    return doubling(at, 24)


def proper(d: Draw) -> Env:
    """Pairs of a context and an outcome; a divisor of the contexts, of earlier pairs, of the others, or a constant.

    They are independent but in the last draw, where both are of one of two sources: there no divisor of contexts is
    free of an item, and the statement fails.
    """
    kinds = [*itertools.product((1, 2), (1, 2, 3))]
    p, a, sizes, c = probs(d, 6), d.positive(6), d.positive(6), d.randint(1, 2)
    context, at = (lambda k: kinds[k - 1][0]), (lambda c, y: kinds.index((int(c), int(y))))
    contexts = lambda x, i: sum(sizes[context(k), 0] for k in x[:2])
    earlier, others = (
        (lambda x, i: sum(sizes[k - 1, 0] for k in x[2:])),
        (lambda x, i: sizes[x[1 - i] - 1, 0]),
    )
    divisor = pick(d, contexts, earlier, others, lambda x, i: mp.mpf(2), others, contexts)
    batches, one_source = independent(p, 3 if divisor is earlier else 2), d.number % 6 == 5
    if one_source:
        one, other = (law(mp.mpf(v) / 40 for v in w) for w in ([27, 6, 3, 1, 1, 2], [1, 1, 2, 3, 6, 27]))
        pairs = zip(independent(one, 2), independent(other, 2), strict=True)
        batches, p = [((b + c) / 2, x) for (b, x), (c, _) in pairs], (one + other) / 2
    found = [
        (chance * a[k - 1, 0] / divisor(x, i), [kinds[k - 1][1]])
        for chance, x in batches
        for i, k in enumerate(x[:2])
        if context(k) == c
    ]
    best, given = learnt(log_loss(shares(found))), lambda c: mp.fsum(p[at(c, k), 0] for k in (1, 2, 3))
    e: Env = {"c": c, "Q^*": lambda y, c: best(y), "a": lambda c, y: a[at(c, y), 0], "free": "y", "y": 1}
    return e | {
        "P": lambda y, c: p[at(c, y), 0] / given(c),
        "over": {"y": (1, 2, 3)},
        "holds": not one_source,
    }


def policy(d: Draw) -> Env:
    """Groups of responses of a softmax policy, their advantages, and a divisor of the group."""
    theta, reward, sizes = d.column(3), column([1, 0, d.randint(0, 1)]), d.positive(3)
    now, group = softmax(theta), pick(d, 2, 3, 3, 1, 2)
    of = lambda v, x: [v[k - 1, 0] for k in x]
    divide = pick(d, sum, max, lambda v: mp.mpf(7), sum, sum)
    gain = lambda x: column(r - mean(of(reward, x)) / 2 for r in of(reward, x))  # a part of the baseline
    found = [(c, {"batch": x, "A": gain(x), "D": divide(of(sizes, x))}) for c, x in independent(now, group)]
    u = [mp.fsum(c * e["A"][-1, 0] / e["D"] for c, e in found if e["batch"][-1] == o) for o in (1, 2, 3)]
    e: Env = {"theta": theta, "nabla": "theta", "G": group, "law": found, "law|": found, "o": d.randint(1, 3)}
    e |= {"pi": Let(lambda e: law(softmax(lookup(e, "theta"))[:, 0])), "law_\\pi": single(now, "o")}
    e |= {"o_i": Let(lambda e: e["batch"].at(e["i"])), "o_1": Let(lambda e: e["batch"][0])}
    return e | {"u": lambda o: u[int(o) - 1] / now[int(o) - 1, 0], "over": {"i": range(1, group + 1)}}


class Response(int):
    """The number of a response; its absolute value is its length."""

    def __abs__(self) -> Any:  # type: ignore[override]
        return mp.mpf([3, 1, 4, 9][self - 1])


def simpo(d: Draw) -> Env:
    """Four responses whose preferences follow rewards, and the policy at which SimPO's loss is least."""
    ys, beta, r = (
        [Response(k) for k in (1, 2, 3, 4)],
        d.real(1, 3),
        column(d.uniform(-1, 1) for _ in range(4)),
    )
    pairs = [(i, j, sigmoid(r[i - 1, 0] - r[j - 1, 0])) for i, j in itertools.permutations(ys, 2)]

    def loss(q: Any) -> Any:
        implied = {y: beta / abs(y) * mp.log(q(y)) for y in ys}
        return mp.fsum(s * softplus(implied[j] - implied[i]) for i, j, s in pairs)

    best = learnt(loss, 4)
    e: Env = {
        "pi": best,
        "beta": beta,
        "r": lambda y: r[y - 1, 0],
        "y": ys[1 + d.number % 3],
        "over": {"y": ys},
    }
    return e | {"c": beta / abs(ys[0]) * mp.log(best(1)) - r[0, 0]}


WEAKER, ORDER = (
    "a weaker bound, which holds too",
    "an order of magnitude has no sign, and a larger one holds too",
)
ENDLESS = "twice without end is without end"
# fmt: off
HARMLESS: dict[str, dict[str, str]] = {
    "eq-avg-batch-general": {r"right) ⟨+ → -⟩ O(B^{-2}": ORDER, r") + O(B^{⟨- → +⟩2}),": ORDER,
        r"}{2 B^2} ⟨+ → -⟩ O(B^{-3}": ORDER, r"} + O(B^{⟨- → +⟩3}),": ORDER},
    "eq-avg-optimum": {r"m_{n=1}^{⟨ → 2 ⟩\infty}": ENDLESS},
    "eq-avg-shorter": {r"&\quad ⟨+ → -⟩ O(B^{-2}": ORDER, r"d + O(B^{⟨- → +⟩2}) . \en": ORDER},
    "eq-note-prompts": {r"}{B \mu} ⟨+ → -⟩ O(B^{-2}": ORDER, r"} + O(B^{⟨- → +⟩2}) . \en": ORDER},
    "eq-avg-sums": {r"m_{i=1}^{⟨ → 2 ⟩\infty}": ENDLESS, r"m_{n=1}^{⟨ → 2 ⟩\infty}": ENDLESS},
    "eq-avg-batch-bounds": {r"frac{1 ⟨- → +⟩ \beta}{B (2)": WEAKER},
    "eq-avg-ratio": {r"B \mu^2} ⟨+ → -⟩ O(B^{-2}": ORDER, r"} + O(B^{⟨- → +⟩2}).": ORDER},
    "eq-vocab-rounding": {r"|\ell(z ⟨+ → -⟩ \delta,": "the bound is even in delta", r"&\le ⟨2 → 3⟩ u \max_j": WEAKER},
    "eq-vocab-zloss-free": {r"_P\, J(z ⟨+ → -⟩ a) &= \m (2)": "a shift that is free goes either way"},
    "eq-vocab-associative": {r"-\infty, ⟨0 → 1⟩) &= a .": "what is multiplied by nothing may be anything"},
    "eq-note-first-order": {r"B \mu^2} ⟨+ → -⟩ O(B^{-2}": ORDER, r"} + O(B^{⟨- → +⟩2}),": ORDER,
        r"} + O(B^{⟨- → +⟩2}), (2)": ORDER,
        r"}{B \mu} ⟨+ → -⟩ O(B^{-2}": ORDER, r"2 \mu^2} ⟨+ → -⟩ O(B^{-3}": ORDER,
        r"} + O(B^{⟨- → +⟩3}) . \en": ORDER},
}
# fmt: on
