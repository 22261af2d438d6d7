"""The claims of chapter 13, each with an attempt to refute it; those of the experiment on its stored result."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

import xent
from xent.distillation import distillation_gradient, distillation_loss, mixed_loss

RESULT = Path(__file__).parents[2] / "experiments" / "distillation" / "digits.json"
RNG = np.random.default_rng(13)


@cache
def stored() -> dict[str, Any]:
    return json.loads(RESULT.read_text())


def difference(a: str, b: str, key: str = "nll", runs: str = "scores") -> tuple[float, float]:
    """Mean of the paired difference a - b over the seeds, and the half-width of its 95 % t interval."""
    x = np.subtract(stored()[runs][a][key], stored()[runs][b][key])
    assert len(x) == 20
    return float(x.mean()), float(stats.t.ppf(0.975, len(x) - 1) * stats.sem(x))


def both_budgets(a: str, b: str, key: str) -> list[tuple[float, float]]:
    """The difference after 1,000 steps and, of students, after 4,000."""
    budgets = ["scores"] if " teacher" in (a[-8:], b[-8:]) else ["scores", "longer"]
    return [difference(a, b, key, runs) for runs in budgets]


def clearly_above(a: str, b: str, key: str = "nll") -> bool:
    return all(mean - half > 0 for mean, half in both_budgets(a, b, key))


def no_difference_shows(a: str, b: str, key: str = "nll") -> bool:
    return all(abs(mean) < half for mean, half in both_budgets(a, b, key))


@pytest.mark.claim(
    "13",
    "Distillation is cross-entropy against a teacher's softened distribution, and its gradient is $T(q - p)$.",
)
def test_loss_and_gradient() -> None:
    """Random logits up to a hundred, temperatures from .1 to 50: against a soft cross-entropy and differences."""
    for T in (0.1, 1.0, 3.0, 50.0):
        for scale in (0.5, 10.0, 100.0):
            z, v = scale * RNG.normal(size=(2, 6))
            p, q = xent.softmax(v / T), xent.softmax(z / T)
            cross = T**2 * (xent.soft_cross_entropy(z / T, p) - xent.information.entropy(p))
            # The difference of two numbers of this size loses digits; the loss itself does not.
            assert distillation_loss(z, v, temperature=T) == pytest.approx(cross, rel=1e-6, abs=1e-10 * T**2)
            found = distillation_gradient(z, v, temperature=T)
            np.testing.assert_allclose(found, T * (q - p), rtol=1e-9, atol=1e-12 * T)
            h = 1e-5 * T
            slope = [
                (
                    distillation_loss(z + h * e, v, temperature=T)
                    - distillation_loss(z - h * e, v, temperature=T)
                )
                / (2 * h)
                for e in np.eye(6)
            ]
            np.testing.assert_allclose(slope, found, atol=1e-5 * max(T, scale))


@pytest.mark.claim(
    "13", "For a high temperature it becomes regression of centred logits, with an error of order $1/T$."
)
def test_the_limit_and_its_rate() -> None:
    """Logits with and without a common constant; the error times T settles for each pair."""
    for _ in range(20):
        z, v = 3 * RNG.normal(size=(2, 5)) + 7 * RNG.normal(size=(2, 1))
        d = z - v - (z - v).mean()
        error = [np.abs(distillation_gradient(z, v, temperature=T) - d / 5).max() * T for T in (1e3, 1e4)]
        assert error[1] == pytest.approx(error[0], rel=0.05)
        assert distillation_loss(z, v, temperature=1e5) == pytest.approx((d**2).sum() / 10, rel=1e-3)


@pytest.mark.claim(
    "13",
    "The factor $T^2$ keeps the soft part's size beside a hard part; alone it is a learning rate, and at one fixed "
    "temperature it is another $\\alpha$.",
)
@pytest.mark.claim(
    "13",
    "the mixture without $T^2$ at $\\alpha$ is, up to a factor, the mixture with it at $\\alpha / (\\alpha + (1 - "
    "\\alpha) T^2)$",
)
def test_the_factor_is_a_learning_rate_or_a_share() -> None:
    """Random mixtures: the two are proportional with the same ratio at twenty students, and at no other share."""
    for T in (2.0, 5.0, 20.0):
        for alpha in (0.1, 0.5, 0.9):
            other = alpha / (alpha + (1 - alpha) * T**2)
            z, v = RNG.normal(size=(2, 20, 6))
            y = RNG.integers(6, size=20)
            given = {"temperature": T, "reduction": "none"}
            without = mixed_loss(z, v, y, alpha=alpha, scale="none", **given)
            ratio = without / mixed_loss(z, v, y, alpha=other, scale="t_squared", **given)
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-10)
            wrong = without / mixed_loss(z, v, y, alpha=alpha, scale="t_squared", **given)
            assert np.ptp(wrong) > 1e-3
            with_factor = distillation_loss(z, v, temperature=T, reduction="none")
            alone = distillation_loss(z, v, temperature=T, scale="none", reduction="none")
            np.testing.assert_allclose(with_factor / alone, T**2, rtol=1e-10)


@pytest.mark.claim(
    "13",
    "With $T^2$ the balance hardly moves from $T = 2$ to 8; without it the soft part shrinks to less than a fiftieth",
)
def test_the_balance_of_the_two_parts() -> None:
    """Other logits than the chapter's, twice as large and half as large."""
    for scale in (1.5, 3.0, 6.0):
        Z, V = scale * RNG.normal(size=(2, 200, 10))
        hard = np.linalg.norm(xent.gradients.cross_entropy_gradient(Z, V.argmax(-1), reduction="sum"))
        sizes = {
            s: [np.linalg.norm(distillation_gradient(Z, V, temperature=T, scale=s)) / hard for T in (2, 8)]
            for s in ("t_squared", "none")
        }
        assert 0.6 < sizes["t_squared"][1] / sizes["t_squared"][0] < 1.6
        assert sizes["none"][1] / sizes["none"][0] < 0.1


@pytest.mark.claim(
    "13",
    "On digits, soft targets for a hundred images were worth more than tuned labels for the same images, at $T = 4$ "
    "more than at $T = 1$.",
)
@pytest.mark.claim("13", "soft targets on the same hundred images beat the labels, tuned labels included")
@pytest.mark.claim("13", "After 1,000 steps $T = 4$ beats 2, and from 4 to 8 no difference shows.")
@pytest.mark.claim("13", "2 and 4 are level, and 8 is better than 4 by 0.009 ± 0.007.")
def test_soft_targets_against_tuned_labels() -> None:
    """Paired intervals over twenty seeds, in loss and in error, against the best labels of the grid."""
    for key in ("nll", "error"):
        assert clearly_above("hard", "soft T=1", key)
        assert clearly_above("hard", "soft T=4", key)
        assert clearly_above("soft T=1", "soft T=4", key)
    first, later = (
        [difference(*pair, runs=runs) for pair in (("soft T=2", "soft T=4"), ("soft T=4", "soft T=8"))]
        for runs in ("scores", "longer")
    )
    assert first[0][0] > first[0][1] and abs(first[1][0]) < first[1][1]
    assert abs(later[0][0]) < later[0][1] and later[1] == pytest.approx((0.009, 0.007), abs=0.0005)
    losses = stored()["tuned"]["hard"]["validation_nll"]
    decays = stored()["settings"]["weight_decays"]
    best = int(np.argmin(losses))
    assert stored()["tuned"]["hard"]["weight_decay"] == decays[best] and 0 < best < len(decays) - 1


@pytest.mark.claim("13", "in the mixture with a fixed $\\alpha$ the missing $T^2$ costs 0.02 to 0.03 nats")
@pytest.mark.claim("13", "longer training lowers the price, to less than 0.02.")
def test_the_missing_factor_costs() -> None:
    """At 2, 4 and 8: each paired interval excludes zero, after 1,000 steps and after 4,000."""
    for T in (2, 4, 8):
        pair = f"mixed T={T}, no T^2", f"mixed T={T}"
        assert clearly_above(*pair)
        first, later = (difference(*pair, runs=runs)[0] for runs in ("scores", "longer"))
        assert 0.015 < first < 0.035 and 0 < later < min(first, 0.02)


@pytest.mark.claim("13", "four times the steps lower the test loss of every condition, labels least")
@pytest.mark.claim("13", "none chose an end of the grid.")
def test_what_the_sceptic_is_told() -> None:
    """Each paired change excludes zero; the smallest and the largest are those that the table names."""
    record, changes = stored(), {}
    for name, more in record["longer"].items():
        x = np.subtract(record["scores"][name]["nll"], more["nll"])
        assert x.mean() > stats.t.ppf(0.975, len(x) - 1) * stats.sem(x)
        changes[name] = float(x.mean())
    assert set(changes) == set(record["tuned"])
    assert min(changes, key=changes.__getitem__) == "hard" and round(changes["hard"], 3) == 0.007
    most = max(changes, key=changes.__getitem__)
    assert most == "mixed T=2, no T^2" and round(changes[most], 3) == 0.045
    ends = (record["settings"]["weight_decays"][0], record["settings"]["weight_decays"][-1])
    assert all(t["weight_decay"] not in ends for t in record["tuned"].values())


@pytest.mark.claim(
    "13",
    "A student that had the labels of the teacher's images too did better than any student of a hundred images: ask "
    "what the teacher saw.",
)
def test_what_the_teacher_saw() -> None:
    """Against every condition with a hundred images, by its paired interval."""
    few = [n for n in stored()["tuned"] if "images" not in n]
    assert len(few) == 16
    assert all(clearly_above(name, "hard, teacher's images too") for name in few)


@pytest.mark.claim("13", "With 500 images and a tuned weight decay, labels and teacher are level.")
def test_with_many_images_they_are_level() -> None:
    """Neither loss nor error shows a difference."""
    for key in ("nll", "error"):
        assert no_difference_shows("hard, 500 images", "soft T=4, 500 images", key)


@pytest.mark.claim(
    "13",
    "Between tuned label smoothing and tuned labels no difference in the error showed; smoothing raised the loss.",
)
def test_smoothing() -> None:
    """The interval of the error holds zero and is no wider than a point and a half; that of the loss does not."""
    assert no_difference_shows("smoothing", "hard", "error")
    _, half = difference("smoothing", "hard", "error")
    assert half < 0.0075
    assert clearly_above("smoothing", "hard")


@pytest.mark.claim(
    "13", "A teacher that learnt smoothed labels can be the better classifier and the worse teacher"
)
@pytest.mark.claim("13", "for them no gain from the temperature shows")
def test_a_smoothed_teacher() -> None:
    """The teacher's error is lower, its students' higher at T = 4; and T = 4 is no better than T = 1 for them."""
    assert clearly_above("plain teacher", "smoothed teacher", "error")
    assert clearly_above("smoothed teacher, soft T=4", "soft T=4", "error")
    assert no_difference_shows("smoothed teacher, soft T=1", "soft T=1", "error")
    for key in ("nll", "error"):
        assert no_difference_shows("smoothed teacher, soft T=4", "smoothed teacher, soft T=1", key)


@pytest.mark.claim("13", "On the digits, the limit and $T = 8$ could not be told apart")
def test_the_limit_on_the_digits() -> None:
    """Loss and error."""
    for key in ("nll", "error"):
        assert no_difference_shows("soft T=8", "soft T=inf", key)


@pytest.mark.claim(
    "13", "Use the same temperature on both sides: on one side only, the readout is another distribution."
)
def test_a_temperature_on_one_side() -> None:
    """Fits for five teachers: matched temperatures recover them, one side only never does."""
    for T in (0.5, 2.0, 6.0):
        P = RNG.dirichlet(np.full(4, 2.0))
        both = minimize(lambda z, T=T, P=P: distillation_loss(z, np.log(P), temperature=T), np.zeros(4)).x
        one = minimize(lambda z, T=T, P=P: xent.soft_cross_entropy(z / T, P), np.zeros(4)).x
        assert np.abs(xent.softmax(both) - P).max() < 1e-3
        assert np.abs(xent.softmax(one) - P).max() > 0.02


@pytest.mark.claim(
    "13",
    "Forward and reverse divergences can choose different students where none can match the teacher; "
    "[chapter 14](14_language_models.ipynb) shows what each does to a language model.",
)
@pytest.mark.claim("13", "With $q = p$ in reach, forward and reverse have the same minimiser.")
def test_a_student_that_cannot_follow() -> None:
    """A peak of fixed width over nine classes: two far peaks part the directions, one peak or two near ones do not."""
    k = np.arange(9.0)

    def peak(at: np.ndarray) -> np.ndarray:
        return np.asarray(xent.softmax(-(np.subtract.outer(at, k) ** 2) / 2))

    places = np.linspace(0, 8, 401)
    students = peak(places)
    for apart, shape, differ in ((6.0, 1.0, True), (0.0, 1.0, False), (0.0, 0.3, False), (1.0, 1.0, False)):
        two = 0.6 * peak(np.array(4 - apart / 2)) + 0.4 * peak(np.array(4 + apart / 2))
        teacher = two**shape / (two**shape).sum()
        forward = places[(teacher * np.log(teacher / students)).sum(1).argmin()]
        reverse = places[(students * np.log(students / teacher)).sum(1).argmin()]
        assert (abs(forward - reverse) > 1) == differ
    # In reach: softmax logits of its own for each class, from a random start.
    v = RNG.normal(size=5)
    for direction in ("forward", "reverse"):
        z = minimize(lambda z, d=direction: distillation_loss(z, v, direction=d), RNG.normal(size=5)).x
        np.testing.assert_allclose(xent.softmax(z), xent.softmax(v), atol=1e-3)


@pytest.mark.claim("13", "Accuracy does not tell the two teachers apart; probabilities do.")
@pytest.mark.claim("13", "Its bias is worse: it promises a risk that this model does not have")
@pytest.mark.claim("13", "The labels and the truth have the same mean; the labels scatter more.")
@pytest.mark.claim(
    "13",
    "the one that is a little unsure scatters no more than the truth, and the one that is far too sure by more than "
    "half as much again",
)
def test_variance_and_bias_of_teachers() -> None:
    """Other truths and models: exact mean and variance over the draw of labels and inputs, no simulation."""
    for _ in range(10):
        truth, noise = RNG.normal(size=(2, 1000, 4))
        model = RNG.uniform(0.3, 0.9) * truth + noise
        P, losses = xent.softmax(truth), -xent.log_softmax(model)
        of_labels = (P * losses**2).sum(1) - (P * losses).sum(1) ** 2
        assert (of_labels > 0).all()  # the true probabilities have none of this variance, and the same mean
        risks = {s: (xent.softmax(s * truth) * losses).sum(1) for s in (0.8, 1.0, 4.0)}
        assert (xent.softmax(0.8 * truth).argmax(1) == xent.softmax(4.0 * truth).argmax(1)).all()
        bias = {s: float((r - risks[1.0]).mean()) for s, r in risks.items()}
        assert bias[4.0] < 0 < bias[0.8] < -0.5 * bias[4.0]
        # With 200 inputs the sure teacher's bias is larger than the scatter of the labels.
        assert -bias[4.0] > np.sqrt((of_labels.mean() + risks[1.0].var()) / 200)
        scatter = {s: float(r.var()) for s, r in risks.items()}  # over the draw of the inputs
        assert scatter[0.8] < scatter[1.0]
        assert 1.5**2 * scatter[1.0] < scatter[4.0] < scatter[1.0] + of_labels.mean()


@pytest.mark.claim("13", "Of these, only the forward divergence at $T = 1$ averages the teachers.")
def test_several_teachers() -> None:
    """Random pairs of teachers of a coin: the forward loss at T = 1 finds their mean, the others do not."""
    grid = np.linspace(0.001, 0.999, 4001)
    z = np.log(np.column_stack([grid, 1 - grid]))
    for _ in range(5):
        p = np.sort(RNG.uniform(0.05, 0.95, 2))
        if p[1] - p[0] < 0.3 or abs(p.mean() - 0.5) < 0.1:
            continue
        v = np.log(np.column_stack([p, 1 - p]))

        def best(v: np.ndarray = v, **given: Any) -> float:
            losses = sum(distillation_loss(z, np.tile(t, (len(z), 1)), reduction="none", **given) for t in v)
            return float(grid[np.argmin(losses)])

        assert best() == pytest.approx(p.mean(), abs=1e-3)
        for given in ({"temperature": 8.0}, {"direction": "reverse"}, {"direction": "jsd"}):
            assert abs(best(**given) - p.mean()) > 2e-3
