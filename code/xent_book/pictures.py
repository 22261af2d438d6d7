"""The pictures that the book draws while it is built, from `xent`, as SVG in the page.

Text and axes take the colour of the page's text, and the colours are the palette's, so that a picture follows light
and dark. To add one: a function here that draws it, with a line in `FIGURES`; for one that moves its formula in
`_static/move/formulas.js`, which tests/book/test_moving.py compares with `xent`, and its controls in
`_static/move/figures.js`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from io import StringIO
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import xent
from xent import elicitation, gradients, information, scoring
from xent.denominators import eos_optimum, learnt_lengths
from xent.distillation import distillation_gradient
from xent_book import data, plots


def _panels(fig: Figure, titles: list[str], **shared: Any) -> list[Axes]:
    axes = list(fig.subplots(1, len(titles), sharey=True))
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, **shared)
    return axes


def draw_softmax(fig: Figure) -> None:
    """Draw the same logits at three temperatures."""
    temperatures = (0.5, 1.0, 4.0)
    axes = _panels(fig, [f"T = {t:g}" for t in temperatures], ylim=(0, 1))
    for ax, temperature in zip(axes, temperatures, strict=True):
        probs = xent.softmax([z / temperature for z in (2.0, 1.0, 0.0, -1.0)])
        ax.bar(["A", "B", "C", "D"], probs, color=plots.BLUE, width=0.6)
        ax.grid(axis="x", visible=False)
    axes[0].set(ylabel="probability")
    axes[1].set(xlabel="class, with the logits 2, 1, 0 and −1")


def draw_binary_loss(fig: Figure) -> None:
    """Draw loss and mistakes for a sure and an unsure label, with a tangent."""
    z, at, threshold = np.linspace(-6, 6, 241), 2.0, 0.5
    labels = (1.0, 0.7)
    axes = _panels(fig, [f"y = {y:g}" for y in labels], ylim=(-0.3, 5), xlabel="logit z")
    for ax, y in zip(axes, labels, strict=True):
        curve = xent.binary_cross_entropy(z, np.full(z.size, y), reduction="none")
        ax.plot(z, curve, color=plots.BLUE, label="loss")
        loss, slope = xent.binary_cross_entropy(at, y), xent.sigmoid(at) - y
        ax.plot(z, loss + slope * (z - at), color=plots.GREY, ls=":", label="tangent at z = 2")
        ax.plot(at, loss, "o", color=plots.BLUE, ms=7)
        # At the threshold 1/2 the answer changes at the logit 0.
        wrong = np.where(xent.sigmoid(z) > threshold, 1 - y, y)
        ax.step(z, wrong, color=plots.ORANGE, ls="--", where="post", label="share of mistakes")
    axes[0].set(ylabel="nats, or share")
    lines, names = axes[0].get_legend_handles_labels()
    fig.legend(lines, names, loc="outside upper center", ncols=3, columnspacing=1, handlelength=1.5)


def draw_smoothing(fig: Figure) -> None:
    """Draw the best report over the truth for three smoothings, and one way back."""
    ax = fig.subplots()
    classes, p = 10, np.array([0.0, 1.0])
    styles = ((0.0, plots.GREY, ":"), (0.2, plots.BLUE, "-"), (0.5, plots.GREEN, "--"))
    for eps, colour, style in styles:
        name = "honest, q = p" if eps == 0 else f"ε = {eps:g}"
        ax.plot(p, (1 - eps) * p + eps / classes, style, color=colour, label=name)
    report = 0.7
    back = scoring.invert_smoothing([report, *[(1 - report) / 9] * 9], label_smoothing=0.2)[0]
    ax.plot([0, back, back], [report, report, 0], color=plots.ORANGE, lw=1.2)
    ax.plot(back, report, "o", color=plots.ORANGE, ms=7)
    ax.annotate(f"{report:g} comes from {back:g}", (back, 0.1), (0.83, 0.1), ha="right", color=plots.BLACK)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="true probability p, K = 10", ylabel="report q")
    ax.legend(loc="upper left")


def draw_gap(fig: Figure) -> None:
    """Draw the smoothed loss of one example over its gap, for three smoothings, each with its best gap."""
    ax, gaps, classes = fig.subplots(), np.linspace(0, 15, 151), 10
    for eps, colour, style in ((0.0, plots.GREY, "--"), (0.1, plots.BLUE, "-"), (0.3, plots.GREEN, "-")):
        ax.plot(gaps, smoothed(gaps, eps, classes), style, color=colour, label=f"ε = {eps:g}")
        if eps:
            best = np.log1p(classes * (1 - eps) / eps)
            ax.plot(best, smoothed(best, eps, classes), "o", mfc="white", color=colour, ms=8, mew=2)
    ax.set(xlim=(0, 15), ylim=(0, 4), xlabel="gap to the other logits, K = 10", ylabel="loss, nats")
    ax.legend(loc="upper center")


def smoothed(gap: float | NDArray[np.float64], eps: float, classes: int) -> NDArray[np.float64]:
    """Return the losses of examples whose label is ahead of all other classes by a gap, with label smoothing."""
    z = np.multiply.outer(gap, np.eye(classes)[0]).reshape(-1, classes)
    losses = xent.cross_entropy(z, np.zeros(len(z), int), label_smoothing=eps, reduction="none")
    return np.asarray(losses)


def draw_scores(fig: Figure) -> None:
    """Draw the expected costs of a report under three rules at one probability."""
    ax = fig.subplots()
    truth = [0.7, 0.3]
    q = np.linspace(0.002, 0.998, 250)
    pairs = np.stack([q, 1 - q], axis=-1)
    for name, rule, colour, style, best in (
        ("log", scoring.log_score, plots.BLUE, "-", 0.7),
        ("Brier", scoring.brier_score, plots.GREEN, "--", 0.7),
        ("linear", scoring.linear_score, plots.PINK, ":", 1.0),
    ):
        ax.plot(q, elicitation.expected_score(rule, truth, pairs), style, color=colour, label=name)
        cost = elicitation.expected_score(rule, truth, [best, 1 - best])
        ax.plot(best, cost, "o", mfc="white", color=colour, ms=8, mew=2, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 2), xlabel="report q, for p = 0.7", ylabel="expected cost")
    ax.legend(loc="upper left", bbox_to_anchor=(0.15, 1))


def draw_divergence(fig: Figure) -> None:
    """Draw what each class adds to the divergences of two distributions, in both directions."""
    p = np.array([0.6, 0.3, 0.1])
    q = np.asarray(xent.softmax([-1.0, 0.0, 1.0]))
    axes = _panels(fig, ["Q over P", "KL(P ‖ Q)", "KL(Q ‖ P)"], ylim=(-0.5, 1.5))
    axes[0].bar(["A", "B", "C"], q, color=plots.BLUE, width=0.6)
    axes[0].hlines(p, np.arange(3) - 0.4, np.arange(3) + 0.4, color=plots.ORANGE, lw=2.5)
    for ax, (first, second) in zip(axes[1:], ((p, q), (q, p)), strict=True):
        blocks, colours = first * np.log(first / second), [plots.GREEN] * 3 + [plots.GREY]
        ax.bar(["A", "B", "C", "Σ"], [*blocks, blocks.sum()], color=colours, width=0.6)
    for ax in axes:
        ax.axhline(0, color=plots.BLACK, lw=1)
        ax.grid(axis="x", visible=False)
    axes[0].set(ylabel="probability, or nats")
    axes[1].set(xlabel="class, and the sum of the blocks")


def draw_tilt(fig: Figure) -> None:
    """Draw the lengths of the data and those learnt with one sequence to a denominator."""
    stop, lengths = 0.1, np.arange(1, 31)
    ax, data = fig.subplots(), stop * (1 - stop) ** (lengths - 1.0)
    learnt = data / lengths / eos_optimum(stop, 1)
    ax.bar(lengths, learnt, color=plots.BLUE, width=0.8)
    ax.hlines(data, lengths - 0.45, lengths + 0.45, color=plots.ORANGE, lw=2.5)
    ax.text(4, 0.2, f"learnt: {1 / eos_optimum(stop, 1):.1f} tokens on average")
    ax.text(12, 0.05, f"the data: {1 / stop:.0f}")
    ax.grid(axis="x", visible=False)
    ax.set(xlim=(0, 31), ylim=(0, 0.42), xlabel="length in tokens", ylabel="share of the sequences")


def stored(name: str) -> dict[str, Any]:
    """Read the record of an experiment."""
    return dict(json.loads((data.root() / "experiments" / name).read_text(encoding="utf-8")))


def draw_bench(fig: Figure) -> None:
    """Draw the time of `xent` as a share of others', from random to trained logits, in float32."""
    ax = fig.subplots()
    ways = (("torch", plots.ORANGE, "o"), ("scipy", plots.BLUE, "s"), ("keras", plots.GREEN, "D"))
    sizes: dict[str, list[dict[str, Any]]] = {}
    for case in stored("bench/result.json")["cases"]:
        sizes.setdefault(f"{case['rows']:,} × {case['classes']:,}", []).append(case["seconds"])
    both = {size: cases for size, cases in sizes.items() if len(cases) == 2}
    for at, cases in enumerate(both.values()):
        for shift, (way, colour, marker) in zip((-0.2, 0.0, 0.2), ways, strict=True):
            shares = [seconds["xent"]["fastest"] / seconds[way]["fastest"] for seconds in cases]
            ax.plot(shares, [at + shift] * 2, color=colour, lw=1.5)
            ax.plot(shares[0], at + shift, marker, color=colour, ms=6, label="" if at else way)
            ax.plot(shares[1], at + shift, marker, color=colour, ms=6, mfc="white")
    ax.axvline(1, color=plots.BLACK, lw=1.2)
    ax.set_xscale("log", base=2)
    ax.set_xticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], ["⅛", "¼", "½", "1", "2", "4", "8"])
    ax.set_yticks(range(len(both)), both)
    ax.grid(axis="y", visible=False)
    ax.set(ylim=(len(both) - 0.5, -0.5), xlabel="time of xent, as a share of the other's")
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, frameon=False)


def draw_bench_gpu(fig: Figure) -> None:
    """Draw time over memory of a step of the last layer on a GPU, for each way to compute it."""
    cases = [case for case in stored("bench/linear.json")["cases"] if case["device"] != "cpu"]
    classes, width = max((case["classes"], case["width"]) for case in cases)
    axes, ticks = fig.subplots(2, 1, sharex=True), [1, 10, 100, 1000, 10_000]
    targets = {"cross_entropy": "labels", "distillation": "a live teacher"}
    for ax, (loss, name) in zip(axes, targets.items(), strict=True):
        [case] = [c for c in cases if (c["loss"], c["classes"], c["width"]) == (loss, classes, width)]
        for way, bytes_held in case["memory"].items():
            below = way == "plain, compiled"
            if "," in way and not below:  # a variant
                continue
            x, y = max(bytes_held / 2**20, 1), case["seconds"][way] / case["seconds"]["plain"]
            ax.plot(x, y, "o", color=plots.BLUE if way == "xent" else plots.ORANGE, ms=7)
            side, shift = ("left", -4) if x < 3 else ("center", 0)
            ax.annotate(way, (x, y), (shift, -15 if below else 7), textcoords="offset points", ha=side)
        ax.set(title=f"{classes:,} classes, H = {width:,}, {name}", ylabel="time, of plain")
        ax.set(xscale="log", xlim=(0.7, 40_000), xticks=ticks, xticklabels=[f"{tick:,}" for tick in ticks])
        ax.set_ylim(0, 1.2 * max(case["seconds"].values()) / case["seconds"]["plain"])
    axes[1].set(xlabel="peak less both gradients, MiB")


def draw_speeches(fig: Figure) -> None:
    """Draw as many characters as the small transformer of chapter 11 writes, by the divisor of its loss."""
    result = stored("shakespeare/result.json")
    ax = fig.subplots()
    per_speech = ("B=1", plots.ORANGE, "loss / tokens of the speech")
    for row, (arm, colour, divisor) in enumerate([per_speech, ("constant", plots.BLUE, "loss / a constant")]):
        lengths = [run["mean_length"] for run in result["runs"] if run["arm"] == arm]
        count = round(float(np.mean(lengths)))
        # Words of Shakespeare's, as strokes.
        strokes = [i for i in range(count) if i % 11 not in (5, 8)]
        ax.plot(strokes, [row] * len(strokes), "|", color=colour, ms=13, mew=1.3)
        ax.text(0, row - 0.34, divisor, family="monospace")
        ax.text(count + 2, row, f"{count} characters", va="center")
    data = stored("shakespeare/prediction.json")["mean_length"]
    ax.plot([data, data], [-0.45, 1.3], color=plots.GREY, ls=":")
    ax.text(data + 2, -0.45, f"{data:.0f}, the data", va="center", color=plots.GREY)
    ax.set(xlim=(-1, 190), ylim=(1.35, -0.6))
    ax.axis("off")


OWN = [9, 11, 90, 110], ["first", "first", "second", "second"]  # as in _static/move/figures.js


def written(lengths: list[int], batch: int, prompts: list[str]) -> float:
    """Return the mean length that is written if the prompts come as in the data."""
    shares = [prompts.count(prompt) / len(prompts) for prompt in prompts]
    return float(np.sum(learnt_lengths(lengths, batch, prompts) * shares * lengths))


def draw_own_lengths(fig: Figure) -> None:
    """Draw what two prompts teach, and four lengths without them."""
    ax, (lengths, prompts) = fig.subplots(), OWN
    names, mean = ["1", "4", "64", "constant"], float(np.mean(lengths))
    for asked, shift, colour, label in (
        (prompts, -0.2, plots.BLUE, "learnt"),
        ([""] * 4, 0.2, plots.ORANGE, "without prompts"),
    ):
        means = [*(written(lengths, size, asked) for size in (1, 4, 64)), mean]
        ax.bar(np.arange(4) + shift, means, 0.38, color=colour, label=label)
    ax.set_xticks(range(4), names)
    ax.grid(axis="x", visible=False)
    ax.set(ylim=(0, 75), xlabel="sequences that share a denominator", ylabel="mean length")
    ax.legend(loc="upper left", ncols=2)


# The six examples of chapter 4, as in _static/move/formulas.js: logits of class 1 minus those of class 0, and labels.
SIX_Z, SIX_Y = np.array([3.5346, -0.2119, 1.846, 0.3021, -0.8732, 6.6285]), np.array([0, 1, 0, 1, 1, 0])


def draw_pull(fig: Figure) -> None:
    """Draw each of six examples with the distance from its target to the prediction."""
    ax = fig.subplots()
    z = np.linspace(-8, 8, 161)
    ax.plot(z, xent.sigmoid(z), color=plots.BLUE, label="prediction")
    ax.vlines(SIX_Z, SIX_Y, xent.sigmoid(SIX_Z), color=plots.ORANGE, lw=2.5, label="pull")
    ax.plot(SIX_Z, SIX_Y, "o", color=plots.ORANGE, ms=6, label="target")
    for number, (at, y) in enumerate(zip(SIX_Z, SIX_Y, strict=True), 1):
        ax.annotate(str(number), (at, y), (0, 6 if y else -14), textcoords="offset points", ha="center")
    ax.set(xlabel="logit of class 1 minus that of class 0", ylabel="probability of class 1")
    ax.set_ylim(-0.12, 1.12)
    ax.legend(loc="center left")


# The student and the teacher of chapter 13, as in _static/move/figures.js.
STUDENT_Z, TEACHER_Z = np.array([1.0, 0.0, 0.5, -1.0]), np.array([6.0, 3.0, -1.0, -4.0])


def sizes(temperature: float, classes: int) -> tuple[float, float, float]:
    """Return the sizes of the soft gradient in the logits, with T squared and without, and of a label's."""
    z, v = (np.repeat(x, classes // 4) for x in (STUDENT_Z, TEACHER_Z))
    soft = float(np.linalg.norm(distillation_gradient(z, v, temperature=temperature)))
    return soft, soft / temperature**2, float(np.linalg.norm(gradients.cross_entropy_gradient(z, 0)))


def draw_temperature(fig: Figure) -> None:
    """Draw the size of the soft gradient over the temperature, for few classes and for many."""
    axes = _panels(fig, ["K = 4", "K = 1,024"], ylim=(0, 1.75), xlabel="temperature T")
    at = 2 ** np.linspace(0, 6, 49)
    for ax, classes in zip(axes, (4, 1024), strict=True):
        large, small, label = np.array([sizes(t, classes) for t in at]).T
        ax.plot(at, large, color=plots.BLUE, label="with T²")
        ax.plot(at, small, color=plots.ORANGE, label="without")
        ax.plot(at, label, color=plots.GREY, ls=":", label="a label")
        ax.set_xscale("log", base=2)
        ax.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
        ax.minorticks_off()
    axes[0].set(ylabel="size of the gradient")
    axes[1].legend(loc="upper right")


def draw_digits(fig: Figure) -> None:
    """Draw the correct digits of the naive loss in three formats."""
    ax = fig.subplots()
    margin = np.arange(0.25, 40, 0.25)
    exact = np.log1p(np.exp(-margin))
    styles = (("float64", "-"), ("float32", "--"), ("float16", ":"))
    for (name, style), colour in zip(styles, (plots.BLUE, plots.ORANGE, plots.GREEN), strict=True):
        dtype = np.dtype(name)
        with np.errstate(under="ignore", divide="ignore"):
            naive = -np.log(1 / (1 + np.exp(-margin).astype(dtype)))
            error = np.abs(naive.astype(float) - exact) / exact
            most = (np.finfo(dtype).nmant + 1) * np.log10(2)
            ax.plot(margin, np.clip(-np.log10(error), 0, most), style, color=colour, label=name)
    ax.set(xlim=(0, 40), ylim=(0, 17), xlabel="margin of the right class", ylabel="correct digits")
    ax.legend(loc="upper right")


def bump(centre: float) -> NDArray[np.float64]:
    """Return a bell over nine classes, not normalised."""
    return np.exp(-((np.arange(1, 10) - centre) ** 2) / 2)


def teacher(temperature: float) -> NDArray[np.float64]:
    """Return the probabilities with two peaks, at a temperature."""
    return np.asarray(xent.softmax(np.log(0.6 * bump(2) + 0.4 * bump(7)) / temperature))


def draw_direction(fig: Figure) -> None:
    """Draw both divergences of a one-peaked student from a two-peaked teacher."""
    top, ax = fig.subplots(2, 1, sharex=True)
    top.bar(np.arange(1, 10), teacher(1), color=plots.GREY, width=0.6)
    top.set(ylabel="teacher", ylim=(0, 0.3))
    places = np.linspace(1, 9, 161)
    students = [bump(c) / bump(c).sum() for c in places]
    for name, style, colour, costs in (
        ("forward", "-", plots.BLUE, [information.kl_divergence(teacher(1), q) for q in students]),
        ("reverse", "--", plots.ORANGE, [information.kl_divergence(q, teacher(1)) for q in students]),
    ):
        ax.plot(places, costs, style, color=colour, label=name)
        ax.plot(places[np.argmin(costs)], min(costs), "o", mfc="white", color=colour, ms=8, mew=2)
    ax.set(xlim=(0.5, 9.5), ylim=(0, 8), xlabel="place of the student's peak", ylabel="divergence in nats")
    ax.legend(loc="upper center")


PARTS = {
    "BLUE": "a coin, and the loss/many classes: softmax/surprise and divergence",
    "GREEN": "prediction minus target/lost digits",
    "GREY": "certify a loss/what frameworks compute/what is wrong?",
    "ORANGE": "proper scores/averages over length/one denominator",
    "PINK": "soft targets/teacher and student",
    "SKY": "distil a language model/large vocabularies/in other clothes",
}
# What each chapter's opening says you should know, less what follows from the rest; a test compares.
NEEDS = {2: [1], 3: [2], 4: [2], 5: [4], 6: [5], 7: [5], 9: [3], 10: [4, 9], 11: [10], 12: [3, 4], 13: [12]}
NEEDS |= {14: [10, 13], 15: [5, 13], 16: [2]}
FILES = """01_binary 02_multiclass 03_information 04_gradients 05_numerics 06_certify 07_frameworks 08_which_loss
09_proper_scoring 10_averaged_loss 11_denominators 12_soft_targets 13_distillation 14_language_models
15_large_vocabularies 16_elsewhere"""
ENTRIES = {1: "learner", 8: "practitioner", 11: "engineer"}


def draw_map(fig: Figure) -> None:
    """Draw the chapters from top to bottom, each a link, with an arc from each to those that need it."""
    ax, chapter, files = fig.subplots(), 0, FILES.split()
    for roman, (name, titles) in zip(("I", "II", "III", "IV", "V", "VI"), PARTS.items(), strict=True):
        colour, first = getattr(plots, name), chapter + 1
        for title in titles.split("/"):
            chapter += 1
            ax.plot(0, chapter, "o", color=colour, ms=7)
            to = f"chapters/{files[chapter - 1]}.html"
            ax.text(0.35, chapter, f"{chapter}  {title}", va="center", url=to)
            if chapter in ENTRIES:
                ax.text(10.0, chapter, f"◂ {ENTRIES[chapter]}", va="center", ha="right", style="italic")
            for needed in NEEDS.get(chapter, []):
                curve = f"arc3,rad={0.9 if chapter - needed == 1 else 0.45}"
                bend = {"arrowstyle": "->", "color": colour, "connectionstyle": curve}
                ax.annotate("", (-0.1, chapter - 0.12), (-0.1, needed + 0.12), arrowprops=bend)
        ax.plot([10.3, 10.3], [first - 0.35, chapter + 0.35], color=colour, lw=3)
        ax.text(10.6, (first + chapter) / 2, roman, va="center", fontsize=11)
    ax.set(xlim=(-3.6, 11.2), ylim=(16.6, 0.4))
    ax.axis("off")


# Name, picture, and its size in inches: at most 4.8 wide, or its letters are too small on a phone.
FIGURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "softmax": (draw_softmax, (4.8, 2.6)),
    "binary-loss": (draw_binary_loss, (4.8, 3.0)),
    "gap": (draw_gap, (4.8, 3.2)),
    "smoothing": (draw_smoothing, (4.8, 3.2)),
    "scores": (draw_scores, (4.8, 3.2)),
    "divergence": (draw_divergence, (4.8, 2.8)),
    "tilt": (draw_tilt, (4.8, 2.9)),
    "own-lengths": (draw_own_lengths, (4.8, 3.2)),
    "pull": (draw_pull, (4.8, 3.2)),
    "temperature": (draw_temperature, (4.8, 2.9)),
    "digits": (draw_digits, (4.8, 3.2)),
    "direction": (draw_direction, (4.8, 4.4)),
    "speeches": (draw_speeches, (4.8, 1.7)),
    "bench": (draw_bench, (4.8, 3.6)),
    "bench-gpu": (draw_bench_gpu, (4.8, 4.6)),
    "map": (draw_map, (4.8, 6.0)),
}

_CLEAR: dict[Any, Any] = {f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig")}
# A phone shows them in their own size: no letter below eleven pixels.
_LEGIBLE: dict[Any, Any] = dict.fromkeys(
    ("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 11
)


def picture(name: str, alt: str) -> str:
    """Draw a figure as an SVG element, the same at every build, in the colours of the page around it."""
    draw, (width, height) = FIGURES[name]
    with plt.style.context("default"):
        plots.use_style()
        plt.rcParams.update({**_CLEAR, **_LEGIBLE, "svg.fonttype": "none", "svg.hashsalt": name})
        fig = plt.figure(figsize=(width, height))
        draw(fig)
        file = StringIO()
        fig.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(fig)
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", file.getvalue(), flags=re.DOTALL)
    drawn = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    # An id that nothing refers to would stand twice on a page with two figures.
    drawn = re.sub(r' id="([^"]+)"', lambda found: found[0] if f"#{found[1]}" in drawn else "", drawn)
    drawn = re.sub("#000000|#444444", "currentColor", drawn).replace("#ffffff", "var(--pst-color-background)")
    for name, colour in plots.PALETTE["light"].items():
        drawn = drawn.replace(colour, f"var(--{name})")
    drawn = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", drawn)
    drawn = drawn.replace(' target="_blank"', "")
    role = "group" if "<a " in drawn else "img"
    return (
        f'<svg class="drawn" role="{role}" aria-label="{html.escape(alt, quote=True)}" fill="currentColor" '
        f'viewBox="0 0 {72 * width:g} {72 * height:g}" '
        f'width="{96 * width:.0f}" height="{96 * height:.0f}">{drawn}'
    )
