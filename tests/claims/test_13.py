"""Chapter 13's claims: the loss and its limit, its balance with the labels, the digits' record, other teachers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn.functional import kl_div, log_softmax

import xent
from adversary import Array, Draw, claim, rng
from records import gain, interval, record
from xent.distillation import distillation_gradient, distillation_loss
from xent.gradients import cross_entropy_gradient
from xent.information import kl_divergence
from xent_book import behaviours, pictures


def share(alpha: float, T: float) -> float:
    return alpha / (alpha + (1 - alpha) * T**2)


@claim(
    "the mixture without $T^2$ at $\\alpha$ is, up to a multiplicative constant",
    on=lambda: (
        (K, T, a, share(a, T)) for K in (2, 6, 1000) for T in (0.5, 2.0, 20.0) for a in (0.05, 0.4, 0.9)
    ),
    but_not={"the same share": (6, 2.0, 0.3, 0.3), "the other way round": (6, 2.0, share(0.3, 2.0), 0.3)},
)
def test_the_factor_is_a_share(K: int, T: float, alpha: float, other: float) -> None:
    """Proportional, with one ratio at twenty students."""
    z, v = torch.from_numpy(rng(3).normal(size=(2, 20, K)))
    given: dict[str, Any] = {"temperature": T, "reduction": "none"}
    one = xent.torch.mixed_loss(z, v, torch.arange(20) % K, alpha=alpha, scale="none", **given)
    ratio = one / xent.torch.mixed_loss(z, v, torch.arange(20) % K, alpha=other, **given)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)


# ------------------------------------------------------------------------- the balance of the two parts


def batch(
    g: Draw, K: int, teacher: str = "normal", student: str = "normal", size: float = 3.0
) -> tuple[Array, Array, Array]:
    """Logits of a student and a teacher, and labels drawn from the teacher: fewer rows for more classes."""
    V = size * g.normal(size=({10: 200, 1000: 100}.get(K, 8), K))
    if teacher != "normal":
        V = -float(teacher[-1]) * np.log(g.permuted(np.tile(np.arange(1, K + 1), (len(V), 1)), axis=1))
    Z = {"normal": size * g.normal(size=V.shape), "flat": 0 * V, "near": V + g.normal(size=V.shape)}[student]
    return Z, V, (V + g.gumbel(size=V.shape)).argmax(-1)


def balance(Z: Array, V: Array, y: Array, X: Array | None = None, scale: Any = "t_squared") -> Array:
    """The soft over the hard gradient at T = 1, 2, 4, 8: of the logits, or of the weights behind inputs X."""
    parts = [cross_entropy_gradient(Z, y, reduction="sum")]
    for T in (1, 2, 4, 8):
        parts.append(distillation_gradient(Z, V, temperature=T, scale=scale, reduction="sum"))
    hard, *soft = (np.linalg.norm(part if X is None else X.T @ part) for part in parts)
    return np.array(soft) / hard


def linear(g: Draw, W: Array, V: Array) -> tuple[Array, Array, Array, Array]:
    """A batch of a linear student and teacher, and its inputs."""
    X = g.normal(size=(4000, len(W)))
    return X @ W, X @ V, (X @ V + g.gumbel(size=(len(X), V.shape[1]))).argmax(-1), X


BALANCES: dict[str, Callable[[Array], Any]] = {
    "it hardly moves": lambda s: s[1:].min() / s[1:].max() > 0.75,
    "less than a fiftieth": lambda s: s[3] < 1 / 50,
    "labels take over": lambda s: (np.diff(s) < 0).all() and s[3] < s[0] / 3 and s[3] < 0.2,
    "it shrinks": lambda s: (np.diff(s) < 0).all(),
    "kept": lambda s: s[3] > 0.8 * s[0],
    "less than a fifth": lambda s: s[3] < 0.2 and s[3] < s[0],
    "more than a half": lambda s: s.min() > 0.6,
}


def balances() -> Iterator[tuple[str, Array]]:
    g = rng(4)
    for kind in ((v, z) for v in ("normal", "Zipf 1", "Zipf 2") for z in ("normal", "flat", "near")):
        ten = batch(g, 10, *kind)
        yield "it hardly moves", balance(*ten)
        yield "less than a fiftieth", balance(*ten, scale="none")
        for K in (1000, 30_000, 128_256):
            yield "labels take over", balance(*batch(g, K, *kind))
    yield "it hardly moves", balance(*batch(g, 20))  # ten is not the last
    yield "it shrinks", balance(*batch(g, 30_000))
    for size in (1.0, 6.0, 10.0):  # of both networks' logits; with the largest the soft part grows at first
        yield "kept", balance(*batch(g, 10, size=size))
        yield "less than a fifth", balance(*batch(g, 30_000, size=size))
    for inputs in (16, 32):  # nearly every label is missed
        V, noise = 3 / np.sqrt(inputs) * g.normal(size=(2, inputs, 1000))
        for sizes in (balance(*linear(g, W, V)) for W in (0 * V, noise)):
            yield from (("it hardly moves", sizes), ("more than a half", sizes))


def other_balances() -> dict[str, tuple[str, Array]]:
    g = rng(5)
    learnt, sure, V = batch(g, 30_000), batch(g, 30_000), 0.75 * g.normal(size=(16, 1000))
    learnt[0][range(8), learnt[2]] += 40
    sure[0][:, 0] = sure[1][:, 0] = 60
    return {
        "no factor": ("it hardly moves", balance(*batch(g, 10), scale="none")),
        "ten classes": ("labels take over", balance(*batch(g, 10))),
        "the factor": ("less than a fiftieth", balance(*batch(g, 10))),
        "a vocabulary": ("it hardly moves", balance(*batch(g, 30_000))),
        "labels that the student has learnt": ("labels take over", balance(*learnt)),
        "rows of which both are sure": ("it shrinks", balance(*sure)),
        "the parameters' gradients over many inputs": ("labels take over", balance(*linear(g, 0 * V, V))),
        "ten classes, sure networks": ("it hardly moves", balance(*batch(g, 10, size=10.0))),
        "a vocabulary, sure networks": ("labels take over", balance(*batch(g, 30_000, size=10.0))),
        "logits twice as large": ("less than a fiftieth", balance(*batch(g, 10, size=6.0), scale="none")),
    }


@pytest.mark.slow
@claim(
    "With ten classes and $T^2$, the balance hardly changes",
    "With ten classes the factor $T^2$ keeps the soft part",
    "With a thousand classes or more, $T^2$ helps but is not enough here.",
    "With as many classes as a vocabulary has tokens, the factor is not enough",
    "so the labels' noise partly cancels",
    on=balances,
    but_not=other_balances,
)
@pytest.mark.claim("14", "with a vocabulary's logits a higher temperature can shrink the soft gradient")
def test_the_balance_of_the_two_parts(what: str, sizes: Array) -> None:
    assert BALANCES[what](sizes), sizes


@claim(
    "But from 16 classes on, the label's gradient is the larger here at every $T$",
    on=[16, 20, 64, 256, 1024],
    but_not={"eight": 8, "four": 4},
)
def test_the_figure_of_the_two_parts(classes: int) -> None:
    for temperature in np.geomspace(1, 64, 50):
        soft, _, label = pictures.sizes(temperature, classes)
        assert soft < label


@claim(
    "because $T^2$ magnifies rounding too",
    on=[(torch.bfloat16, 4.0, 1000), (torch.bfloat16, 16.0, 100), (torch.half, 100.0, 32_000)],
    but_not={
        "float32 first": (torch.bfloat16, 16.0, 100, True),
        "float32": (torch.float32, 16.0, 32_000),
        "no temperature": (torch.bfloat16, 1.0, 100),
    },
)
def test_what_the_factor_does_to_rounding(dtype: torch.dtype, T: float, K: int, first: bool = False) -> None:
    """The pasted line's gradient with respect to the logits, beside that from float32: off by a twentieth."""
    v, apart = (g := rng(5)).normal(scale=2.0, size=(64, K)), g.normal(scale=0.5, size=(64, K))
    z, v = torch.tensor(v + apart).to(dtype), torch.tensor(v).to(dtype)

    def slope_of(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        student.requires_grad_()
        p, q = (log_softmax(x / T, -1) for x in (teacher, student))
        (T**2 * kl_div(q, p, reduction="batchmean", log_target=True)).backward()
        return student.grad.double()

    exact = slope_of(z.detach().double(), v.double())
    found = slope_of(z.detach().float(), v.float()) if first else slope_of(z.detach().clone(), v)
    assert (found - exact).norm() > 0.05 * exact.norm()


@claim(
    "Together with raising $\\alpha$ to $16/17$, it would change",
    on=[(K, 16 / 17) for K in (2, 10, 1000)],
    but_not={f"alpha {alpha}": (10, alpha) for alpha in (1 / 2, 4 / 5, 15 / 16)},
)
def test_the_alpha_that_makes_up_for_the_factor(K: int, alpha: float) -> None:
    z, v = rng(21).normal(size=(2, 20, K))
    hard, soft = cross_entropy_gradient(z, np.arange(20) % K), distillation_gradient(z, v, temperature=4)
    without = (1 - alpha) * hard + alpha * soft / 16
    np.testing.assert_allclose(without / (2 / 17), (hard + soft) / 2, rtol=1e-9, atol=1e-15)


@claim(
    "with ten classes and noise of a tenth in the teacher's weights",
    on=[(10, off, seed) for off in (0.1, 0.3) for seed in range(3)],
    but_not={"a teacher that is right": (10, 0.0, 0), "a hundred classes, hardly off": (100, 0.1, 0)},
)
def test_a_factor_that_is_measured_again(K: int, off: float, seed: int) -> None:
    """A linear student with Adam, of the truth's labels and of a teacher: how far from the truth it ends."""

    def left(every: int) -> float:
        g = np.random.default_rng(seed)
        student, truth = g.normal(size=(2, 16, K))
        teacher = truth + off * g.normal(size=truth.shape)
        w, factor = torch.tensor(student), 1.0
        adam = torch.optim.Adam([w], lr=0.1)
        for step in range(151):
            x = g.normal(size=(500, 16))
            z = x @ w.numpy()
            labels = (x @ truth + g.gumbel(size=z.shape)).argmax(-1)
            hard = x.T @ cross_entropy_gradient(z, labels)
            soft = x.T @ distillation_gradient(z, x @ teacher, temperature=4)
            factor = float(np.linalg.norm(hard) / np.linalg.norm(soft)) if step % every == 0 else factor
            w.grad = torch.tensor((hard + soft * factor) / 2)
            adam.step()
        x = np.random.default_rng(99).normal(size=(4000, 16))
        return float(kl_divergence(xent.softmax(x @ truth), xent.softmax(x @ w.numpy())).mean())

    assert left(10) > 1.1 * left(151)


def fitted(learnt: bool) -> tuple[Callable[[Array], Array], Array]:
    """The gradient of labels in a linear student's weights, and a teacher of its kind that was fitted to labels."""
    g = rng(11)
    X, V = g.normal(size=(300, 4)), g.normal(size=(4, 3))
    seen, new = ((X @ V + g.gumbel(size=(300, 3))).argmax(-1) for _ in range(2))

    def slope(w: Array, y: Array = seen if learnt else new) -> Array:
        return (X.T @ cross_entropy_gradient(X @ w.reshape(4, 3), y)).ravel()

    loss = lambda w: float(xent.cross_entropy(X @ w.reshape(4, 3), seen))  # noqa: E731
    return slope, minimize(loss, np.zeros(12), jac=lambda w: slope(w, seen), options={"gtol": 1e-9}).x


def of_logits(K: int, soft: bool = False) -> tuple[Callable[[Array], Array], Array]:
    _, V, y = batch(rng(12), K)
    return lambda Z: distillation_gradient(Z, V) if soft else cross_entropy_gradient(Z, y), V


@claim(
    "As the student approaches its teacher, the soft gradient goes to zero ... remains",
    on=lambda: [fitted(learnt=False), *map(of_logits, (10, 1000, 30_000))],
    but_not=lambda: {
        "labels that the teacher learnt": fitted(True),
        "the soft gradient": of_logits(10, True),
    },
)
def test_new_labels_keep_their_gradient(gradient: Callable[[Array], Array], teacher: Array) -> None:
    noise = rng(13).normal(size=teacher.shape)
    far, near = (np.linalg.norm(gradient(teacher + d * noise)) for d in (1.0, 1e-3))
    assert near > far / 50


# ----------------------------------------------------------------------------- the experiment on the digits

DIGITS = record("distillation/digits")
RUNS = {"early": "scores", "later": "longer"}


def digits(row: str) -> None:
    """A row such as "later, nll: a > b"; without the first words, at both budgets, in loss and error.

    `>` is clearly above, `~` not told apart, `<=` at most .005 above. What was trained once, a teacher, has no later
    score.
    """
    where, _, says = row.rpartition(": ")
    a, sign, b = re.split(" (>|~|<=) ", says)
    asked = set(where.split(", ")) - {""}
    for when, runs in RUNS.items():
        for key in ("nll", "error"):
            if asked <= {when, key} and not (a.endswith(" teacher") and when == "later"):
                x = np.subtract(DIGITS[runs][a][key], DIGITS[runs][b][key])
                assert len(x) == 20
                low, high = interval(x)
                assert {">": low > 0, "~": low < 0 < high, "<=": high < 0.005}[sign]


def gains(better: str, worse: str, key: str = "0.01", other: str = "0.01", least: float = 0.0) -> None:
    """In experiments/distillation/teachers, of which the learning rates here are those that validation chose."""
    arms = record("distillation/teachers")["arms"]
    for arm, rate in ((better, key), (worse, other)):
        tried = arms[arm]["rates"]
        assert rate == min(tried, key=lambda r: tried[r]["validation_nll"]) or rate == "0.01"
    x = gain(better, worse, key, other)
    assert len(x) == 20 and interval(x).low > least


test_another_teacher_and_learning_rate = claim(
    "Where it too was chosen for labels and soft targets at $T = 4$",
    "Students of a teacher with 4 units, which errs on a fifth",
    on=[
        ("teacher of 64", "labels", "0.01", "0.03", 0.1),
        ("teacher of 64", "labels", "0.01", "0.01", 0.1),
        ("labels", "teacher of 4", "0.01", "0.01", 0.1),
        ("teacher of 256", "teacher of 64"),
    ],
    but_not={
        "exchanged": ("labels", "teacher of 64", "0.03", "0.01"),
        "16 and 64": ("teacher of 64", "teacher of 16"),
        "a rate that was not chosen": ("teacher of 64", "labels", "0.03", "0.03"),
    },
)(gains)
test_what_the_teacher_is_worth = claim(
    "On digits, the teacher's soft targets for a hundred images",
    "The teacher's soft targets on the same hundred images",
    "A temperature above 1 therefore added to the gain,",
    "A student that also had the labels of the teacher's images",
    "with 500, no difference between labels",
    on=[
        *(f"{a} > {b}" for a, b in (("hard", "soft T=1"), ("hard", "soft T=4"), ("soft T=1", "soft T=4"))),
        *("soft T=1 > soft T=2", "soft T=1 > soft T=8", "hard, 500 images ~ soft T=4, 500 images"),
        *(f"nll: {a} > hard, teacher's images too" for a in DIGITS["tuned"] if "images" not in a),
    ],
    but_not={
        "the order turned round": "soft T=4 > hard",
        "the smoothed teacher's: fewer errors, a higher loss": "hard > smoothed teacher, soft T=4",
        "two temperatures between which nothing shows": "soft T=4 > soft T=8",
        "the labels of 800 against themselves": "nll: hard, teacher's images too > hard, teacher's images too",
        "the plain teacher": "nll: plain teacher > hard, teacher's images too",
        "the best student of a hundred images": "nll: soft T=8 > soft T=inf",
        "a hundred images": "hard ~ soft T=4",
    },
)(digits)
test_other_targets = claim(
    "In the mixture with $\\alpha = 1/2$, leaving out $T^2$ cost",
    "Label smoothing with $\\varepsilon = 0.1$ raised the loss by",
    "With $\\varepsilon = 0.003$, the best of four values",
    "a better classifier, but at $T = 4$ its students err more often",
    "the limit of high temperatures ... or better.",
    on=[
        *(f"{when}, nll: mixed T={T}, no T^2 > mixed T={T}" for when in RUNS for T in (4, 8)),
        *(f"{when}, nll: soft T=inf <= soft T=4" for when in RUNS),
        *("nll: smoothing > hard", "nll: smoothing 0.003 <= hard"),
        *("error: plain teacher > smoothed teacher", "error: smoothed teacher, soft T=4 > soft T=4"),
        "smoothed teacher, soft T=4 ~ smoothed teacher, soft T=1",
    ],
    but_not={
        "the factor turned round": "early, nll: mixed T=4 > mixed T=4, no T^2",
        "another end of the temperatures": "early, nll: soft T=1 <= soft T=4",
        "the tuned epsilon": "nll: smoothing 0.003 > hard",
        **{f"{name} as tuned": f"nll: {name} <= hard" for name in ("smoothing", "smoothing 0.03")},
        "the teachers exchanged": "error: smoothed teacher > plain teacher",
        "the students exchanged": "error: soft T=4 > smoothed teacher, soft T=4",
        "the errors at T = 1": "error: smoothed teacher, soft T=1 > soft T=1",
    },
)(digits)


@claim(
    "four times the steps lower the test loss of every condition",
    on=[("scores", "longer")],
    but_not={"fewer steps": ("longer", "scores")},
)
def test_what_longer_training_gains(first: str, then: str) -> None:
    for name in DIGITS["tuned"]:
        assert interval(np.subtract(DIGITS[first][name]["nll"], DIGITS[then][name]["nll"])).low > 0


@claim("none lay at an end of the grid.", on=[9], but_not={"a grid that ends at 0.003": 7})
def test_no_decay_is_an_end_of_the_grid(size: int) -> None:
    """Each is the best of the grid on the validation images, and of the four that smooth 0.003 is the best."""
    decays, tuned = DIGITS["settings"]["weight_decays"][:size], DIGITS["tuned"]
    for name, of in tuned.items():
        best = int(np.argmin(of["validation_nll"][:size]))
        assert of["weight_decay"] == decays[best] and 0 < best < len(decays) - 1, name
    smoothed = {a: min(of["validation_nll"]) for a, of in tuned.items() if a.startswith("smoothing")}
    assert len(smoothed) == 4 and min(smoothed, key=smoothed.__getitem__) == "smoothing 0.003"


# ------------------------------------------------------------------------------------- other teachers


@claim(
    "Use the same temperature on both sides",
    "Used without $T$, they give a different distribution unless all positive",
    on=lambda: (
        (np.r_[rng(14).dirichlet(np.ones(K)), np.zeros(zeros)], T)
        for T in (0.5, 2.0, 6.0)
        for zeros in (0, 2)
        for K in (2, 4, 10)
    ),
    but_not={
        f"equal positive probabilities of {K}, T = {T:g}": (np.repeat([1 / K, 0], [K, zeros]), T)
        for K, zeros, T in ((2, 0, 2.0), (10, 0, 0.5), (4, 3, 6.0), (1, 1, 2.0))
    },
)
def test_a_temperature_on_one_side(P: Array, T: float) -> None:
    """Both sides' readouts, where the logit of a class without probability is -inf; matched ones give P back."""
    with np.errstate(divide="ignore"):
        v = np.log(P)
    for power in (T, 1 / T):  # of the student alone, and of the teacher alone
        assert np.abs(xent.softmax(v * power) - P).max() > 1e-4
    if (P > 0).all() and len(P) < 10:
        z = minimize(lambda z: float(distillation_loss(z, v, temperature=T)), np.zeros(len(P))).x
        np.testing.assert_allclose(xent.softmax(z), P, atol=5e-3)
        alone = minimize(lambda z: float(xent.soft_cross_entropy(z / T, P)), np.zeros(len(P))).x
        np.testing.assert_allclose(xent.softmax(alone), xent.softmax(T * v), atol=5e-3)


@claim(
    "Forward and reverse divergences can lead to different students",
    on=lambda: ((first, 6.0, 1.0) for first in (0.6, *rng(6).uniform(0.55, 0.75, 3))),
    but_not={"one peak": (0.6, 0.0, 1.0), "a flat one": (0.6, 0.0, 0.3), "two near peaks": (0.6, 1.0, 1.0)},
)
def test_a_student_that_cannot_follow(first: float, apart: float, shape: float) -> None:
    """A peak of fixed width over nine classes; a teacher of two peaks, `apart` from each other."""
    places = np.linspace(0, 8, 401)
    students, low, high = (
        xent.softmax(-(np.subtract.outer(at, np.arange(9.0)) ** 2) / 2)
        for at in (places, np.array(4 - apart / 2), np.array(4 + apart / 2))
    )
    two = (first * low + (1 - first) * high) ** shape
    teacher = two / two.sum()
    forward = places[(teacher * np.log(teacher / students)).sum(1).argmin()]
    reverse = places[(students * np.log(students / teacher)).sum(1).argmin()]
    assert abs(forward - reverse) > 1


@claim(
    "Accuracy does not tell the two teachers apart",
    "This teacher's bias is worse",
    "Labels and truth give the same mean",
    "with the teacher that is a little unsure the loss scatters no more",
    on=[(seed, 0.8, 4.0) for seed in range(10)],
    but_not={"the two exchanged": (0, 4.0, 0.8), "a teacher that is hardly too sure": (0, 0.8, 1.1)},
)
def test_variance_and_bias_of_teachers(seed: int, unsure: float, sure: float) -> None:
    """Exact mean and variance over the draw of labels and inputs, no simulation."""
    g = rng(100 + seed)
    truth, noise = g.normal(size=(2, 1000, 4))
    losses, P = -xent.log_softmax(g.uniform(0.3, 0.9) * truth + noise), xent.softmax(truth)
    of_labels = (P * losses**2).sum(1) - (P * losses).sum(1) ** 2  # what the true probabilities have not
    assert (of_labels > 0).all()
    softened = {s: xent.softmax(s * truth) for s in (unsure, 1.0, sure)}
    assert (softened[unsure].argmax(1) == softened[sure].argmax(1)).all()
    risks = {s: (p * losses).sum(1) for s, p in softened.items()}
    bias, scatter = ({s: float(f(r)) for s, r in risks.items()} for f in (np.mean, np.var))
    assert bias[sure] < bias[1.0] < bias[unsure] < 1.5 * bias[1.0] - 0.5 * bias[sure]
    # With 200 inputs the sure teacher's bias is larger than the scatter of the labels.
    assert bias[1.0] - bias[sure] > np.sqrt((of_labels.mean() + scatter[1.0]) / 200)
    assert scatter[unsure] < scatter[1.0]
    assert 1.5**2 * scatter[1.0] < scatter[sure] < scatter[1.0] + of_labels.mean()


@claim(
    "The object gives {eq}`eq-kd-loss` with probabilities clipped",
    on=[(margin, T) for T in (1.0, 4.0) for margin in (-3.0, 0.0, 5.0, 12.0)],
    but_not={f"a class below 1e-7, {m:g}, T = {T:g}": (m, T) for T in (1.0, 4.0) for m in (18.0, 25.0, 35.0)},
)
def test_keras_clips_the_student(margin: float, T: float) -> None:
    """The loss and the gradient of a student that gives the teacher's class 1e-2 to 1e-15."""
    tf, keras = behaviours.tensorflow(), behaviours.keras()
    z, v = np.array([[0.0, margin * T, 0.0]]), np.array([[2.0 * T, 0.0, 0.0]])
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = keras.distillation.LogitsDistillation(T, keras.losses.KLDivergence()).compute_loss(v, x)
    assert float(loss) == pytest.approx(distillation_loss(z, v, temperature=T), rel=1e-3)
    slope = distillation_gradient(z, v, temperature=T)[0, 0]
    assert tape.gradient(loss, x).numpy()[0, 0] == pytest.approx(slope, rel=1e-3)
