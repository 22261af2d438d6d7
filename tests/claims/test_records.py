"""Sentences about frozen results: which numbers, what is said of them, and which numbers that rejects."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adversary import refuted, rng
from experiments.denominators import table
from experiments.large_vocabularies import memory
from records import (
    EXPERIMENTS,
    Array,
    above,
    below,
    by_seed,
    holds,
    interval,
    record,
    speech,
    unseen,
)  # fmt: skip

# -------------------------------------------------------------------------------------- chapter 11: speeches

THEORY = record("shakespeare/prediction")
TOLD = {arm: told["mean_length"] for arm, told in THEORY["arms"].items()}


def change(arm: str, key: str = "mean_length") -> Array:
    return speech(arm, key) - speech("constant", key)


def ratio(arm: str) -> Array:
    return speech(arm) / speech("constant")


@pytest.mark.erratum("0.18", "conditional")
@pytest.mark.claim("11", "With one speech per denominator, the transformer")
def test_a_third_of_the_length() -> None:
    def says(arm: str) -> None:
        low, high = interval(ratio(arm))
        assert low < TOLD["B=1"] / TOLD["constant"] < high < 0.5
        assert ratio(arm).max() < 0.5 and abs(ratio(arm).mean() - 1 / 3) < 0.05
        nats = change(arm, "nll_per_token")
        assert ((nats > 0.03) & (nats < 0.08)).all()

    holds(says, "B=1", but_not={arm: arm for arm in ("B=4", "blocks")})
    with refuted("0.18: a small effect, where the denominator is one speech's"):
        assert ratio("B=1").mean() > 0.9


@pytest.mark.claim("11", "With micro-batches of 16, buckets of similar length have nearly the same effect.")
def test_buckets() -> None:
    def says(arm: str) -> None:
        found, one, sixteen = (speech(a) for a in (arm, "B=1", "B=16"))
        below(found - sixteen, -40)
        assert (found < 0.5 * sixteen).all() and abs((found - one).mean()) < 0.15 * one.mean()

    holds(says, "bucketed", but_not={"micro-batches of four": "B=4"})


@pytest.mark.claim("11", "With 64 or 128 speeches per denominator")
def test_nothing_to_be_seen() -> None:
    seen = {arm: change(arm) for arm in ("B=1", "B=4", "B=16", "bucketed")}
    holds(
        unseen,
        *(change(a, k) for a in ("B=64", "B=128") for k in ("mean_length", "nll_per_speech")),
        but_not=seen,
    )
    holds(unseen, change("blocks"), but_not=seen)

    def within_the_interval_of_blocks(arm: str) -> None:
        assert interval(ratio("blocks")).holds(ratio(arm).mean())

    holds(within_the_interval_of_blocks, "B=16", but_not={"B=4": "B=4"})


@pytest.mark.claim("11", "The larger part of the cost is in the spelling")
def test_the_spelling_costs_more() -> None:
    """More than three nats in the characters, and in all; the tilt alone costs less than three."""

    def several(arm: str, key: str) -> None:
        assert THEORY["arms"][arm]["cost"] < 3
        above(change(arm, key), 3)

    holds(
        several,
        *((arm, key) for arm in ("B=1", "bucketed") for key in ("character_nll", "nll_per_speech")),
        but_not={arm: (arm, "end_nll") for arm in ("B=1", "bucketed")}
        | {arm: (arm, "nll_per_speech") for arm in ("B=4", "B=16", "B=64", "blocks")},
    )


@pytest.mark.claim(
    "11",
    "four of the eight intervals exclude them: those of",
    "With the first four seeds, all eight",
    "all seven intervals contain the prediction",
    "all eight means lie a little above",
)
def test_the_predictions_hold() -> None:
    """In characters, from four seeds and from six, and as a share of the constant arm's of the same seed."""

    def outside(told: dict[str, float], seeds: int, missed: set[str]) -> None:
        assert {arm for arm in told if not interval(speech(arm)[:seeds]).holds(told[arm])} == missed

    def in_per_cent(told: dict[str, float]) -> None:
        for arm in set(told) - {"constant"}:
            assert interval(ratio(arm)).holds(told[arm] / TOLD["constant"]), arm
        for arm in told:
            assert 1 < speech(arm).mean() / told[arm] < 1.1, arm

    four = {"constant", "B=16", "B=64", "B=128"}
    none, more = dict.fromkeys(TOLD, TOLD["constant"]), {arm: 1.1 * told for arm, told in TOLD.items()}
    assert len(TOLD) == 8
    holds(
        outside,
        (TOLD, 6, four),
        (TOLD, 4, set()),
        but_not={
            "five seeds": (TOLD, 5, four),
            "all": (TOLD, 6, set()),
            "four": (TOLD, 4, four),
            "none": (none, 6, four),
        },
    )
    holds(in_per_cent, TOLD, but_not={"no effect": none, "a tenth more": more})
    for few, many in pairwise(("B=1", "B=4", "B=16")):
        assert interval(speech(few)).high < interval(speech(many)).low


def test_the_front_page_has_the_intervals() -> None:
    """index.md and README: means and standard deviations over the seeds, and theory's lengths."""
    found = {arm: f"{speech(arm).mean():.0f} ± {speech(arm).std(ddof=1):.0f}" for arm in ("B=1", "constant")}
    said = (
        f"speeches of {found['B=1']} characters; with a constant denominator, it writes speeches of "
        f"{found['constant']}",
        f"predicts {TOLD['B=1']:.0f} and {TOLD['constant']:.0f}; both means lie a little above these, and the 95 % "
        "interval of their ratio contains the predicted ratio",
    )
    shares = [-round(shorter(writers, "B=1").mean()) for writers in (2, 1)]
    said += (
        f"one text per denominator makes the texts {shares[0]} % shorter",
        f"and {shares[1]} % shorter if there is only one kind",
    )
    for page in ("index.md", "README.md"):
        text = (EXPERIMENTS.parent / page).read_text(encoding="utf-8")
        assert all(words in text for words in said)


@pytest.mark.claim(
    "11", "All seven means lie below their predictions", "with a transformer hardly better than bigrams"
)
def test_the_first_design() -> None:
    theory, bigrams = record("shakespeare/first_design")["prediction"], THEORY["ngrams"][1]
    losses = [run["nll_per_speech"] for run in record("shakespeare/first_design")["runs"]]
    lengths = {arm: by_seed("shakespeare/first_design", "mean_length", arm=arm) for arm in theory}
    assert len(losses) == 35 and len(theory) == 7 and all(0.96 < loss / bigrams < 1 for loss in losses)

    def says(told: dict[str, float]) -> None:
        assert all(lengths[arm].mean() < told[arm] for arm in told)
        outside = {arm for arm in told if not interval(lengths[arm]).holds(told[arm])}
        assert outside == {"B=4", "B=16", "B=128"}
        for arm in set(told) - {"constant"}:
            assert interval(lengths[arm] / lengths["constant"]).holds(told[arm] / told["constant"]), arm

    holds(says, theory, but_not={arm: {**theory, arm: 1.1 * theory[arm]} for arm in theory})
    with refuted("no better than bigrams"):
        assert min(losses) >= bigrams


# --------------------------------------------------------------------------------- chapter 11: restaurants

FORETOLD = record("restaurants/prediction")


def described(writers: int, arm: str, key: str = "length", clip: bool = False) -> Array:
    """What the models of these settings write, by seed."""
    return by_seed("restaurants/result", key, writers=writers, arm=arm, clip=clip)


def shorter(writers: int, arm: str, clip: bool = False) -> Array:
    """By how many per cent of the constant arm's texts these are longer: below 0, they are shorter."""
    return 100 * (described(writers, arm, clip=clip) / described(writers, "constant") - 1)


def foretold(writers: int, arm: str) -> tuple[float, float]:
    """What is foretold of that where the model uses all that a prompt tells of the length, and where nothing."""
    told = FORETOLD[f"writers={writers}"]["arms"][arm]
    return 100 * told["change"], 100 * told["without prompts"]["change"]


@pytest.mark.claim("11", "With one text per denominator and two writers")
def test_two_writers() -> None:
    """About 30 % off, and three of four texts terse where two of four are; both as foretold, and clipped as well."""

    def says(arm: str, clip: bool, share: float = 0.75) -> None:
        loss, terse = shorter(2, arm, clip), described(2, arm, "terse", clip)
        below(loss, -20)
        assert -34 < loss.mean() < -26 and abs(terse.mean() - share) < 0.02

    holds(says, ("B=1", False), ("B=1", True), but_not={
        "the constant": ("constant", False), "four": ("B=4", False), "half": ("B=1", False, 0.5)})  # fmt: skip
    assert abs(described(2, "constant", "terse").mean() - 0.5) < 0.02


@pytest.mark.claim("11", "With one writer the same divisor takes off")
def test_one_writer() -> None:
    """Between what is foretold if the model used all of the prompt, and what if it used nothing."""

    def between(writers: int, arm: str, low: float, high: float) -> None:
        found = interval(shorter(writers, arm))
        assert low < (found.low + found.high) / 2 < high and found.high < 0

    within, alone = foretold(1, "B=1")
    holds(between, (1, "B=1", alone, within), but_not={
        "two writers": (2, "B=1", alone, within), "no prompts": (1, "B=1", 2 * alone, alone),
        "packed": (1, "packed", alone, within)})  # fmt: skip


@pytest.mark.claim("11", "reaches the bar between its two forecasts")
def test_the_forecasts_of_restaurants() -> None:
    def reaches(writers: int, arm: str, off: float = 0.0) -> None:
        found, ends = interval(shorter(writers, arm)), sorted(foretold(writers, arm))
        assert found.low - off < ends[1] and ends[0] < found.high - off

    arms = set(FORETOLD["writers=1"]["arms"]) - {"constant"}
    holds(
        reaches,
        *((writers, arm) for writers in (1, 2) for arm in arms),
        but_not={"a twentieth shorter": (2, "B=4", 5.0), "a tenth longer": (1, "B=1", -10.0)},
    )


@pytest.mark.claim(
    "11",
    "With two writers, the intervals of 1 text, 4 texts and buckets exclude",
    "with one writer, the intervals of 1 text and buckets exclude ... by a hundredth of a per cent",
)
def test_which_forecasts_of_restaurants_fail() -> None:
    """Of all that a prompt tells, and of nothing of it."""

    def excluded(writers: int, which: int, arms: set[str]) -> None:
        told = {
            arm: foretold(writers, arm)[which] for arm in FORETOLD["writers=1"]["arms"] if arm != "constant"
        }
        assert {arm for arm in told if not interval(shorter(writers, arm)).holds(told[arm])} == arms

    three = {"B=1", "B=4", "bucketed"}
    holds(excluded, (1, 0, set()), (1, 1, three), (2, 0, three), (2, 1, {"B=1"}), but_not={
        "none": (2, 0, set()), "without four": (1, 1, {"B=1", "bucketed"}), "the first": (1, 0, three)})  # fmt: skip
    assert 0 < interval(shorter(1, "B=4")).low - foretold(1, "B=4")[1] < 0.02


@pytest.mark.claim("11", "the terse texts gain in return")
def test_terse_texts_gain() -> None:
    cheaper, dearer = (described(2, "B=1", k) - described(2, "constant", k) for k in ("nats_terse", "nats"))
    holds(below, cheaper, but_not={"people's": dearer})


@pytest.mark.claim("11", "with 64 texts per denominator the texts came out about one per cent shorter")
@pytest.mark.claim("11", "Clipping at 1.0 affects")
def test_what_is_not_seen_in_restaurants() -> None:
    def at_most(most: float) -> None:
        shares = [described(w, a, "clipped", clip=True) for w in (1, 2) for a in ("constant", "B=1")]
        assert 0 < max(share.max() for share in shares) <= most

    holds(at_most, 0.02, but_not={"one step in a hundred": 0.01})
    clipped = [shorter(w, a, clip=True) - shorter(w, a) for w in (1, 2) for a in ("constant", "B=1")]
    holds(unseen, *clipped, but_not={arm: shorter(2, arm) for arm in ("B=1", "B=4", "bucketed")})

    def one_per_cent(writers: int, arm: str) -> None:
        assert abs(shorter(writers, arm).mean() + 1) < 0.2 and min(foretold(writers, arm)) > -0.65

    holds(one_per_cent, (1, "B=64"), (2, "B=64"), but_not={"of 16": (2, "B=16"), "one text": (1, "B=1")})


@pytest.mark.claim("11", "does not visibly change.")
@pytest.mark.claim("11", "with a constant divisor and one writer the model's are about 2 % longer")
def test_what_else_is_seen_of_restaurants() -> None:
    def alike(key: str) -> None:
        for writers in (1, 2):
            unseen(described(writers, "B=1", key) - described(writers, "constant", key), 0.06)

    def a_little_longer(arm: str, writers: int = 1) -> None:
        more = described(1, arm) / people[f"writers={writers}"]["length"] - 1
        above(more)
        assert abs(more.mean() - 0.02) < 0.005

    people = record("restaurants/result")["held_out"]
    holds(alike, "missed", but_not={"the length": "length", "terse": "terse"})
    holds(a_little_longer, "constant", but_not={"one text": "B=1", "as two": ("constant", 2)})


def by_slots(writers: int, arm: str) -> Array:
    """The mean lengths, by seed and by the slots that a meaning fills, from 3 to 8."""
    return np.stack([described(writers, arm, f"by_slots.{k}") for k in range(3, 9)], axis=1)


@pytest.mark.claim("11", "takes a larger share off ... terse ones hardly do.")
def test_fuller_meanings_lose_more() -> None:
    """A fifth and a third; and a half terse and half people's mean says how long terse texts are."""

    def more(writers: int, arm: str) -> None:
        change = by_slots(writers, arm) / by_slots(writers, "constant") - 1
        below(change[:, 3:].mean(1) - change[:, :3].mean(1))
        below(change[:, -1] - change[:, 0])
        assert abs(change[:, 0].mean() + 1 / 5) < 0.06 and abs(change[:, -1].mean() + 1 / 3) < 0.06

    holds(more, (2, "B=1"), but_not={"one writer": (1, "B=1"), "four texts": (2, "B=4")})
    people = by_slots(1, "constant").mean(0)
    terse = 2 * by_slots(2, "constant").mean(0) - people
    assert (np.diff(people) > 2).all() and terse[-1] - terse[0] < 0.2 * (people[-1] - people[0])


@pytest.mark.claim("11", "the model expects a few hundredths of an end too many")
@pytest.mark.claim("11", "the tilt is in that choice")
def test_the_end_hardly_shows_it() -> None:
    """The shares of the two kinds of text account for their lengths, and the end's own calibration does not."""

    def nearly(writers: int, ends: Array) -> None:
        above(ends - 1)
        assert 0.01 < ends.mean() - 1 < 0.06

    def by_choice(arm: str, share: float) -> None:
        people = described(1, "constant").mean()
        terse = people - (people - described(2, "constant").mean()) / described(2, "constant", "terse").mean()
        assert abs((1 - share) * people + share * terse - described(2, arm).mean()) < 0.06 * people

    holds(nearly, *((w, described(w, "B=1", "ends")) for w in (1, 2)), but_not={
        "a constant": (2, described(2, "constant", "ends")),
        "as the lengths": (2, described(2, "constant") / described(2, "B=1"))})  # fmt: skip
    share = described(2, "B=1", "terse").mean()
    holds(
        by_choice,
        ("B=1", share),
        but_not={"as many as there are": ("B=1", 0.5), "a constant": ("constant", share)},
    )


@pytest.mark.claim("11", "One text per denominator costs held-out human texts")
def test_what_it_costs() -> None:
    def dearer(arm: str, writers: int, least: float, most: float) -> None:
        change = described(writers, arm, "nats") - described(writers, "constant", "nats")
        above(change)
        assert least < change.mean() < most

    holds(dearer, ("B=1", 1, 0.015, 0.03), ("B=1", 2, 0.05, 0.08), but_not={"B=64": ("B=64", 1, 0.015, 0.03)})


# ------------------------------------------------------------------------------ the appendix on rewards: the table


@pytest.mark.claim("rewards", "Wherever the theorem applies, the three numbers agree")
@pytest.mark.parametrize("stored", record("denominators/table")["rows"], ids=lambda row: row["row"])
def test_a_row_of_the_table(stored: dict[str, Any]) -> None:
    """Exact values anew; the stored simulation and training against them, three errors; a simulation again."""
    assert [row.name for row in table.ROWS] == [row["row"] for row in record("denominators/table")["rows"]]
    (row,) = (row for row in table.ROWS if row.name == stored["row"])
    exact = row.exact()
    assert (stored["exact"], stored["truth"]) == pytest.approx((exact, row.truth), abs=1e-6)

    def says(which: str, expected: float) -> None:
        assert abs(stored[which] - expected) < 3 * stored[f"{which}_error"]

    # A row that can tell: where the answer is not the truth, the truth is far outside both intervals.
    tells = abs(exact - row.truth) > 0.01 or row.name.startswith("sampled softmax, corrected, hits")
    for which in ("simulated", "trained"):
        holds(says, (which, exact), but_not={"the truth": (which, row.truth if tells else exact + 0.02)})
    both = np.hypot(stored["simulated_error"], stored["trained_error"])
    assert abs(stored["simulated"] - stored["trained"]) < 3 * both
    if "class weights" not in row.name:
        seen, error = row.simulated(rng(77))
        assert abs(seen - exact) < 4.5 * error


# ------------------------------------------------------------------------------------ chapter 11: trainers

STEPS, ROUNDING = 4, 1e-6  # of gradients in float32, compared with float64
RECIPES = pytest.mark.parametrize("row", record("trainers/result")["rows"], ids=lambda row: row["recipe"])
# The group of each recipe, by how its name begins; the longest beginning counts.
GROUPS = {
    "Trainer, Llama": "right",
    "Trainer, Llama, 2 ranks, average_tokens_across_devices=False": "means",
    "TRL SFTTrainer, Llama": "right",
    **dict.fromkeys(
        ("Trainer, GPT-2", "TRL SFTTrainer, GPT-2", "Accelerate, its example for causal models"), "shift"
    ),
    **dict.fromkeys(("Trainer, T5", "Trainer, BERT-MLM", "Trainer, subclass with a mean"), "K times"),
    "Trainer, compute_loss_func with a mean": "K times",
    "Trainer, the same": "means",
    **dict.fromkeys(
        ("Accelerate, acc", "Lightning", "litgpt", "nano", "DistributedDataParallel", "FSDP2"), "means"
    ),
}
# What `check_accumulation` says of a group, and between what bounds its five errors and that at equal counts lie.
GROUP = {
    "right": ("none: ", (0, ROUNDING), 0.0),
    "K times": (f"K = {STEPS} times", (2, 5), STEPS - 1),
    "shift": ("before the shift", (0.01, 0.2), 1 / 24),  # one label in 24: they count each sequence's first
    "means": ("a mean of means", (0.01, 1), 0.0),
    "half full": ("a mean of means", (0.5, 0.75), 0.5),  # divided by twice its steps
}


def group(recipe: str) -> str:
    found = GROUPS[max((name for name in GROUPS if recipe.startswith(name)), key=len)]
    return "half full" if found == "means" and "half full" in recipe else found


@pytest.mark.claim(
    "rewards",
    "The lines fall into four groups",
    "An error near 3 means a gradient four times",
    "GPT-2's `loss_type` is None, so",
    "nanoGPT, which is exact for its blocks of one length",
    "DistributedDataParallel and FSDP2 divide by the number of ranks",
    "divide a short window by the number of steps it should have had",
    "so does a subclass whose `compute_loss` returns a mean",
)
@RECIPES
def test_the_group_of_a_trainer(row: dict[str, Any]) -> None:
    """Cause, errors on five sets of data, and the error at equal counts, where a mean of means is right."""

    def says(name: str) -> None:
        cause, (low, high), equal = GROUP[name]
        assert row["check"]["ok"] == (name == "right") and cause in row["check"]["cause"]
        assert row["check"]["cause"].startswith("a mean of means") or name in ("right", "shift")
        assert len(row["error"]) == 5 and all(low <= error < high for error in row["error"])
        assert row["error_equal_counts"] == pytest.approx(equal, abs=ROUNDING)
        assert (row["repair"] == "none needed") == (name == "right")

    mine = group(row["recipe"])
    holds(says, mine, but_not={name: name for name in set(GROUP) - {mine}})
    if mine == "K times":
        with refuted("the right gradient four times, as the page once said"):
            assert row["error"] == pytest.approx([STEPS - 1] * 5, abs=0.01)


@pytest.mark.claim(
    "rewards",
    "Then it applies a repair and measures again",
    "`check_trainer` gives the same verdict on each trainer",
)
@RECIPES
def test_a_trainer_is_repaired_and_handed_over(row: dict[str, Any]) -> None:
    """The Trainer, SFTTrainer and Lightning can be handed over; one, repaired, is refused."""

    def mended(errors: list[float], check: dict[str, Any]) -> None:
        assert len(errors) == 5 and max(errors) < ROUNDING and check["ok"] and "none: " in check["cause"]

    def same(handed: dict[str, Any] | None, by_hand: dict[str, Any]) -> None:
        assert handed == by_hand

    wrong = row["repair"] != "none needed"
    after = row["error_repaired"], row["check_repaired"]
    holds(mended, after, but_not={"as it comes": (row["error"], row["check"])} if wrong else {})
    said, later = row["check_trainer"], row["check_trainer_repaired"]
    if not row["recipe"].startswith(("Trainer", "TRL", "Lightning")):
        assert said is None is later
        return
    holds(same, (said, row["check"]), but_not={"repaired": (said, row["check_repaired"])} if wrong else {})
    if row["recipe"] == "Lightning, manual":
        assert "check_accumulation takes any step" in later["refused"]
    else:
        same(later, row["check_repaired"])


@pytest.mark.claim(
    "rewards",
    "The gradient on the student's texts is multiplied by",
    "`check_trainer` finds the loader's count in the divisor",
)
@pytest.mark.parametrize(
    "row",
    [row for row in record("trainers/result")["on_policy"] if row["recipe"].startswith("GKD")],
    ids=lambda row: f"{row['recipe']}, {row['ranks']}",
)
def test_the_two_divisors_of_gkd(row: dict[str, Any]) -> None:
    """Three sets of data, one rank and two, the loader's texts and the student's; nothing beside a factor is wrong."""
    repaired, written, ranks = "repaired" in row["recipe"], "student" in row["recipe"], row["ranks"]
    assert len(row["runs"]) == 3

    def divides_by(count: int, run: dict[str, Any]) -> None:
        factor = run["labels_trained"] / count
        assert (run["factor"], run["error"]) == pytest.approx((factor, abs(factor - 1)), abs=1e-6)

    for run in row["runs"]:
        given, trained = run["labels_given"], run["labels_trained"]
        right = trained if repaired else given * ranks
        assert (given == trained) is not written
        holds(
            divides_by,
            (right, run),
            but_not={str(n): (n, run) for n in {trained, given, given * 2} - {right}},
        )
    if ranks == 1:
        said = row["check_trainer"]
        assert said["ok"] is (repaired or not written)
        assert said["ok"] or "labels of the loader's batch, before the reply was generated" in said["cause"]


# ------------------------------------------------------------------- chapter 14: restaurants with a teacher

FEW, PART, ALL = 0.05, 0.2, 1.0
Cell = tuple[str, float]


def distilled(cell: Cell, key: str = "nats", part: int = 1) -> dict[int, float]:
    """What the students of a cell come to, by seed; after `part` times the steps."""
    found = {
        r["seed"]: r[key]
        for r in record("restaurants/distillation")["runs"]
        if (r["arm"], r["share"], r["part"]) == (*cell, part)
    }
    assert len(found) > (2 if part == 1 else 1), cell
    return found


def less(first: Cell, second: Cell, key: str = "nats") -> Array:
    """By how much less the first costs than the second, by seed."""
    a, b = distilled(first, key), distilled(second, key)
    return np.array([b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())])


def within(x: Array, low: float, high: float) -> None:
    """The mean is between the two, and the interval goes beyond by no more than half of their distance."""
    room = (high - low) / 2
    assert low < x.mean() < high and low - room < interval(x).low < interval(x).high < high + room


SOFT, PLAIN, LABELS_5 = ("distributions", FEW), ("texts", FEW), ("labels", FEW)
WARM, FORWARD, HUMAN = ("from labels", FEW), ("on-policy forward", FEW), ("human text", FEW)
SHARP = ("on-policy JSD", FEW), ("on-policy reverse", FEW)


@pytest.mark.claim(
    "14",
    "With 5% of the answers, the teacher's distributions come near",
    "they gain about four fifths of a nat over the labels ... in two seeds, by about a tenth",
    "students of its distributions came near students of all answers, in longer runs",
    "distributions along its own texts gained nearly all",
)
def test_what_distributions_replace() -> None:
    """In as many steps, and where both have three times as many; the student of few labels has stopped by then."""

    def as_all_labels(*cell: Any) -> None:
        within(less(cell, ("labels", ALL)), -0.05, 0.0)
        assert less(cell, ("labels", ALL)).mean() == pytest.approx(-0.02, abs=0.01)

    other = {
        "texts": PLAIN, "labels for 20 %": ("labels", PART), "labels": LABELS_5, "the teacher": ("teacher", ALL)
    }  # fmt: skip
    holds(as_all_labels, SOFT, but_not=other)
    holds(within, (less(SOFT, LABELS_5), 0.7, 0.9), but_not={"texts": (less(PLAIN, LABELS_5), 0.7, 0.9)})

    def nine_tenths(cell: Cell, part: int) -> None:
        found, rival = (distilled(c, part=part) for c in (cell, ("labels", ALL)))
        before = distilled(LABELS_5)
        worth = [(before[s] - found[s]) / (before[s] - rival[s]) for s in found.keys() & rival.keys()]
        assert np.mean(worth) == pytest.approx(0.97 if part == 1 else 0.9, abs=0.02)

    def a_tenth_behind(cell: Cell) -> None:
        found, rival = (distilled(c, part=3) for c in (cell, ("labels", ALL)))
        behind = [found[s] - rival[s] for s in found.keys() & rival.keys()]
        assert min(behind) > 0.05 and 0.07 < np.mean(behind) < 0.13

    holds(nine_tenths, (SOFT, 1), (SOFT, 3), but_not={"texts": (PLAIN, 1), "20 %": (("labels", PART), 3)})
    holds(a_tenth_behind, (SOFT,), but_not={"20 %": (("labels", PART),), "itself": (("labels", ALL),)})


@pytest.mark.claim("14", "A student of twice the size gains nothing from few labels.")
def test_a_larger_student() -> None:
    def gains_nothing(*cell: Any) -> None:
        assert abs(less(cell, LABELS_5).mean()) < 0.03 and interval(less(cell, LABELS_5)).high < 0.06

    holds(gains_nothing, ("large", FEW), but_not={"human text": ("human text", FEW), "texts": PLAIN})
    sizes = record("restaurants/distillation")["parameters"]
    assert 1.9 < sizes["large"] / sizes["labels"] < 2.6


@pytest.mark.claim(
    "14",
    "The prompts without answers are worth about two fifths of that gain.",
    "Along people's few answers the teacher's distributions gain nearly half a nat ... a third of a nat more",
    "Its plain texts for every prompt gain about six tenths ... with no new prompt, gain about half as much",
    "For the same texts, distributions are worth about another fifth ... make up for about half of that fifth",
    "eight tokens and a bucket lost a third of what distributions gain over texts",
    "which here cost part of the gain",
)
def test_where_the_gain_comes_from() -> None:
    def gains(cell: Cell, low: float, high: float, over: Cell = LABELS_5) -> None:
        within(less(cell, over), low, high)
        above(less(cell, over))

    holds(
        gains, (PLAIN, 0.5, 0.7), (("texts, same", FEW), 0.22, 0.4), (HUMAN, 0.4, 0.53), (SOFT, 0.26, 0.42, HUMAN),
        (SOFT, 0.14, 0.25, PLAIN), (SOFT, 0.04, 0.1, ("top 8", FEW)),
        but_not={"the same meanings": (("texts, same", FEW), 0.5, 0.7), "exchanged": (PLAIN, 0.14, 0.25, SOFT),
                 "four texts": (SOFT, 0.14, 0.25, ("texts x4", FEW))},
    )  # fmt: skip

    def about_half(part: Array, whole: Array) -> None:
        assert 0.35 < part.mean() / whole.mean() < 0.65

    whole = less(PLAIN, LABELS_5)
    four = less(("texts x4", FEW), PLAIN)
    holds(about_half, (less(("texts, same", FEW), LABELS_5), whole), (four, less(SOFT, PLAIN)), but_not={
        "distributions": (less(SOFT, LABELS_5), whole), "of all": (four, less(SOFT, LABELS_5))})  # fmt: skip
    for cell in (PLAIN, HUMAN, *SHARP, ("texts x4", FEW)):
        above(less(SOFT, cell))

    def part(share: float, some: Array, of: Array) -> None:
        assert some.mean() / of.mean() == pytest.approx(share, abs=0.06)

    all_of_it = less(SOFT, LABELS_5)
    eight = less(SOFT, ("top 8", FEW)), less(SOFT, PLAIN)
    most = {"most of it": (0.4, less(HUMAN, LABELS_5), all_of_it), "all": (1 / 3, eight[1], all_of_it)}
    holds(part, (0.4, less(SOFT, HUMAN), all_of_it), (1 / 3, *eight), but_not=most)


@pytest.mark.claim(
    "14",
    "With the forward divergence the two are about even.",
    "With the Jensen-Shannon divergence people's answers cost ... nearly a quarter and three tenths more.",
    "These students are sharper, and what they write misses about a third fewer slots",
    "at half the temperature the lead falls from about four slots in a hundred to less than one.",
    "one of Jensen-Shannon, trained three times as long, gained a tenth of a nat",
    "the reverse divergence and Jensen-Shannon make ... too sure",
    "on-policy steps from the student of labels did not catch up",
    "On-policy steps gain no nats over distributions ... up to four times as many tokens are scored",
)
def test_on_policy_and_sharpness() -> None:
    def even(*cell: Any) -> None:
        within(less(cell, WARM), -0.05, 0.05)

    def dearer(cell: Cell, nats: float) -> None:
        assert -less(cell, WARM).mean() == pytest.approx(nats, abs=0.04)
        assert -less(cell, WARM, "tempered").mean() == pytest.approx(0.24 if nats < 0.4 else 0.29, abs=0.01)
        above(-less(cell, WARM, "tempered"), 0.2)

    def sure(*cell: Any) -> None:
        gap = np.array(list(distilled(cell, "gap").values()))
        above(gap - np.array([distilled(WARM, "gap")[s] for s in distilled(cell, "gap")]), 0.4)

    def fewer(*cell: Any) -> None:
        part = less(cell, WARM, "missed") / np.array(
            [distilled(WARM, "missed")[s] for s in sorted(distilled(cell))]
        )
        assert part.mean() == pytest.approx(1 / 3, abs=0.05)

    def shrinks(*cell: Any) -> None:
        within(less(cell, WARM, "missed"), 0.02, 0.06)
        assert less(cell, WARM, "missed").mean() == pytest.approx(0.04, abs=0.005)
        assert 0 < less(cell, WARM, "missed_half").mean() < 0.01

    labels = {"labels": LABELS_5}
    holds(even, FORWARD, but_not={arm: (arm, FEW) for arm, _ in SHARP} | labels)
    jsd, reverse = SHARP
    holds(
        dearer, (jsd, 1 / 3), (reverse, 0.43), but_not={"forward": (FORWARD, 1 / 3), "exchanged": (jsd, 0.43)}
    )
    holds(sure, *SHARP, but_not={"forward": FORWARD, "distributions": SOFT})
    holds(fewer, *SHARP, but_not={"forward": FORWARD})
    holds(shrinks, *SHARP, but_not={"forward": FORWARD, **labels})
    trigrams = less(SHARP[1], WARM, "trigrams")  # distinct ones
    holds(above, (trigrams, 0.08), but_not={"forward": (less(FORWARD, WARM, "trigrams"), 0.08)})
    for cell in (*SHARP, FORWARD):  # tokens scored
        assert (
            3.3
            < np.mean(list(distilled(cell, "scored").values()))
            / np.mean([*distilled(WARM, "scored").values()])
            < 4.5
        )
    runs = [
        run for run in record("restaurants/distillation")["runs"] if (run["arm"], run["part"]) == (jsd[0], 3)
    ]
    assert [distilled(jsd)[run["seed"]] - run["nats"] for run in runs] == [pytest.approx(0.1, abs=0.02)]


@pytest.mark.claim("14", "the students that missed the fewest slots had a higher loss")
def test_the_fewest_slots_are_not_of_the_lowest_loss() -> None:
    runs = [run for run in record("restaurants/distillation")["runs"] if run["part"] == 1]
    cells = [cell for cell in {(run["arm"], run["share"]) for run in runs} if cell[0] != "teacher"]
    mean = {cell: [np.mean([*distilled(cell, key).values()]) for key in ("missed", "nats")] for cell in cells}
    fewest = sorted(cells, key=lambda cell: mean[cell][0])[:3]

    def higher(cell: Cell) -> None:
        assert cell in fewest and mean[cell][1] > mean[SOFT][1] + 0.1

    holds(
        higher,
        *((cell,) for cell in fewest),
        but_not={"distributions": (SOFT,), "labels": (LABELS_5,), "few": (("texts", PART),)},
    )
    assert {arm for arm, _ in fewest} == {"on-policy reverse", "on-policy JSD"}


@pytest.mark.claim("14", "As labels, the validation answers add about a fifth of a nat")
def test_the_validation_answers_as_labels() -> None:
    more = ("labels + validation", FEW)
    holds(within, (less(more, LABELS_5), 0.12, 0.3), but_not={"texts": (less(PLAIN, LABELS_5), 0.12, 0.3)})
    above(less(HUMAN, more))
    answers = [np.mean(list(distilled(cell, "answers").values())) for cell in (LABELS_5, more)]
    assert answers[1] - answers[0] == pytest.approx(300) and 0.7 < answers[0] / 300 < 1.4


@pytest.mark.claim("14", "With 20% the order is the same, and the gains are smaller.")
def test_with_more_answers() -> None:
    order = ("distributions", "texts x4", "texts", "labels")

    def in_order(share: float, arms: tuple[str, ...]) -> None:
        for first, second in pairwise(arms):
            above(less((first, share), (second, share)))

    holds(in_order, (FEW, order), (PART, order), but_not={"exchanged": (PART, (order[0], *order[:0:-1]))})
    for arm in order[:3]:
        assert less((arm, FEW), LABELS_5).mean() > less((arm, PART), ("labels", PART)).mean() + 0.1


# ------------------------------------------------------------------- chapter 15: memory, and the cases of a GPU

GPU = [case for case in record("bench/linear")["cases"] if case["device"] != "cpu"]
LABELS, DISTILLED = (
    [case for case in GPU if case["loss"] == loss] for loss in ("cross_entropy", "distillation")
)
MIB = 2**20
Case = dict[str, Any]


@pytest.mark.claim("15", "PyTorch's linear loss holds a second gradient of the weight")
def test_a_second_gradient_of_the_weight() -> None:
    record_ = record("large_vocabularies/widths")

    def second(case: Case, way: str) -> None:
        gradient = 4 * case["width"] * record_["classes"]
        assert gradient - 2 * MIB < case["bytes"][way] < gradient + 25 * MIB

    cases = [case for case in record_["cases"] if case["loss"] == "cross_entropy"]
    wide = cases[-1]
    holds(second, *((case, "torch, chunks of 64") for case in cases), but_not={
        "xent": (wide, "xent"), "plain": (wide, "plain")})  # fmt: skip


@pytest.mark.claim("15", "Besides the gradients, which every method has to compute")
def test_memory_over_the_width() -> None:
    cases = record("large_vocabularies/widths")["cases"]

    def says(used: float) -> None:
        assert 13 <= round(used / MIB) <= 33

    ours = [case["bytes"]["xent"] for case in cases]
    plain = {str(i): case["bytes"]["plain"] for i, case in enumerate(cases)}
    holds(says, *ours, but_not={"ten times": 10 * min(ours), "a tenth": 0.1 * max(ours), **plain})
    assert {case["width"] for case in cases} == {128, 512, 2048}


def test_the_stored_memory() -> None:
    """Chapter 15's arrays of the logits' size, by the process; a chunk has 256 rows."""
    for case in record("large_vocabularies/memory")["cases"]:
        rows, classes = case["rows"], case["vocabulary"]
        gradients = 4 * memory.FEATURES * (rows + classes)
        for name, entries in (("plain", 3 * rows * classes), ("blocked", 2 * rows * memory.BLOCK)):
            assert case["bytes"][name] == pytest.approx(4 * entries + gradients, rel=0.1)
        if classes >= 16_000:
            arrays = {name: used / case["logits"] for name, used in case["bytes"].items()}
            assert (arrays["plain"], arrays["plain, logits kept"]) == pytest.approx((3, 4), abs=0.25)
            assert 1 < arrays["chunks alone"] < 1 + 5 * 256 / rows
            for name in ("chunks, checkpointed", "torch, options", "torch, chunks of 256", "blocked"):
                assert rows <= 1024 or arrays[name] < 0.5  # the gradients of the inputs are in it


@pytest.mark.claim("15", "Compiled, the plain pair was the fastest in each of our six cases")
def test_compile_first() -> None:
    """With the gradients it is more than a fifth; what remains at 128,256 classes is one array in bfloat16."""

    def says(case: Case, way: str, beside: float = 0.0) -> None:
        assert min(case["seconds"], key=lambda other: case["seconds"][other]) == way
        assert case["memory"][way] + beside < 0.2 * (case["memory"]["plain"] + beside)

    assert len(GPU) == 6 and {case["dtype"] for case in GPU} == {"bfloat16"}
    first = "plain, compiled"
    others = {
        f"{way} {i}": (case, way) for i, case in enumerate(GPU) for way in set(case["seconds"]) - {first}
    }
    counted = {
        f"the gradients {i}": (case, first, 2 * case["width"] * (case["rows"] + case["classes"]))
        for i, case in enumerate(LABELS)
    }
    holds(says, *((case, first) for case in GPU), but_not=others | counted)
    (case,) = (case for case in LABELS if case["width"] == 4096)
    assert case["memory"][first] == pytest.approx(2 * case["rows"] * case["classes"], rel=0.01)
    page = (EXPERIMENTS.parent / "chapters/benchmarks.md").read_text(encoding="utf-8")
    assert "less than a fifth of the memory that the pair takes as written, both gradients aside" in page


@pytest.mark.claim(
    "15",
    "With sums in float32 (`accum_dtype`) it is as exact as the plain pair",
    "Cut cross-entropy, in release 25.1.1, held at most two MiB",
)
def test_kernels_made_for_the_loss() -> None:
    """What xent holds is the gradient of w and a block's logits, once in float32 and once in bfloat16."""

    def error(case: Case, way: str) -> float:
        return float(case["error"][way] / case["error"]["plain"])

    def as_exact(case: Case, way: str) -> None:
        assert error(case, way) == pytest.approx(1, rel=0.05)
        gradient, block = 4 * case["width"] * case["classes"], 6 * max(1024 * case["classes"], 2**26)
        assert 0.99 * gradient < case["memory"][way] < gradient + block

    def cut(case: Case, way: str) -> None:
        assert case["memory"][way] < 2.5 * MIB
        assert 2.15 < case["seconds"][way] / case["seconds"]["plain"] < 3.15

    exact, small = ("xent", "Liger, sums in float32"), ("cut cross-entropy", "cut cross-entropy, unfiltered")
    for case in LABELS:
        holds(as_exact, *((case, way) for way in exact), but_not={"Liger's default": (case, "Liger")})
        holds(cut, *((case, way) for way in small), but_not={way: (case, way) for way in exact})
        assert 1.6 < error(case, "Liger") < 2.45


@pytest.mark.claim("15", "It takes $N / \\lceil V / H \\rceil$ rows at a time, rounded up")
def test_chunks_of_liger() -> None:
    """What it holds besides the gradients is the logits of a chunk, in bfloat16."""

    def holds_one(case: Case, way: str = "Liger", divide: Any = math.ceil, power: Any = math.ceil) -> None:
        rows = case["rows"] / divide(case["classes"] / case["width"])
        chunk = 2 ** power(math.log2(rows))
        assert case["memory"][way] == pytest.approx(2 * chunk * case["classes"], rel=0.02)

    first, *_ = LABELS
    holds(holds_one, *((case,) for case in LABELS), but_not={
        "rounded down": (first, "Liger", math.ceil, math.floor), "all rows": (first, "Liger", lambda _: 1),
        "not rounded": (first, "Liger", math.ceil, float), "xent": (first, "xent")})  # fmt: skip


@pytest.mark.claim("15", "In these cases rounding the logits cost distillation more precision")
def test_rounded_logits_of_a_distillation() -> None:
    """In every size; a loss that keeps a block's logits in float32 is rid of five sixths of it."""

    def says(more: Case, less: Case, way: str = "plain") -> None:
        assert more["error"][way] > 5 * less["error"]["plain"]

    for soft, hard in zip(DISTILLED, LABELS, strict=True):
        assert (soft["classes"], soft["width"]) == (hard["classes"], hard["width"])
        exchanged, blocks = (hard, soft), (soft, hard, "xent")
        holds(says, (soft, hard), but_not={"exchanged": exchanged, "a block's logits in float32": blocks})
        assert soft["error"]["xent"] < soft["error"]["plain"] / 5
        assert 1.6 < soft["seconds"]["xent"] / soft["seconds"]["plain"] < 1.95
