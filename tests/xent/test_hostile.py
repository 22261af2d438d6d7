"""Hostile input: each public function returns the right value or raises the promised error, nothing else.

The rule and the calls are those of tests/hostile.py, the oracle that of tests/hostile_oracle.py, and the
table of functions stands in tests/hostile_targets.py. Here hypothesis draws the calls, a few of each
function; `make fuzz` lets a coverage-guided fuzzer draw them for as long as you like.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hostile
import hostile_oracle as oracle
import hostile_targets
import xent
import xent_book.exercises
import xent_book.frameworks
from hostile import Given, Target, Violation, evaluate, judge

# No example is replayed from a database, and none is explained: what is tried is the same at every run.
PHASES = (Phase.generate, Phase.shrink)
# A call takes some hundred choices; the last ones of a long one are the simplest.
LENGTH = 300
EXAMPLES = {"xent_book.frameworks.diagnose": 5, "xent_book.exercises.check": 40}


def calls(target: Target) -> st.SearchStrategy[hostile.Call]:
    """Draw calls of a function: choices from even bytes, which hypothesis makes simpler where it can."""
    # Drawn one by one, choices are far from even: hypothesis likes what is small and what it has had.
    return st.binary(min_size=LENGTH, max_size=LENGTH).map(
        lambda data: hostile.draw(hostile.Bytes(data), target)
    )


@pytest.mark.slow  # the expressions below, each a finding of this test or of the fuzzer, are quick
@pytest.mark.parametrize("name", hostile_targets.TARGETS)
def test_the_rule_holds(name: str) -> None:
    target = hostile_targets.TARGETS[name]
    seen: set[str] = set()

    @settings(
        max_examples=EXAMPLES.get(name, 100),
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=PHASES,
    )
    @given(calls(target))
    def hold(call: hostile.Call) -> None:
        try:
            seen.add(judge(call))
        except oracle.Unsure:
            seen.add("unsure")

    hold()
    # Not all of the calls were refused, and not all of them were welcome.
    assert "value" in seen
    assert "error" in seen or not hostile_can_fail(target)


def hostile_can_fail(target: Target) -> bool:
    return target.name not in ("xent_book.exercises.check", "xent_book.frameworks.diagnose")


def test_every_public_function_is_in_the_table() -> None:
    public = set(hostile_targets.public())
    covered = set(hostile_targets.TARGETS) | set(hostile_targets.ELSEWHERE)
    covered |= {f"xent_book.frameworks.{name}" for name in xent_book.frameworks.__all__ if name != "diagnose"}
    assert sorted(public - covered) == []
    assert sorted(set(hostile_targets.TARGETS) - public - {"xent_book.frameworks.diagnose"}) == []


@pytest.mark.parametrize("name", [n for n, target in hostile_targets.TARGETS.items() if not target.call])
def test_every_argument_is_drawn(name: str) -> None:
    target = hostile_targets.TARGETS[name]
    assert sorted(target.parameters()) == sorted(inspect.signature(target.function()).parameters)


# ------------------------------------------------------------------------------ the judge itself can fail


def odd(function: Callable[..., Any], given: Given, *, refuse: bool = False) -> None:
    """Judge a function of one argument, whose right value is twice its argument."""

    def model(a: oracle.Plain) -> oracle.Want:
        if refuse:
            raise oracle.Refused({"x"})
        return oracle.Want(2 * a.x.astype(np.longdouble))

    hostile.NAMES["odd"] = function
    try:
        judge(hostile.Call(Target("odd", lambda source: {"x": given}, model), {"x": given}))
    finally:
        del hostile.NAMES["odd"]


def two() -> Given:
    return Given("np.array([1.0, 2.0])", np.array([1.0, 2.0]))


def doubled(x: Any) -> Any:
    return 2 * np.asarray(x)


def in_place(x: Any) -> Any:
    x *= 2
    return x


def warning(x: Any) -> Any:
    warnings.warn("x", stacklevel=1)
    return 2 * x


def flag(x: Any) -> Any:
    return 2 * x + 0 * np.log(np.zeros(1))[0]


BREACHES: list[tuple[Callable[..., Any], str]] = [
    (lambda x: 2 * x + 1e-12, "is due"),
    (lambda x: (2 * x).astype(np.float32), "of dtype float32"),
    (lambda x: (2 * x)[:1], "of shape"),
    (lambda x: 2 * x * math.nan, "is due"),
    (in_place, "changed an argument"),
    (warning, "raised UserWarning"),
    (flag, "raised FloatingPointError"),
    (hostile.raises(KeyError("x")), "raised KeyError"),
    (hostile.raises(ValueError("x: no")), "for good arguments"),
]


def test_the_judge_lets_a_good_function_pass() -> None:
    odd(doubled, two())
    odd(hostile.raises(ValueError("x: no")), two(), refuse=True)


@pytest.mark.parametrize(("function", "complaint"), BREACHES)
def test_the_judge_sees_a_breach(function: Callable[..., Any], complaint: str) -> None:
    with pytest.raises(Violation, match=complaint):
        odd(function, two())


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (ValueError("y: no"), "was promised"),
        (ValueError("no"), "was promised"),
        (TypeError("x: no"), "was promised"),
        (IndexError("x: no"), "was promised"),
        (OverflowError("x: no"), "was promised"),
        (np.linalg.LinAlgError("x: no"), "was promised"),  # a ValueError by inheritance
    ],
)
def test_the_judge_reads_the_message(error: Exception, complaint: str) -> None:
    with pytest.raises(Violation, match=complaint):
        odd(hostile.raises(error), two(), refuse=True)


def test_the_judge_wants_an_error() -> None:
    with pytest.raises(Violation, match="where an error is due by one of"):
        odd(doubled, two(), refuse=True)


def test_the_judge_sees_a_changed_setting() -> None:
    with np.errstate(under="ignore"):
        before = np.geterr()

        def settle(x: Any) -> Any:
            torch.set_grad_enabled(False)
            return 2 * x

        try:
            with pytest.raises(Violation, match="changed a global setting"):
                odd(settle, two())
        finally:
            torch.set_grad_enabled(True)
        assert np.geterr() == before


# ------------------------------------------------------------------------------------- what it has found

Z, Y = "[[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]", "[0, 1]"
CE, TCE = f"xent.cross_entropy({Z}, {Y}, ", f"xent.torch.cross_entropy(torch.tensor({Z}), torch.tensor({Y}), "
T = f"torch.tensor({Z})"
MASK = "np.ma.array([1.0, 2.0], mask=[0, 1])"
COIN, CHAIN = "xent.sequences.GeometricSource", "xent.sequences.MarkovSource"
PAIR = "xent.scoring.expected_score({rule}, [0.5, 0.5], [0.25, 0.75])"

REFUSED: list[tuple[str, type[Exception], str]] = [
    (CE + "denominator=np.complex128(2 + 1j))", TypeError, "denominator: expected a finite number > 0"),
    (CE + "denominator=np.array(True))", TypeError, "denominator: expected"),
    (CE + "denominator=np.array('2'))", TypeError, "denominator: expected"),
    (CE + "denominator=np.timedelta64(2))", TypeError, "denominator: expected"),
    (CE + "denominator=[[1], [1, 2]])", TypeError, "denominator: expected"),
    (CE + "denominator=torch.tensor(2.0, requires_grad=True))", TypeError, "denominator: expected"),
    (CE + "denominator=torch.tensor(2.0, device='meta'))", TypeError, "denominator: expected"),
    (CE + "denominator=-10**5000)", ValueError, "denominator: expected .* got an integer of 16610 bits"),
    (CE + "axis=10**5000)", ValueError, "axis: expected an axis of logits .* got an integer of 16610 bits"),
    (CE + "axis=torch.tensor([1]))", TypeError, "axis: expected an integer"),
    (CE + "axis=torch.tensor(True))", TypeError, "axis: expected an integer"),
    (CE + "axis=np.ma.array(1, mask=True))", TypeError, "axis: expected an integer"),
    (CE + "reduction='x' * 9999)", ValueError, "reduction: expected .{0,500}$"),
    (f"xent.softmax([[{MASK}]])", TypeError, "logits: expected an array without a mask"),
    (f"xent.softmax(Holds({MASK}))", TypeError, "logits: expected an array without a mask"),
    ("xent.softmax(Refuses(KeyError('x')))", TypeError, "logits: expected an array of numbers, got Refuses"),
    (
        "xent.cross_entropy(np.zeros((0, 3)), torch.zeros(0), reduction='sum')",
        TypeError,
        "targets: expected integer",
    ),
    ("xent.scoring.log_score([[0.5, 0.5]], [[0], [1, 2]])", TypeError, "outcome: expected"),
    (
        "xent.scoring.zero_one_score(np.zeros((0, 0)), np.zeros(0, int))",
        ValueError,
        "probs: expected at least one class",
    ),
    (
        "xent.scoring.invert_smoothing(np.zeros((0, 0)), label_smoothing=0.5)",
        ValueError,
        "probs: expected at least one",
    ),
    (PAIR.format(rule="lambda q, y: 'a'"), TypeError, "rule: expected costs that are numbers, got dtype <U1"),
    (
        PAIR.format(rule="lambda q, y: np.array(1j)"),
        TypeError,
        "rule: expected costs that are numbers, got dtype compl",
    ),
    (
        "xent.scoring.elicited(xent.scoring.log_score, np.full(1000, 1e-3))",
        ValueError,
        "p: expected at most 500 classes",
    ),
    ("xent.distillation.sampled_loss([[0.0]], [[0]], [[0], [1, 2]])", TypeError, "sample_weights: expected"),
    (
        "xent.distillation.sampled_loss([[0.0]], [[0]], [1.0])",
        ValueError,
        r"sample_weights: expected shape \(1, 1\)",
    ),
    (f"xent.distillation.mixed_loss({Z}, {Z}, [0], ignore_index=-1)", ValueError, "targets: expected shape"),
    (
        f"xent.distillation.mixed_loss({Z}, {Z}, 'abc', ignore_index=-1)",
        TypeError,
        "targets: expected integer",
    ),
    (f"xent.distillation.top_k_loss({Z}, [0.0], [[0]])", ValueError, "top_log_probs: expected 2 dimensions"),
    (
        f"xent.distillation.top_k_loss({Z}, [[0.0]], [[0]], treatment=np.array(['tail'] * 2))",
        ValueError,
        "treatment: e",
    ),
    (
        "xent.distillation.sample_targets([[0.0]], 10**30, np.random.default_rng(0))",
        ValueError,
        "samples: expected",
    ),
    (
        f"{CHAIN}.fit([[0.7, 1.2]], 2)",
        TypeError,
        "sequences: expected integer class indices, got dtype float64",
    ),
    (f"{CHAIN}.fit(None, 2)", TypeError, "sequences: expected a list of lists, got NoneType"),
    (f"{CHAIN}.fit([[0]], 10**6)", ValueError, "letters: expected at most 30,000"),
    (
        f"{CHAIN}.fit([[0], [1]], 2, weights=[1e308, 1e308])",
        ValueError,
        "weights: expected a positive, finite sum",
    ),
    (f"{CHAIN}([1.0, 0.0], [[1.0, 1e-300]])", ValueError, "transition: expected every sequence to end"),
    (f"{CHAIN}([1.0, 0.0], [[1.0000005, 1e-7]])", ValueError, "transition: expected every sequence to end"),
    (
        f"{CHAIN}([0.5, 0.5], [[0.5, 0.5]]).token_mean_fit(10**30)",
        ValueError,
        r"batch_size: expected an integer up to 1e\+12",
    ),
    (
        f"{CHAIN}([0.5, 0.5], [[0.5, 0.5]]).sample(None, 2)",
        TypeError,
        "rng: expected a numpy.random.Generator",
    ),
    (
        "xent.sequences.eos_optimum(5e-324)",
        ValueError,
        "stop: expected a probability whose inverse is a float",
    ),
    ("xent.sequences.eos_optimum(0.5, 10**400)", ValueError, "batch_size: expected an integer up to"),
    (f"{COIN}(0.5).length_probabilities(10**12)", ValueError, r"n_max: expected an integer up to 1e\+09"),
    (f"{COIN}(0.5).sample(None, 3)", TypeError, "rng: expected a numpy.random.Generator, got NoneType"),
    (
        f"{COIN}(0.5).sample(np.random.default_rng(0), -3)",
        ValueError,
        "size: expected an integer >= 0, got -3",
    ),
    (f"{COIN}(0.5).sample(np.random.default_rng(0), 2.5)", TypeError, "size: expected an integer, got 2.5"),
    (TCE + "weight=[True, False, True])", TypeError, "weight: expected real numbers"),
    (
        TCE + "weight=torch.tensor([1j, 1, 1]))",
        TypeError,
        "weight: expected real numbers, got dtype torch.complex64",
    ),
    (
        TCE + "weight=np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]))",
        TypeError,
        "weight: expected an array without a mask",
    ),
    (TCE + "weight=[10**400, 1, 1])", TypeError, "weight: expected real numbers"),
    (TCE + "weight=[1e39, 1.0, 1.0])", ValueError, "weight: expected finite weights"),
    (
        "xent.torch.cross_entropy(torch.zeros(2, 1).double(), torch.tensor([0, 0]), weight=[1.5e308])",
        ValueError,
        "weight: expected weights with a finite sum",
    ),
    (
        f"xent.torch.binary_cross_entropy({T}, {T} / 3, pos_weight='a')",
        TypeError,
        "pos_weight: expected real numbers",
    ),
    (
        f"xent.torch.softmax({T}.to_sparse())",
        TypeError,
        "logits: expected a dense tensor, got layout torch.sparse_coo",
    ),
    (f"xent.torch.log_softmax({T}.to('meta'))", TypeError, "logits: expected a tensor that holds values"),
    (
        f"xent.torch.cross_entropy({T}, torch.tensor({Y}).to_sparse())",
        TypeError,
        "targets: expected a dense tensor",
    ),
    (f"xent.torch.sample_targets({T}, 2, 'x')", TypeError, "generator: expected a torch.Generator, got str"),
    (f"xent.torch.sample_targets({T}, 10**30)", ValueError, "samples: expected"),
    (
        f"xent.torch.distillation_loss({T}, {T}, temperature=1e-50)",
        ValueError,
        "temperature: expected a number > 0 in",
    ),
    (
        "xent.torch.accumulate(5, 1, targets=0)",
        TypeError,
        "batches: expected an iterable of micro-batches, got int",
    ),
    (
        "list(xent.torch.accumulate([torch.tensor([1j])], 1, targets=lambda x: x))",
        TypeError,
        "targets: expected",
    ),
]

ACC = "[[m.scale for m in w] for w in xent.torch.accumulate({batch}, {steps}, targets=lambda x: x{more})]"
TWO = "[torch.tensor([[156, 1]], dtype=torch.uint8)]"
W = "np.array([1.0, 2.0, 3.0])"
READ_ONLY = f"np.broadcast_to({W}, 3)"
RIGHT: list[tuple[str, Any]] = [
    # Beside a logit of 1e19 the others counted as its equals, and a certain hit cost log K.
    ("xent.cross_entropy([[1e308, 0.0, 0.0]], [0])", 0.0),
    ("xent.log_softmax([1e19, 0.0])", [0.0, -1e19]),
    ("xent.gradients.softmax_jacobian([1.7e308, 1e-8])", [[0.0, 0.0], [0.0, 0.0]]),
    ("xent.gradients.cross_entropy_gradient([[1e20, 0.0]], [0])", [[0.0, 0.0]]),
    ("xent.soft_cross_entropy([[1e20, 0.0]], [[1.0, 0.0]])", 0.0),
    # The gradient was zero where the teacher has no mass.
    ("xent.distillation.distillation_gradient([0.0, 0.0], [-inf, 0.0])", [0.5, -0.5]),
    # The maximum was rounded away, and with it the logarithm of the sum.
    ("xent.distillation.sampled_loss([1e300, 1e300], [0], [1.0])", math.log(2)),
    ("xent.distillation.sample_targets([1e19, 1e19], 1, np.random.default_rng(0))[1]", [1.0]),
    ("xent.distillation.distillation_loss([1e308, 1e308], [0.0, 1.0], scale='none')", 0.11094407),
    ("xent.torch.distillation_loss(torch.tensor([1e30, 1e30]), torch.tensor([0.0, 1.0]))", 0.11094407),
    # An ignored target cost -log(1 - eps).
    (
        "xent.torch.log_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), eps=0.25, ignore_index=-1, "
        "reduction='sum')",
        0.0,
    ),
    # -100 is 156 in eight bits.
    (ACC.format(batch=TWO, steps=1, more=""), [[0.5]]),
    (ACC.format(batch=TWO, steps="10**30", more=", ignore_index=10**30"), [[0.5]]),
    (TCE + "ignore_index=10**30)", 0.28872599),
    (TCE + f"weight={READ_ONLY})", 0.24909933),
    (TCE + f"weight={W}[::-1])", 0.31250199),
    (TCE + f"weight={W}.astype('>f8'))", 0.24909933),
    ("xent.torch.soft_cross_entropy(torch.tensor([[inf, 0.0]]), torch.tensor([[0.5, 0.5]]))", math.nan),
    (
        "xent.torch.top_k_loss(torch.zeros(1, 2), torch.tensor([[-691.0]]), torch.tensor([[0]]), "
        "treatment='renormalised')",
        math.log(2),
    ),
    ("xent.information.kl_divergence([0.5, 0.5], [1.0, 5e-324])", 371.52688878),
    (f"{COIN}(0.5).kl(5e-324)", 743.05377756),
    (f"{COIN}(1.0, 2).averaged_cross_entropy(1.0, 3)", 0.0),
    ("xent.scoring.invert_weighting([1.0, 0.0], weight=[1e300, 1e-300])", [1.0, 0.0]),
    ("xent.scoring.weighted_log_score([0.0, 1.0], 0, weight=[1e308, 1.0])", math.inf),
    (PAIR.format(rule="lambda q, y: np.multiply(q, 0, out=q).sum(-1) + 1"), 1.0),
    ("xent.sequences.length_weights([1, 2], 2, probabilities=[1e-301, 1.0])", [1 / 3, 1 / 4]),
    (f"{CHAIN}.fit([[0, 0], [0]], 1, weights=[1e308, 1e300]).transition", [[0.5, 0.5]]),
]


@pytest.mark.parametrize(("text", "kind", "message"), REFUSED)
def test_it_is_refused_by_name(text: str, kind: type[Exception], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match="^" + message) as caught:
            eval(text, dict(hostile.NAMES))
    assert caught.type is kind


@pytest.mark.parametrize(("text", "value"), RIGHT)
def test_it_is_right(text: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = eval(text, dict(hostile.NAMES))
    np.testing.assert_allclose(np.asarray(got, float), value, rtol=3e-7, atol=1e-300)


def test_raw_logits_in_single_precision_are_refused_in_silence() -> None:
    with pytest.raises(ValueError, match=r"^log_probs: expected logarithms"):
        xent.nll(np.array([[500.0, 0.0]], np.float32), [0])


def test_the_torch_gradient_of_a_class_that_the_teacher_rules_out() -> None:
    z = torch.zeros(2, requires_grad=True)
    xent.torch.distillation_loss(z, torch.tensor([-math.inf, 0.0])).backward()
    assert z.grad is not None
    assert z.grad.tolist() == [0.5, -0.5]


def test_a_rule_cannot_spoil_the_search() -> None:
    def careless(q: Any, y: Any) -> Any:
        q *= 0.5
        return xent.scoring.brier_score(2 * q, y)

    p = np.array([0.7, 0.3])
    np.testing.assert_allclose(xent.scoring.elicited(careless, p), p, atol=1e-6)
    np.testing.assert_allclose(xent.scoring.elicited(xent.scoring.brier_score, p), p, atol=1e-6)
    assert p.tolist() == [0.7, 0.3]


@pytest.mark.parametrize(
    "answer",
    [
        "raises(SystemExit(3))",
        "Refuses(KeyError('x'))",
        "lambda *a: Refuses(KeyError('x'))",
        "raises(Exception(Refuses(KeyError('x'))))",
        "lambda *a: np.ma.array([1.0])",
        "lambda *a: torch.zeros(2, device='meta')",
    ],
)
def test_no_answer_brings_the_check_down(answer: str) -> None:
    assert not xent_book.exercises.check("bce-from-logits", evaluate(answer))


@pytest.mark.parametrize("loss", ["raises(SystemExit(3))", "raises(Exception(Refuses(KeyError('x'))))"])
def test_no_loss_brings_the_diagnosis_down(loss: str) -> None:
    assert not xent_book.frameworks.diagnose(evaluate(loss), arrays="numpy").known
