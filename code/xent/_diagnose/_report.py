"""What a diagnosis holds, and how it prints."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

UNKNOWN = "unknown"
NAT = "not applicable"
UNITS = {"nats": 1.0, "bits": 1 / math.log(2), "hartleys": 1 / math.log(10)}
WIDTH = 42  # of a phone
FINE = "takes "  # how a note on what is in order begins


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a loss function computes, as far as calls can tell.

    Printed, it begins with a sentence; what is unusual follows, each behind a "!", then the facts. The word
    "unknown" says that calls did not tell, and "not applicable" that the question makes no sense.

    Attributes
    ----------
    family : str
        "categorical cross-entropy", "binary cross-entropy", the name of a divergence or "unknown".
    first, reads : str
        What the first argument is ("prediction", "target" or "either"); and what the prediction is: "logits" and what
        is done to them first, such as a softmax, "log-probabilities", "probabilities".
    targets : tuple of str
        What it reads: "indices", "one-hot", "soft", "logits", "log-probabilities"; if binary "0 or 1", "soft",
        "-1 or 1".
    reduction, denominator : str
        "none", "sum" or "mean"; and what divides: "nothing", "N", "N*K", "K", "the sum of weights", "of other weights".
    factor, sign, unit : float, int, str
        What the loss is multiplied by, beyond its sign and its unit ("nats", "bits" or "hartleys").
    smoothing, smoothing_over : float or None, str
        Mass taken from the label; over "all K classes", "the K - 1 others", "both labels".
    class_weights, pos_weight : tuple of float or None
        One for each class, None where no two are seen to differ; with a mean over their own sum only their ratio
        shows, and the smallest above 0 is 1. The weight of a positive beside a negative, for each binary problem.
    ignore_index, ignored : tuple of int, str
        The labels that were found to be left out; what labels that are no class do.
    epsilon, clip : float or None, str
        The probability at which it clips, or that it adds, and what an impossible event costs.
    temperature, softcap, gamma, z_loss, entropy, constant : float
        What the logits are divided by; the focusing; the coefficients of (log Z)^2 and of the prediction's entropy;
        what is added to each row.
    axis, layout, sequences : str
        The axis of the softmax, for a batch of rows; the class axis of an input of three dimensions; what is averaged
        over ragged sequences, and whether the loss shifts the labels itself.
    renormalises, precision, gradient, arrays : str
        What becomes of probabilities that do not sum to one ("yes", "no" or "refuses"); the format that it computes
        in; whether its gradient is that of its value; what it was called with.
    classes, tried : tuple of int, str
        The numbers of classes on which it was understood; the sizes of the batches that were predicted.
    batch, cost, predicted : str, float or None, float or None
        What the batch that was handed over costs, and what was predicted: sums of what the call returns.
    alternatives, notes : tuple of str
        Other readings that the batches cannot tell from this one; what else was seen, and what stays unexplained.
    """

    family: str = UNKNOWN
    first: str = UNKNOWN
    targets: tuple[str, ...] = ()
    reads: str = UNKNOWN
    reduction: str = UNKNOWN
    denominator: str = UNKNOWN
    factor: float = 1.0
    sign: int = 1
    unit: str = UNKNOWN
    smoothing: float | None = None
    smoothing_over: str = ""
    class_weights: tuple[float, ...] | None = None
    pos_weight: tuple[float, ...] | None = None
    ignore_index: tuple[int, ...] = ()
    epsilon: float | None = None
    clip: str = UNKNOWN
    temperature: float = 1.0
    softcap: float = 0.0
    gamma: float = 0.0
    z_loss: float = 0.0
    entropy: float = 0.0
    constant: float = 0.0
    axis: str = UNKNOWN
    layout: str = UNKNOWN
    sequences: str = UNKNOWN
    ignored: str = UNKNOWN
    renormalises: str = UNKNOWN
    precision: str = UNKNOWN
    gradient: str = UNKNOWN
    arrays: str = UNKNOWN
    classes: tuple[int, ...] = ()
    tried: str = ""
    batch: str = ""
    cost: float | None = None
    predicted: float | None = None
    alternatives: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether every batch was predicted."""
        return self.family != UNKNOWN

    @property
    def added(self) -> str:
        """What is added to the plain loss, in words; empty for the plain loss."""
        whole = round(1 / self.factor) if self.factor else 0
        divided = whole > 1 and abs(whole * self.factor - 1) < min(3e-5, 0.01 / whole)
        asked = {
            "class weights " + _ratios(self.class_weights or ()): self.class_weights,
            "pos_weight " + ", ".join(f"{w:.4g}" for w in dict.fromkeys(self.pos_weight or ())): self.pos_weight,
            f"smoothing {self.smoothing or 0:.3g} over {self.smoothing_over}": self.smoothing,
            f"focal, gamma {self.gamma:.3g}": self.gamma,
            f"temperature {self.temperature:.4g}": self.temperature != 1,
            f"logits capped at {self.softcap:.4g}": self.softcap,
            f"plus {self.z_loss:.4g} times (log Z)^2": self.z_loss,
            f"plus {self.entropy:.4g} times the entropy": self.entropy,
            f"plus {self.constant:.4g} times 1": self.constant,
            f"times {self.factor:.6g}" + f" (divided by {whole})" * divided: self.factor != 1,
            f"softmax over {self.axis}": self.axis not in (UNKNOWN, NAT, "the classes"),
        }  # fmt: skip
        return ", ".join(said for said, is_so in asked.items() if is_so)

    @property
    def sentence(self) -> str:
        """What it is, in one sentence."""
        if not self.known:
            return UNKNOWN
        how = {"none": "unreduced ", "sum": "sum of the "}.get(self.reduction, "mean ")
        over = f", over {self.denominator}" * (self.denominator not in ("nothing", UNKNOWN))
        added = f", with {self.added}".replace("with plus", "plus") if self.added else ""
        flipped = "sign flipped, " * (self.sign < 0 and min(self.pos_weight or (1,)) > 0)
        unit = f", in {self.unit}" * (self.unit not in ("nats", UNKNOWN))
        family = self.family.replace("categorical ", "")
        text = f"{flipped}{how}{family} of {self.reads}{over}{unit}{added}"
        return text[0].upper() + text[1:]

    @property
    def unusual(self) -> tuple[str, ...]:
        """What a plain loss does not do, and what may be a fault."""
        binary = self.family.startswith("binary")
        apart, negative = bool(self.pos_weight and min(self.pos_weight) < 0), self.sign * self.factor
        pos = negative * (self.pos_weight or (1,))[0]
        asked = {
            "the sign is flipped: a right answer costs more": self.sign < 0 and not apart,
            f"reads {self.reads}": "," in self.reads,
            f"divides by {self.denominator}: K times less than a mean of rows": self.denominator in ("N*K", "K")
            and not binary and self.known,
            f"the softmax runs over {self.axis}": self.axis not in (UNKNOWN, NAT, "the classes"),
            f"a positive costs {pos:.4g} times its cross-entropy, a negative {negative:.4g} times": apart,
            f"the gradient: {self.gradient}": self.gradient not in ("that of the value", UNKNOWN, NAT),
            f"clips: {self.clip}": self.clip not in ("no", UNKNOWN, NAT) and not self.clip.startswith("no,"),
            f"computes in {self.precision}": "16" in self.precision,
            "padding counts in the mean": self.sequences.startswith("over all positions, padding"),
            "averages the means of sequences: a short one weighs as much as a long one":
                self.sequences.startswith("a mean of sequence"),
            "divides a batch of sequences by their number alone": self.sequences.startswith("over the sequences"),
            f"ignored labels: {self.ignored}":
                any(said in self.ignored for said in ("counted as", "read as", "by N", "changes")),
            self.batch: ";" in self.batch,
        }  # fmt: skip
        told = (n for n in self.notes if not n.startswith(FINE))
        return (*(said for said, is_so in asked.items() if is_so), *told)

    def __repr__(self) -> str:
        if not self.known:
            return "\n".join([UNKNOWN, *(line for note in self.notes for line in _lines(note))])
        ignored = "; ".join(p for p in self.ignored.split("; ") if not p.endswith(": refused"))
        sequences = self.sequences.replace("; compares position t with label t", "")
        for left in self.ignore_index[:1]:
            sequences = sequences.replace(f" (label {left} left out)", "")
        *most, last = self.targets or ("",)
        takes = ["prediction", f"{', '.join(most)} or {last} targets" if most else f"{last} targets"]
        either = ", or the other way round" * (self.first == "either")
        unusual = self.unusual
        facts = (
            ("takes", ", then ".join(takes[::-1] if self.first == "target" else takes) + either),
            ("sequences", sequences),
            ("ignores", "" if f"ignored labels: {self.ignored}" in unusual else ignored),
            ("rows", {"yes": "divided by their sums"}.get(self.renormalises, NAT)),
            ("classes", f"{self.layout} axis" if self.layout in ("last", "second") else NAT),
            ("gradient", self.gradient if self.gradient == "that of the value" else ""),
            ("tried", self.tried),
            *(("or", a) for a in self.alternatives),
            *(("note", n) for n in self.notes if n.startswith(FINE)),
            ("", self.batch if self.batch not in unusual else ""),
        )
        text = [_lines(self.sentence + ".", "", ""), *(_lines(said, "! ") for said in unusual)]
        text += [_lines(v, f"  {k:<10}" if k else "  ", " " * 12 if k else "  ")
                 for k, v in facts if v not in ("", UNKNOWN, NAT)]  # fmt: skip
        return "\n".join(line for lines in text for line in lines)


def _ratios(weights: tuple[float, ...]) -> str:
    shown = " : ".join(f"{w:.4g}" for w in weights[:12])
    return shown + (f" : ... ({len(weights)} of them)" if len(weights) > 12 else "")


def _lines(text: str, head: str = "  ", rest: str = "  ") -> list[str]:
    """A text no wider than a phone shows."""
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=rest, break_on_hyphens=False)
