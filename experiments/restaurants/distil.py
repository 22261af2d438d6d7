"""Distilling a model that describes restaurants: who writes the text, who scores it, and what labels cost instead.

The card, written before the runs; what is foretold, in numbers, is in distillation_prediction.json.

Question     A student has people's answers for 5 or 20 % of the training meanings, and the others as prompts without
             answers. What is a teacher worth to it, whose text should it learn from, and what should it see of the
             teacher: texts, distributions along them, or scores of the student's own texts?
Arms         labels         cross-entropy with people's answers for the labelled meanings (5, 20, 100 %)
             texts, same    and with four texts of the teacher's for each labelled meaning
             texts          and with a text of the teacher's for each training meaning; texts x4: with four
             distributions  and KL(teacher || student) along the teacher's one text for each training meaning
             top 8          the same, of the teacher's eight largest probabilities and the mass of the rest
             labels + validation    see below
             human text     and KL(teacher || student) along people's answers for the labelled meanings
             on-policy      from the student of labels: and a divergence from the teacher along texts that the student
                            writes for any training meaning, by the gradient of the token's divergence: forward,
                            reverse, or Jensen-Shannon
             from labels    "distributions" from the student of labels, the control of on-policy's start
Rivals       1. The gain is that of the answers that the teacher has read: the same student with labels for 20 and
             100 %. 2. It is that of more prompts, or of more text, not of probabilities: "texts" (as many calls of the
             teacher's as "distributions"), "texts x4" (four times as many), "texts, same" (no more prompts). 3. It is
             that of softer targets, not of the teacher's text: "human text". 4. The student of labels is too small, or
             badly regularised: "large", a student of twice the parameters with labels; dropout and the number of steps
             are chosen for each arm. 5. On-policy gains by its longer training: "from labels". 6. Reverse and
             Jensen-Shannon miss fewer slots because they are sharper: the slots of every arm are counted at a
             temperature of one half, too. 7. The students of labels are too sure, and a temperature of their own would
             do: `tempered`, nats at the temperature that is best on validation, for every arm. (Added when the first
             student of labels had been seen, and before any of a teacher's.) And the teacher itself stands in the table.
Sees, pays   answers of people; tokens that the teacher writes, tokens that it scores, on-policy's included; CPU seconds
             of training (with on-policy's writing and scoring, without the student that it starts from) and of the
             teacher's part. Nobody pays for the teacher's training, which has read all training answers. Choices and
             stops rest on 300 answers of people to other meanings, one to each, as many as 5 % of the labels are: all
             arms have them alike, and who has so few labels would rather learn from these, too, as the arm "labels +
             validation" does, for as many steps as the student of labels took at the tuning seed.
Tuned        alike, for each arm at 5 % and labels of 100 %, at a seed of its own with a teacher of its own and half of
             the steps (the teacher a third): rate (factor 2), then dropout (0, .15, .3, .45, .6), by the arm's own objective on validation;
             then alpha, the weight of the teacher's part (.2, .5, .8, .95, 1), by nats on people's answers there. Each
             by steps to the better neighbour until both are worse, so that no optimum is at the edge of what was tried,
             but for dropout 0 and alpha 1. Arms of labels alone, the rivals, are tuned in runs of all steps. At 20 % labels, distributions and the two of texts keep the rate and choose
             dropout and alpha again; the other arms keep all.
Training     batches of 32 texts, half of each kind where there are two; AdamW; a running average of the parameters is
             looked at every 40 steps, by the arm's own objective on validation, and the best look is kept. A student
             stops when nothing has improved for 200 steps or after 600, over whose last half the rate falls to zero;
             whoever starts from the student of labels, on-policy or not, after 320 more. On-policy students write at
             temperature 1, for eight steps at a time. Whether training had ended is tried with three times the steps.
Measured     on 400 test meanings, which nobody else has seen: nats a word of people's answers; `gap`, these less the
             mean entropy of the predictions; `ends`, how many ends are expected in an answer, which has one; of four
             texts for each of 200 meanings the length, slots wrong or missing, the share of distinct texts among those
             of a meaning, and of distinct trigrams.
Forecasts    one is right if the mean lies in its interval, not wrong if the mean's 95 % interval meets it.
Seeds        eight are planned, each with its own teacher, labelled meanings and initial values. Of one seed all arms
             have the same. Differences are paired; 95 % intervals by Student's t. Order: one seed of every arm, then
             the next, so that whatever is finished can be compared.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy import optimize, stats
from torch import Tensor, nn

from experiments import shared
from experiments.restaurants.data import END, Data, Pair, load, slots_missed
from experiments.restaurants.model import PROMPT, Describer, pieces, speak
from experiments.shared import records, store
from xent.torch import distillation_loss, top_k_loss

HERE = Path(__file__).parent
RESULT, PREDICTION = HERE / "distillation.json", HERE / "distillation_prediction.json"
FEW, PART, ALL = 0.05, 0.2, 1.0  # of the training meanings have people's answers
TUNING_SEED = 1000
RATES = tuple(0.002 * 2**k for k in range(9))
DROPOUTS = (0.0, 0.15, 0.3, 0.45, 0.6)
ALPHAS = (0.2, 0.5, 0.8, 0.95, 1.0)
TOP, BATCH, WARMUP, DECAY, AVERAGE = 8, 32, 20, 0.01, 0.98
LOOK, PATIENCE, STEPS, STEPS_WARM, TEACHER_STEPS = 40, 200, 600, 320, 1000
WRITTEN_FOR = 8  # steps, by an on-policy student at once
TEXTS = 4  # of the teacher for each meaning, at most
TESTED, SAMPLES = 200, 4  # test meanings for which texts are written, and how many for each
Row = dict[str, Any]


class Size(NamedTuple):
    width: int
    layers: int


TEACHER, STUDENT, LARGE = Size(128, 2), Size(32, 1), Size(56, 1)


class Arm(NamedTuple):
    """The soft part of the loss: which of whose texts, and the loss along them."""

    texts: str = ""  # none; same, one, four: the teacher's; human; own: the student's
    loss: str = (
        "labels"  # of the texts as they are; forward, tail, reverse, jsd: against the teacher's distributions
    )
    warm: bool = False  # starts from the student of labels
    with_validation: bool = False  # learns from the validation answers, too, and cannot be stopped by them
    size: Size = STUDENT


ARMS = {
    "labels": Arm(),
    "distributions": Arm("one", "forward"),
    "texts": Arm("one"),
    "human text": Arm("human", "forward"),
    "texts, same": Arm("same"),
    "texts x4": Arm("four"),
    "on-policy reverse": Arm("own", "reverse", warm=True),
    "on-policy JSD": Arm("own", "jsd", warm=True),
    "on-policy forward": Arm("own", "forward", warm=True),
    "top 8": Arm("one", "tail"),
    "large": Arm(size=LARGE),
    "from labels": Arm("one", "forward", warm=True),
    "labels + validation": Arm(with_validation=True),
}
CELLS = [("labels", s) for s in (FEW, PART, ALL)]
CELLS += [(name, s) for s in (FEW, PART) for name in ("distributions", "texts")]
CELLS += [(name, FEW) for name in list(ARMS)[3:]]
CELLS += [("texts x4", PART), ("on-policy reverse", PART)]
TUNED_AGAIN = ("labels", "distributions", "texts", "texts x4")  # at 20 %, in dropout and alpha
LONGER = (("labels", ALL), ("labels", PART), ("distributions", FEW))  # are also trained three times as long


class Job(NamedTuple):
    rate: float
    dropout: float
    alpha: float = 0.0


class Pool(NamedTuple):
    """Texts to learn from, and log P of every word at each of their positions, one text after the other."""

    pairs: list[Pair]
    log_p: Tensor | None = None

    def first(self) -> list[int]:
        return np.cumsum([0, *(len(p.reply) for p in self.pairs)]).tolist()


def check(data: Data) -> Data:
    """Refuse data from which nothing can be said: a meaning in two parts, or an answer without a word."""
    parts = {name: getattr(data, name) for name in ("train", "validation", "test")}
    where: dict[tuple[str, ...], str] = {}
    for name, pairs in parts.items():
        for pair in pairs:
            if not [w for w in pair.reply if w != END]:
                raise ValueError(f"{name}: an answer to {pair.meaning} is empty, expected at least one word")
            if where.setdefault(pair.meaning, name) != name:
                raise ValueError(
                    f"{name}: the meaning {pair.meaning} is in {where[pair.meaning]} too, expected in one part"
                )
    return data


# ---------------------------------------------------------------- losses along texts


def along(model: Describer, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return the logits at each position of the replies, one reply after the other, and the words there."""
    y = nn.utils.rnn.pad_sequence(
        [torch.tensor(p.reply) for p in pairs], batch_first=True, padding_value=-100
    )
    prompts = torch.tensor([model.prompt(p.meaning) for p in pairs])
    hidden, _ = model.hidden(torch.cat([prompts, y[:, :-1].clamp(min=0)], 1))
    return model.head(hidden[:, PROMPT - 1 :][y >= 0]), y[y >= 0]


@torch.no_grad()
def log_q(model: Describer, pairs: Sequence[Pair]) -> Tensor:
    """Return the log-probabilities at each position of the replies, one reply after the other."""
    found: dict[int, Tensor] = {}
    for piece in pieces(pairs, 8000):
        rows = along(model, [pairs[i] for i in piece])[0].log_softmax(1)
        found |= zip(piece, rows.split([len(pairs[i].reply) for i in piece]), strict=True)
    return torch.cat([found[i] for i in range(len(pairs))])


def soft_loss(loss: str, logits: Tensor, log_p: Tensor | None, words: Tensor) -> Tensor:
    """Return the mean over positions of the soft part's loss."""
    if log_p is None:
        return F.cross_entropy(logits, words)
    if loss == "tail":
        return top_k_loss(logits, *log_p.topk(TOP), treatment="tail")
    options: Any = {"direction": loss}
    return distillation_loss(logits, log_p, **options)


# ---------------------------------------------------------------- what belongs to a seed


class Owned:
    """A seed's teacher, the order in which meanings are labelled, and what the teacher writes and says."""

    def __init__(self, data: Data, seed: int, teacher: Describer) -> None:
        self.data, self.seed, self.teacher = data, seed, teacher.eval()
        meanings = sorted({p.meaning for p in data.train})
        self.order = [meanings[i] for i in np.random.default_rng([seed, 3]).permutation(len(meanings))]
        first: dict[tuple[str, ...], Pair] = {}
        for pair in data.validation:
            first.setdefault(pair.meaning, pair)
        self.validation = list(first.values())
        self.seconds = {"writing": 0.0, "scoring": 0.0}

    def meanings(self, share: float) -> list[tuple[str, ...]]:
        """Return the meanings that have people's answers; those of a share hold those of a smaller one."""
        if not 0 < share <= 1:
            raise ValueError(f"share: expected a number in (0, 1], got {share}")
        return self.order[: max(1, round(share * len(self.order)))]

    def labelled(self, share: float) -> Pool:
        known = set(self.meanings(share))
        return Pool([p for p in self.data.train if p.meaning in known])

    def timed(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = function(self.teacher, *arguments)
        self.seconds[what] += time.process_time() - start
        return result

    @functools.cached_property
    def written(self) -> list[list[Pair]]:
        """What the teacher writes, TEXTS times, for each training meaning, in the order; and for validation."""
        some = [p.meaning for p in self.validation]
        return [
            [Pair(m, tuple(text)) for m, text in zip(meanings, texts, strict=True)]
            for k, meanings in enumerate([self.order] * TEXTS + [some])
            for texts in [self.timed("writing", speak, meanings, 100 * self.seed + k)]
        ]

    @functools.cached_property
    def one(self) -> Tensor:
        return self.timed("scoring", log_q, self.written[0])

    @functools.cached_property
    def checked(self) -> dict[str, Tensor]:
        return {
            "one": log_q(self.teacher, self.written[TEXTS]),
            "human": log_q(self.teacher, self.validation),
        }

    def pool(self, arm: Arm, share: float) -> tuple[Pool, Pool]:
        """Return the texts of an arm's soft part, to learn from and for validation; on-policy has none yet."""
        if share == ALL:
            raise ValueError(
                f"share: {arm} needs meanings without answers, expected a share below 1, got {share}"
            )
        scored = arm.loss != "labels"
        if arm.texts == "own":
            return Pool([]), Pool([])
        if arm.texts == "human":
            hard = self.labelled(share).pairs
            return Pool(hard, log_q(self.teacher, hard)), Pool(self.validation, self.checked["human"])
        validation = Pool(self.written[TEXTS], self.checked["one"] if scored else None)
        if arm.texts == "one":
            return Pool(self.written[0], self.one if scored else None), validation
        number = len(self.meanings(share)) if arm.texts == "same" else None
        return Pool([p for k in range(TEXTS) for p in self.written[k][:number]]), validation


def own_texts(model: Describer, own: Owned, meanings: Sequence[tuple[str, ...]], seed: int) -> Pool:
    """Let a student write, and its teacher score what it wrote."""
    pairs = [Pair(m, tuple(t)) for m, t in zip(meanings, speak(model.eval(), meanings, seed), strict=True)]
    model.train()
    return Pool(pairs, log_q(own.teacher, pairs))


# ---------------------------------------------------------------- training


def cycle(number: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches, epoch by epoch, each in an order of its own."""
    order: list[int] = []
    while True:
        while len(order) < size:
            order = order + rng.permutation(number).tolist()
        batch, order = order[:size], order[size:]
        yield batch


@torch.no_grad()
def objective(model: Describer, arm: Arm, alpha: float, own: Owned, soft: Pool) -> tuple[float, float]:
    """Return what the arm minimises, on validation, and the nats a word of people's answers there."""
    people = nats(log_q(model, own.validation), own.validation)
    value = (1 - alpha) * people if alpha < 1 else 0.0
    if alpha > 0:
        if arm.texts == "own":
            soft = own_texts(model, own, [p.meaning for p in own.validation], 7)
            model.eval()
        words = torch.tensor([w for p in soft.pairs for w in p.reply])
        value += alpha * float(soft_loss(arm.loss, log_q(model, soft.pairs), soft.log_p, words))
    return value, people


def fit(
    model: Describer,
    arm: Arm,
    job: Job,
    own: Owned,
    share: float,
    seed: int,
    steps: int,
    patience: float = PATIENCE,
    at: int | None = None,
) -> tuple[Describer, Row]:
    """Train a model until it stops; return it at its best look, or at the look `at`, and what it took."""
    rng, alpha = np.random.default_rng([seed, 9]), job.alpha
    torch.manual_seed(seed)  # of dropout
    start, model.dropout = time.process_time(), job.dropout
    count = BATCH if alpha in (0, 1) else BATCH // 2
    hard = own.labelled(share)
    if arm.with_validation:
        hard.pairs.extend(own.validation)
    soft, validation = own.pool(arm, share) if alpha else (Pool([]), Pool([]))
    hards = cycle(len(hard.pairs), count, rng)
    softs = cycle(len(own.order if arm.texts == "own" else soft.pairs), count, rng)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=DECAY, fused=True)
    parameters = [*model.parameters()]
    average = [p.detach().clone() for p in parameters]
    looked, best = copy.deepcopy(model).eval(), (math.inf, math.inf, 0)
    kept, curve, scored, texts = looked, [], 0, iter(())
    first = soft.first()
    for step in range(1, steps + 1):
        if arm.texts == "own" and alpha and step % WRITTEN_FOR == 1:
            numbers = [i for _ in range(WRITTEN_FOR) for i in next(softs)]
            soft = own_texts(model, own, [own.order[i] for i in numbers], 1000 * seed + step)
            first, scored = soft.first(), scored + len(soft.log_p)  # type: ignore[arg-type]
            texts = iter(np.arange(len(numbers)).reshape(WRITTEN_FOR, count).tolist())
        loss = torch.zeros(())
        if alpha < 1:
            loss = (1 - alpha) * F.cross_entropy(*along(model.train(), [hard.pairs[i] for i in next(hards)]))
        if alpha > 0:
            index = next(texts) if arm.texts == "own" else next(softs)
            logits, words = along(model.train(), [soft.pairs[i] for i in index])
            log_p = soft.log_p
            if log_p is not None:
                log_p = torch.cat([log_p[first[i] : first[i + 1]] for i in index])
            loss = loss + alpha * soft_loss(arm.loss, logits, log_p, words)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimiser.param_groups:
            group["lr"] = job.rate * min(step / WARMUP, 1.0, 2 * (1 - (step - 1) / steps))
        optimiser.step()
        torch._foreach_lerp_(average, [p.detach() for p in parameters], max(1 - AVERAGE, 1 / step))
        if step % LOOK == 0 or step == steps:
            for p, mean in zip(looked.parameters(), average, strict=True):
                p.data.copy_(mean)
            value, people = objective(looked, arm, alpha, own, validation)
            curve.append(round(value, 4))
            if value < best[0] if at is None else step == at:
                best, kept = (value, people, step), copy.deepcopy(looked)
            if step - best[2] >= patience or step == at:
                break
    row: Row = {
        "own": best[0],
        "validation": best[1],
        "best_step": best[2],
        "steps_run": step,
        "scored": scored,
    }
    return kept, row | {"seconds": time.process_time() - start, "curve": curve}


# ---------------------------------------------------------------- the evaluation


def nats(log: Tensor, pairs: Sequence[Pair], temperature: float = 1.0) -> float:
    """Return the nats a word of texts by log Q along them, at a temperature."""
    words = torch.tensor([w for p in pairs for w in p.reply])
    return float(F.cross_entropy(log / temperature, words))


def best_temperature(log: Tensor, pairs: Sequence[Pair]) -> float:
    """Return the temperature that costs texts the fewest nats."""
    found = optimize.minimize_scalar(
        lambda x: nats(log, pairs, math.exp(x)), bounds=(-1, 2), method="bounded", options={"xatol": 0.01}
    )
    return math.exp(found.x)


@torch.no_grad()
def evaluate(model: Describer, own: Owned) -> Row:
    """Return what is reported of a model, on meanings that it has not seen; the card says what it is."""
    data, log = own.data, log_q(model, own.data.test)
    loss, temperature = nats(log, data.test), best_temperature(log_q(model, own.validation), own.validation)
    every = sorted({p.meaning for p in data.test})
    some = [every[i] for i in np.random.default_rng(0).permutation(len(every))[:TESTED]]
    texts, sharp = (speak(model, some * SAMPLES, own.seed, temperature=t) for t in (1.0, 0.5))
    tuples = [tuple(text) for text in texts]
    trigrams = [t[i : i + 3] for t in tuples for i in range(max(1, len(t) - 2))]
    missed, missed_half = (
        np.sum([slots_missed(m, data.spell(t)) for m, t in zip(some * SAMPLES, said, strict=True)], axis=0)
        for said in (texts, sharp)
    )
    return {
        "nats": loss,
        "gap": loss + float((log.exp() * log).sum(1).mean()),
        "tempered": nats(log, data.test, temperature),
        "temperature": temperature,
        "ends": float(log[:, END].exp().sum()) / len(data.test),
        "length": float(np.mean([len(t) for t in texts])),
        "missed": missed[0] / missed[1],
        "missed_half": missed_half[0] / missed[1],
        "slots": int(missed[1]),
        "distinct": float(np.mean([len(set(tuples[i::TESTED])) / SAMPLES for i in range(TESTED)])),
        "trigrams": len(set(trigrams)) / len(trigrams),
        "endless": float(np.mean([t[-1] != END for t in texts])),
    }


# ---------------------------------------------------------------- the runs


def climb(grid: Sequence[float], start: float, value: Callable[[float], float]) -> float:
    """Go to the better neighbour until both are worse."""
    i = grid.index(start)
    while True:
        near = [j for j in (i - 1, i, i + 1) if 0 <= j < len(grid)]
        best = min(near, key=lambda j: (value(grid[j]), j != i))
        if best == i:
            return grid[i]
        i = best


class Runs:
    """The runs of a folder: what is there is read, what is not is made."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.data, self.folder = check(data), folder
        self.tuning = functools.cache(lambda: self.owned(TUNING_SEED))
        folder.mkdir(parents=True, exist_ok=True)

    def started(self, name: str, share: float, seed: int) -> Describer:
        """Return a model before training: with initial values, or the student of labels."""
        arm = TEACHER_ARM if name == "teacher" else ARMS[name]
        torch.manual_seed(seed)
        model = Describer(self.data, *arm.size)
        if arm.warm:
            model.load_state_dict(self.labels(share, seed)["state"])
        return model

    def labels(self, share: float, seed: int) -> Row:
        """Return the student of labels of a seed, which is trained unless stored, and its best step."""
        path = self.folder / f"labels-{share}-{seed}.pt"
        if not path.exists():  # of the seed that tunes
            self.keep(*self.made("labels", share, seed, self.tuned("labels", share), self.tuning()))
        return dict(torch.load(path))

    def keep(self, model: Describer, row: Row) -> None:
        path = self.folder / f"labels-{row['share']}-{row['seed']}.pt"
        torch.save({"state": model.state_dict(), "best_step": row["best_step"]}, path)

    def made(
        self, name: str, share: float, seed: int, job: Job, own: Owned, part: float = 1
    ) -> tuple[Describer, Row]:
        """Train a model for `part` of its steps."""
        arm = TEACHER_ARM if name == "teacher" else ARMS[name]
        steps = TEACHER_STEPS if name == "teacher" else STEPS_WARM if arm.warm else STEPS
        steps, patience = round(part * steps), PATIENCE if part <= 1 else math.inf
        at = self.labels(share, TUNING_SEED)["best_step"] if arm.with_validation else None
        model, row = fit(self.started(name, share, seed), arm, job, own, share, seed, steps, patience, at)
        return model, {"arm": name, "share": share, "seed": seed, "part": part, **job._asdict(), **row}

    def tuned(self, name: str, share: float) -> Job:
        """Return the settings of an arm, from short runs of the tuning seed."""
        if name == "labels + validation":
            return self.tuned("labels", share)
        if share == PART and name not in TUNED_AGAIN:
            return self.tuned(name, FEW)
        arm = TEACHER_ARM if name == "teacher" else ARMS[name]
        own = Owned(self.data, TUNING_SEED, Describer(self.data)) if name == "teacher" else self.tuning()
        known = {
            Job(r["rate"], r["dropout"], r["alpha"]): r
            for r in records(self.folder)
            if (r["arm"], r["share"], r["seed"]) == (name, share, TUNING_SEED)
        }

        def tried(job: Job) -> Row:
            if job not in known:
                part = 1 / 3 if name == "teacher" else 0.5 if arm.texts else 1
                known[job] = self.made(name, share, TUNING_SEED, job, own, part)[1]
                store(self.folder, known[job])
                print(name, share, *job, known[job]["own"], known[job]["validation"], flush=True)
            return known[job]

        job = Job(
            0.008 if name == "teacher" or arm.texts == "own" else 0.032, 0.15, 0.8 if arm.texts else 0.0
        )
        if share == PART:
            job = job._replace(rate=self.tuned(name, FEW).rate)
        else:
            job = job._replace(rate=climb(RATES, job.rate, lambda x: tried(job._replace(rate=x))["own"]))
        job = job._replace(
            dropout=climb(DROPOUTS, job.dropout, lambda x: tried(job._replace(dropout=x))["own"])
        )
        if arm.texts:
            value = lambda x: tried(job._replace(alpha=x))["validation"]  # noqa: E731
            job = job._replace(alpha=climb(ALPHAS, 0.8, value))
        return job

    def owned(self, seed: int) -> Owned:
        """Return what belongs to a seed, with its teacher, which is trained unless stored."""
        path = self.folder / f"teacher-{seed}.pt"
        if not path.exists():
            untrained = Owned(self.data, seed, Describer(self.data))
            model, row = self.made("teacher", ALL, seed, self.tuned("teacher", ALL), untrained)
            torch.save({"words": self.data.words, "state": model.state_dict(), "row": row}, path)
        stored = torch.load(path)
        return Owned(self.data, seed, teacher_of(self.data, stored["words"], stored["state"]))

    def work(self, seeds: Sequence[int], longer: int) -> None:
        """Make what the folder lacks, seed by seed; then longer runs of a few."""
        for seed in seeds:
            own = self.owned(seed)
            if not self.has("teacher", ALL, seed):
                row = torch.load(self.folder / f"teacher-{seed}.pt")["row"]
                tokens = sum(len(p.reply) for pairs in own.written for p in pairs), len(own.one)
                costs = {k: own.seconds[k] / n for k, n in zip(("writing", "scoring"), tokens, strict=True)}
                row |= {"answers": len(self.data.train), "written": 0, "costs": costs}
                store(self.folder, row | evaluate(own.teacher, own))
            for name, share in CELLS:
                self.run(name, share, seed, own)
        for name, share in LONGER:
            for seed in seeds[:longer]:
                self.run(name, share, seed, self.owned(seed), 3)

    def has(self, name: str, share: float, seed: int, part: float = 1) -> bool:
        asked = {"arm": name, "share": share, "seed": seed, "part": part}
        return any(asked.items() <= r.items() for r in records(self.folder))

    def run(self, name: str, share: float, seed: int, own: Owned, part: float = 1) -> None:
        """Train and evaluate a student, and store its row."""
        if self.has(name, share, seed, part):
            return
        arm, job = ARMS[name], self.tuned(name, share)
        model, row = self.made(name, share, seed, job, own, part)
        if name == "labels" and part == 1:
            self.keep(model, row)
        texts = own.pool(arm, share)[0] if arm.texts and job.alpha else Pool([])
        scored = row["scored"] or (0 if texts.log_p is None else len(texts.log_p))
        written = 0 if arm.texts == "human" else sum(len(p.reply) for p in texts.pairs)
        answers = len(own.labelled(share).pairs) + len(own.validation) * arm.with_validation
        row |= {"answers": answers, "written": written, "scored": scored}
        row |= evaluate(model, own)
        store(self.folder, row)
        print(name, share, seed, row["nats"], row["missed"], row["seconds"], flush=True)


TEACHER_ARM = Arm(size=TEACHER)


def teacher_of(data: Data, words: Sequence[str], state: dict[str, Tensor]) -> Describer:
    """Return a stored teacher, whose words have to be the student's."""
    if list(words) != data.words:
        other = next((pair for pair in zip(words, data.words, strict=False) if pair[0] != pair[1]), None)
        what = f"{other[0]!r} where the student has {other[1]!r}" if other else "others at the end"
        raise ValueError(f"teacher: another vocabulary, {len(words)} words for {len(data.words)}, {what}")
    model = Describer(data, *TEACHER)
    model.load_state_dict(state)
    return model


# ---------------------------------------------------------------- the record


def paired(runs: Sequence[Row], key: str, arm: str, share: float, minus: Row | None) -> dict[str, float]:
    """Return the mean over the seeds, of a difference if `minus` is given, and half of its 95 % interval."""

    def by_seed(arm: str, share: float) -> dict[int, float]:
        return {r["seed"]: r[key] for r in runs if (r["arm"], r["share"], r["part"]) == (arm, share, 1)}

    values, other = by_seed(arm, share), by_seed(minus["arm"], minus["share"]) if minus else {}
    x = np.array([v - other.get(s, 0.0) for s, v in values.items() if not minus or s in other])
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5 if len(x) > 1 else math.nan
    return {"mean": float(x.mean()), "half": float(half), "seeds": len(x)}


def assemble(folder: Path, again: Path | None, data: Data) -> Row:
    """Return the record: settings, what became of the forecasts, repeats, tuning and runs."""
    rows = [shared.rounded(r | {"curve": r["curve"][-3:]}, ".5g") for r in records(folder)]
    runs = [r for r in rows if "nats" in r]
    runs.sort(key=lambda r: (r["part"], r["seed"]))  # within a seed as they were made
    forecasts = json.loads(PREDICTION.read_text())["forecasts"]
    for row in forecasts:
        row |= shared.rounded(paired(runs, row["key"], row["arm"], row["share"], row.get("minus")), ".4g")
        (low, high), mean, half = row["between"], row["mean"], row["half"]
        row |= {"held": low <= mean <= high, "met": mean - half <= high and low <= mean + half}
    people = np.array([slots_missed(p.meaning, data.spell(p.reply)) for p in data.test]).sum(0)
    every = sorted({p.meaning for p in data.test})
    lengths = [np.mean([len(p.reply) for p in data.test if p.meaning == m]) for m in every]
    sizes = {"teacher": TEACHER, "student": STUDENT, "large": LARGE}
    return {
        **shared.made(torch, np),
        "settings": {"batch": BATCH, "steps": STEPS, "steps_warm": STEPS_WARM, "steps_teacher": TEACHER_STEPS}
        | {
            "look": LOOK,
            "patience": PATIENCE,
            "rates": RATES,
            "dropouts": DROPOUTS,
            "alphas": ALPHAS,
            "top": TOP,
        },
        "parameters": {n: sum(p.numel() for p in Describer(data, *s).parameters()) for n, s in sizes.items()},
        "meanings": {n: len({p.meaning for p in getattr(data, n)}) for n in ("train", "validation", "test")},
        "people": shared.rounded({"missed": people[0] / people[1], "length": float(np.mean(lengths))}, ".4g"),
        "forecasts": forecasts,
        "repeated": compare(folder, again) if again else None,
        "tuning": [r for r in rows if "nats" not in r],
        "runs": runs,
    }


def compare(folder: Path, again: Path) -> Row:
    """Return how far runs that were made again are from the first ones."""

    def evaluated(folder: Path) -> dict[tuple[Any, ...], Row]:
        return {(r["arm"], r["share"], r["seed"], r["part"]): r for r in records(folder) if "nats" in r}

    first, second = evaluated(folder), evaluated(again)
    same = first.keys() & second.keys()
    far = {k: max(abs(first[c][k] - second[c][k]) for c in same) for k in ("nats", "gap", "missed", "length")}
    return {"runs": len(same), "seeds": sorted({c[2] for c in same}), "largest_differences": far}


def main() -> None:
    parser = argparse.ArgumentParser(description="Distillation on descriptions of restaurants.")
    parser.add_argument("command", choices=("train", "assemble"))
    parser.add_argument("--data", type=Path, required=True, help="your copy of e2e.csv")
    parser.add_argument("--runs", type=Path, default=HERE / "runs", help="folder of the runs")
    parser.add_argument("--again", type=Path, help="folder of runs that were repeated, to compare")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--longer", type=int, default=2, help="seeds that are also trained three times as long"
    )
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    given = parser.parse_args()
    data = load(given.data, 1)
    if given.command == "assemble":
        return shared.write(assemble(given.runs, given.again, data), RESULT)
    return Runs(data, given.runs).work(range(given.seeds), given.longer)


if __name__ == "__main__":
    main()
