"""Chapter 8's checks: each is true of an example with the fault and false of one without it.

The checks are read from the chapter, where a reader copies them from. An array or a tensor that a check looks
at may come in any precision, on any device and with a gradient, so each example is tried in several forms.
"""

from __future__ import annotations

import json
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xent.torch
from xent_book import frameworks
from xent_book.frameworks import array, diagnose

# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")
CHAPTER = Path(__file__).parents[2] / "chapters" / "08_which_loss.ipynb"
ROW = re.compile(r"^\(symptom-([a-z0-9-]+)\)=\n#### (.+?)\n(.*?)(?=^\(symptom-|\Z)", re.M | re.S)
CHECK = re.compile(r"^```python\n(.+?)\n```$", re.M | re.S)

ACCUMULATION = """
torch.manual_seed(0)
model = torch.nn.Linear(2, 3).double()
whole_batch = (torch.randn(6, 2).double(), torch.tensor([0, 1, 2, 0, 1, 1]))
micro_batches = [tuple(t[:1] for t in whole_batch), tuple(t[1:] for t in whole_batch)]
def means(model, batches):
    for x, y in batches:
        (F.cross_entropy(model(x), y) / len(batches)).backward()
def sums(model, batches):
    for x, y in batches:
        (F.cross_entropy(model(x), y, reduction="sum") / sum(len(y) for _, y in batches)).backward()
"""

# slug: statements that set up an example with the fault, and one without it.
EXAMPLES = {
    "stuck-at-log-k": (
        "z = np.zeros((4, 10))",
        "z = np.random.default_rng(0).normal(size=(4, 10))",
    ),
    "start-far-from-log-k": (
        "rng = np.random.default_rng(0); z = rng.normal(0, 20, (64, 10)); y = rng.integers(0, 10, 64)",
        "rng = np.random.default_rng(0); z = rng.normal(0, .1, (64, 10)); y = rng.integers(0, 10, 64)",
    ),
    "floor-of-a-double-softmax": (
        "z = torch.randn(4, 10).softmax(-1)",
        "z = torch.randn(4, 10)",
    ),
    "floor-of-a-double-sigmoid": (
        "loss_fn = lambda z, y: F.binary_cross_entropy_with_logits(z.sigmoid(), y)",
        "loss_fn = F.binary_cross_entropy_with_logits",
    ),
    "floor-of-smoothing": (
        "loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)",
        "loss_fn = torch.nn.CrossEntropyLoss()",
    ),
    "negative-loss": (
        """
z = torch.tensor([[2., 1., 0.], [0., 3., 1.]])
y = torch.tensor([0, 1])
x = z.softmax(-1)
assert F.nll_loss(x, y) < 0
""",
        """
z = torch.tensor([[2., 1., 0.], [0., 3., 1.]])
y = torch.tensor([0, 1])
x = z.log_softmax(-1)
assert F.nll_loss(x, y) > 0
""",
    ),
    "negative-binary-loss": (
        "t = np.array([-1., 1.])",
        "t = np.array([0., 1.])",
    ),
    "negative-kl": (
        """
t = torch.tensor([[.1541, .0511, .0947]])
log_q = torch.tensor([[.1132, .5477, .3390]]).log()
assert F.kl_div(log_q, t, reduction='sum') < 0
""",
        """
t = torch.tensor([[.7, .3]])
log_q = t.log()
assert F.kl_div(log_q, t, reduction='sum') == 0
""",
    ),
    "swapped-arguments": (
        "loss_fn = lambda z, y: F.cross_entropy(y, z)",
        "loss_fn = lambda z, y: F.cross_entropy(z, y)",
    ),
    "from-logits-forgotten": (
        "loss_fn = keras.losses.SparseCategoricalCrossentropy()",
        "loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    ),
    "binary-loss-of-two-outputs": (
        "p = torch.randn(4, 2).softmax(-1)",
        "p = torch.randn(4, 1).sigmoid()",
    ),
    "bits-for-nats": (
        "loss_fn = lambda z, y: xent.cross_entropy(z, y) / np.log(2)",
        "loss_fn = xent.cross_entropy",
    ),
    "perplexity-overflows": (
        "loss = 318.0",
        "loss = 2.39",
    ),
    "bfloat16-steps": (
        """
z = torch.tensor([[2., 1., 0.], [0., 3., 1.]])
y = torch.tensor([0, 1])
loss = F.cross_entropy(z.bfloat16(), y)
""",
        """
z = torch.tensor([[2., 1., 0.], [0., 3., 1.]])
y = torch.tensor([0, 1])
loss = F.cross_entropy(z.bfloat16().float(), y)
""",
    ),
    "rows-that-do-not-sum": (
        "p = np.array([[.7, .2, .3], [.1, .8, .1]])",
        "p = np.array([[.7, .2, .1], [.1, .8, .1]])",
    ),
    "labels-sorted-as-text": (
        "columns = ['2', '10']; assert log_loss(['2', '10'], np.eye(2)) > 36",
        "columns = ['10', '2']; assert log_loss(['10', '2'], np.eye(2)) < 1e-9",
    ),
    "one-class-in-the-labels": (
        "y = np.array([1, 1]); p = np.array([[.2, .8], [.4, .6]])",
        "y = np.array([1, 0]); p = np.array([[.2, .8], [.4, .6]])",
    ),
    "log-of-a-softmax": (
        """
def loss_fn(z, y):
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return -np.log(p[np.arange(len(y)), y]).mean()
""",
        "loss_fn = xent.cross_entropy",
    ),
    "zero-times-log-zero": (
        "loss_fn = lambda p, t: -(t * np.log(p)).sum()",
        "from scipy.special import xlogy; loss_fn = lambda p, t: -xlogy(t, p).sum()",
    ),
    "all-ignored": (
        "y = torch.full((4,), -100)",
        "y = torch.tensor([-100, 2, 0, -100])",
    ),
    "exactly-zero": (
        "y = torch.full((2, 4), -100)",
        "y = torch.tensor([[-100, -100, 5, 2]])",
    ),
    "nan-in-an-ignored-row": (
        "z = torch.tensor([[np.nan, 0.], [1., 0.]]); y = torch.tensor([-100, 0])",
        """
z = torch.tensor([[np.nan, 0.], [1., 0.]])
y = torch.tensor([-100, 0])
z, y = z[y != -100], y[y != -100]
""",
    ),
    "masked-class-with-soft-target": (
        """
z = torch.tensor([[1., 0., -np.inf]])
t = torch.tensor([[1., 0., 0.]])
assert F.cross_entropy(z, t).isnan()
""",
        """
z = torch.tensor([[1., 0., -1e4]])
t = torch.tensor([[1., 0., 0.]])
assert not F.cross_entropy(z, t).isnan()
""",
    ),
    "attention-masked-out": (
        """
mask = np.array([[1, 1], [0, 0]])
none = torch.full((2,), -np.inf)
assert none.softmax(0).isnan().all()
""",
        "mask = np.array([[1, 1], [0, 1]])",
    ),
    "half-precision-mean": (
        "z = torch.zeros(30_000, 16).half(); y = torch.zeros(30_000).long()",
        "z = torch.zeros(30_000, 16).half().float(); y = torch.zeros(30_000).long()",
    ),
    "weights-sum-to-zero": (
        "w = torch.tensor([0., 1., 1.]); y = torch.tensor([0, 0])",
        "w = torch.tensor([.1, 1., 1.]); y = torch.tensor([0, 0])",
    ),
    "clipped-and-stuck": (
        "loss_fn = keras.losses.CategoricalCrossentropy()",
        "loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)",
    ),
    "vanished-binary-gradient": (
        "loss_fn = lambda z, y: F.binary_cross_entropy(z.sigmoid(), y)",
        "loss_fn = F.binary_cross_entropy_with_logits",
    ),
    "sign-flipped": (
        "loss_fn = lambda z, y: z.log_softmax(-1).gather(-1, y[:, None]).mean()",
        "loss_fn = lambda z, y: -z.log_softmax(-1).gather(-1, y[:, None]).mean()",
    ),
    "softmax-over-the-batch": (
        """
z = np.array([[2., 1., 0.], [0., 3., 1.]])
y = np.array([0, 1])
p = xent.softmax(z, axis=0)
""",
        """
z = np.array([[2., 1., 0.], [0., 3., 1.]])
y = np.array([0, 1])
p = xent.softmax(z, axis=-1)
""",
    ),
    "one-column-of-logits": (
        "z = torch.randn(4, 1); y = torch.zeros(4).long(); assert F.cross_entropy(z, y) == 0",
        "z = torch.randn(4, 2); y = torch.zeros(4).long(); assert F.cross_entropy(z, y) > 0",
    ),
    "labels-that-do-not-sum": (
        "t = np.array([[2., 0., 0.], [0., 1., 0.]])",
        "t = np.array([[1., 0., 0.], [0., 1., 0.]])",
    ),
    "arguments-changed": (
        """
def loss_fn(z, y):
    z -= z.max(-1, keepdims=True)
    return xent.cross_entropy(z, y)
""",
        """
def loss_fn(z, y):
    z = z - z.max(-1, keepdims=True)
    return xent.cross_entropy(z, y)
""",
    ),
    "rare-class-too-often": (
        "loss_fn = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(9.))",
        "loss_fn = torch.nn.BCEWithLogitsLoss()",
    ),
    "accumulation-changed-the-model": (
        ACCUMULATION + "step = means",
        ACCUMULATION + "step = sums",
    ),
    "loss-grows-with-steps": (
        "K, loss = 4, 2.3; logged = 4 * loss",
        "K, loss = 4, 2.3; logged = loss",
    ),
    "ranks-disagree": (
        "counts = [1000, 10]",
        "counts = [505, 505]",
    ),
    "kl-k-times-too-small": (
        "loss_fn = torch.nn.KLDivLoss()",
        "loss_fn = torch.nn.KLDivLoss(reduction='batchmean')",
    ),
    "mean-over-classes": (
        "loss_fn = lambda z, t: -(t * xent.log_softmax(z)).mean()",
        "loss_fn = lambda z, t: -(t * xent.log_softmax(z)).sum(-1).mean()",
    ),
    "two-weighted-means": (
        "w = np.array([1., 1., 10.]); y = np.array([0, 2, 1])",
        "w = np.array([1., 1., 1.]); y = np.array([0, 2, 1])",
    ),
    "weights-and-batch-size": (
        "loss_fn = torch.nn.CrossEntropyLoss(weight=torch.tensor([1., 20., 3.]))",
        "def loss_fn(z, y): return F.cross_entropy(z, y, torch.tensor([1., 20., 3.]), reduction='sum') / len(y)",
    ),
    "weights-without-effect": (
        "loss_fn = lambda z, y, **options: xent.cross_entropy(z, y)",
        "loss_fn = lambda z, y, weight=None: xent.cross_entropy(z, y, weight=weight)",
    ),
    "weights-of-a-1d-batch": (
        "y = np.array([1., 0., 1.])",
        "y = np.array([1., 0., 1.])[:, None]",
    ),
    "perplexity-depends-on-batches": (
        "losses = [np.ones(2), np.zeros(8)]; reported = np.mean([each.mean() for each in losses])",
        "losses = [np.ones(2), np.zeros(8)]; reported = sum(each.sum() for each in losses) / 10",
    ),
    "generates-too-short": (
        """
def loss_fn(z, y):
    losses = F.cross_entropy(z.movedim(-1, 1), y, reduction='none')
    return (losses.sum(1) / (y != -100).sum(1)).mean()
""",
        """
def loss_fn(z, y):
    return F.cross_entropy(z.movedim(-1, 1), y)
""",
    ),
    "padding-counts": (
        """
z = np.array([[2., 1., 0.], [0., 3., 1.]])
y = np.array([0, 1])
pad = y == 1
loss_fn = xent.cross_entropy
""",
        """
z = np.array([[2., 1., 0.], [0., 3., 1.]])
y = np.array([0, 1])
pad = y == 1
loss_fn = lambda z, y: xent.cross_entropy(z, y, ignore_index=1)
""",
    ),
    "ignored-class-is-predicted": (
        "z = torch.randn(4, 3); ignore_index = 0",
        "z = torch.randn(4, 3); ignore_index = -100",
    ),
    "minus-one-is-a-class": (
        "loss_fn = lambda z, y: -xent.log_softmax(z)[np.arange(len(y)), y].mean()",
        "loss_fn = lambda z, y: xent.cross_entropy(z, y, ignore_index=-1)",
    ),
    "label-out-of-range": (
        "z = np.array([[2., 1., 0.], [0., 3., 1.]]); y = np.array([0, 1]); y = np.array([0, 3])",
        "z = np.array([[2., 1., 0.], [0., 3., 1.]]); y = np.array([0, 1])",
    ),
    "class-axis-second": (
        "z = torch.zeros(2, 4, 4); loss_fn = F.cross_entropy",
        "z = torch.zeros(2, 4, 4); loss_fn = lambda z, y: F.cross_entropy(z.movedim(-1, 1), y)",
    ),
    "shifted-twice": (
        "ids = np.arange(8).reshape(2, 4); labels = np.roll(ids, -1, axis=1)",
        "ids = np.arange(8).reshape(2, 4); labels = ids",
    ),
    "never-shifted": (
        """
ids = np.arange(8).reshape(2, 4)
labels = ids
loss_fn = lambda z, y: F.cross_entropy(z.movedim(-1, 1), y)
""",
        """
ids = np.arange(8).reshape(2, 4)
labels = ids
loss_fn = lambda z, y: F.cross_entropy(z[:, :-1].movedim(-1, 1), y[:, 1:])
""",
    ),
}  # fmt: skip


def rows() -> dict[str, tuple[str, str]]:
    """slug -> (check, the row's text), as the chapter has them."""
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    found = {}
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for slug, _, text in ROW.findall("".join(cell["source"])):
                [check] = CHECK.findall(text)
                found[slug] = (check, text)
    return found


ROWS = rows()


def workbench(setup: str, check: str) -> dict[str, Any]:
    """The names after an example's statements; a library is imported only where one names it."""
    space: dict[str, Any] = {"np": np, "xent": xent, "torch": torch, "F": torch.nn.functional}
    space |= {"array": array, "diagnose": diagnose}
    if re.search(r"\bkeras\b", setup + check):
        space["keras"] = frameworks.keras()
    if "log_loss(" in setup:
        space["log_loss"] = import_module("sklearn.metrics").log_loss
    exec(setup, space)
    return space


def verdict(check: str, space: dict[str, Any]) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return eval(check, space)


@pytest.mark.parametrize("slug", EXAMPLES)
def test_a_check_tells_broken_from_mended(slug: str) -> None:
    check = ROWS[slug][0]
    seen = [verdict(check, workbench(setup, check)) for setup in EXAMPLES[slug]]
    assert seen == [True, False]
    assert all(isinstance(value, bool | np.bool_) for value in seen), "a check says True or False"


FORMS: dict[str, Any] = {
    "float64": lambda x: np.asarray(x, float),
    "float32": lambda x: np.asarray(x, "f4"),
    "float16": lambda x: np.asarray(x, "f2"),
    "torch, with a gradient": lambda x: torch.tensor(array(x)).requires_grad_(),
    "torch, bfloat16": lambda x: torch.tensor(array(x)).bfloat16(),
    "torch, half": lambda x: torch.tensor(array(x)).half(),
    "(B, T, V)": lambda x: torch.tensor(array(x))[None],
}
# These read the precision itself, call a function of PyTorch's with it, or pair rows with labels.
ONE_FORM = {"half-precision-mean", "padding-counts", "rows-that-do-not-sum", "class-axis-second"}
FLOATS = ("z", "p", "t", "x", "log_q", "w")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slug", [s for s in EXAMPLES if s not in ONE_FORM])
def test_a_check_takes_any_array(slug: str, form: str) -> None:
    check = ROWS[slug][0]
    for setup, expected in zip(EXAMPLES[slug], (True, False), strict=True):
        space = workbench(setup, check)
        names = [n for n in FLOATS if n in space and re.search(rf"\b{n}\b", check)]
        if not names:
            return
        if form == "(B, T, V)":
            if names == ["w"] or "axis=0" in setup or "[array(y)" in check or "int(y" in check:
                return
            space |= {n: FORMS[form](space[n]) for n in names}
            if "y" in space and re.search(r"\by\b", check):
                space["y"] = torch.as_tensor(space["y"])[None]
        else:
            space |= {n: FORMS[form](space[n]) for n in names}
        assert verdict(check, space) == expected, (names, setup)


def test_every_row_has_an_example_and_every_example_a_row() -> None:
    assert list(ROWS) == list(EXAMPLES)
    for slug, (check, text) in ROWS.items():
        assert len(check) <= 140 and max(map(len, check.splitlines())) <= 64, slug
        # What a search finds the row by, and where the reason stands.
        assert "```{index}" in text and "Why: " in text, slug
