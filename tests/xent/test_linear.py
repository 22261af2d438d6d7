"""The linear losses against the plain pair in float64: a matrix product, and a loss of its logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import xent.torch
from xent.torch import _linear_step

ROWS, WIDTH, TEACHER, CLASSES, IGNORED = (5, 7), 8, 6, 53, -100
Inputs = dict[str, Tensor]
LEARNT, DIRECTIONS = ("hidden", "weight", "bias"), ("forward", "reverse", "jsd")

# What is compared: the function, its options, and the plain loss of each row's logits (student's, teacher's).
CE, SELECTED, DISTILLED = "linear_cross_entropy", "linear_selected_log_probs", "linear_distillation_loss"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CE, {}),
    "soft cap": (CE, {"softcap": 2.0}),
    "z-loss": (CE, {"z_loss": 0.1}),
    "smoothing": (CE, {"label_smoothing": 0.1}),
    "all three": (CE, {"softcap": 3.0, "z_loss": 0.01, "label_smoothing": 0.2}),
    "by class": (CE, {"by": "class", "label_smoothing": 0.2}),
    "soft": (CE, {"soft": True}),
    "soft, all": (CE, {"soft": True, "by": "class", "softcap": 3.0, "z_loss": 0.01, "label_smoothing": 0.2}),
    "selected": (SELECTED, {"softcap": 3.0, "temperature": 0.7}),
    "cached": (DISTILLED, {"cached": True, "temperature": 1.0}),
    "cached, mixed": (DISTILLED, {"cached": True, "temperature": 3.0, "alpha": 0.3}),
    "mixed": (DISTILLED, {"direction": "reverse", "temperature": 2.0, "alpha": 0.6}),
    "labels alone": (DISTILLED, {"temperature": 2.0, "alpha": 0.0}),
    **{f"{direction}, T = {t}": (DISTILLED, {"direction": direction, "temperature": t, "scale": scale, "beta": 0.3})
       for direction in DIRECTIONS for t, scale in ((1.0, "none"), (3.0, "t_squared"))},
}  # fmt: skip


def make(dtype: torch.dtype = torch.float64, seed: int = 0) -> Inputs:
    """Random inputs, some of them ignored, some of weight zero."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    shapes = {"hidden": (*ROWS, WIDTH), "weight": (CLASSES, WIDTH), "bias": (CLASSES,),
              "teacher_hidden": (*ROWS, TEACHER), "teacher_weight": (CLASSES, TEACHER), "teacher_bias": (CLASSES,),
              "sample_weight": ROWS[1:]}  # fmt: skip
    made = {name: draw(*shape) for name, shape in shapes.items()}
    targets = torch.randint(CLASSES, ROWS, generator=generator)
    shares = (3 * draw(*ROWS, CLASSES)).softmax(-1)
    targets[0, 2:] = IGNORED
    made["sample_weight"] = made["sample_weight"].abs() * (torch.arange(ROWS[1]) != 3)
    probs, indices = (x.flip(-1) for x in shares.topk(4))
    made |= {"target_probs": shares, "class_weight": draw(CLASSES).abs(), "probs": probs}
    inputs = {name: x.to(dtype) for name, x in made.items()}
    tail = (1 - probs.sum(-1)).to(wide(dtype))
    return inputs | {"indices": indices, "tail": tail, "targets": targets}


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def ours(case: str, inputs: Inputs, **more: Any) -> Tensor:
    name, given = CASES[case]
    function, options = getattr(xent.torch, name), {**given, **more}
    common = {"sample_weight": inputs["sample_weight"], "ignore_index": IGNORED}
    hidden, weight, bias, targets = (inputs[x] for x in (*LEARNT, "targets"))
    if name != DISTILLED:
        if options.pop("by", ""):
            options["weight"] = inputs["class_weight"]
        if name != CE or "soft" in options:
            counts = inputs["sample_weight"] * (targets != IGNORED)
        if name == SELECTED:
            reduction, denominator = options.pop("reduction", "mean"), options.pop("denominator", None)
            options |= {"linear_bias": bias, "ignore_index": IGNORED, "entropy": True}
            log_p, entropy = function(hidden, weight, targets, **options)
            counts = counts.to(log_p.dtype).expand(ROWS)
            terms = counts * (0.3 * entropy - log_p)
            mean = terms.sum() / (denominator or counts.sum())
            return {"none": terms, "sum": terms.sum(), "mean": mean}[reduction]  # type: ignore[no-any-return]
        if options.pop("soft", False):
            targets, common = inputs["target_probs"], {"sample_weight": counts}
        return function(hidden, weight, targets, linear_bias=bias, **{**common, **options})
    common |= {"student_bias": bias, "targets": targets, **options}
    if common.pop("cached", False):
        cache = xent.torch.TopK(inputs["indices"], inputs["tail"], inputs["probs"])
        return function(hidden, weight, teacher_top_k=cache, **common)
    taught = inputs["teacher_hidden"], inputs["teacher_weight"]
    return function(hidden, weight, *taught, **{"teacher_bias": inputs["teacher_bias"], **common})


def plain(case: str, inputs: Inputs, reduction: str = "mean", denominator: float | None = None) -> Tensor:
    """The same from all logits at once, in float64, by definition."""
    name, given = CASES[case]
    options = dict(given)
    x = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    z = F.linear(x["hidden"], x["weight"], x["bias"])
    counts = x["targets"] != IGNORED
    labels = x["targets"].masked_fill(~counts, 0)
    w = (x["sample_weight"] * counts).expand(ROWS)
    mass = w
    if name != DISTILLED:
        c = options.get("softcap", math.inf)
        z = z if c == math.inf else c * (z / c).tanh()
        log_q = (z / options.get("temperature", 1.0)).log_softmax(-1)
        t = x["target_probs"] if "soft" in options else F.one_hot(labels, CLASSES).double()
        of_class = x["class_weight"] if "by" in options else torch.ones(CLASSES).double()
        t, smoothing = t * of_class, options.get("label_smoothing", 0.0)
        each = t.sum(-1, keepdim=True)
        t = (1 - smoothing) * t + smoothing / CLASSES * each
        z_loss = options.get("z_loss", 0.0) * z.logsumexp(-1) ** 2
        losses = -(t * log_q).sum(-1)
        if name == SELECTED:
            losses = losses - 0.3 * (log_q.exp() * log_q).sum(-1)
        mass = w * each.squeeze(-1) if "by" in options else w
        losses = losses + z_loss * each.squeeze(-1)
    else:
        alpha, cached = options.pop("alpha", 1.0), options.pop("cached", False)
        heat = options.get("temperature", 1.0)
        squared = heat**2 if options.get("scale", "t_squared") == "t_squared" else 1
        log_q = (z / heat).log_softmax(-1)
        if cached:
            p = x["probs"]
            rest = log_q.scatter(-1, x["indices"], -math.inf).logsumexp(-1)
            losses = (p * (p.log() - log_q.gather(-1, x["indices"]))).sum(-1)
            losses = squared * (losses + x["tail"] * (x["tail"].log() - rest))
        else:
            v = F.linear(x["teacher_hidden"], x["teacher_weight"], x["teacher_bias"])
            losses = xent.torch.distillation_loss(z, v, reduction="none", **options)
        hard = F.cross_entropy(z.movedim(-1, 1), labels, reduction="none")
        losses = alpha * losses + (1 - alpha) * hard
    terms = losses * w
    return {"none": terms, "sum": terms.sum(), "mean": terms.sum() / (denominator or mass.sum())}[reduction]


def gradients(loss: Tensor, inputs: Inputs, upstream: Tensor | None = None, **more: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [inputs[x] for x in LEARNT], upstream, **more))


def learnt(inputs: Inputs) -> Inputs:
    return {name: x.clone().requires_grad_(name in LEARNT) for name, x in inputs.items()}


def far(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if (
        request.param == "many blocks"
    ):  # of 4 rows, 3 of them at a time, with the weight in tiles of 12 classes
        for name, value in {"BLOCK": 0, "LEAST": 4, "STEP": 3 * CLASSES, "TILE": 12 * WIDTH}.items():
            monkeypatch.setattr(_linear_step, name, value)


# The inputs are the same numbers for both sides; float32 products of 8 terms, a softmax over 53 classes and
# sums over 35 rows lose some tens of roundings. In bfloat16 the products are float32 ones, and the gradients
# are rounded to it, by at most half of 2**-7 each.
TOLERANCE = {torch.float64: 64 * 2**-52, torch.float32: 64 * 2**-23, torch.bfloat16: 2**-8}


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", 17.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_pair(case: str, dtype: torch.dtype, reduction: str | float) -> None:
    how = {"reduction": reduction} if isinstance(reduction, str) else {"denominator": reduction}
    inputs, same = learnt(make(dtype)), learnt(make(dtype))
    expected, found = plain(case, same, **how), ours(case, inputs, **how)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert far(found, expected) < min(TOLERANCE[dtype], TOLERANCE[torch.float32])
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slopes = gradients(found, inputs, upstream.to(found.dtype)), gradients(expected, same, upstream)
    assert max(map(far, *slopes)) < TOLERANCE[dtype]


@pytest.mark.parametrize("case", ["plain", "reverse, T = 1.0"])
def test_autocast_rounds_what_it_multiplies_and_nothing_else(case: str) -> None:
    inputs = learnt(make(torch.float32))
    rounded = {
        n: x.bfloat16() if x.is_floating_point() and n != "sample_weight" else x for n, x in inputs.items()
    }
    expected = ours(case, rounded)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(case, inputs)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    for a, b in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
@pytest.mark.parametrize("case", ["all three", "forward, T = 3.0", "cached", "mixed"])
def test_what_does_not_count_may_hold_anything(case: str, spoilt: float) -> None:
    clean, inputs = make(), make()
    left_out = (inputs["targets"] == IGNORED) | (inputs["sample_weight"] == 0)
    inputs["hidden"][left_out] = inputs["teacher_hidden"][left_out] = spoilt
    inputs["probs"][left_out] = inputs["tail"][left_out] = spoilt
    inputs["indices"][left_out] = -1
    clean, inputs = learnt(clean), learnt(inputs)
    loss, expected = ours(case, inputs), ours(case, clean)
    assert torch.equal(loss, expected)
    for a, b in zip(gradients(loss, inputs), gradients(expected, clean), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("top", [1.0, 10.0, 30.0])
def test_a_cached_loss_keeps_its_promise(top: float) -> None:
    """Of L + 1, also where the teacher is sure and its entropy next to nothing."""
    rng = torch.Generator().manual_seed(0)
    for classes in (2, 12, 1000):
        teacher, student = torch.randn(2, classes, 1, generator=rng)
        teacher[0] = top
        for z in (student, teacher):
            losses = []
            for dtype in (torch.float32, torch.float64):
                cache = xent.torch.top_k_of_teacher(teacher.T.to(dtype), 1 + classes // 4)
                layer = torch.ones(1, 1, dtype=dtype), z.to(dtype)
                losses.append(xent.torch.linear_distillation_loss(*layer, teacher_top_k=cache).item())
            margin = max(float(x.max() - x.min()) for x in (teacher, z))
            assert abs(losses[0] - losses[1]) <= (8 + margin) * 2.0**-23 * (losses[1] + 1)


def test_a_call_of_pytorchs_function_works_here() -> None:
    """Also one row without a batch; distributions as targets; every option, each alone and with weights by class."""
    theirs = getattr(F, CE, None)
    if theirs is None:
        pytest.skip("from PyTorch 2.13 on")
    x = learnt(make())
    hidden, weight, bias = (x[name].detach().requires_grad_() for name in LEARNT)
    rows, t = hidden.reshape(-1, WIDTH), x["target_probs"].flatten(0, 1)
    y = x["targets"].flatten().clamp(min=0)
    of_class = x["class_weight"].detach()
    calls: list[tuple[Any, dict[str, Any]]] = [
        (y, {}),
        (y, {"weight": of_class}),
        (y, {"weight": of_class, "reduction": "none"}),
        (y, {"weight": of_class, "reduction": "sum", "linear_bias": bias}),
        (y, {"linear_bias": bias, "ignore_index": int(y[0]), "weight": of_class}),
        (y, {"label_smoothing": 0.2, "reduction": "none"}),
        (t, {}),
        (t, {"label_smoothing": 0.2, "linear_bias": bias}),
        (t, {"weight": of_class, "reduction": "sum"}),
    ]
    for targets, options in calls:
        for some in (slice(None), 1):
            arguments = rows[some], weight, targets[some]
            other = theirs(*arguments, **options)
            one = xent.torch.linear_cross_entropy(*arguments, **options)
            assert one.shape == other.shape
            torch.testing.assert_close(one, other)
            pairs = (torch.autograd.grad(loss.sum(), (hidden, weight)) for loss in (one, other))
            for a, b in zip(*pairs, strict=True):
                torch.testing.assert_close(a, b)


def test_a_sure_teacher_has_a_tail_only_as_a_mass() -> None:
    """The cache's own maker against float64; a tail that is what rounded probabilities leave of one is far off."""
    v = torch.tensor([[0.0, 12.0, 1.0, -3.0, 0.5]])
    cache = xent.torch.top_k_of_teacher(v, 2)
    exact = v.double().softmax(-1)[0, [0, 3, 4]].sum().item()
    assert cache.indices.tolist() == [[1, 2]] and cache.classes == 5
    assert math.isclose(cache.tail.item(), exact, rel_tol=1e-6)
    left = 1 - cache.probs.bfloat16().float().sum().item()
    assert not math.isclose(left, exact, rel_tol=0.5)
    # Classes whose probabilities underflow keep their order.
    far_below = torch.tensor([[0.0, -300.0, -400.0, -200.0]])
    assert xent.torch.top_k_of_teacher(far_below, 2).indices.tolist() == [[0, 3]]


ONE_ROW, HEAD = torch.ones(1, 2), torch.zeros(3, 2)
KEPT = {"indices": torch.tensor([[0, 2]]), "probs": torch.tensor([[0.5, 0.3]]), "tail": torch.tensor([0.2])}
FIRST = torch.zeros(1, 1).long()


def cached(**change: Any) -> dict[str, Any]:
    return {"teacher_top_k": xent.torch.TopK(**{**KEPT, **change})}


def live(**change: Any) -> dict[str, Any]:
    return {"teacher_hidden": ONE_ROW, "teacher_weight": HEAD, **change}


BEYOND = 1e-50, 1e50  # what float32 cannot hold: nan came back, without a word
BAD_CACHES: list[tuple[dict[str, Any], str]] = [
    ({"indices": torch.tensor([0, 1])}, r"expected indices of shape \(1, k\), got \(2,\)"),
    ({"indices": torch.tensor([[0.0, 1.0]])}, "expected integer class indices"),
    ({"probs": torch.tensor([[0.9, 0.3]])}, "expected masses that sum to one .*got a sum of 1.4"),
    ({"probs": torch.tensor([[0.2, 0.3]])}, "expected masses that sum to one .*got a sum of 0.69999"),
    ({"tail": torch.tensor([1.2])}, r"expected probabilities in \[0, 1\]"),
    ({"tail": torch.tensor([0.2]).bfloat16()}, "expected a tail in float32 or float64"),
    ({"tail": torch.tensor(0.2)}, r"expected a tail of shape \(1,\), got \(\)"),
    ({"classes": 2}, "expected a cache of the student's vocabulary, 3 classes, got one of 2"),
]
TEACHERS: list[tuple[dict[str, Any], str]] = [
    *((cached(**change), f"teacher_top_k: {said}") for change, said in BAD_CACHES),
    ({}, "teacher_hidden: expected this or teacher_top_k, got none"),
    ({**cached(), "teacher_hidden": ONE_ROW}, "teacher_hidden: expected this or teacher_top_k, got both"),
    ({**cached(), "direction": "reverse"}, "direction: expected 'forward' with"),
    ({**cached(), "teacher_weight": HEAD}, "teacher_weight: expected None with teacher_top_k"),
    ({**cached(), "alpha": 0.5}, "alpha: expected targets with an alpha below 1"),
    *((cached() | {"temperature": t}, "temperature: expected .*the range of torch.float32") for t in BEYOND),
    (live(teacher_hidden=torch.ones(2, 2)), r"teacher_hidden: expected rows of shape \(1,\)"),
    (live(teacher_weight=torch.ones(2, 2)), "teacher_weight: .*slice: student_weight"),
    (
        live(teacher_weight=torch.ones(4, 2)),
        r"teacher_weight: .* 3 rows, .* 4; .*slice: teacher_weight\[:3\]",
    ),
    (live(targets=FIRST[0], direction="jsd"), "ignore_index: expected targets and ignore_index"),
]
LABELLED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((ONE_ROW, HEAD.T, FIRST[0]), {}, r"linear_weight: expected shape \(V, 2\), .*got \(2, 3\)"),
    ((torch.tensor(1.0), HEAD, FIRST[0]), {}, r"hidden: expected shape \(..., H\), got a single number"),
    *(((ONE_ROW, HEAD, FIRST[0]), {"softcap": c}, "softcap: expected .*the range of torch.float32") for c in BEYOND),
]  # fmt: skip


def test_what_does_not_go_together_is_named() -> None:
    for given, said in TEACHERS:
        with pytest.raises((TypeError, ValueError), match=f"^{said}"):
            xent.torch.linear_distillation_loss(ONE_ROW, HEAD, **given)
    for arguments, options, said in LABELLED:
        with pytest.raises(ValueError, match=f"^{said}"):
            xent.torch.linear_cross_entropy(*arguments, **options)
    with pytest.raises(TypeError, match=r"^weight: the layer's weight is linear_weight"):
        xent.torch.linear_cross_entropy(ONE_ROW, HEAD, FIRST[0], weight=HEAD)
    z = torch.tensor([[1.0, 2.0, 3.0]])
    for temperature in BEYOND:
        with pytest.raises(ValueError, match=r"^temperature: expected .*the range of torch.float32"):
            xent.torch.top_k_of_teacher(z, 2, temperature=temperature)
        xent.torch.top_k_of_teacher(z.double(), 2, temperature=temperature)


def test_target_distributions_are_checked_without_a_copy() -> None:
    """How much all losses hold that take no distributions is asked in tests/claims/test_15.py."""
    hidden, weight = torch.randn(1600, 64, requires_grad=True), torch.randn(5000, 64, requires_grad=True)
    shares = torch.softmax(torch.randn(1600, 5000), 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        xent.torch.linear_cross_entropy(hidden, weight, shares).backward()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))
    assert held < 0.75 * shares.nbytes  # blocks of logits, and the gradients


def head(z: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A layer whose one row of logits is z."""
    return torch.ones(1, 1, dtype=dtype), torch.as_tensor(z, dtype=dtype).unsqueeze(1)


SIXTEEN = torch.arange(-8, 8) / 8.0
NEAR = SIXTEEN + torch.arange(16) % 3 * 2.0**-10
G = torch.Generator().manual_seed(0)
ROWS_OF_FLOAT, WIDE = torch.randn(7, 5, generator=G), torch.randn(9, 5, generator=G).double()
SEVEN = torch.arange(7)


# A loss, what it should be, and how far it may be off.
VALUES: list[tuple[Callable[[], Tensor], Any, float]] = [
    # 0 * inf: as in `cross_entropy`, a label or a spread without mass costs nothing, or inf, and not nan.
    *((lambda e=e, y=y: xent.torch.linear_cross_entropy(*head([-math.inf, 0.0]), y, label_smoothing=e),
       xent.torch.cross_entropy(torch.tensor([[-math.inf, 0.0]]), y, label_smoothing=e), 1e-6)
      for e in (1.0, 1e-50) for y in (torch.tensor([0]), torch.tensor([1]))),
    # Logits that differ by 2^-10, exactly; the loss is some 2^-22. Log-ratios of that size are rounded by 2^-23
    # times log-probabilities of about 4, which is 2^-11 of them.
    *((lambda d=d: xent.torch.linear_distillation_loss(*head(SIXTEEN), *head(NEAR), direction=d),
       xent.torch.distillation_loss(SIXTEEN[None].double(), NEAR[None].double(), direction=d), 2**-8)
      for d in DIRECTIONS),
    # With hidden states in float32 and a weight in float64, 1 / 7 is not rounded to float32.
    (lambda: xent.torch.linear_cross_entropy(ROWS_OF_FLOAT, WIDE, SEVEN),
     xent.torch.cross_entropy(ROWS_OF_FLOAT.double() @ WIDE.T, SEVEN), 1e-14),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(VALUES)))
def test_the_digits_of_one_loss(row: int) -> None:
    call, due, rtol = VALUES[row]
    torch.testing.assert_close(
        call().double(), torch.as_tensor(due).double().squeeze(), rtol=rtol, atol=0.0, equal_nan=True
    )
