"""Sentences about frozen results: which numbers, what is said of them, and which numbers that rejects."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adversary import Array, page, refuted, rng
from experiments.denominators import table
from experiments.large_vocabularies import memory
from records import above, below, between, described, holds, interval, record, shorter, speech, unseen, within

# -------------------------------------------------------------------------------------- chapter 11: speeches

THEORY = record("shakespeare/prediction")
TOLD = {arm: told["mean_length"] for arm, told in THEORY["arms"].items()}


def change(arm: str, key: str = "mean_length") -> Array:
    return speech(arm, key) - speech("constant", key)


def ratio(arm: str) -> Array:
    return speech(arm) / speech("constant")


def of_constant(lengths: dict[str, Any]) -> dict[str, Any]:
    """Lengths by arm, found or foretold, as shares of the constant arm's."""
    return {arm: x / lengths["constant"] for arm, x in lengths.items() if arm != "constant"}


def excluded(found: dict[str, Array], told: dict[str, float], arms: set[str]) -> None:
    """What was foretold lies outside of the interval of these arms, and of no others."""
    assert {arm for arm in told if not interval(found[arm]).holds(told[arm])} == arms


@pytest.mark.erratum("0.18", "conditional")
@pytest.mark.claim("11", "With one speech per denominator, the transformer")
def test_a_third_of_the_length() -> None:
    def says(arm: str) -> None:
        within(ratio(arm), 1 / 3 - 0.05, 1 / 3 + 0.05)
        assert interval(ratio(arm)).holds(TOLD["B=1"] / TOLD["constant"])
        nats = change(arm, "nll_per_token")
        assert ratio(arm).max() < 0.5 and nats.min() > 0.03 and nats.max() < 0.08

    holds(says, "B=1", but_not={"B=4": "B=4", "blocks": "blocks", "0.18: a small effect": "constant"})


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
    both = (change(arm, key) for arm in ("B=64", "B=128") for key in ("mean_length", "nll_per_speech"))
    holds(unseen, change("blocks"), *both, but_not=seen)
    assert interval(ratio("blocks")).holds(ratio("B=16").mean())
    with refuted("the drop of four speeches within the interval of blocks"):
        assert interval(ratio("blocks")).holds(ratio("B=4").mean())


@pytest.mark.claim(
    "11",
    "four of the eight intervals exclude the prediction: those of",
    "all seven intervals contain the prediction",
)
def test_the_predictions_hold() -> None:
    """In characters, and as a share of the constant arm's of the same seed."""
    five, six = ({arm: speech(arm)[:seeds] for arm in TOLD} for seeds in (5, 6))
    missed, none = {"constant", "B=16", "B=64", "B=128"}, dict.fromkeys(TOLD, TOLD["constant"])
    assert len(TOLD) == 8
    holds(excluded, (six, TOLD, missed), but_not={
        "five seeds": (five, TOLD, missed), "all": (six, TOLD, set()), "none": (six, none, missed)})  # fmt: skip
    shares, told = of_constant(six), of_constant(TOLD)
    holds(excluded, (shares, told, set()), but_not={"no effect": (shares, of_constant(none), set())})
    for few, many in pairwise(("B=1", "B=4", "B=16")):
        assert interval(speech(few)).high < interval(speech(many)).low


def test_the_front_page_has_the_intervals() -> None:
    """index.md and README: means and standard deviations over the seeds; chapters/numbers.toml has the rest."""
    found = [f"{speech(arm).mean():.0f} ± {speech(arm).std(ddof=1):.0f}" for arm in ("B=1", "constant")]
    assert all(1 < speech(arm).mean() / TOLD[arm] < 1.1 for arm in ("B=1", "constant"))
    said = (
        f"speeches of {found[0]} characters; with a constant denominator, it writes speeches of {found[1]}",
        "both means lie a little above these, and the 95% interval of their ratio contains the predicted ratio",
    )
    for name in ("index.md", "README.md"):
        assert all(words in page(name) for words in said)
        assert "with 64 texts per denominator, they become about 1% shorter in either case" in page(name)
    many = [shorter(writers, "B=64") for writers in (1, 2)]
    between(-1.5, -0.5, *many, room=1.0, but_not={"four texts": shorter(2, "B=4")})


@pytest.mark.claim(
    "11", "Its seven means all lie below their predictions", "with a transformer hardly better than bigrams"
)
def test_the_first_design() -> None:
    theory, bigrams = record("shakespeare/first_design")["prediction"], THEORY["ngrams"][1]
    losses = [run["nll_per_speech"] for run in record("shakespeare/first_design")["runs"]]
    lengths = {arm: speech(arm, design="first_design") for arm in theory}
    assert len(losses) == 35 and len(theory) == 7 and all(0.96 < loss / bigrams < 1 for loss in losses)

    def says(told: dict[str, float]) -> None:
        assert all(lengths[arm].mean() < told[arm] for arm in told)
        excluded(lengths, told, {"B=4", "B=16", "B=128"})
        excluded(of_constant(lengths), of_constant(told), set())

    holds(says, theory, but_not={arm: {**theory, arm: 1.1 * theory[arm]} for arm in theory})
    with refuted("no better than bigrams"):
        assert min(losses) >= bigrams


# --------------------------------------------------------------------------------- chapter 11: restaurants

FORETOLD = record("restaurants/prediction")
ARMS = set(FORETOLD["writers=1"]["arms"]) - {"constant"}


def change_of(writers: int, arm: str, key: str) -> Array:
    """By how much that is more than with a constant divisor."""
    return described(writers, arm, key) - described(writers, "constant", key)


def foretold(writers: int, arm: str) -> tuple[float, float]:
    """What is foretold of that where the model uses all that a prompt tells of the length, and where nothing."""
    told = FORETOLD[f"writers={writers}"]["arms"][arm]
    return 100 * told["change"], 100 * told["without prompts"]["change"]


@pytest.mark.claim("11", "the terse texts gain in return")
@pytest.mark.claim("11", "One text per denominator raises the loss of held-out human texts")
@pytest.mark.claim("11", "With one text per denominator and two writers")
def test_two_writers() -> None:
    """About 30 % off, and three of four texts terse where two of four are; both as foretold, and clipped as well."""
    lengths = (shorter(2, "B=1", clip) for clip in (False, True))
    between(-34, -26, *lengths, but_not={"the constant": shorter(2, "constant"), "four": shorter(2, "B=4")})
    free, clipped, half = (
        described(2, *of) for of in (("B=1", "terse"), ("B=1", "terse", True), ("constant", "terse"))
    )
    between(0.73, 0.77, free, clipped, but_not={"half": half})
    between(0.48, 0.52, half, but_not={"three of four": free})
    one, two, many = (change_of(*of, "nats") for of in ((1, "B=1"), (2, "B=1"), (1, "B=64")))
    between(0.015, 0.03, one, but_not={"B=64": many, "two writers": two})
    between(0.05, 0.08, two, but_not={"one writer": one})
    holds(below, change_of(2, "B=1", "nats_terse"), but_not={"people's": two})


@pytest.mark.claim("11", "With one writer, however, the same divisor shortens them by")
def test_one_writer() -> None:
    """Between what is foretold if the model used all of the prompt, and what if it used nothing."""
    most, least = foretold(1, "B=1")
    between(
        least,
        most,
        shorter(1, "B=1"),
        but_not={"two writers": shorter(2, "B=1"), "packed": shorter(1, "packed")},
    )
    with refuted("no prompts"):
        within(shorter(1, "B=1"), 2 * least, least)


@pytest.mark.claim("11", "overlaps the bar between its two forecasts")
def test_the_forecasts_of_restaurants() -> None:
    def reaches(writers: int, arm: str, off: float = 0.0) -> None:
        found, ends = interval(shorter(writers, arm)), sorted(foretold(writers, arm))
        assert found.low - off < ends[1] and ends[0] < found.high - off

    all_of_them = ((writers, arm) for writers in (1, 2) for arm in ARMS)
    holds(reaches, *all_of_them, but_not={"a twentieth": (2, "B=4", 5.0), "a tenth more": (1, "B=1", -10.0)})


@pytest.mark.claim("11", "Clipping at 1.0 affects")
def test_what_is_not_seen_in_restaurants() -> None:
    each = [(writers, arm) for writers in (1, 2) for arm in ("constant", *ARMS)]
    assert 0.01 < max(described(*of, "clipped", clip=True).max() for of in each) <= 0.02
    clipped = (shorter(*of, clip=True) - shorter(*of) for of in each)
    holds(unseen, *clipped, but_not={arm: shorter(2, arm) for arm in ("B=1", "B=4", "bucketed")})


@pytest.mark.claim("11", "does not visibly change.")
def test_what_else_is_seen_of_restaurants() -> None:
    holds(unseen, *((change_of(writers, "B=1", "missed"), 0.06) for writers in (1, 2)), but_not={
        what: (change_of(2, "B=1", what), 0.06) for what in ("length", "terse")})  # fmt: skip


def by_slots(writers: int, arm: str) -> Array:
    """The mean lengths, by seed and by the slots that a meaning fills, from 3 to 8."""
    return np.stack([described(writers, arm, f"by_slots.{k}") for k in range(3, 9)], axis=1)


@pytest.mark.claim("11", "shortens the texts for fuller meanings ... terse ones hardly do.")
def test_fuller_meanings_lose_more() -> None:
    """A fifth and a third; and a half terse and half people's mean says how long terse texts are."""

    def more(writers: int, arm: str) -> None:
        change = by_slots(writers, arm) / by_slots(writers, "constant") - 1
        below(change[:, 3:].mean(1) - change[:, :3].mean(1))
        below(change[:, -1] - change[:, 0])
        assert (change[:, 0].mean(), change[:, -1].mean()) == pytest.approx((-1 / 5, -1 / 3), abs=0.06)

    holds(more, (2, "B=1"), but_not={"one writer": (1, "B=1"), "four texts": (2, "B=4")})
    people = by_slots(1, "constant").mean(0)
    terse = 2 * by_slots(2, "constant").mean(0) - people
    assert (np.diff(people) > 2).all() and terse[-1] - terse[0] < 0.2 * (people[-1] - people[0])


@pytest.mark.claim("11", "the model expects a few hundredths of an end too many")
@pytest.mark.claim("11", "the tilt lies in that choice")
def test_the_end_hardly_shows_it() -> None:
    """The shares of the two kinds of text account for their lengths, and the end's own calibration does not."""

    def by_choice(arm: str, share: float) -> None:
        people = described(1, "constant").mean()
        terse = people - (people - described(2, "constant").mean()) / described(2, "constant", "terse").mean()
        assert abs((1 - share) * people + share * terse - described(2, arm).mean()) < 0.06 * people

    ends, lengths = described(2, "constant", "ends"), 100 / (100 + shorter(2, "B=1"))
    one, two = (described(writers, "B=1", "ends") for writers in (1, 2))
    between(1.01, 1.06, one, two, room=0.01, but_not={"a constant": ends, "as the lengths": lengths})
    share = described(2, "B=1", "terse").mean()
    holds(by_choice, ("B=1", share), but_not={"half": ("B=1", 0.5), "a constant": ("constant", share)})


@pytest.mark.claim("rewards", "Wherever the theorem applies, the last three numbers agree")
@pytest.mark.parametrize("stored", record("denominators/table")["rows"], ids=lambda row: row["row"])
def test_a_row_of_the_table(stored: dict[str, Any]) -> None:
    """Exact values anew; the stored simulation and training against them, three errors; a simulation again."""
    assert [row.name for row in table.ROWS] == [row["row"] for row in record("denominators/table")["rows"]]
    (row,) = (row for row in table.ROWS if row.name == stored["row"])
    exact = row.exact()
    assert (stored["exact"], stored["truth"]) == pytest.approx((exact, row.truth), abs=1e-6)
    if "buckets" in row.name or "LongAlign" in row.name:
        assert exact == pytest.approx(table.ROWS[0].exact())  # one sequence at a time

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
    "The rows fall into four groups",
    "an error near 3 means a gradient four times",
    "GPT-2's `loss_type` is None, so",
    "nanoGPT, which is nevertheless exact for its blocks of equal length",
    "DistributedDataParallel and FSDP2 divide by the number of ranks",
    "divide a short window by the number of steps it should have had",
    "a subclass whose `compute_loss` returns a mean",
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
    "`check_trainer` gives the same verdict on each unmodified trainer",
)
@RECIPES
def test_a_trainer_is_repaired_and_handed_over(row: dict[str, Any]) -> None:
    """The Trainer, SFTTrainer and Lightning can be handed over; one, repaired, is refused."""

    def mended(errors: list[float], check: dict[str, Any]) -> None:
        assert len(errors) == 5 and max(errors) < ROUNDING and check["ok"] and "none: " in check["cause"]

    wrong, checked = row["repair"] != "none needed", (row["error_repaired"], row["check_repaired"])
    holds(mended, checked, but_not={"as it comes": (row["error"], row["check"])} if wrong else {})
    said, later = row["check_trainer"], row["check_trainer_repaired"]
    if not row["recipe"].startswith(("Trainer", "TRL", "Lightning")):
        assert said is None is later
    else:
        assert said == row["check"] and (said != row["check_repaired"] or not wrong)
        refused = row["recipe"] == "Lightning, manual"
        assert later == row["check_repaired"] or (
            refused and "check_accumulation takes any" in later["refused"]
        )


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
        others = {trained, given, given * 2} - {right}
        holds(divides_by, (right, run), but_not={f"{n}": (n, run) for n in others})
    if ranks == 1:
        said = row["check_trainer"]
        assert said["ok"] is (repaired or not written)
        assert said["ok"] or "labels of the loader's batch, before the reply was generated" in said["cause"]


# ------------------------------------------------------------------- chapter 14: restaurants with a teacher

FEW, PART, ALL = 0.05, 0.2, 1.0
Cell = tuple[str, float]


def distilled(cell: Cell, key: str = "nats", part: float = 1, last: int = 0) -> dict[int, float]:
    """What the students of a cell come to, by seed; after `part` times the steps; in the last sets of seeds alone."""
    found = {
        r["seed"]: r[key]
        for r in record("restaurants/distillation")["runs"]
        if (r["arm"], r["share"], r["part"], sum(r["seed"] >= first for first in (12, 16, 22)))
        == (*cell, part, last)
    }
    assert len(found) > (2 if part == 1 else 1), cell
    return found


def less(first: Cell, second: Cell, key: str = "nats", part: float = 1, last: int = 0) -> Array:
    """By how much less the first costs than the second, by seed."""
    a, b = distilled(first, key, part, last), distilled(second, key, part, last)
    return np.array([b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())])


def worth(cell: Cell, part: int) -> Array:
    """What it gains over few labels, whose student has stopped by then, as a share of what all labels gain."""
    found, rival, before = distilled(cell, part=part), distilled(LABELS, part=part), distilled(LABELS_5)
    return np.array([(before[s] - found[s]) / (before[s] - rival[s]) for s in found.keys() & rival.keys()])


def part(some: Array, of: Array) -> float:
    return float(some.mean() / of.mean())


SOFT, PLAIN, FOUR = ("distributions", FEW), ("texts", FEW), ("texts x4", FEW)
LABELS_5, LABELS_20, LABELS = (("labels", share) for share in (FEW, PART, ALL))
WARM, FRESH, FORWARD, HUMAN = (
    (name, FEW) for name in ("from labels", "fresh texts", "on-policy forward", "human text")
)
SHARP = ("on-policy JSD", FEW), ("on-policy reverse", FEW)


@pytest.mark.claim(
    "14",
    "With 5% of the answers, the teacher's distributions do nearly as well",
    "they gain about four fifths of a nat over the labels",
    "Labels for every meaning lead them by about a fiftieth",
)
def test_what_distributions_replace() -> None:
    other = {"texts": PLAIN, "20 %": LABELS_20, "5 %": LABELS_5, "teacher": ("teacher", ALL)}
    of_all = {what: less(cell, LABELS) for what, cell in other.items()}
    between(-0.03, -0.01, less(SOFT, LABELS), room=0.035, but_not=of_all)
    between(0.7, 0.9, less(SOFT, LABELS_5), but_not={"texts": less(PLAIN, LABELS_5)})
    between(0.95, 0.99, worth(SOFT, 1), room=0.06, but_not={"texts": worth(PLAIN, 1)})
    between(-0.11, -0.085, less(SOFT, LABELS, part=3), room=np.inf, but_not={"in 600": less(SOFT, LABELS)})


@pytest.mark.claim("14", "With few labels, a student twice the size gains nothing.")
def test_a_larger_student() -> None:
    large, human, texts = (less(cell, LABELS_5) for cell in (("large", FEW), HUMAN, PLAIN))
    between(-0.03, 0.03, large, room=0.03, but_not={"human text": human, "texts": texts})
    sizes = record("restaurants/distillation")["parameters"]
    assert 1.9 < sizes["large"] / sizes["labels"] < 2.6


@pytest.mark.claim(
    "14",
    "The prompts without answers, with the teacher's texts for them, account for about two fifths",
    "Along people's few answers the teacher's distributions gain nearly half a nat ... a third of a nat more",
    "The teacher's plain texts for every prompt gain about six tenths ... gain about half as much",
    "For the same texts, distributions are worth about another fifth ... make up for about half of that fifth",
    "eight tokens and a bucket lost more than a third of what distributions gain over texts,",
    "which here cost part of the gain",
)
def test_where_the_gain_comes_from() -> None:
    """Each relation on gains over labels, or over what stands second."""
    gain = {
        name: less((name, FEW), LABELS_5) for name in ("texts, same", "texts", "human text", "distributions")
    }
    same, plain, human, soft = gain.values()
    eight, four, over = less(SOFT, ("top 8", FEW)), less(SOFT, FOUR), less(SOFT, PLAIN)
    between(0.5, 0.7, plain, but_not={"the same meanings": same, "all": soft})
    between(0.22, 0.4, same, but_not={"other meanings": plain})
    between(0.4, 0.53, human, but_not={"texts": plain})
    between(0.26, 0.42, less(SOFT, HUMAN), but_not={"over texts": over})
    between(0.14, 0.25, over, but_not={"exchanged": -over, "four texts": four})
    between(0.04, 0.1, eight, but_not={"over texts": over})
    for cell in (PLAIN, HUMAN, *SHARP, FOUR):
        above(less(SOFT, cell))
    half = part(same, plain), part(over - four, over)
    between(
        0.44, 0.56, *half, but_not={"distributions": part(soft, plain), "of all": part(over - four, soft)}
    )
    between(0.34, 0.46, part(less(SOFT, HUMAN), soft), but_not={"most of it": part(human, soft)})
    between(0.34, 0.4, part(eight, over), room=0.2, but_not={"of all": part(over, soft)})


@pytest.mark.claim(
    "14",
    "With the forward divergence the two are about even.",
    "With the Jensen-Shannon divergence people's answers cost ... more than two fifths.",
    "Both kinds of student are sharper and miss about a third fewer slots",
    "at half the temperature this lead falls from about four slots in a hundred to less than one.",
    "students of the reverse divergence and of Jensen-Shannon ... remain overconfident",
    "In the same number of steps, on-policy training gains no nats ... as many tokens are scored",
)
def test_on_policy_and_sharpness() -> None:
    def more(key: str, low: float, high: float, room: float, *on: Cell, but_not: Any) -> None:
        """How much more they have of it than the student of labels from which they go on."""
        rejected = {what: -less(cell, WARM, key) for what, cell in but_not.items()}
        between(low, high, *(-less(cell, WARM, key) for cell in on), room=room, but_not=rejected)

    (jsd, reverse), other = SHARP, {"forward": FORWARD}
    more("nats", -0.05, 0.05, 0.025, FORWARD, but_not={"JSD": jsd, "reverse": reverse, "labels": LABELS_5})
    more("nats", 0.29, 0.37, 0.04, jsd, but_not={"forward": FORWARD, "exchanged": reverse})
    more("nats", 0.39, 0.47, 0.04, reverse, but_not={"exchanged": jsd})
    more("gap", 0.5, 0.9, 0.1, *SHARP, but_not={"distributions": SOFT, **other})
    more("missed", -0.045, -0.035, 0.02, *SHARP, but_not={"labels": LABELS_5, **other})
    more("missed_half", -0.01, 0.0, 0.01, *SHARP, but_not={"labels": LABELS_5})
    more("trigrams", -1, -0.09, 0.01, *SHARP, but_not=other)
    before = distilled(WARM, "missed")
    *fewer, forward = (part(less(c, WARM, "missed"), np.array([*before.values()])) for c in (*SHARP, FORWARD))
    between(0.28, 0.38, *fewer, but_not={"forward": forward})
    scored = [np.mean(list(distilled(cell, "scored").values())) for cell in (WARM, *SHARP, FORWARD)]
    assert all(3.3 < more / scored[0] < 4.5 for more in scored[1:])


@pytest.mark.claim(
    "14",
    "Most ways with the teacher's distributions had not finished training.",
    "those that start from the student of labels gained about a tenth of a nat ... Jensen-Shannon still did.",
    "After nine times the steps, forward on-policy training leads by about a twentieth of a nat ... more text helps.",
    "on-policy training beat distributions only along one stored text",
)
def test_with_more_steps() -> None:
    """Three times as many in two seeds, nine times in eight; and what the last looks say."""
    cells = WARM, FORWARD, *SHARP
    ahead, alike = (less(cell, WARM, part=9) for cell in (FORWARD, FRESH))
    between(
        0.04, 0.06, ahead, alike, room=0.01, but_not={"in as many": less(FORWARD, WARM), "nobody": -ahead}
    )
    between(-0.5, 0.005, less(FORWARD, FRESH, part=9), room=0.01, but_not={"one text": ahead})
    between(-0.5, 0.01, *(less(cell, WARM) for cell in cells[1:]), room=0.04, but_not={"nine times": ahead})
    behind = [-less(cell, WARM, part=9) for cell in SHARP]
    between(0.25, 0.3, behind[0], room=0.05, but_not={"reverse": behind[1]})
    between(0.35, 0.45, behind[1], room=0.05, but_not={"JSD": behind[0]})
    nats = {(c, n): np.array([*distilled(c, part=n).values()])[:2] for c in cells for n in (1, 3, 9)}
    first, then = ([nats[cell, n] - nats[cell, 3 * n] for cell in cells] for n in (1, 3))
    between(0.08, 0.14, *first, room=np.inf, but_not={"a second time": then[0]})
    assert all(0 < later.mean() <= early.mean() for early, later in zip(first, then, strict=True))
    of_all = record("restaurants/distillation")["settings"]["steps"]["from labels"] * 9
    best, last = ([*distilled(cell, "best_step", 9).values()] for cell in (WARM, SHARP[0]))
    assert max(best) < 0.85 * of_all and min(last) > 0.95 * of_all

    def unfinished(*cells: Cell) -> None:
        assert all(distilled(cell, "best_step") == distilled(cell, "steps_run") for cell in cells)

    holds(
        unfinished, (WARM, FORWARD, *SHARP, SOFT, ("top 8", FEW)), but_not={"5 %": LABELS_5, "texts": PLAIN}
    )


@pytest.mark.claim(
    "14",
    "In runs nine times as long each is read about ... a twenty-fifth of a nat.",
    "With four stored texts per prompt students gain as much again;",
    "Seven times as many fresh texts gain hardly more",
    "plain cross-entropy costs an eighth of a nat more than distributions",
    "along fresh texts these did as well, and along four stored ones nearly.",
    "students of its distributions did nearly as well ... only with several texts per prompt",
    "distributions along its own texts gained nearly all",
    "distributions along four texts beat plain cross-entropy along seven times",
    "In four further seeds $\\alpha$ was chosen again ... within the last tenth of the steps.",
    "With 27 times the steps, in two of these seeds, distributions still led",
    "On-policy students kept",
)
def test_chosen_again_at_length() -> None:
    """Four seeds, side by side; rejected is what the shorter runs said, and each relation exchanged."""
    names = "from labels, alpha .8", "from labels", "from labels x4", "fresh texts"
    as_before, one, four, fresh = ((name, FEW) for name in names)
    four_plain, fresh_plain = (("from labels, plain x4", FEW), ("fresh, plain", FEW))

    def gain(first: Cell, second: Cell) -> Array:
        return less(first, second, part=9, last=1)

    alpha, texts, more = gain(one, as_before), gain(four, one), gain(fresh, four)
    between(0.03, 0.045, alpha, texts, room=0.015, but_not={"fresh texts": more, "exchanged": -alpha})
    between(-0.01, 0.01, more, room=0.01, but_not={"four texts": texts})
    scored, also = gain(four, four_plain), gain(fresh, fresh_plain)
    between(0.11, 0.14, scored, room=0.02, but_not={"fresh": also})
    between(0.065, 0.077, also, room=0.01, but_not={"four": scored})
    holds(above, gain(four, fresh_plain), gain(one, four_plain), but_not={"more text": -texts})
    alphas = {cell: {*distilled(cell, "alpha", 9, last=1).values()} for cell in (one, four, fresh)}
    assert {frozenset(a) for a in alphas.values()} == {frozenset({0.95})}
    assert {*distilled(as_before, "alpha", 9, last=1).values()} == {0.8}
    settings = record("restaurants/distillation")["settings"]
    steps, answers = 9 * settings["steps"]["from labels"], distilled(one, "answers", 9, last=1)
    read = [steps * settings["batch"] / 2 / n for n in answers.values()]
    between(140, 160, float(np.mean(read)), but_not={"in as many steps": float(np.mean(read)) / 9})
    for cell in (one, four, fresh, four_plain, fresh_plain):
        assert min(distilled(cell, "best_step", 9, last=1).values()) > 0.9 * steps
    assert max(distilled(as_before, "best_step", 9, last=1).values()) < 0.85 * steps
    longest = less(fresh, fresh_plain, part=27, last=1)
    between(0.04, 0.048, longest, room=np.inf, but_not={"nine times": also, "exchanged": -longest})
    assert {*distilled(FORWARD, "alpha", 9).values()} == {*distilled(FORWARD, "alpha").values()} == {0.8}
    written = [
        np.mean([*distilled(cell, "written", 9, last=1).values()]) for cell in (fresh_plain, four, one)
    ]
    assert 6.5 < written[0] / written[1] < 7.5 and 27 < written[0] / written[2] < 29


@pytest.mark.claim(
    "14",
    "Without people's answers, after the start, students do as well or slightly better.",
    "students of all labels, tuned for as many steps, are",
    "Six more seeds, with teachers of their own",
)
def test_without_peoples_answers() -> None:
    """Four seeds of their own: alpha fixed beside alpha chosen; the settings of all labels were chosen, too."""
    one, four = ("from labels", FEW), ("from labels x4", FEW)
    alone, without = (f"{one[0]}, alone", FEW), (f"{four[0]}, alone", FEW)

    def gain(first: Cell, second: Cell) -> Array:
        return less(first, second, part=9, last=3)

    between(
        -0.005, 0.02, gain(alone, one), gain(without, four), room=0.01, but_not={"one text": gain(one, four)}
    )
    holds(above, gain(without, four), but_not={"exchanged": gain(four, without)})
    best, steps = (
        distilled(("labels, long", ALL), last=3),
        record("restaurants/distillation")["settings"]["steps"],
    )
    assert steps["labels, long"] == steps["labels"] + 9 * steps["from labels x4"]
    behind = {
        cell: np.array([n - best[s] for s, n in distilled(cell, part=9, last=3).items()])
        for cell in (four, one)
    }
    between(1 / 50, 1 / 33, behind[four], room=0.02, but_not={"one text": behind[one]})
    for cell, alpha in (
        (one, 0.95),
        (four, 0.95),
        (alone, 1.0),
        (without, 1.0),
        (("from labels x4, alpha .99", FEW), 0.99),
    ):
        assert {*distilled(cell, "alpha", 9, last=3).values()} == {alpha}


@pytest.mark.claim(
    "14",
    "2 was ahead of 1 by about a seventieth of a nat, and 4 behind by more;",
    "the bare eight nearly half, and sixteen draws, in about as many bytes, a tenth.",
)
def test_temperatures_and_caches() -> None:
    """Six seeds of their own; shares of what distributions gain over texts, in the other eight."""

    def gain(first: str, second: str = "distributions") -> Array:
        return less((first, FEW), (second, FEW), last=2)

    two, four, over = gain("T = 2"), gain("T = 4"), less(SOFT, PLAIN).mean()
    between(1 / 80, 1 / 60, two, room=0.01, but_not={"4": four, "exchanged": -two})
    holds(above, -four - two, but_not={"exchanged": two + four})
    eight, bare, draws = (-gain(name) / over for name in ("top 8", "top 8, bare", "16 draws"))
    between(0.4, 0.5, bare, room=0.12, but_not={"bucket": eight, "draws": draws})
    holds(above, bare - eight, but_not={"exchanged": eight - bare})
    between(0.08, 0.12, draws, room=0.06, but_not={"bucket": eight, "all of it": draws * 0})
    settings = record("restaurants/distillation")["settings"]
    assert 4 * 16 <= 8 * settings["top"] + 4 < 4 * 16 * 1.1


@pytest.mark.claim("14", "the students that missed the fewest slots had a higher loss")
def test_the_fewest_slots_are_not_of_the_lowest_loss() -> None:
    runs = [
        run for run in record("restaurants/distillation")["runs"] if run["part"] == 1 and run["seed"] < 12
    ]
    cells = [cell for cell in {(run["arm"], run["share"]) for run in runs} if cell[0] != "teacher"]
    mean = {cell: [np.mean([*distilled(cell, key).values()]) for key in ("missed", "nats")] for cell in cells}
    fewest = sorted(cells, key=lambda cell: mean[cell][0])[:3]

    higher = {cell: mean[cell][1] - mean[SOFT][1] for cell in (*fewest, SOFT)}
    between(0.1, 1, *(higher[cell] for cell in fewest), but_not={"distributions": higher[SOFT]})
    assert {arm for arm, _ in fewest} == {"on-policy reverse", "on-policy JSD"}


@pytest.mark.claim(
    "14", "with these, the validation answers gain about a fifth of a nat ... more slots are missed"
)
def test_the_validation_answers_as_labels() -> None:
    more = ("labels + validation", FEW)
    between(0.12, 0.3, less(more, LABELS_5), but_not={"texts": less(PLAIN, LABELS_5)})
    above(less(HUMAN, more))
    above(less(LABELS_5, more, "missed"))
    answers = [np.mean(list(distilled(cell, "answers").values())) for cell in (LABELS_5, more)]
    assert answers[1] - answers[0] == pytest.approx(300) and 0.7 < answers[0] / 300 < 1.4


@pytest.mark.claim("14", "With 20% the five ways keep their order, and the gains are smaller.")
def test_with_more_answers() -> None:
    order = ("distributions", "texts x4", "texts", "on-policy reverse", "labels")

    def in_order(share: float, arms: tuple[str, ...]) -> None:
        for first, second in pairwise(arms):
            above(less((first, share), (second, share)))

    holds(in_order, (FEW, order), (PART, order), but_not={"exchanged": (PART, (order[0], *order[:0:-1]))})
    for arm in order[:-1]:
        assert less((arm, FEW), LABELS_5).mean() > less((arm, PART), LABELS_20).mean() + 0.1


# ------------------------------------------------------------------- chapter 15: memory, and the cases of a GPU

GPU = [case for case in record("bench/linear")["cases"] if case["device"] != "cpu"]
HARD, TAUGHT = ([c for c in GPU if c["loss"] == loss] for loss in ("cross_entropy", "distillation"))
MIB = 2**20
Case = dict[str, Any]


@pytest.mark.claim("15", "Besides the gradients, the linear losses take")
@pytest.mark.claim("15", "PyTorch's linear loss holds a second gradient of the weight")
def test_memory_over_the_width() -> None:
    measured = record("large_vocabularies/widths")
    ours, plain = ([case["bytes"][way] / MIB for case in measured["cases"]] for way in ("xent", "plain"))
    between(12.5, 33.5, *ours, but_not={"a tenth": 0.1 * max(ours), "plain": min(plain)})
    assert {case["width"] for case in measured["cases"]} == {128, 512, 2048}
    cases = [case for case in measured["cases"] if case["loss"] == "cross_entropy"]
    second = [{way: used - 4 * case["width"] * measured["classes"] for way, used in case["bytes"].items()}
              for case in cases]  # fmt: skip
    between(-2 * MIB, 25 * MIB, *(case["torch, chunks of 64"] for case in second), but_not={
        "xent": second[-1]["xent"], "plain": second[-1]["plain"]})  # fmt: skip


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
        for i, case in enumerate(HARD)
    }
    holds(says, *((case, first) for case in GPU), but_not=others | counted)
    (case,) = (case for case in HARD if case["width"] == 4096)
    assert case["memory"][first] == pytest.approx(2 * case["rows"] * case["classes"], rel=0.01)
    said = "less than a fifth of the memory that the pair takes as written, both gradients aside"
    assert said in page("chapters/benchmarks.md")


@pytest.mark.claim(
    "15",
    "With sums in float32 (`accum_dtype`) it is as accurate as the plain pair",
    "cut cross-entropy, in release 25.1.1, held at most two MiB",
)
def test_kernels_made_for_the_loss() -> None:
    """What xent holds is the gradient of w and a block's logits, once in float32 and once in bfloat16."""

    exact, small = ("xent", "Liger, sums in float32"), ("cut cross-entropy", "cut cross-entropy, unfiltered")
    for case in HARD:
        used, gradient = case["memory"], 4 * case["width"] * case["classes"]
        error, time = (
            {way: x / case[key]["plain"] for way, x in case[key].items()} for key in ("error", "seconds")
        )
        most = 1 + 6 * max(1024 * case["classes"], 2**26) / gradient
        between(
            0.99, most, *(used[way] / gradient for way in exact), but_not={"cut": used[small[0]] / gradient}
        )
        between(0.95, 1.05, *(error[way] for way in exact), but_not={"Liger's default": error["Liger"]})
        between(1.6, 2.45, error["Liger"], but_not={way: error[way] for way in exact})
        between(0, 2.5 * MIB, *(used[way] for way in small), but_not={way: used[way] for way in exact})
        between(2.15, 3.15, *(time[way] for way in small), but_not={"no longer than it": time["plain"]})


@pytest.mark.claim("15", "In these cases rounding the logits cost distillation more precision")
def test_rounded_logits_of_a_distillation() -> None:
    """In every size; a loss that keeps a block's logits in float32 is rid of five sixths of it."""

    for soft, hard in zip(TAUGHT, HARD, strict=True):
        assert (soft["classes"], soft["width"]) == (hard["classes"], hard["width"])
        plain, ours = (soft["error"][way] / hard["error"]["plain"] for way in ("plain", "xent"))
        between(5, 20, plain, but_not={"exchanged": 1 / plain, "a block's logits in float32": ours})
        assert ours < plain / 5
        assert 1.6 < soft["seconds"]["xent"] / soft["seconds"]["plain"] < 1.95
