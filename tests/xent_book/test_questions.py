"""The forty questions of chapter 8: the check of the row that answers each, and its fix, on the question's case.

A case is the question reduced to what it turns on: its call, its labels, its shapes; with the mistake the row's check
says yes, and what the row advises mends the number, or the check then says no.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import xent
import xent.torch
from xent_book import behaviours, symptoms
from xent_book.symptoms import NO, YES

pytestmark = pytest.mark.xdist_group("frameworks")
F, nn = torch.nn.functional, torch.nn
CHAPTER = Path(__file__).parents[2] / "chapters" / "08_which_loss.ipynb"
QUESTION = re.compile(r"^- \[.+?\]\((\S+)\): .*?<symptom-([a-z0-9-]+)>", re.M)
Case = Callable[
    [], tuple[Any, Any]
]  # what the check says of the question's case, and what shows that it is mended


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(symptoms.array(a), symptoms.array(b), rtol=1e-5))


def stuck() -> tuple[Any, Any]:
    """A ReLU behind the last layer, all of whose units are dead."""
    torch.manual_seed(0)
    last = nn.Linear(8, 10)
    nn.init.constant_(last.bias, -30.0)
    x = torch.randn(32, 8)
    return symptoms.no_signal(last(x).relu()), symptoms.no_signal(last(x))


def minus_55() -> tuple[Any, Any]:
    """Digits 0 to 9 as labels of a binary loss."""
    t = np.arange(10.0)[:, None]
    return symptoms.targets_outside(t), symptoms.targets_outside(t == 3)


def two_outputs() -> tuple[Any, Any]:
    z = np.array([[1.0, -0.5], [0.3, 2.0]])
    p, t = xent.softmax(z), np.eye(2)
    of = behaviours.keras().losses
    mended = of.CategoricalCrossentropy()(t, p)
    return symptoms.binary_loss_of_a_softmax(of.BinaryCrossentropy(), p), close(
        mended, xent.soft_cross_entropy(z, t)
    )


def grows(steps: int = 8) -> tuple[Any, Any]:
    loss = torch.tensor(2.1)
    logged = sum(loss for _ in range(steps))
    return symptoms.nobody_divides(logged, loss, steps), symptoms.nobody_divides(logged / steps, loss, steps)


def all_ignored(ignore_index: int = -100) -> tuple[Any, Any]:
    z, y = torch.randn(4, 5, requires_grad=True), torch.full((4,), ignore_index)
    assert F.cross_entropy(z, y, ignore_index=ignore_index).isnan()
    loss = F.cross_entropy(z, y, ignore_index=ignore_index, reduction="sum") / max(
        int((y != ignore_index).sum()), 1
    )
    loss.backward()
    assert z.grad is not None
    return symptoms.nothing_counts(y, ignore_index=ignore_index), loss.item() == 0 and bool(
        z.grad.isfinite().all()
    )


def a_class_is_ignored() -> tuple[Any, Any]:
    z = torch.randn(3, 4)
    z[:, 0] = -torch.inf
    return symptoms.ignored_class(0, 4), z.softmax(1)[:, 0].max() == 0


def out_of_range(classes: int, label: int) -> tuple[Any, Any]:
    """Labels from 1 to K, for instance: shifted, or with one more row in the last layer, they fit."""
    y = np.array([1, label])
    wider = F.cross_entropy(torch.zeros(2, label + 1), torch.tensor(y))
    return symptoms.label_out_of_range(y, classes), bool(wider.isfinite())


def negative_kl() -> tuple[Any, Any]:
    q, p = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.2, 0.3]])
    kl = partial(F.kl_div, reduction="batchmean")
    assert kl(q.log(), p) < 0
    return symptoms.no_distributions(kl, q.log(), p), kl(q.log(), p / p.sum()) >= 0


def blind_row() -> tuple[Any, Any]:
    """A padding mask that leaves out a whole sequence, to the gradient of the projection's weights."""
    gradients = []
    mask = torch.tensor([[False, False, True], [True, True, True]])
    for seen in (mask, mask & ~torch.tensor([[False], [True]])):
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(4, 1, batch_first=True)
        x = torch.randn(2, 3, 4)
        layer(x, x, x, key_padding_mask=seen)[0].sum().backward()
        gradients.append(bool(layer.in_proj_weight.grad.isfinite().all()))
    assert not gradients[0]
    return symptoms.sees_nothing(mask, true_is="left out"), gradients[1]


W, Y, Z = torch.tensor([1.0, 9.0, 3.0]), torch.tensor([0, 1, 1, 2]), torch.linspace(-2, 2, 12).reshape(4, 3)


def two_means() -> tuple[Any, Any]:
    """The weighted mean is not the mean of the weighted losses; one denominator, and both agree."""
    each = F.cross_entropy(Z, Y, weight=W, reduction="none")
    assert not close(F.cross_entropy(Z, Y, weight=W), each.mean())
    own = F.cross_entropy(Z, Y, weight=W, reduction="sum") / len(Y)
    return symptoms.weighted_means_differ(W, Y), close(own, each.mean())


def batch_of_one() -> tuple[Any, Any]:
    """A weight that cancels where all labels are one; with a constant denominator it does not."""
    loss = nn.CrossEntropyLoss(weight=W)
    y = torch.tensor([1])
    assert close(loss(Z[:1], y), F.cross_entropy(Z[:1], y))
    summed = F.cross_entropy(Z[:1], y, weight=W, reduction="sum")
    return symptoms.divides_by_weights(loss), close(summed, 9 * F.cross_entropy(Z[:1], y))


def half() -> tuple[Any, Any]:
    z, y = torch.zeros(30_000, 2).half(), torch.zeros(30_000, dtype=torch.long)
    z[:, 1] = 5
    return symptoms.half_overflows(F.cross_entropy, z, y), F.cross_entropy(z.float(), y).isfinite().item()


def eval_loss() -> tuple[Any, Any]:
    parts = [np.ones(8), np.full(2, 3.0)]
    ask = partial(symptoms.mean_of_batch_means, parts)
    return ask(2.0), ask(sum(v.sum() for v in parts) / sum(v.size for v in parts))


def unnormalised() -> tuple[Any, Any]:
    p = np.array([[0.6, 0.6], [0.2, 0.9]])
    return symptoms.rows_do_not_sum(p), symptoms.rows_do_not_sum(p / p.sum(1, keepdims=True))


def vanished() -> tuple[Any, Any]:
    z = torch.tensor([-50.0], requires_grad=True)
    F.binary_cross_entropy_with_logits(z, torch.ones(1)).backward()
    return symptoms.gradient_fades(F.binary_cross_entropy), close(z.grad, -1.0)


def clipped() -> tuple[Any, Any]:
    """A sure mistake costs 16.1 from probabilities, and its margin from logits."""
    of = behaviours.keras().losses
    z, t = np.array([[40.0, 0.0]], "float32"), np.array([[0.0, 1.0]], "float32")
    assert float(of.CategoricalCrossentropy()(t, xent.softmax(z))) < 17
    return symptoms.clipped(of.CategoricalCrossentropy()), close(
        of.CategoricalCrossentropy(from_logits=True)(t, z), 40
    )


def shifted() -> tuple[Any, Any]:
    ids = np.arange(1, 13).reshape(2, 6)
    labels = np.concatenate([ids[:, 1:], np.full((2, 1), -100)], 1)
    return symptoms.shifted_already(labels, ids), symptoms.shifted_already(ids, ids)


def two_sigmoids() -> tuple[Any, Any]:
    z = torch.linspace(-4, 4, 12)[:, None]
    ask = partial(symptoms.double_sigmoid, F.binary_cross_entropy_with_logits)
    return ask(z.sigmoid()), ask(z)


def one_label() -> tuple[Any, Any]:
    y, p = [1, 1], np.array([[0.2, 0.8], [0.1, 0.9]])
    with pytest.raises(ValueError, match="only one label"):
        log_loss(y, p)
    return symptoms.classes_missing(y, p), close(log_loss(y, p, labels=[0, 1]), -np.log([0.8, 0.9]).mean())


def one_output() -> tuple[Any, Any]:
    """A softmax over one column; a binary loss of the logit has a gradient."""
    z = torch.tensor([[0.3], [-2.0]], requires_grad=True)
    F.binary_cross_entropy_with_logits(z, torch.ones(2, 1)).backward()
    return symptoms.one_column(F.cross_entropy, z), bool(z.grad.abs().min() > 0)


def sure_mistakes() -> tuple[Any, Any]:
    """The loss rises and so does the accuracy; a temperature of the validation set brings it down."""
    y = np.zeros(60, int)
    z = np.tile([4.0, 0.0], (60, 1))
    z[:4] = [0.0, 15.0]
    cooled = min(xent.cross_entropy(z / t, y) for t in (1, 2, 4, 6, 8))
    return symptoms.sure_and_wrong(z, y), cooled < 0.6 * xent.cross_entropy(z, y)


def descends(rate: float) -> list[float]:
    """Logistic regression on inputs that nobody scaled."""
    x, t = np.random.default_rng(0).normal(0, 30, 64), np.arange(64) % 2
    w, losses = 0.0, []
    for _ in range(30):
        z = w * x
        losses.append(float(xent.binary_cross_entropy(z, t)))
        w -= rate * float(((1 / (1 + np.exp(-np.clip(z, -500, 500))) - t) * x).mean())
    return losses


def too_fast() -> tuple[Any, Any]:
    return symptoms.rate_too_high(descends(1.0)), symptoms.rate_too_high(descends(1e-4))


def train_and_eval() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    said = symptoms.depends_on_other_rows(model, x)
    return said, symptoms.depends_on_other_rows(model.eval(), x)


CASES: dict[str, Case] = {
    "forums/43814": stuck, "38604": minus_55, "11073": two_outputs, "transformers/37766": grows,
    "70348": all_ignored, "63004": a_class_is_ignored, "18014": partial(out_of_range, 10, 10),
    "60928": negative_kl, "41508": blind_row, "40560": two_means, "50528": batch_of_one,
    "trl/6668": all_ignored, "85791": half, "24839": eval_loss, "24515": unnormalised, "103316": vanished,
    "7563": clipped, "InternLM/318": shifted, "GeoZcx": two_sigmoids, "18523": one_label,
    "11786": partial(out_of_range, 7, 7), "keras3/465": partial(out_of_range, 3, 3),
    "yyccR": partial(out_of_range, 4, 9), "biarne": partial(out_of_range, 66908, 66908), "11441": one_output,
    "25571": two_means, "65329": two_means, "8062": two_means, "focal_loss_torch": batch_of_one,
    "282160": sure_mistakes, "25411": sure_mistakes, "28481": too_fast, "18600": train_and_eval,
    "61309": batch_of_one,
}  # fmt: skip


def asked() -> list[tuple[str, str]]:
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    [text] = [s for c in cells if (s := "".join(c["source"])).startswith("### Forty questions")]
    return QUESTION.findall(text)


def of_thread(address: str) -> Case:
    [case] = [
        c for key, c in CASES.items() if key.split("/")[-1] in re.split(r"[/_]", address) or key in address
    ]
    return case


@pytest.mark.parametrize(("address", "slug"), asked())
def test_the_check_says_yes_and_the_fix_mends_the_case(address: str, slug: str) -> None:
    said, mended = of_thread(address)()
    assert said == YES, said
    assert mended == NO if isinstance(mended, str) else mended, mended


def test_every_question_has_a_case() -> None:
    assert len(asked()) == len(CASES) == 34
