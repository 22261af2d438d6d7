"""What chapter 8's rows and its summary say of losses, tried on other sizes, models and libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xent
from adversary import refuted, rng
from xent import denominators, diagnose
from xent_book import behaviours, symptoms

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional


def trained(
    loss: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int, lr: float
) -> float:
    """The loss after Adam has had its way with free logits."""
    z = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([z], lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss(z)
        value.backward()
        optimiser.step()
    return value.item()


@pytest.mark.claim(
    "08",
    "A fresh classifier should cost about log K: 0.693 for two classes, 2.303 for ten, 11.8 for 128,256 tokens.",
)
def test_a_fresh_network_costs_log_k() -> None:
    """PyTorch's default initialisation, seeds, noise, unbalanced labels. Would be refuted by a loss off log K by .1."""

    def says(loss: float, classes: int) -> None:
        assert abs(loss - math.log(classes)) < 0.1

    for classes, said in ((2, 0.693), (10, 2.303), (128_256, 11.8)):
        assert round(math.log(classes), 3 if classes < 1000 else 1) == said
        for seed in range(5 if classes < 1000 else 1):
            torch.manual_seed(seed)
            hidden = 64 if classes < 1000 else 16
            model = torch.nn.Sequential(
                torch.nn.Linear(20, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
            )
            y = (torch.rand(128) ** 2 * classes).long()
            with torch.no_grad():
                says(F.cross_entropy(model(torch.randn(128, 20)), y).item(), classes)
                with refuted("a last layer whose weights have the standard deviation 1"):
                    torch.nn.init.normal_(model[2].weight)
                    says(F.cross_entropy(model(torch.randn(128, 20)), y).item(), classes)


@pytest.mark.claim(
    "08",
    "The height of a plateau points to the cause: log K to a missing signal; log(e + K − 1) − 1 (1.461 for ten "
    "classes) to an extra softmax; 0.313 to 0.693, in a binary loss, to an extra sigmoid; 16.1 or 34.5 to a clip; "
    "and another floor, for a model that is always right, to smoothing or a penalty.",
)
def test_where_losses_come_to_rest() -> None:
    """Free logits, trained long: two softmaxes, two sigmoids, a detached path, smoothing, a penalty, a clip.
    Would be refuted by another height.
    """

    def says(seen: float, height: float) -> None:
        assert seen == pytest.approx(height, abs=1e-3)

    y = torch.arange(10)
    start = torch.from_numpy(rng(808).normal(size=(10, 10)))
    twice = trained(lambda z: F.cross_entropy(z.softmax(-1), y), start, 300, 3.0)
    says(twice, math.log(math.e + 9) - 1)
    # A model of a hundred classes that is always right has a positive floor without smoothing.
    many, diagonal = torch.arange(100), 99.0 * torch.eye(100, dtype=torch.float64)
    hundred = trained(lambda z: F.cross_entropy(z.softmax(-1), many), diagonal, 5, 0.3)
    assert f"{hundred:.2f}" == "3.62"
    with refuted("smoothing as the cause of every positive floor but 1.461"):
        says(hundred, 1.461)
    # Nor a model that is right on yes and no, behind two sigmoids, whatever the share of yes.
    for ones in (0, 3, 5, 8, 10):
        t = (torch.arange(10) < ones).double()
        right = 60 * (2 * t - 1)
        sigmoids = trained(lambda z, t=t: F.binary_cross_entropy_with_logits(z.sigmoid(), t), right, 5, 0.3)
        assert 0.3132 < sigmoids < 0.6932
        with refuted("smoothing or a penalty, without which there is no floor"):
            says(trained(lambda z, t=t: F.binary_cross_entropy_with_logits(z, t), right, 5, 0.3), sigmoids)
    penalised = trained(
        lambda z: F.cross_entropy(z, y) + 0.01 * z.logsumexp(1).pow(2).mean() + 0.01 * z.pow(2).mean(),
        start,
        400,
        0.3,
    )
    assert penalised > 0.1
    with refuted("the height of one softmax too many for the model without"):
        says(trained(lambda z: F.cross_entropy(z, y), start, 100, 1.0), 1.461)
    assert trained(lambda z: F.cross_entropy(z, y), start, 100, 1.0) < 0.01  # without it there is no floor
    smoothed = trained(lambda z: F.cross_entropy(z, y, label_smoothing=0.1), start, 250, 0.3)
    assert smoothed == pytest.approx(0.500, abs=5e-4)
    # A floor of its own comes with labels that contradict each other, but that model is not always right.
    noisy = trained(lambda z: F.cross_entropy(z.repeat(2, 1), torch.cat([y, y.flip(0)])), start, 250, 0.3)
    assert noisy == pytest.approx(math.log(2), abs=1e-3)
    no_signal = trained(lambda z: F.cross_entropy(0 * z, y), start, 20, 0.3)
    assert no_signal == pytest.approx(math.log(10))
    for eps, height in ((1e-7, 16.1), (1e-15, 34.5)):
        far = torch.zeros(10, 10, dtype=torch.float64)
        far[y, y] = -60
        stuck = trained(lambda z, eps=eps: -z.softmax(-1)[y, y].clamp(min=eps).log().mean(), far, 50, 0.3)
        assert stuck == pytest.approx(height, abs=0.05)


@pytest.mark.claim(
    "08",
    "The second is the entropy of the smoothed label.",
)
def test_nothing_costs_less_than_the_entropy_of_the_smoothed_label() -> None:
    """Two thousand predictions around the smoothed label. Would be refuted by one that costs less than its entropy."""

    def says(cost: np.ndarray, floor: float) -> None:
        assert cost.min() >= floor * (1 - 1e-12) and cost.min() < floor + 1e-4

    g = rng(809)
    for classes, eps in ((10, 0.1), (3, 0.4), (1000, 0.1)):
        label = np.full(classes, eps / classes)
        label[0] += 1 - eps
        floor = -(label * np.log(label)).sum()
        z = np.log(label) + g.normal(size=(2000, classes)) * 10.0 ** g.uniform(-4, 1, (2000, 1))
        cost = F.cross_entropy(
            torch.from_numpy(z), torch.zeros(2000, dtype=torch.long), label_smoothing=eps, reduction="none"
        ).numpy()
        says(cost, floor)
        with refuted("a floor a thousandth higher"):
            says(cost, 1.001 * floor)
        if classes == 10:
            assert f"{floor:.3f}" == "0.500"


@pytest.mark.claim("08", "A double softmax never gets a full nat below the uniform guess.")
def test_a_double_softmax_stays_within_a_nat_of_the_guess() -> None:
    """2 to a million classes, at the best probabilities and at others. Would be refuted by a full nat."""

    def says(best: float, classes: int) -> None:
        assert math.log(classes) - best < 1

    for classes in (2, 3, 10, 1000, 10**6):
        says(math.log(math.e + classes - 1) - 1, classes)
        if classes >= 10:
            with refuted("a softmax of logits that are 3 apart"):
                says(math.log(math.exp(3) + classes - 1) - 3, classes)
        p = torch.zeros(3, classes, dtype=torch.float64)
        p[0, 0], p[1, :2], p[2] = 1, 0.5, 1 / classes
        cost = F.cross_entropy(p, torch.zeros(3, dtype=torch.long), reduction="none")
        assert cost.argmin() == 0 and cost[0].item() == pytest.approx(math.log(math.e + classes - 1) - 1)


@pytest.mark.claim(
    "08",
    "Its floor is 0.313 for the label 1 and 0.693 for the label 0, so 0.503 where both are equally frequent.",
)
def test_the_floors_of_a_double_sigmoid() -> None:
    """Logits from -50 to 50, the best for each mixture of labels. Would be refuted by a smaller loss."""

    def says(ones: float, zeros: float) -> None:
        assert [round(v, 3) for v in (ones, zeros, (ones + zeros) / 2)] == [0.313, 0.693, 0.503]

    z = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    best = {
        label: F.binary_cross_entropy_with_logits(
            z.sigmoid(), torch.full_like(z, label), reduction="none"
        ).min().item()
        for label in (0.0, 1.0)
    }  # fmt: skip
    says(best[1.0], best[0.0])
    with refuted("the labels exchanged"):
        says(best[0.0], best[1.0])


@pytest.mark.claim(
    "08",
    "Pass logits, with `from_logits=True` in Keras, and name the arguments: three libraries then agree on the same "
    "rows of finite logits, unless some are weighted or ignored.",
)
def test_three_libraries_return_one_number() -> None:
    """Batches of several sizes, for each of the three losses. Would be refuted by two numbers."""

    def says(values: tuple[float, ...]) -> None:
        # Keras works in float32.
        assert np.allclose([float(v) for v in values], float(values[0]), rtol=1e-5)

    g = rng(811)
    losses, raw = behaviours.keras().losses, {"from_logits": True}
    for n, classes in ((1, 2), (7, 3), (20, 50)):
        z, soft = g.normal(size=(n, classes)) * 3, g.dirichlet(np.ones(classes), n)
        y, many = g.integers(0, classes, n), g.integers(0, 2, (n, classes)).astype(float)
        zt = torch.from_numpy(z)
        for values in (
            (
                xent.cross_entropy(z, y),
                F.cross_entropy(input=zt, target=torch.from_numpy(y)),
                losses.SparseCategoricalCrossentropy(**raw)(y_true=y, y_pred=z),
            ),
            (
                xent.soft_cross_entropy(z, soft),
                F.cross_entropy(input=zt, target=torch.from_numpy(soft)),
                losses.CategoricalCrossentropy(**raw)(y_true=soft, y_pred=z),
            ),
            (
                xent.binary_cross_entropy(z, many),
                F.binary_cross_entropy_with_logits(input=zt, target=torch.from_numpy(many)),
                losses.BinaryCrossentropy(**raw)(y_true=many, y_pred=z),
            ),
        ):
            says(values)
        with refuted("class weights"):
            w = torch.arange(1.0, classes + 1, dtype=zt.dtype)
            weighted = F.cross_entropy(zt, torch.from_numpy(y), weight=w)
            each = F.cross_entropy(zt, torch.from_numpy(y), weight=w, reduction="none")
            says((weighted, each.mean()))
        with refuted("Keras without from_logits=True"):
            says((xent.cross_entropy(z, y), losses.SparseCategoricalCrossentropy()(y_true=y, y_pred=z)))
        with refuted("a class at -inf, and targets of zero for it"):
            masked, none = z.copy(), soft * np.r_[np.zeros(1), np.ones(classes - 1)]
            masked[:, 0] = -np.inf
            none /= none.sum(1, keepdims=True)
            torchs = F.cross_entropy(input=torch.from_numpy(masked), target=torch.from_numpy(none))
            says((xent.soft_cross_entropy(masked, none), torchs))


@pytest.mark.claim(
    "08", "Under a mean of micro-batch means, a target counts more the fewer targets its micro-batch has."
)
def test_the_weight_of_a_target_in_a_mean_of_means() -> None:
    """Its derivative by each target's loss, for random counts. Would be refuted by a rising weight."""
    g = rng(812)
    for _ in range(10):
        counts = g.permutation(40)[:6] + 1
        losses = [torch.rand(int(n), dtype=torch.float64, requires_grad=True) for n in counts]
        torch.stack([loss.mean() for loss in losses]).mean().backward()
        weights = np.array([loss.grad[0].item() for loss in losses]) * counts.sum()
        assert np.allclose(weights, counts.mean() / counts)

        def says(seen: np.ndarray, counts: np.ndarray = counts) -> None:
            assert (np.diff(seen[np.argsort(counts)]) < 0).all()

        says(weights)
        with refuted("the weights of the pooled mean"):
            says(np.ones(6))


@pytest.mark.parametrize("zero", [0.0, np.float32(0), torch.tensor(0.0)])
def test_a_loss_of_0_has_no_multiples(zero: Any) -> None:
    for found in (symptoms.scaled_loss(2.0, zero), symptoms.nobody_divides(zero, zero, 4)):
        assert found == "cannot tell"


@pytest.mark.slow
@pytest.mark.claim(
    "08", "What is unusual stands behind an exclamation mark; the name of the loss is not read."
)
def test_diagnose_tells_losses_apart_by_calling_them() -> None:
    """Five faulty losses behind functions that say nothing.
    Would be refuted by a fault that is named by a name alone.
    """

    def fault(function: Callable[..., object]) -> tuple[object, ...]:
        d = diagnose(function)
        return d.sign, d.unit, d.reads, d.denominator, d.smoothing, d.added

    right = fault(lambda a, b: F.cross_entropy(a, b))
    assert right == (1, "nats", "logits", "N", 0.0, "")
    marked = [
        line for line in repr(diagnose(lambda a, b: -F.cross_entropy(a, b))).splitlines() if line[0] == "!"
    ]
    assert marked[0].startswith("! the sign is flipped") and "! the sign" not in repr(
        diagnose(F.cross_entropy)
    )
    faults = [
        fault(lambda a, b: -F.cross_entropy(a, b)),
        fault(lambda a, b: F.cross_entropy(a, b) / math.log(2)),
        fault(lambda a, b: F.cross_entropy(a.softmax(-1), b)),
        fault(lambda a, b: F.nll_loss(a.log_softmax(0), b)),
        fault(lambda a, b: F.cross_entropy(a, b) / 4),
    ]

    def says(all_of_them: list[tuple[object, ...]]) -> None:
        assert len({*all_of_them, right}) == 6

    says(faults)
    with refuted("a loss that is right under a name that is not"):

        def bits_with_flipped_sign(z: object, y: object) -> object:
            return F.cross_entropy(z, y)  # type: ignore[arg-type]

        says([*faults[1:], fault(bits_with_flipped_sign)])


@pytest.mark.claim("08", "One of them takes logarithms to the base 2: 1 / log 2 = 1.4427.")
@pytest.mark.claim(
    "08",
    "The exponential overflows float32 for a loss above about 88.7, and float16 for one above about 11.1.",
)
@pytest.mark.claim("08", "whose numbers lie 1/64 apart between 2 and 4.")
def test_three_numbers_of_the_rows() -> None:
    """The formats' own arithmetic at both sides. Would be refuted by a finite exp(88.73), or by a bfloat16 between."""

    def overflows(below: float, above: float) -> None:
        assert torch.tensor([below, above]).exp().isinf().tolist() == [False, True]

    # The unit is measured: the ratio of a loss in bits to the same in nats.
    z, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])
    ratio = -torch.log2(z.softmax(1))[range(5), y].mean() / F.cross_entropy(z, y)
    assert f"{ratio:.4f}" == f"{1 / math.log(2):.4f}" == "1.4427"
    overflows(88.7, 88.73)
    assert torch.tensor([11.05, 11.1], dtype=torch.float16).exp().isinf().tolist() == [False, True]
    with refuted("float32 that ends elsewhere"):
        overflows(88.6, 88.7)
    numbers = torch.arange(2, 4, 1 / 64, dtype=torch.float64)
    assert torch.equal(numbers.bfloat16().double(), numbers)
    halves = numbers + 1 / 128
    assert not (halves.bfloat16().double() == halves).any()


@pytest.mark.claim(
    "08",
    "`pos_weight` and class weights multiply the odds that are learnt: for a class of probability p and weight w, "
    "the other weights being 1, the model reports w p / (1 − p + w p), or something between that and p where the loss "
    "divides by the batch's own sum of weights.",
)
@pytest.mark.claim("08", "If the denominator is constant, report sigmoid(z − log w)")
def test_weights_multiply_the_odds() -> None:
    """The minimum on a fine grid for nine pairs, and the ratio's report, and both mended.
    Would be refuted by a report outside p and w's, or by a mended one that is not p.
    """

    def mended(learnt: float, p: float, w: float) -> None:
        z = math.log(learnt / (1 - learnt))
        assert 1 / (1 + math.exp(math.log(w) - z)) == pytest.approx(p, rel=1e-3)

    def says(learnt: float, p: float, report: float) -> None:
        assert min(p, report) < learnt < max(p, report) and abs(learnt - p) < abs(report - p)

    for p in (0.01, 0.2, 0.7):
        for w in (0.3, 5.0, 20.0):
            z = np.linspace(-12, 12, 240_001)
            risk = p * w * np.logaddexp(0, -z) + (1 - p) * np.logaddexp(0, z)
            best = z[risk.argmin()]
            report = w * p / (1 - p + w * p)
            assert 1 / (1 + math.exp(-best)) == pytest.approx(report, abs=1e-4)
            mended(1 / (1 + math.exp(-best)), p, w)
            for size in (2, 8, 64):
                learnt = denominators.learnt_distribution([1 - p, p], [1, w], size, weight=[1, w])[1]
                says(learnt, p, report)
                with refuted("a divisor that is the batch's own sum of weights"):
                    mended(learnt, p, w)
                with refuted("the report of weights that divide"):
                    says(p / (w * (1 - p) + p), p, report)
            # Beside two classes: of weight 1, and of other weights.
            q, classes = np.array([p, (1 - p) / 3, 2 * (1 - p) / 3]), np.array([w, 1.0, 1.0])

            def reports(classes: np.ndarray, q: np.ndarray = q, report: float = report) -> None:
                assert (classes * q / (classes @ q))[0] == pytest.approx(report)

            reports(classes)
            with refuted("three weights of which two are not 1"):
                reports(np.array([w, 2.0, 3.0]))
            for size in (2, 8):
                says(denominators.learnt_distribution(q, classes, size, weight=classes)[0], p, report)


@pytest.mark.claim("08", "Rounding aside, it was given q itself, logits, or rows that do not sum to one.")
@pytest.mark.claim("08", "Each row whose class has moved costs that much in float64, and 15.9 in float32.")
@pytest.mark.claim("08", "so the targets of a rank with few of them weigh too much.")
def test_three_causes_of_the_rows() -> None:
    """Random q and p; text labels of which some keep their place; two ranks. Would be refuted by a negative KL of two
    distributions, a moved class that costs nothing, or ranks that weigh alike.
    """
    from sklearn.metrics import log_loss

    def positive(first: torch.Tensor, second: torch.Tensor) -> None:
        assert (F.kl_div(first, second, reduction="none").sum(1) >= 0).all()

    g = rng(814)
    p, q = (torch.from_numpy(g.dirichlet(np.ones(5), 200)) for _ in range(2))
    positive(q.log(), p)
    with refuted("q in place of its logarithm"):
        positive(q, p)
    with refuted("the logarithm of sigmoids, whose rows sum to more than one"):
        positive((20 * q).sigmoid().log(), q)
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(814))
    with refuted("two equal distributions in float32, whose difference is rounded"):
        positive(logits.log_softmax(1), logits.softmax(1))
    assert (F.kl_div(logits.log_softmax(1), logits.softmax(1), reduction="none").sum(1) > -1e-6).all()
    assert (F.kl_div(q, p, reduction="none").sum(1) < 0).all()
    assert F.kl_div(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.2, 0.3, 0.5]]), reduction="sum") < 0
    assert (F.kl_div(q.log(), 0.3 * q, reduction="none").sum(1) < 0).all()
    for names in (["a", "b", "c"], ["1", "2", "10"], [str(k) for k in range(1, 13)]):
        moved = [k for k, name in enumerate(names) if sorted(names)[k] != name]
        for dtype, much in ((np.float64, 36.0), (np.float32, 15.9)):
            one_hot = np.eye(len(names), dtype=dtype)
            each = [log_loss([name], one_hot[[k]], labels=sorted(names)) for k, name in enumerate(names)]
            assert [k for k, cost in enumerate(each) if cost == pytest.approx(much, abs=0.05)] == moved
            assert all(cost < 1e-5 for k, cost in enumerate(each) if k not in moved)
    few, many = torch.rand(2, requires_grad=True), torch.rand(8, requires_grad=True)
    ((few.mean() + many.mean()) / 2).backward()  # type: ignore[no-untyped-call]
    assert few.grad is not None and many.grad is not None
    assert few.grad[0] > 1 / 10 > many.grad[0]


@pytest.mark.claim(
    "08",
    "for the label 1 the logit's gradient fades below z = −27.6; for the label 0, in float32, it is 0 from about 17 "
    "on. The loss stops at 100.",
)
def test_bceloss_loses_its_gradient_and_stops_at_100() -> None:
    """Logits on both sides of -27.6 in two formats, an impossible event.
    Would be refuted by a whole gradient at -29.
    """

    def fades(found: list[float]) -> None:
        assert found[0] > 0.99 and found[1] < 0.3 and found == sorted(found, reverse=True)

    for dtype in (torch.float32, torch.float64):
        z = torch.tensor([-27.0, -29.0, -31.0, -40.0], dtype=dtype, requires_grad=True)
        F.binary_cross_entropy(z.sigmoid(), torch.ones_like(z), reduction="sum").backward()
        found = z.grad.abs().tolist()
        fades(found)
        with refuted("the loss of logits"):
            z.grad = None
            F.binary_cross_entropy_with_logits(z, torch.ones_like(z), reduction="sum").backward()
            fades(z.grad.abs().tolist())
        z = torch.tensor([15.0, 18.0], dtype=dtype, requires_grad=True)
        F.binary_cross_entropy(z.sigmoid(), torch.zeros_like(z), reduction="sum").backward()
        assert z.grad[0] > 0.99 and (z.grad[1] == 0) == (dtype == torch.float32)
        assert F.binary_cross_entropy(torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)).item() == 100


@pytest.mark.claim(
    "08", "A row of the attention mask allows no position at all, and a softmax over nothing but −inf is 0/0."
)
@pytest.mark.claim(
    "08",
    "`nn.MultiheadAttention` then returns nan (with `need_weights=False`, only in evaluation without gradients); "
    "`scaled_dot_product_attention` returns 0 in recent releases.",
)
@pytest.mark.claim("08", "A softmax over a single column is 1, whatever the logit.")
def test_softmax_over_nothing_and_over_one_column() -> None:
    """A masked row beside one that sees a position; a column of logits of any size.
    Would be refuted by a finite row.
    """

    def nothing(row: torch.Tensor) -> None:
        assert row.isnan().all()

    mask = torch.tensor([[[False, False], [True, False]]])
    q = torch.randn(1, 2, 4)
    weights = ((q @ q.transpose(1, 2)).masked_fill(~mask, -torch.inf)).softmax(-1)
    nothing(weights[0, 0])
    with refuted("a row that sees one position"):
        nothing(weights[0, 1])
    assert weights[0, 1].tolist() == [1.0, 0.0]
    assert not F.scaled_dot_product_attention(q, q, q, attn_mask=mask)[0, 0].any()
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    nothing(attention(q, q, q, attn_mask=~mask[0])[0][0, 0])
    for training in (True, False):
        attention.train(training)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                nothing(attention(q, q, q, attn_mask=~mask[0])[0][0, 0])
                silent = attention(q, q, q, attn_mask=~mask[0], need_weights=False)[0][0, 0]
            if training or grad:
                with refuted("attention that returns no weights"):
                    nothing(silent)
            else:
                nothing(silent)
    z = torch.linspace(-1e4, 1e4, 9)[:, None].requires_grad_()
    loss = F.cross_entropy(z, torch.zeros(9, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and not z.grad.any()


@pytest.mark.claim(
    "08",
    "It is no mask: the class stays in the softmax of every other row. Where padding shares its number with `<eos>`, "
    "the ends of sequences are skipped too, and the model does not learn to stop.",
)
def test_ignore_index_is_no_mask() -> None:
    """The ignored class's gradient, and a table trained with pad = `<eos>`. Would be refuted by a masked class."""

    def trains(gradient: torch.Tensor) -> None:
        assert (gradient > 0).all()

    z = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % 4
    F.cross_entropy(z, y, ignore_index=2).backward()
    assert z.grad is not None and not z.grad[y == 2].any()
    trains(z.grad[y != 2][:, 2])
    with refuted("a class whose logit is -inf"):
        masked = z.detach().clone()
        masked[:, 2] = -torch.inf
        masked.requires_grad_()
        F.cross_entropy(masked, y, ignore_index=2).backward()
        trains(masked.grad[y != 2][:, 2])
    # Tokens 0 and 1, and 2 for the end; each ends a sequence with probability 0.3.
    target = torch.from_numpy(rng(816).choice(3, size=4000, p=[0.4, 0.3, 0.3]))
    learnt = {}
    for ignored in (2, -100):
        logits = torch.zeros(3, requires_grad=True)
        optimiser = torch.optim.Adam([logits], lr=0.3)
        for _ in range(100):
            optimiser.zero_grad()
            F.cross_entropy(logits.expand(4000, 3), target, ignore_index=ignored).backward()
            optimiser.step()
        learnt[ignored] = logits.softmax(0)[2].item()
    assert learnt[2] < 0.001 and abs(learnt[-100] - 0.3) < 0.03


@pytest.mark.claim(
    "08",
    "scikit-learn takes the classes from the labels that are present, and finds fewer classes than columns.",
)
def test_scikit_learn_counts_the_labels_that_are_present() -> None:
    """One label of two, two of three; with `labels=` the loss of the rows.
    Would be refuted by a batch that is taken.
    """

    def refuses(y: list[int], p: np.ndarray) -> None:
        with pytest.raises(ValueError, match=r"only one label|different number of classes"):
            log_loss(y, p)

    g = rng(817)
    from sklearn.metrics import log_loss

    for classes, y in ((2, [1, 1]), (3, [0, 1]), (3, [2, 2, 2])):
        p = g.dirichlet(np.ones(classes), len(y))
        refuses(y, p)
        with refuted("a batch that holds every class"):
            refuses(list(range(classes)), g.dirichlet(np.ones(classes), classes))
        expected = -np.log(p[np.arange(len(y)), y]).mean()
        assert log_loss(y, p, labels=range(classes)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.claim(
    "08",
    "If the last layer's input contains them too, selecting the other rows just before the loss leaves the weights' "
    "gradients nan.",
)
def test_the_remedies_of_nan_rows_reach_the_weights() -> None:
    """Padding divided by a length of zero, then layers, to the weights' gradients.
    Would be refuted by a finite gradient
    behind rows that were removed too late, or by nan behind the remedies of the row.
    """

    def finite(remedy: str, hidden: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        totals, counts = (
            torch.randn(6, 4, generator=g),
            torch.tensor([[2.0], [0.0], [1.0], [3.0], [0.0], [1.0]]),
        )
        totals = totals * (counts > 0)
        y = torch.where(counts[:, 0] > 0, torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor(-100))
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3))
        inputs = totals / (counts.clamp(min=1) if remedy == "guarded division" else counts)
        if remedy == "rows dropped before the layers":
            inputs, y = inputs[y != -100], y[y != -100]
        if remedy == "nan behind the last layer":
            inputs = totals
        z = model(inputs)
        if remedy == "nan behind the last layer":
            z = z + (0 / counts)
        if remedy in ("rows dropped before the loss", "nan behind the last layer"):
            z, y = z[y != -100], y[y != -100]
        loss = F.cross_entropy(z, y)
        loss.backward()
        assert loss.isfinite()
        gradients = [p.grad for p in model.parameters()]
        assert all(p is not None and p.isfinite().all() for p in gradients), remedy

    for hidden in (1, 8):
        for seed in range(3):
            for remedy in ("guarded division", "rows dropped before the layers", "nan behind the last layer"):
                finite(remedy, hidden, seed)
            for disease in ("none", "rows dropped before the loss"):
                with refuted(disease):
                    finite(disease, hidden, seed)


@pytest.mark.claim(
    "08",
    "Where the model ends in `Dense(1)` and returns (N, 1), Keras gives the labels that shape, and each weight reaches "
    "its row.",
)
def test_a_weight_reaches_its_row_behind_a_dense_layer() -> None:
    """Labels (N,) with predictions (N, 1), in the call, to the weights' gradients.
    Would be refuted
    by a weight that scales other rows, as it does where both have the shape (N,).
    """
    keras = behaviours.keras()
    tf = behaviours.tensorflow()
    g = rng(818)

    def each_its_row(shape: tuple[int, ...]) -> None:
        """The gradient under a weight for the first row alone is that of the first row, divided by N."""
        for n in (2, 5, 33):
            x, y = g.normal(size=(n, 3)).astype("f4"), g.integers(0, 2, n).astype("f4")
            layer = keras.layers.Dense(1, activation="sigmoid")
            layer.build((n, 3))
            w = np.zeros(n, "f4")
            w[0] = 1.0
            loss = keras.losses.BinaryCrossentropy()

            def gradient(
                rows: slice,
                weight: object,
                layer: object = layer,
                x: object = x,
                y: object = y,
                loss: object = loss,
            ) -> object:
                with tf.GradientTape() as tape:
                    p = layer(x[rows])  # type: ignore[operator,index]
                    value = loss(y[rows], tf.reshape(p, (-1, *shape)), sample_weight=weight)  # type: ignore[index]
                return tape.gradient(value, layer.trainable_weights)[0].numpy()  # type: ignore[attr-defined]

            alone = gradient(slice(0, 1), None)
            assert np.allclose(gradient(slice(None), w), np.asarray(alone) / n, atol=1e-6)

    each_its_row((1,))
    with refuted("labels and predictions of shape (N,)"):
        each_its_row(())


@pytest.mark.claim(
    "08",
    "A hook on each layer shows the first output that is not finite; `set_detect_anomaly` names an operation in the "
    "loss.",
)
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_where_nan_came_in_and_what_anomaly_detection_names() -> None:
    """nan in the inputs, in an embedding, behind a spread of zero: a hook finds the layer.
    Would be refuted by a layer before it, or by a message that names another operation than the loss's.
    """
    nn = torch.nn

    class Normalise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - x.mean(0)) / x.std(0)

    class Nan(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.nan

    embedding = nn.Embedding(4, 3)
    with torch.no_grad():
        embedding.weight[1, 0] = torch.nan
    ids, y = torch.arange(4), torch.tensor([0, 1, 2, 0])
    same = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), Normalise(), nn.Linear(3, 3))
    for layers, inputs, where in (
        (nn.Sequential(embedding, nn.Linear(3, 3), nn.Linear(3, 3)), ids, 0),
        (same, torch.zeros(4, dtype=torch.long), 2),
        (nn.Sequential(nn.Linear(3, 3), Nan(), nn.Linear(3, 3)), torch.randn(4, 3), 1),
    ):
        finite: list[bool] = []
        for layer in layers:
            layer.register_forward_hook(
                lambda m, x, out, finite=finite: finite.append(bool(out.isfinite().all()))
            )
        with torch.autograd.set_detect_anomaly(True):
            for loss, name in (
                (F.cross_entropy, "LogSoftmax"),
                (
                    lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], 1.0 * (y > 0)),
                    "BinaryCrossEntropy",
                ),
                (lambda z, y: F.mse_loss(z[:, 0], 1.0 * y), "MseLoss"),
            ):
                with pytest.raises(RuntimeError, match=f"'{name}.*Backward0' returned nan"):
                    loss(layers(inputs), y).backward()
                finite[len(layers) :] = []

        def first_is(layer: int, finite: list[bool] = finite) -> None:
            assert finite.index(False) == layer

        first_is(where)
        with refuted("the layer after it"):
            first_is(where + 1)


@pytest.mark.claim(
    "08",
    "Drop rows of zeros, normalise the others, and multiply each row's loss by its former sum to restore it.",
)
def test_labels_that_do_not_sum_need_both_steps() -> None:
    """TensorFlow's kernel on random labels. Would be refuted by a gradient off that of the loss with both steps."""
    tf = behaviours.tensorflow()
    g = rng(815)
    z, t = g.normal(size=(6, 4)), g.uniform(0, 2, (6, 4))
    with np.errstate(invalid="ignore"), refuted("a row of zeros normalised too"):
        assert np.isfinite(np.zeros((1, 4)) / np.zeros((1, 4)).sum(1)).all()
    total = t.sum(1)

    def says(labels: Any, factor: Any) -> None:
        v = tf.constant(z)
        with tf.GradientTape() as tape:
            tape.watch(v)
            loss = tf.reduce_sum(factor * tf.nn.softmax_cross_entropy_with_logits(labels, v))
        assert float(loss) == pytest.approx(-(t * xent.log_softmax(z)).sum(), abs=1e-9)
        assert np.allclose(tape.gradient(loss, v), total[:, None] * xent.softmax(z) - t, atol=1e-9)

    says(t / total[:, None], total)
    for disease, labels, factor in (
        ("the labels as they are", t, 1.0),
        ("normalised labels alone", t / total[:, None], 1.0),
        ("the factor alone", t, total),
    ):
        with refuted(disease):
            says(labels, factor)


@pytest.mark.claim("08", "For an exponent γ between 0 and 1 the slope of (1 − p)^γ is infinite at p = 1.")
def test_which_focal_losses_train_to_nan() -> None:
    """A sure answer under seven exponents. Would be refuted by nan at 0 or from 1 on, or by none between."""

    def says(gamma: float, finite: bool) -> None:
        z = torch.tensor([[100.0, 0.0, 0.0]], requires_grad=True)
        log_p = z.log_softmax(-1)[0, 0]
        loss = -((1 - log_p.exp()) ** gamma) * log_p
        loss.backward()
        assert z.grad is not None
        assert loss.isfinite() and bool(z.grad.isfinite().all()) == finite

    for gamma in (0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 2.0):
        says(gamma, not 0 < gamma < 1)
    with refuted("every exponent below 1"):
        says(0.0, False)


@pytest.mark.claim(
    "08", "`F.kl_div(z.log_softmax(-1), p, reduction='batchmean')`, with rows that sum to one."
)
@pytest.mark.claim("08", "`t.reshape(p.shape)`.")
@pytest.mark.claim("08", "In a batch of one class the weights cancel.")
def test_remedies_at_the_edge() -> None:
    """A softmax that underflows, all shapes of the row on sizes, and batches of one class and of several. Would be
    refuted by nan, by another loss than that of equal shapes, or by weights that stay in a batch of one class.
    """
    z, p = torch.tensor([[200.0, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.0]])

    def finite(log_q: torch.Tensor) -> None:
        (slope,) = torch.autograd.grad(loss := F.kl_div(log_q, p, reduction="batchmean"), z)
        assert loss.isfinite() and slope.isfinite().all()

    finite(z.log_softmax(-1))
    with refuted("the logarithm of the softmax"):
        finite(z.softmax(-1).log())

    bce = F.binary_cross_entropy_with_logits
    for out, given in (
        ((4, 1), (4,)),
        ((4,), (4, 1)),
        ((2, 3, 1), (2, 3)),
        ((2, 3), (2, 3, 1)),
        ((1, 1), (1,)),
    ):
        g = torch.Generator().manual_seed(812)
        logits, t = torch.randn(out, generator=g), torch.rand(given, generator=g)
        assert torch.equal(bce(logits, t.reshape(logits.shape)), bce(logits.ravel(), t.ravel()))

    w = torch.tensor([1.0, 5.0, 2.0])
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(813))

    def cancel(y: list[int]) -> None:
        rows, labels = x[: len(y)], torch.tensor(y)
        torch.testing.assert_close(F.cross_entropy(rows, labels, weight=w), F.cross_entropy(rows, labels))

    for y in ([1], [2, 2], [1] * 6):
        cancel(y)
    with refuted("a batch of two classes"):
        cancel([0, 0, 1, 1, 0, 1])


@pytest.mark.claim("08", "With 65,520 class indices or more, a CPU returns 0 or nan.")
def test_a_number_of_rows_beyond_float16() -> None:
    """Uniform and sure logits, both layouts, ignored rows. Would be refuted by a positive loss."""

    def lost(rows: int, ignored: int, value: float, cube: bool) -> None:
        z, y = torch.tensor([[0.0, value]], dtype=torch.float16).repeat(rows, 1), torch.ones(rows).long()
        y[:ignored] = -100
        shape = (z.reshape(-1, 4, 2).movedim(-1, 1), y.reshape(-1, 4)) if cube else (z, y)
        loss = F.cross_entropy(*shape).item()
        assert loss == 0 or np.isnan(loss)

    for cube in (False, True):
        for value in (0.0, 0.5, -1.0):
            for rows, ignored in ((65_520, 0), (70_000, 10), (140_000, 0)):
                lost(rows, ignored, value, cube)
        for rows, ignored in ((65_516, 0), (70_000, 10_000)):
            with refuted("fewer labels that count"):
                lost(rows, ignored, 0.0, cube)


@pytest.mark.claim("08", "without `fused=True` the step for a zero gradient is 0/0.")
def test_adam_in_float16_on_a_zero_gradient() -> None:
    """Adam and AdamW, one tensor at a time or all at once. Would be refuted by finite weights after the step."""

    def lost(kind: type[torch.optim.Adam], **options: bool) -> None:
        weights = torch.ones(3, dtype=torch.float16, requires_grad=True)
        weights.grad = torch.zeros_like(weights)
        kind([weights], **options).step()
        assert weights.isnan().all()

    for kind in (torch.optim.Adam, torch.optim.AdamW):
        for options in ({}, {"foreach": True}, {"foreach": False}, {"amsgrad": True}):
            lost(kind, **options)
        with refuted("the fused step, which computes in float32"):
            lost(kind, fused=True)


@pytest.mark.claim("08", "`log_loss(y, p[:, np.argsort(columns)])`.")
@pytest.mark.claim("08", "NumPy and PyTorch read an index of −1 from the end.")
@pytest.mark.claim("08", "To exclude a class, set its logit to −inf, with class indices as targets;")
def test_columns_last_classes_and_excluded_ones() -> None:
    """Texts and numbers in any order; rows labelled -1; a class at -inf, by index and one-hot.
    Would be refuted by a cost
    of a perfect classifier, by another class than the last, or by a loss of indices that is not finite.
    """
    from sklearn.metrics import log_loss

    g = rng(818)

    def free(y: np.ndarray, p: np.ndarray) -> None:
        assert log_loss(y, p) < 1e-9

    for names in (["1", "2", "10"], ["b", "a", "c", "B"], [3, 1, 2], [str(k) for k in range(12)]):
        columns, each = np.array(names)[g.permutation(len(names))], np.arange(3 * len(names)) % len(names)
        moved = np.argsort(columns)
        free(columns[each], np.eye(len(names))[each][:, moved])
        if (moved != np.arange(len(names))).any():
            with refuted("the columns as they came"):
                free(columns[each], np.eye(len(names))[each])
    for k in (2, 7):
        rows, last = g.normal(size=(4, k)), np.full(4, -1)
        assert (rows[np.arange(4), last] == rows[:, -1]).all()
        assert (torch.tensor(rows)[torch.arange(4), torch.tensor(last)].numpy() == rows[:, -1]).all()

    def excluded(y: torch.Tensor) -> None:
        z = torch.tensor(g.normal(size=(3, 4)))
        z[:, 3] = -torch.inf
        z.requires_grad_()
        loss = F.cross_entropy(z, y)
        loss.backward()
        assert loss.isfinite() and z.grad is not None and z.grad.isfinite().all() and not z.grad[:, 3].any()

    excluded(torch.arange(3))
    with refuted("one-hot targets"):
        excluded(torch.eye(3, 4, dtype=torch.float64))


@pytest.mark.claim("08", "Divide by `x.std(0, correction=0).clamp(min=1e-6)`.")
@pytest.mark.claim("08", "Divide the learning rate by ten, repeatedly if need be.")
@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
def test_two_remedies_to_the_end() -> None:
    """One row and several equal ones, to the parameters' gradients; rates up to 1,000 times too high.
    Would be refuted by nan, or by weights that do not reach the minimum.
    """

    def normalised(rows: int, spread: Callable[[torch.Tensor], torch.Tensor]) -> None:
        model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        x = model[0](torch.ones(rows, 3))
        F.cross_entropy(model[1]((x - x.mean(0)) / spread(x)), torch.zeros(rows).long()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    for rows in (1, 2, 5):
        normalised(rows, lambda x: x.std(0, correction=0).clamp(min=1e-6))
    with refuted("the spread of one row with N - 1"):
        normalised(1, lambda x: x.std(0).clamp(min=1e-6))

    def falls(rate: float, warm: int = 1, clip: float = torch.inf) -> None:
        w = torch.tensor([1.0, 1.0], requires_grad=True)
        for step in range(400):
            (slope,) = torch.autograd.grad((w**2 * torch.tensor([1.0, 10.0])).sum(), w)
            slope = slope * (clip / slope.norm()).clamp(max=1)
            w = (w - rate * min(1.0, (step + 1) / warm) * slope).detach().requires_grad_()
        assert (w.abs() < 0.05).all()

    for rate in (0.3, 3.0, 100.0):
        divided = rate
        while divided > 0.05:
            divided /= 10
        falls(divided)
        for disease in ({}, {"warm": 200}, {"clip": 1.0}):
            with refuted(f"the rate as it is, {disease}"):
                falls(rate, **disease)


@pytest.mark.claim(
    "08", "Dropout, which the check finds, and penalties in your training step raise the training loss alone,"
)
def test_which_penalties_raise_the_training_loss_alone() -> None:
    """A regulariser of Keras, and a penalty in the step. Would be refuted by the latter in the evaluated loss."""
    keras, g = behaviours.keras(), rng(890)
    x, y = g.normal(size=(8, 3)).astype("f4"), np.arange(8) % 2

    def alone(regulariser: Any, step: float) -> None:
        dense = keras.layers.Dense(2, activation="softmax", kernel_regularizer=regulariser)
        model = keras.Sequential([keras.layers.Input((3,)), dense])
        model.compile(loss="sparse_categorical_crossentropy")
        plain = float(keras.losses.SparseCategoricalCrossentropy()(y, model(x)))
        assert model.evaluate(x, y, verbose=0) == pytest.approx(plain, rel=1e-4)
        assert plain + step * float(np.square(dense.kernel).sum()) > plain + 1e-3

    alone(None, 0.1)
    with refuted("every penalty: Keras adds its regularisers when it evaluates, too"):
        alone(keras.regularizers.L2(0.1), 0.1)
