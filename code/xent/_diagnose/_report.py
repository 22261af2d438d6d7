"""What a diagnosis holds, and how it prints."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

UNKNOWN = "unknown"
NAT = "not applicable"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a loss function computes, as far as calls can tell.

    Printed, what shows a finding stands below it in brackets. The word "unknown" says that calls did not
    tell, and "not applicable" that the question makes no sense.

    Attributes
    ----------
    family : str
        "categorical cross-entropy", "binary cross-entropy", "KL divergence" or "unknown".
    first : str
        What the first argument is: "prediction", "target" or "either".
    targets : tuple of str
        The targets that it reads: "indices", "one-hot", "soft", "log-probabilities"; for a binary loss "0 or 1",
        "soft", "-1 or 1".
    reads : str
        "logits", "log-probabilities", "probabilities", or logits with what is done to them first, such as a softmax.
    reduction, denominator : str
        "none", "sum" or "mean"; and what is divided by: "nothing", "N", "N*K", "K", "the sum of weights".
    factor, sign, unit : float, int, str
        What the loss is multiplied by, beyond its sign and its unit ("nats", "bits" or "hartleys").
    smoothing, smoothing_over : float or None, str
        Mass taken from the label; over "all K classes" ("all classes, at K = 3"), "the K - 1 others", "both labels".
    class_weights : tuple of float or None
        One for each class; None where no two are seen to differ. With a mean over their own sum only their ratio shows,
        and the smallest above 0 is 1.
    pos_weight : tuple of float or None
        The weight of a positive beside a negative, one for each binary problem.
    ignore_index : tuple of int
        The labels that were found to be left out; `ignored` says how.
    epsilon, clip : float or None, str
        The probability at which it clips, or that it adds, and what an impossible event costs.
    temperature, softcap, gamma, z_loss, entropy, constant : float
        What the logits are divided by; the c of c tanh(z / c), or 0; the focusing; the
        coefficients of (log Z)^2 and of the prediction's entropy; what is added to each row.
    axis, layout : str
        The axis of the softmax, for a batch of rows; and the class axis of an input of three dimensions.
    sequences : str
        What is averaged over ragged sequences, and whether the loss shifts the labels itself.
    ignored, weights : str
        What labels that are no class do, and what keyword arguments do that take weights.
    renormalises : str
        "yes", "no" or "refuses": probabilities that do not sum to one.
    precision, gradient, arrays : str
        The format that it computes in; whether its gradient is that of its value; what it was called with.
    classes : tuple of int
        The numbers of classes on which it was understood.
    alternatives : tuple of str
        Other readings that the batches cannot tell from the one above.
    notes : tuple of str
        What else was seen, what stays unexplained, and what the loss itself said.
    evidence : dict
        What shows a finding, by its name.
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
    weights: str = UNKNOWN
    renormalises: str = UNKNOWN
    precision: str = UNKNOWN
    gradient: str = UNKNOWN
    arrays: str = UNKNOWN
    classes: tuple[int, ...] = ()
    alternatives: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether every batch was predicted."""
        return self.family != UNKNOWN

    @property
    def added(self) -> str:
        """What is added to the plain loss, in words; empty for the plain loss."""
        parts = []
        if self.class_weights:
            parts.append("class weights " + _ratios(self.class_weights))
        if self.pos_weight:
            parts.append("pos_weight " + ", ".join(f"{w:.4g}" for w in dict.fromkeys(self.pos_weight)))
        if self.smoothing:
            parts.append(f"smoothing {self.smoothing:.3g} over {self.smoothing_over}")
        if self.gamma:
            parts.append(f"focal, gamma {self.gamma:.3g}")
        if self.temperature != 1:
            parts.append(f"temperature {self.temperature:.4g}")
        if self.softcap:
            parts.append(f"logits capped at {self.softcap:.4g}")
        for name, value in (("(log Z)^2", self.z_loss), ("the entropy", self.entropy), ("1", self.constant)):
            if value:
                parts.append(f"plus {value:.4g} times {name}")
        if self.factor != 1:
            whole = round(1 / self.factor) if self.factor else 0
            divided = whole > 1 and abs(whole * self.factor - 1) < min(3e-5, 0.01 / whole)
            squared = self.temperature != 1 and abs(self.factor / self.temperature**2 - 1) < 1e-3
            also = f" (divided by {whole})" * divided + " = T²" * squared
            parts.append(f"times {self.factor:.6g}{also}")
        if self.axis not in (UNKNOWN, NAT, "the classes"):
            parts.append(f"softmax over {self.axis}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        head = self.family if self.sign > 0 else f"{self.family}, sign flipped"
        lines: list[tuple[str, str, str]] = []
        if self.known:
            smooth = UNKNOWN if self.smoothing is None else f"{self.smoothing:.3g}"
            lines = [
                ("with", self.added or UNKNOWN, "added"),
                ("sequences", self.sequences, "sequences"),
                ("first argument", self.first, "first"),
                ("targets", ", ".join(self.targets) or UNKNOWN, "targets"),
                ("reads", self.reads, "reads"),
                ("reduction", self.reduction, "reduction"),
                ("divides by", self.denominator, "denominator"),
                ("smoothing", smooth, "smoothing"),
                ("weights", self.weights, "weights"),
                ("ignored", self.ignored, "ignored"),
                ("clips", self.clip, "clip"),
                ("renormalises", self.renormalises, "renormalises"),
                ("class axis", self.layout, "layout"),
                ("gradient", self.gradient, "gradient"),
                ("precision", self.precision, "precision"),
                ("unit", self.unit, "unit"),
            ]
        # What is not known, or does not apply, takes no line.
        text = [head]
        for key, value, name in lines:
            if value not in (UNKNOWN, NAT):
                text += _entry(key, value, self.evidence.get(name, ""))
        for key, values in (("or", self.alternatives), ("note", self.notes)):
            for value in values:
                text += _entry(key, value, "")
        return "\n".join(text)


def _ratios(weights: tuple[float, ...]) -> str:
    shown = [f"{w:.4g}" for w in weights[:12]]
    return " : ".join(shown) + (f" : ... ({len(weights)} of them)" if len(weights) > 12 else "")


def _entry(key: str, value: str, evidence: str) -> list[str]:
    """One finding and its evidence, no wider than a phone shows."""
    lines, head, rest = [], f"  {key:<14} ", " " * 17
    for part in [*value.split("; "), *([f"[{evidence}]"] if evidence else [])]:
        lines += textwrap.wrap(part, 42, initial_indent=head, subsequent_indent=rest, break_on_hyphens=False)
        head = rest
    return lines
