"""Symptoms of a loss gone wrong: the cause, a check of one line, the fix, and an example of each state."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any

import numpy as np

import xent

from ._diagnose import diagnose
from ._registry import keras


@dataclass(frozen=True)
class Symptom:
    """A symptom, its cause, and a line that tells whether it is this cause.

    Attributes
    ----------
    slug : str
        The name of the row, and its anchor on the page: ``#symptom-<slug>``.
    group : str
        The section of the table.
    symptom : str
        What you see.
    cause : str
        Where it comes from.
    check : str
        An expression of the names that `names` explains: true if it is this cause.
    fix : str
        What to write instead.
    broken, mended : str
        Statements that set up an example in which the check is true, and one in which it is false.
    """

    slug: str
    group: str
    symptom: str
    cause: str
    check: str
    fix: str
    broken: str = field(repr=False)
    mended: str = field(repr=False)

    def run(self, setup: str) -> bool:
        """Run a set-up, then the check, quietly.

        Parameters
        ----------
        setup : str
            Statements: `broken`, `mended`, or your own.

        Returns
        -------
        bool
            What the check says.

        Raises
        ------
        TypeError
            If the check is neither true nor false.
        """
        space = workbench(setup + self.check)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            exec(setup, space)
            verdict = eval(self.check, space)
        if not isinstance(verdict, bool | np.bool_):
            raise TypeError(f"the check of {self.slug!r} returned a {type(verdict).__name__}")
        return bool(verdict)

    @property
    def verdicts(self) -> tuple[bool, bool]:
        """What the check says of the broken example and of the mended one."""
        return self.run(self.broken), self.run(self.mended)


def workbench(code: str) -> dict[str, Any]:
    """Return the names that a snippet needs; it imports a library only if the snippet names it."""
    space: dict[str, Any] = {"np": np, "xent": xent, "diagnose": diagnose}
    if re.search(r"\b(torch|F)\b", code):
        space["torch"] = import_module("torch")
        space["F"] = import_module("torch.nn.functional")
    if re.search(r"\bkeras\b", code):
        space["keras"] = keras()
    if "log_loss(" in code.replace("xent.log_loss(", ""):
        space["log_loss"] = import_module("sklearn.metrics").log_loss
    return space


VALUE = "The value is not what you expected"
NAN = "nan or inf"
LEARNING = "It does not learn, or learns something else"
MEAN = "Denominators and weights"
DATA = "Targets, padding and layout"
_Z = "z = np.array([[2., 1., 0.], [0., 3., 1.]]); y = np.array([0, 1])"
_ZT = "z = torch.tensor([[2., 1., 0.], [0., 3., 1.]]); y = torch.tensor([0, 1])"

# The symptoms, each with its cause, a check to paste and the fix.
SYMPTOMS = (
    Symptom(
        "start-far-from-log-k", VALUE,
        "the first loss is far from log K",
        "the initial logits are large, so the model is sure before it has learnt anything",
        "abs(xent.cross_entropy(z, y) - np.log(z.shape[-1])) > 0.5",
        "scale the last layer down; a fresh model should cost about log K",
        "rng = np.random.default_rng(0); z = rng.normal(0, 20, (64, 10)); y = rng.integers(0, 10, 64)",
        "rng = np.random.default_rng(0); z = rng.normal(0, .1, (64, 10)); y = rng.integers(0, 10, 64)",
    ),
    Symptom(
        "floor-of-a-double-softmax", VALUE,
        "the loss falls and then stays above a floor (1.46 for ten classes)",
        "a softmax before a loss that applies its own: probabilities went where logits belong",
        "torch.allclose(z.sum(-1), torch.ones(len(z)))",
        "drop the softmax, pass logits",
        "z = torch.randn(4, 10).softmax(-1)",
        "z = torch.randn(4, 10)",
    ),
    Symptom(
        "floor-of-a-double-sigmoid", VALUE,
        "a binary loss does not fall below 0.313",
        "a sigmoid before a loss of logits",
        "diagnose(loss_fn).reads.endswith('twice')",
        "drop the sigmoid, or use BCELoss on probabilities",
        "loss_fn = lambda z, y: F.binary_cross_entropy_with_logits(z.sigmoid(), y)",
        "loss_fn = F.binary_cross_entropy_with_logits",
    ),
    Symptom(
        "floor-of-smoothing", VALUE,
        "the loss of a model that is always right stays positive",
        "label smoothing: its minimum is the entropy of the smoothed labels",
        "diagnose(loss_fn).smoothing > 0",
        "report the loss without smoothing, train with it",
        "loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)",
        "loss_fn = torch.nn.CrossEntropyLoss()",
    ),
    Symptom(
        "negative-loss", VALUE,
        "the loss is negative",
        "nll_loss got probabilities or logits: it returns minus the entry of the label, whatever that is",
        "not torch.allclose(x.exp().sum(-1), torch.ones(len(x)))",
        "F.nll_loss(z.log_softmax(-1), y), or F.cross_entropy(z, y)",
        f"{_ZT}; x = z.softmax(-1); assert F.nll_loss(x, y) < 0",
        f"{_ZT}; x = z.log_softmax(-1); assert F.nll_loss(x, y) > 0",
    ),
    Symptom(
        "negative-kl", VALUE,
        "a KL divergence is negative",
        "F.kl_div takes the logarithm of q first and p second; it got q itself",
        "not torch.allclose(log_q.exp().sum(-1), torch.ones(len(log_q)))",
        "F.kl_div(q.log(), p, reduction='batchmean')",
        "q = torch.tensor([[.7, .3]]); log_q = q; assert F.kl_div(log_q, q, reduction='sum') < 0",
        "q = torch.tensor([[.7, .3]]); log_q = q.log(); assert F.kl_div(log_q, q, reduction='sum') == 0",
    ),
    Symptom(
        "swapped-arguments", VALUE,
        "the number changed when the code moved between Keras and PyTorch",
        "PyTorch takes the prediction first, Keras and scikit-learn take the target first",
        "diagnose(loss_fn).first == 'target'",
        "name the arguments: F.cross_entropy(input=z, target=y)",
        "loss_fn = lambda z, y: F.cross_entropy(y, z)",
        "loss_fn = lambda z, y: F.cross_entropy(z, y)",
    ),
    Symptom(
        "from-logits-forgotten", VALUE,
        "Keras reports a loss that does not fit the accuracy",
        "from_logits=False is the default, and the model returns logits",
        "diagnose(loss_fn).reads != 'logits'",
        "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        "loss_fn = keras.losses.SparseCategoricalCrossentropy()",
        "loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    ),
    Symptom(
        "bits-for-nats", VALUE,
        "two programs differ by the factor 1.44",
        "one of them takes logarithms to the base 2",
        "diagnose(loss_fn).unit != 'nats'",
        "multiply bits by log(2), or say which unit it is",
        "loss_fn = lambda z, y: xent.cross_entropy(z, y) / np.log(2)",
        "loss_fn = xent.cross_entropy",
    ),
    Symptom(
        "rows-that-do-not-sum", VALUE,
        "scikit-learn and Keras disagree about the same probabilities",
        "the rows do not sum to one: Keras divides by the sum, scikit-learn does not",
        "not np.allclose(p.sum(-1), 1, atol=1e-6)",
        "normalise in one place, before either sees them",
        "p = np.array([[.7, .2, .3], [.1, .8, .1]])",
        "p = np.array([[.7, .2, .1], [.1, .8, .1]])",
    ),
    Symptom(
        "labels-sorted-as-text", VALUE,
        "log_loss of a perfect classifier is 36",
        "scikit-learn sorts the labels, as text '10' comes before '2', and your columns have another order",
        "list(columns) != sorted(columns)",
        "order the columns as sorted(set(labels)), or as model.classes_",
        "columns = ['2', '10']; assert log_loss(['2', '10'], np.eye(2)) > 36",
        "columns = ['10', '2']; assert log_loss(['10', '2'], np.eye(2)) < 1e-9",
    ),
    Symptom(
        "log-of-a-softmax", NAN,
        "the loss is inf or nan as soon as the model is confident",
        "log(softmax(z)) in two steps: exp overflows or underflows",
        "not np.isfinite(loss_fn(np.array([[1000., 0.]]), np.array([1])))",
        "xent.cross_entropy, F.cross_entropy, or z - xent.log_sum_exp(z)",
        "def loss_fn(z, y):\n    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)\n"
        "    return -np.log(p[np.arange(len(y)), y]).mean()",
        "loss_fn = xent.cross_entropy",
    ),
    Symptom(
        "zero-times-log-zero", NAN,
        "a perfect one-hot prediction costs nan",
        "0 * log(0) for the classes that are not the label",
        "np.isnan(loss_fn(np.array([[1., 0.]]), np.array([[1., 0.]])))",
        "scipy.special.xlogy(t, p), or index the label's probability",
        "loss_fn = lambda p, t: -(t * np.log(p)).sum()",
        "from scipy.special import xlogy; loss_fn = lambda p, t: -xlogy(t, p).sum()",
    ),
    Symptom(
        "all-ignored", NAN,
        "nan for some batches only, the gradient is zero",
        "every target of the batch is ignored: 0 / 0",
        "bool((y == -100).all())",
        "reduction='sum' divided by max(count, 1)",
        "y = torch.full((4,), -100)",
        "y = torch.tensor([-100, 2, 0, -100])",
    ),
    Symptom(
        "nan-in-an-ignored-row", NAN,
        "the loss is finite, the gradient is nan",
        "an ignored row has nan logits, and zero times nan is nan",
        "bool(z[y == -100].isnan().any())",
        "select the rows that count before the loss: F.cross_entropy(z[y != -100], y[y != -100])",
        "z = torch.tensor([[np.nan, 0.], [1., 0.]]); y = torch.tensor([-100, 0])",
        "z = torch.tensor([[np.nan, 0.], [1., 0.]]); y = torch.tensor([-100, 0]); "
        "z, y = z[y != -100], y[y != -100]",
    ),
    Symptom(
        "masked-class-with-soft-target", NAN,
        "nan with one-hot labels, finite with indices",
        "a logit of -inf (a masked class) times a zero label",
        "bool(F.cross_entropy(z, t).isnan())",
        "use indices, or xent.torch.soft_cross_entropy, for which 0 * log(0) is 0",
        "z = torch.tensor([[1., 0., -np.inf]]); t = torch.tensor([[1., 0., 0.]])",
        "z = torch.tensor([[1., 0., -np.inf]]); t = torch.tensor([0])",
    ),
    Symptom(
        "half-precision-mean", NAN,
        "inf for large batches in float16, finite for small ones",
        "the sum overflows at 65,504 before it is divided",
        "bool(F.cross_entropy(z, y).isfinite() != F.cross_entropy(z.float(), y).isfinite())",
        "F.cross_entropy(z.float(), y)",
        "z = torch.zeros(30_000, 16).half(); y = torch.zeros(30_000).long()",
        "z = torch.zeros(30_000, 16).half().float(); y = torch.zeros(30_000).long()",
    ),
    Symptom(
        "weights-sum-to-zero", NAN,
        "nan with class weights on small batches",
        "no label of the batch has a positive weight: 0 / 0",
        "float(w[y].sum()) == 0",
        "a small positive weight, or divide by a number of your own",
        "w = torch.tensor([0., 1., 1.]); y = torch.tensor([0, 0])",
        "w = torch.tensor([.1, 1., 1.]); y = torch.tensor([0, 0])",
    ),
    Symptom(
        "stuck-at-log-k", LEARNING,
        "the loss stays at log K",
        "all logits of a row are equal: the signal dies before the last layer",
        "float(np.ptp(z, axis=-1).max()) < 1e-6",
        "look at the activations before the last layer",
        "z = np.zeros((4, 10))",
        "z = np.random.default_rng(0).normal(size=(4, 10))",
    ),
    Symptom(
        "clipped-and-stuck", LEARNING,
        "single examples stay at 16.1 and never improve",
        "probabilities are clipped at 1e-7, and a clipped value has no gradient",
        "diagnose(loss_fn).epsilon is not None",
        "pass logits: from_logits=True",
        "loss_fn = keras.losses.CategoricalCrossentropy()",
        "loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)",
    ),
    Symptom(
        "vanished-binary-gradient", LEARNING,
        "sure and wrong examples of a binary classifier do not move",
        "BCELoss divides by max(p(1 - p), 1e-12): below a logit of -27.6 the gradient fades",
        "abs(torch.func.grad(loss_fn)(torch.tensor(-31.), torch.tensor(1.)).item()) < 0.5",
        "F.binary_cross_entropy_with_logits(z, y)",
        "loss_fn = lambda z, y: F.binary_cross_entropy(z.sigmoid(), y)",
        "loss_fn = F.binary_cross_entropy_with_logits",
    ),
    Symptom(
        "sign-flipped", LEARNING,
        "the loss falls without end and the accuracy with it",
        "the minus is missing, or there twice",
        "diagnose(loss_fn).sign < 0",
        "minimise the negative log-likelihood",
        "loss_fn = lambda z, y: z.log_softmax(-1).gather(-1, y[:, None]).mean()",
        "loss_fn = lambda z, y: -z.log_softmax(-1).gather(-1, y[:, None]).mean()",
    ),
    Symptom(
        "softmax-over-the-batch", LEARNING,
        "predictions change with the other rows of the batch",
        "the softmax runs over axis 0",
        "bool(np.allclose(p.sum(0), 1) and not np.allclose(p.sum(-1), 1))",
        "softmax over the class axis: axis=-1",
        f"{_Z}; p = xent.softmax(z, axis=0)",
        f"{_Z}; p = xent.softmax(z, axis=-1)",
    ),
    Symptom(
        "one-column-of-logits", LEARNING,
        "the loss is exactly 0 from the first step",
        "a softmax over a single column is 1, whatever the logit",
        "z.shape[-1] == 1",
        "binary cross-entropy with logits, or two columns",
        "z = torch.randn(4, 1); y = torch.zeros(4).long(); assert F.cross_entropy(z, y) == 0",
        "z = torch.randn(4, 2); y = torch.zeros(4).long(); assert F.cross_entropy(z, y) > 0",
    ),
    Symptom(
        "labels-that-do-not-sum", LEARNING,
        "TensorFlow's loss is right and its gradient fails a check",
        "the labels of a row do not sum to one: the kernel returns p - y, the gradient is sum(y) p - y",
        "not np.allclose(t.sum(-1), 1)",
        "normalise the labels, or multiply each row's loss by their sum",
        "t = np.array([[2., 0., 0.], [0., 1., 0.]])",
        "t = np.array([[1., 0., 0.], [0., 1., 0.]])",
    ),
    Symptom(
        "arguments-changed", LEARNING,
        "the second epoch sees other data than the first",
        "the loss works in place, on your logits or labels",
        "'changes its arguments in place' in diagnose(loss_fn).notes",
        "z = z - z.max() instead of z -= z.max()",
        "def loss_fn(z, y):\n    z -= z.max(-1, keepdims=True)\n    return xent.cross_entropy(z, y)",
        "def loss_fn(z, y):\n    z = z - z.max(-1, keepdims=True)\n    return xent.cross_entropy(z, y)",
    ),
    Symptom(
        "kl-k-times-too-small", MEAN,
        "a KL divergence is K times too small",
        "KLDivLoss's mean divides by N*K, the number of elements",
        "diagnose(loss_fn).denominator == 'N*K'",
        "torch.nn.KLDivLoss(reduction='batchmean')",
        "loss_fn = torch.nn.KLDivLoss()",
        "loss_fn = torch.nn.KLDivLoss(reduction='batchmean')",
    ),
    Symptom(
        "mean-over-classes", MEAN,
        "your own loss is K times smaller than the library's",
        ".mean() over rows and classes, where the classes should be summed",
        "diagnose(loss_fn).denominator == 'N*K'",
        "-(t * log_p).sum(-1).mean()",
        "loss_fn = lambda z, t: -(t * xent.log_softmax(z)).mean()",
        "loss_fn = lambda z, t: -(t * xent.log_softmax(z)).sum(-1).mean()",
    ),
    Symptom(
        "two-weighted-means", MEAN,
        "Keras and PyTorch agree until class weights come in",
        "PyTorch divides by the sum of weights, Keras by N",
        "not np.isclose(w[y].mean(), 1)",
        "divide the weights by their mean over the batch, or use one denominator in both",
        "w = np.array([1., 1., 10.]); y = np.array([0, 2, 1])",
        "w = np.array([1., 1., 10.]); y = np.array([0, 2, 1]); w = w / w[y].mean()",
    ),
    Symptom(
        "weights-without-effect", MEAN,
        "sample weights change nothing",
        "the loss takes any keyword and drops it",
        "'swallowed' in diagnose(loss_fn).weights",
        "spell the argument as the loss does, and refuse unknown ones",
        "loss_fn = lambda z, y, **options: xent.cross_entropy(z, y)",
        "loss_fn = lambda z, y, weight=None: xent.cross_entropy(z, y, weight=weight)",
    ),
    Symptom(
        "weights-of-a-1d-batch", MEAN,
        "with Keras's binary loss a weight scales the whole batch, not its row",
        "labels of shape (N,): the mean over the last axis is taken before the weights come",
        "y.ndim == 1",
        "give labels and predictions a last axis of size one: y[:, None]",
        "y = np.array([1., 0., 1.])",
        "y = np.array([1., 0., 1.])[:, None]",
    ),
    Symptom(
        "accumulation-changed-the-model", MEAN,
        "gradient accumulation gives another model than the full batch",
        "each micro-batch is divided by its own count of valid targets, and the counts differ",
        "len({int((y != -100).sum()) for y in micro_batches}) > 1",
        "xent.torch.accumulate: one denominator for the window",
        "micro_batches = torch.tensor([[1, 2, -100], [1, 2, 3]])",
        "micro_batches = torch.tensor([[1, 2, 0], [1, 2, 3]])",
    ),
    Symptom(
        "perplexity-depends-on-batches", MEAN,
        "the perplexity changes with the batch size",
        "a mean of batch means: tokens of short batches count more",
        "not np.isclose(reported, np.concatenate(losses).mean())",
        "add up the sums and the counts, divide once",
        "losses = [np.ones(2), np.zeros(8)]; reported = np.mean([each.mean() for each in losses])",
        "losses = [np.ones(2), np.zeros(8)]; reported = sum(each.sum() for each in losses) / 10",
    ),
    Symptom(
        "padding-counts", DATA,
        "the loss falls when you pad more",
        "padded positions are counted as targets",
        "not np.isclose(loss_fn(z, y), loss_fn(np.where(pad[:, None], 9 - z, z), y))",
        "ignore_index=, or a mask on sum and count alike",
        f"{_Z}; pad = y == 1; loss_fn = xent.cross_entropy",
        f"{_Z}; pad = y == 1; loss_fn = lambda z, y: xent.cross_entropy(z, y, ignore_index=1)",
    ),
    Symptom(
        "minus-one-is-a-class", DATA,
        "unlabelled rows (-1) train the last class",
        "NumPy reads the index -1 from the end",
        "'-1: counted as the last class' in diagnose(loss_fn).ignored",
        "xent.cross_entropy(z, y, ignore_index=-1)",
        "loss_fn = lambda z, y: -xent.log_softmax(z)[np.arange(len(y)), y].mean()",
        "loss_fn = lambda z, y: xent.cross_entropy(z, y, ignore_index=-1)",
    ),
    Symptom(
        "label-out-of-range", DATA,
        "an index error, or nan from compiled TensorFlow",
        "a label is negative or not below K",
        "not (0 <= int(y.min()) and int(y.max()) < z.shape[-1])",
        "compare the vocabulary with the last layer; name the label that is to be ignored",
        f"{_Z}; y = np.array([0, 3])",
        _Z,
    ),
    Symptom(
        "class-axis-second", DATA,
        "sequences of length K train badly, others raise",
        "PyTorch wants the classes on axis 1: (B, K, T)",
        "diagnose(loss_fn).layout != 'last'",
        "F.cross_entropy(z.movedim(-1, 1), y)",
        "loss_fn = F.cross_entropy",
        "loss_fn = lambda z, y: F.cross_entropy(z.movedim(-1, 1), y)",
    ),
    Symptom(
        "shifted-twice", DATA,
        "a language model predicts the token after the next",
        "you shifted the labels, and the model's own loss shifts them again",
        "bool((labels[:, :-1] == ids[:, 1:]).all())",
        "pass labels=ids to a model that shifts itself",
        "ids = np.arange(8).reshape(2, 4); labels = np.roll(ids, -1, axis=1)",
        "ids = np.arange(8).reshape(2, 4); labels = ids",
    ),
)  # fmt: skip

# The names that the checks use.
MEANINGS = {
    "z": "logits, the class axis last",
    "p": "probabilities",
    "y": "labels, class indices",
    "t": "target probabilities",
    "w": "a weight for each class",
    "x": "what goes into nll_loss",
    "log_q": "the first argument of F.kl_div",
    "losses": "unreduced losses, a batch at a time",
    "loss_fn": "your loss: loss_fn(prediction, target)",
    "columns": "the classes in the order of your columns",
    "reported": "the mean that you report",
    "pad": "true where a row is padding",
    "micro_batches": "the labels of each micro-batch",
    "ids, labels": "the tokens, and the labels you pass",
}


@dataclass(frozen=True, repr=False)
class SymptomTable:
    """Symptoms as a page shows them: a table with an anchor for each row, plain text elsewhere.

    Examples
    --------
    >>> from xent_book.frameworks import SYMPTOMS, SymptomTable
    >>> SymptomTable(SYMPTOMS[:1])
    the first loss is far from log K: abs(xent.cross_entropy(z, y) - np.log(z.shape[-1])) > 0.5
    """

    symptoms: Iterable[Symptom] = SYMPTOMS

    def __repr__(self) -> str:
        return "\n".join(f"{s.symptom}: {s.check}" for s in self.symptoms)

    def _repr_html_(self) -> str:
        lines = ['<table class="xent-symptoms">', "<thead><tr>"]
        lines += [f'<th scope="col">{h}</th>' for h in ("symptom", "cause", "check: true if so", "fix")]
        lines += ["</tr></thead>"]
        group = ""
        for s in self.symptoms:
            if s.group != group:
                lines += ["</tbody>"] if group else []
                group = s.group
                lines += [f'<tbody><tr><th scope="rowgroup" colspan="4">{escape(group)}</th></tr>']
            anchor = f"symptom-{s.slug}"
            lines += [
                f'<tr id="{anchor}">',
                f'<th scope="row"><a href="#{anchor}">{escape(s.symptom)}</a></th>',
                f"<td>{escape(s.cause)}</td>",
                f"<td><code>{escape(s.check)}</code></td>",
                f"<td>{escape(s.fix)}</td>",
                "</tr>",
            ]
        return "\n".join([*lines, "</tbody></table>"])
