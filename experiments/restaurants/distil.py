"""Distilling a model that describes restaurants: who writes the text, who scores it, and what labels cost instead.

The card, first written before the runs and since changed where it says so; what was foretold, in numbers, is in
distillation_prediction.json.

Question   A student has people's answers for 5 or 20 % of the training meanings, the others as prompts without
           answers. What is a teacher worth to it, whose text should it learn from, and what should it see of the
           teacher?
Arms       labels: cross-entropy with people's answers for the labelled meanings (5, 20, 100 %)
           texts, same: and with four texts of the teacher's for each labelled meaning
           texts: and with a text of the teacher's for each training meaning; texts x4: with four
           distributions: and KL(teacher || student) along the teacher's one text for each training meaning
           top 8: the same, of the teacher's eight largest probabilities and the mass of the rest
           human text: and KL(teacher || student) along people's answers for the labelled meanings
           on-policy: from the student of labels, and a divergence from the teacher along what the student writes for
           any training meaning, by the gradient of the token's divergence: forward, reverse, or Jensen-Shannon (JSD)
           from labels: "distributions" from the student of labels, the control of on-policy's start
           fresh texts: from the student of labels, and KL along texts that the teacher writes as training goes on,
           for the prompts that on-policy asks of its student at the same steps: the control of on-policy's supply.
           It was added, for the longest runs alone, when on-policy forward had led "from labels" there in two seeds
           from labels x4: the same along four texts of the teacher's for each training meaning: how much of what fresh
           texts gain needs no more than four (nine times the steps read each of one text 28 times, of four 7 times, a
           fresh one once). For the longest runs alone, too, added later
           from labels, plain x4; fresh, plain: the same texts as "from labels x4" and as "fresh texts", also from the
           student of labels, but by cross-entropy: nobody scores them. For the longest runs alone, added last: what
           are distributions still worth after so many steps, along a few texts and along as many as one likes?
           from labels, alpha .8: "from labels" as the other seeds had it, beside those that chose alpha again
           T = 2, T = 4: "distributions" at a temperature; top 8, bare: of the eight largest, made to add up to one, and
           nothing of the rest; 16 draws: of the teacher's tokens at each position, kept like a cache, and about as
           large as that of "top 8". Added after a reader had asked what the advice on these rests on, with teachers of
           their own
           alone: "from labels" and "from labels x4" with an alpha of 1, thus no people's answers after the start, and
           batches of 32 texts of the teacher's; alpha .99: "from labels x4" with it, and batches as before. Added when
           a reader had seen that alpha, chosen again, took the largest value that it could, .95
           labels, long: labels of 100 % for as many steps as the longest runs have in all, rate and dropout chosen by
           runs of that length: the same reader had seen that those of 5.8 times the steps keep the settings of short
           ones, while their rivals had chosen again
Rivals     1. The gain is that of the answers that the teacher has read: labels for 20 and 100 %. 2. Of more prompts or
           more text, not of probabilities: "texts" (as many calls as "distributions"), "texts x4", "texts, same" (no
           more prompts). 3. Of softer targets, not of the teacher's text: "human text". 4. The student of labels is
           too small or badly regularised: "large", of twice the parameters; dropout and the number of steps are chosen
           for each arm. 5. On-policy gains by its longer training: "from labels"; or by text that never repeats:
           "fresh texts". 6. Reverse and JSD miss fewer slots because they are sharper: slots of every arm at a
           temperature of one half, too. 7. The students of labels are too sure, and a temperature would do:
           `tempered`, nats at the temperature that is best on validation. (Added when the first students of labels had
           been seen, and none of a teacher's.) 8. Distributions lead because training is short or text scarce: the
           plain arms from the student of labels. Along fresh texts both losses have one optimum, and a lead can only
           be one of text and steps: these two have 27 times the steps, too, in two seeds, with the settings of nine.
           9. Labels for all are level with the longest runs only because these took more steps: labels of 100 % for as
           many (5.8 times their 600, as 320 x 9 and the start's 600); a reader's runs had put them ahead.
           The teacher stands in the table as well.
Pays       people's answers; tokens that the teacher writes and scores, on-policy's included; CPU seconds of training
           (with what is written and scored meanwhile, without the student that it starts from) and of the teacher's
           part, but for its training on all training answers. In as many steps, the seconds of "distributions" at 5 %
           hold the writing of all texts. Choices and stops rest on 300 answers to other meanings, as many as 5 % of
           the labels, alike for all arms. Who has so few would rather learn from these, too: "labels + validation",
           for as many steps as the student of labels took at the tuning seed.
Tuned      alike, for each arm at 5 % and labels of 100 %, at a seed and with a teacher of its own, in half of the steps
           (labels alone, the rivals, in all of them, the teacher in a third): rate, then dropout, by the arm's own
           objective on validation; then alpha, the weight of the teacher's part, by nats on people's answers there.
           Each by steps to the better neighbour until both are worse, so that no optimum is at the edge of what was
           tried, but for dropout 0 and alpha 1, and .95 where 1 was left out. At 20 % labels, distributions and the two
           of texts keep the rate and choose the others again; reverse keeps all. With three times the steps all keep
           what they had, with nine their rate and alpha; "from labels", on-policy forward and fresh texts chose dropout
           again, by runs of that length: none, as before. "From labels x4" has what "from labels" has. The plain arms
           from the student of labels, the rivals, chose all three again at that length, and when they had taken another
           alpha than before (.95), the three that they are compared with chose theirs again as well, for their seeds
           (below 1, so that a batch holds as many texts).
Training   batches of 32 texts, half of each kind where there are two; AdamW; a running average of the parameters is
           looked at every 40 steps, by the arm's own objective on validation, and the best look is kept. A student
           stops when nothing has improved for 200 steps or after 600, over whose last half the rate falls to zero;
           whoever starts from the student of labels, after 320 more. On-policy students write at temperature 1, for
           eight steps at a time. Whether training had ended is tried with three times the steps, and with nine for
           all that start from the student of labels; there no run stops early.
Measured   on 400 test meanings: nats a word of people's answers; `gap`, these less the mean entropy of the
           predictions; `ends`, how many ends are expected in an answer, which has one; of four texts for each of 200
           meanings the length, slots wrong or missing, the share of distinct texts of a meaning, and of distinct
           trigrams.
Forecasts  `held`: the mean lies in what was foretold; `met`: its 95 % interval, Student's t over seeds, meets it.
Seeds      eight, and four or six for each later set of runs, each with its own teacher, labelled meanings and
           initial values, alike for all arms; one after the other; with three times the steps two. The teachers of
           seeds 0 to 4 were trained again for the longer runs, on another processor, and differ in their digits from
           those of the others.
           Foretold when those of labels, distributions and texts x4 and one of JSD had been run with three times the
           steps: with nine times, "from labels" and on-policy forward stay within 0.05 nats of each other; JSD loses
           half of its third of a nat to "from labels", reverse a third of its two fifths; no other arm gains 0.05. In
           two seeds the first held, just; JSD lost a quarter, reverse hardly any, and on-policy forward gained 0.05.
           The other six seeds and "fresh texts" followed, with forecasts of their own: on-policy leads because text
           never repeats. Last came "from labels x4", foretold when all else was known. It has seeds of its own, 8 to
           11, and there "from labels" again, as the processor was another once more; fresh texts were not written for
           these, so four texts and fresh ones are compared across seeds, by what each gains on "from labels". In seeds
           12 to 15 all five stand side by side, and beside them labels of 100 % with three times their steps and, run
           later, with as many. These were run on one more processor, on which the start of each choice of alpha was
           run again: of runs of the tuning seed with the same settings, the later one counts. Temperatures, draws and
           the bare top 8 stand beside "distributions" and "top 8" in seeds 16 to 21; "alone", "alpha .99" and "long"
           beside what they are compared with in seeds 22 to 25.

    python -m experiments.restaurants.distil train --data PATH --runs FOLDER   # what FOLDER lacks; may be stopped
    python -m experiments.restaurants.distil assemble --data PATH --runs FOLDER [--again FOLDER2]

`assemble` writes distillation.json; `--again` compares the runs of a second folder, made with `train --seeds 2`;
without it the comparison that the record has stays.
"""

from __future__ import annotations

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
from torch import Tensor

from experiments import shared
from experiments.restaurants.data import END, Data, Pair, held_out, load, slots_missed
from experiments.restaurants.model import Describer, along, log_q, speak, texts_of
from experiments.shared import records, store
from xent.torch import distillation_loss, top_k_loss

HERE = Path(__file__).parent
FEW, PART, ALL = 0.05, 0.2, 1.0  # of the training meanings have people's answers
RATES, DROPOUTS = tuple(0.002 * 2**k for k in range(9)), (0.0, 0.15, 0.3, 0.45, 0.6)
ALPHAS, TUNING_SEED = (0.2, 0.5, 0.8, 0.95, 1.0), 1000
BATCH, WARMUP, DECAY, AVERAGE, LOOK, PATIENCE = 32, 20, 0.01, 0.98, 40, 200
TOP, DRAWS, TEXTS = 8, 16, 4  # tokens of a cache, largest or drawn; texts of the teacher's
# Texts that are written as training goes on, and the number of steps that each serves.
WRITES, WRITTEN_FOR = ("own", "fresh"), 8
TESTED, SAMPLES = 200, 4  # test meanings for which texts are written, and how many for each
Row = dict[str, Any]
Meaning = tuple[str, ...]


class Arm(NamedTuple):
    """Which texts the soft part of the loss runs along, what it is there, and how the model is made."""

    texts: str = ""  # the teacher's: one, four, same, fresh; people's: human; the student's: own; none
    loss: str = "labels"  # or against the teacher's distributions: forward, tail, kept, draws, reverse, jsd
    warm: bool = False  # starts from the student of labels
    validation: bool = False  # learns the validation answers, too, and cannot be stopped by them
    size: tuple[int, int] = (32, 1)  # width and layers
    steps: int = 600
    rate: float = 0.032  # where its search begins
    temperature: float = 1.0  # of the divergence


ARMS = {
    "teacher": Arm(size=(128, 2), steps=1000, rate=0.008),
    "labels": Arm(),
    "distributions": Arm("one", "forward"),
    "texts": Arm("one"),
    "human text": Arm("human", "forward"),
    "texts, same": Arm("same"),
    "texts x4": Arm("four"),
    "on-policy reverse": Arm("own", "reverse", warm=True, steps=320, rate=0.008),
    "on-policy JSD": Arm("own", "jsd", warm=True, steps=320, rate=0.008),
    "on-policy forward": Arm("own", "forward", warm=True, steps=320, rate=0.008),
    "top 8": Arm("one", "tail"),
    "large": Arm(size=(56, 1)),
    "from labels": Arm("one", "forward", warm=True, steps=320),
    "labels + validation": Arm(validation=True),
    "fresh texts": Arm("fresh", "forward", warm=True, steps=320),
    "from labels, alpha .8": Arm("one", "forward", warm=True, steps=320),
    "from labels x4": Arm("four", "forward", warm=True, steps=320),
    "from labels, plain x4": Arm("four", warm=True, steps=320),
    "fresh, plain": Arm("fresh", warm=True, steps=320),
}
TUNED_AS = {"labels + validation": "labels"}
TUNED_AS |= dict.fromkeys(("from labels x4", "from labels, alpha .8"), "from labels")
CELLS = [("teacher", ALL), *(("labels", s) for s in (FEW, PART, ALL))]
CELLS += [(name, s) for s in (FEW, PART) for name in ("distributions", "texts")]
CELLS += [(name, FEW) for name in list(ARMS)[4:-5]]  # all but those of the longest runs alone
BESIDE = {
    "T = 2": Arm("one", "forward", temperature=2.0),
    "T = 4": Arm("one", "forward", temperature=4.0),
    "top 8, bare": Arm("one", "kept"),
    "16 draws": Arm("one", "draws"),
}
LONGER = {
    "from labels, alone": Arm("one", "forward", warm=True, steps=320),
    "from labels x4, alone": Arm("four", "forward", warm=True, steps=320),
    "from labels x4, alpha .99": Arm("four", "forward", warm=True, steps=320),
    "labels, long": Arm(steps=3480),
}
# An alpha that is not chosen, beside the way that it is compared with.
FORCED = {
    "from labels, alone": ("from labels", 1.0),
    "from labels x4, alone": ("from labels x4", 1.0),
    "from labels x4, alpha .99": ("from labels x4", 0.99),
}
CELLS += [("texts x4", PART), ("on-policy reverse", PART)]
TUNED_AGAIN = ("labels", "distributions", "texts", "texts x4")  # at 20 %
FROM_LABELS = [
    (name, FEW) for name in ("from labels", "on-policy forward", "on-policy JSD", "on-policy reverse")
]
LAST = range(12, 16)
RUNS = [  # how many times the steps, which seeds, and which cells
    (1, range(8), CELLS),
    (3, range(2), [("labels", ALL), ("labels", PART), ("distributions", FEW), ("texts x4", FEW)]),
    (3, range(2), FROM_LABELS),
    (9, range(8), [*FROM_LABELS, ("fresh texts", FEW)]),
    (9, range(8, 12), [("from labels", FEW), ("from labels x4", FEW)]),
    (9, LAST, [(name, FEW) for name in ("from labels", "fresh texts", *list(ARMS)[-4:])]),
    (27, LAST[:2], [("fresh texts", FEW), ("fresh, plain", FEW)]),
    (3, LAST, [("labels", ALL)]),
    (5.8, LAST, [("labels", ALL)]),
    (1, range(16, 22), [(name, FEW) for name in ("distributions", "top 8", *BESIDE)]),
    (1, range(22, 26), [("labels, long", ALL)]),
    (5.8, range(22, 26), [("labels", ALL)]),
    (9, range(22, 26), [(name, FEW) for name in ("from labels", "from labels x4", *FORCED)]),
]
LONG = 9  # times the steps, for which these choose settings again
CHOSEN_AGAIN = dict.fromkeys(("from labels", "on-policy forward", "fresh texts"), ("dropout",))
PLAIN = list(ARMS)[-2:]
ARMS |= BESIDE | LONGER
# For the last seeds; below 1, so that a batch holds as many texts.
CHOSEN_LAST = dict.fromkeys(("from labels", "from labels x4", "fresh texts"), ("alpha",))
CHOSEN_LAST |= dict.fromkeys(PLAIN, ("rate", "dropout", "alpha"))


class Job(NamedTuple):
    rate: float
    dropout: float = 0.15
    alpha: float = 0.0


class Pool(NamedTuple):
    """Texts to learn from, and log P of every word at each of their positions, one text after the other."""

    pairs: list[Pair]
    log_p: Tensor | None = None

    def words(self) -> Tensor:
        return torch.tensor([w for p in self.pairs for w in p.reply])


def check(data: Data) -> Data:
    """Refuse data from which nothing can be said: a meaning in two parts, or an answer without a word."""
    where: dict[Meaning, str] = {}
    for name in ("train", "validation", "test"):
        for pair in getattr(data, name):
            if set(pair.reply) <= {END}:
                raise ValueError(f"{name}: an answer to {pair.meaning} is empty, expected at least one word")
            if (other := where.setdefault(pair.meaning, name)) != name:
                raise ValueError(f"{name}: {pair.meaning} is a meaning of {other} too, expected in one part")
    return data


# ---------------------------------------------------------------- what belongs to a seed


class Owned:
    """A seed's teacher, the order in which meanings are labelled, and what the teacher writes and says."""

    def __init__(self, data: Data, seed: int, teacher: Describer) -> None:
        self.data, self.seed, self.teacher = data, seed, teacher.eval()
        meanings = sorted({p.meaning for p in data.train})
        self.order = [meanings[i] for i in np.random.default_rng([seed, 3]).permutation(len(meanings))]
        first: dict[Meaning, Pair] = {}
        for pair in data.validation:
            first.setdefault(pair.meaning, pair)
        self.validation = [*first.values()]

    def meanings(self, share: float) -> list[Meaning]:
        """Return the meanings that have people's answers; those of a share hold those of a smaller one."""
        if not 0 < share <= 1:
            raise ValueError(f"share: expected a number in (0, 1], got {share}")
        return self.order[: max(1, round(share * len(self.order)))]

    def labelled(self, share: float) -> list[Pair]:
        known = set(self.meanings(share))
        return [p for p in self.data.train if p.meaning in known]

    @functools.cached_property
    def written(self) -> list[list[Pair]]:
        """What the teacher writes, TEXTS times, for each training meaning, in the order; and for validation."""
        asked = [self.order] * TEXTS + [[p.meaning for p in self.validation]]
        return [texts_of(self.teacher, m, 100 * self.seed + k) for k, m in enumerate(asked)]

    @functools.cached_property
    def scored(self) -> list[Tensor]:
        """What it says along the first of its texts, those for validation, and people's answers there."""
        return [log_q(self.teacher, some) for some in (self.written[0], self.written[TEXTS], self.validation)]

    def pool(self, arm: Arm, share: float) -> tuple[Pool, Pool]:
        """Return the texts of an arm's soft part, to learn from and for validation; of WRITES there are none yet."""
        if share == ALL:
            raise ValueError(f"share: expected a part, which leaves prompts without answers, got {share}")
        scored = arm.loss != "labels"
        validation = Pool(self.written[TEXTS], self.scored[1] if scored else None)
        if arm.texts in WRITES:
            return Pool([]), validation if arm.texts == "fresh" else Pool([])
        if arm.texts == "human":
            human = self.labelled(share)
            return Pool(human, log_q(self.teacher, human)), Pool(self.validation, self.scored[2])
        if arm.loss == "draws":
            shares = [drawn(log_p, self.seed) for log_p in self.scored[:2]]
            return Pool(self.written[0], shares[0]), Pool(self.written[TEXTS], shares[1])
        number = len(self.meanings(share)) if arm.texts == "same" else None
        texts = [p for some in self.written[: 1 if arm.texts == "one" else TEXTS] for p in some[:number]]
        if not scored:
            return Pool(texts), validation
        return Pool(texts, self.scored[0] if arm.texts == "one" else log_q(self.teacher, texts)), validation


# ---------------------------------------------------------------- training


def drawn(log_p: Tensor, seed: int) -> Tensor:
    """Return the log of how often each token is among so many draws, as shares, once and for all."""
    draws = log_p.exp().multinomial(DRAWS, True, generator=torch.Generator().manual_seed(seed))
    return torch.zeros_like(log_p).scatter_add_(1, draws, torch.full(draws.shape, 1 / DRAWS)).log()


def soft_loss(arm: Arm, logits: Tensor, log_p: Tensor | None, words: Tensor) -> Tensor:
    """Return the mean over positions of the soft part's loss."""
    if log_p is None:
        return F.cross_entropy(logits, words)
    if arm.loss == "tail":
        return top_k_loss(logits, *log_p.topk(TOP))
    if arm.loss == "kept":
        best, index = log_p.topk(TOP)
        log_p = torch.full_like(log_p, -math.inf).scatter_(1, index, best)
    divergence: Any = {"direction": arm.loss if arm.loss in ("reverse", "jsd") else "forward"}
    return distillation_loss(logits, log_p, temperature=arm.temperature, **divergence)


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
    if alpha > 0 and arm.texts == "own":
        pairs = texts_of(model, [p.meaning for p in own.validation], 7)
        soft = Pool(pairs, log_q(own.teacher, pairs))
    taught = alpha and alpha * float(soft_loss(arm, log_q(model, soft.pairs), soft.log_p, soft.words()))
    return taught + (1 - alpha) * people, people


def fit(
    model: Describer, arm: Arm, job: Job, own: Owned, share: float, steps: int, patience: float, at: int | None = None
) -> tuple[Describer, Row]:  # fmt: skip
    """Train a model until it stops; return it at its best look, or at the look `at`, and what it took."""
    alpha, rng = job.alpha, np.random.default_rng([own.seed, 9])
    torch.manual_seed(own.seed)  # of dropout
    model.dropout = job.dropout
    count = BATCH if alpha in (0, 1) else BATCH // 2
    hard = own.labelled(share) + (own.validation if arm.validation else [])
    soft, validation = own.pool(arm, share) if alpha else (Pool([]), Pool([]))
    start = time.process_time()  # what the teacher writes and says in advance is counted by its tokens
    hards = cycle(len(hard), count, rng)
    softs = cycle(len(own.order if arm.texts in WRITES else soft.pairs), count, rng)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=DECAY, fused=True)
    parameters = [p.detach() for p in model.parameters()]
    average = [p.clone() for p in parameters]
    looked, kept, best = copy.deepcopy(model).eval(), model, (math.inf, math.inf, 0)
    curve, supplied, own_batches = [], 0, iter([[0]])
    ends = np.cumsum([0, *(len(p.reply) for p in soft.pairs)])
    for step in range(1, steps + 1):
        if alpha and arm.texts in WRITES and step % WRITTEN_FOR == 1:
            asked = [own.order[i] for _ in range(WRITTEN_FOR) for i in next(softs)]
            writer = model if arm.texts == "own" else own.teacher
            pairs = texts_of(writer, asked, 1000 * own.seed + step)
            soft = Pool(pairs, log_q(own.teacher, pairs) if arm.loss != "labels" else None)
            ends = np.cumsum([0, *(len(p.reply) for p in pairs)])
            supplied += int(ends[-1])
            own_batches = iter(np.arange(len(asked)).reshape(-1, count).tolist())
        loss = torch.zeros(())
        if alpha < 1:
            loss = (1 - alpha) * F.cross_entropy(*along(model.train(), [hard[i] for i in next(hards)]))
        if alpha > 0:
            index = next(own_batches if arm.texts in WRITES else softs)
            logits, words = along(model.train(), [soft.pairs[i] for i in index])
            said = soft.log_p
            said = said if said is None else torch.cat([said[ends[i] : ends[i + 1]] for i in index])
            loss = loss + alpha * soft_loss(arm, logits, said, words)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.param_groups[0]["lr"] = job.rate * min(step / WARMUP, 1.0, 2 * (1 - (step - 1) / steps))
        optimiser.step()
        torch._foreach_lerp_(average, parameters, max(1 - AVERAGE, 1 / step))
        if step % LOOK == 0 or step == steps:
            for p, mean in zip(looked.parameters(), average, strict=True):
                p.data.copy_(mean)
            value, people = objective(looked, arm, alpha, own, validation)
            curve.append(round(value, 4))
            if value < best[0] if at is None else step == at:
                best, kept = (value, people, step), copy.deepcopy(looked)
            if step == at or (at is None and step - best[2] >= patience):
                break
    row: Row = dict(zip(("own", "validation", "best_step"), best, strict=True)) | {"steps_run": step}
    row |= {"written": supplied * (arm.texts == "fresh"), "scored": supplied * (arm.loss != "labels")}
    return kept, row | {"seconds": time.process_time() - start, "curve": curve}


# ---------------------------------------------------------------- the evaluation


def nats(log: Tensor, pairs: Sequence[Pair], temperature: float = 1.0) -> float:
    """Return the nats a word of texts by log Q along them, at a temperature."""
    return float(F.cross_entropy(log / temperature, Pool(list(pairs)).words()))


def best_temperature(log: Tensor, pairs: Sequence[Pair]) -> float:
    """Return the temperature that costs texts the fewest nats."""
    options: Any = {"bounds": (-1, 2), "method": "bounded", "options": {"xatol": 0.01}}
    return math.exp(optimize.minimize_scalar(lambda x: nats(log, pairs, math.exp(x)), **options).x)


@torch.no_grad()
def evaluate(model: Describer, own: Owned) -> Row:
    """Return what is reported of a model, on meanings that it has not seen; the card says what it is."""
    data, log = own.data, log_q(model, own.data.test)
    loss, temperature = nats(log, data.test), best_temperature(log_q(model, own.validation), own.validation)
    every = sorted({p.meaning for p in data.test})
    asked = [every[i] for i in np.random.default_rng(0).permutation(len(every))[:TESTED]] * SAMPLES
    texts, sharp = (speak(model, asked, own.seed, temperature=t) for t in (1.0, 0.5))
    tuples = [tuple(text) for text in texts]
    trigrams = [t[i : i + 3] for t in tuples for i in range(max(1, len(t) - 2))]
    missed, missed_half = (
        np.sum([slots_missed(m, data.spell(t)) for m, t in zip(asked, said, strict=True)], axis=0)
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


def teacher_of(data: Data, words: Sequence[str], state: dict[str, Tensor]) -> Describer:
    """Return a stored teacher, whose words have to be the student's."""
    if list(words) != data.words:
        other = next((pair for pair in zip(words, data.words, strict=False) if pair[0] != pair[1]), None)
        what = f"{other[0]!r} where the student has {other[1]!r}" if other else "others at the end"
        raise ValueError(f"teacher: another vocabulary, {len(words)} words for {len(data.words)}, {what}")
    model = Describer(data, *ARMS["teacher"].size)
    model.load_state_dict(state)
    return model


class Runs:
    """The runs of a folder: what is there is read, what is not is made."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.data, self.folder = check(data), folder
        folder.mkdir(parents=True, exist_ok=True)

    @functools.lru_cache(4)  # noqa: B019
    def owned(self, seed: int, teacher: bool = True) -> Owned:
        """Return what belongs to a seed; without a teacher, what it needs to train one."""
        if not teacher:
            return Owned(self.data, seed, Describer(self.data))
        stored = self.stored("teacher", ALL, seed)
        return Owned(self.data, seed, teacher_of(self.data, stored["words"], stored["state"]))

    def stored(self, name: str, share: float, seed: int) -> Row:
        """Return a teacher, or a student of labels from which others start, which is trained unless stored."""
        path = self.folder / f"{name}-{share}-{seed}.pt"
        if not path.exists():
            model, row = self.made(name, share, seed, self.tuned(name, share))
            torch.save({"words": self.data.words, "state": model.state_dict(), "row": row}, path)
        return dict(torch.load(path))

    def made(self, name: str, share: float, seed: int, job: Job, part: float = 1) -> tuple[Describer, Row]:
        """Train a model for `part` of its steps."""
        arm = ARMS[name]
        at = self.stored("labels", share, TUNING_SEED)["row"]["best_step"] if arm.validation else None
        state = self.stored("labels", share, seed)["state"] if arm.warm else None
        torch.manual_seed(seed)
        model, own = Describer(self.data, *arm.size), self.owned(seed, bool(arm.texts))
        if state:
            model.load_state_dict(state)
        patience = PATIENCE if part <= 1 and name != "labels, long" else math.inf
        model, row = fit(model, arm, job, own, share, round(part * arm.steps), patience, at)
        return model, {"arm": name, "share": share, "seed": seed, "part": part, **job._asdict(), **row}

    def tuned(self, name: str, share: float, times: float = 1, seed: int = 0) -> Job:
        """Return the settings of an arm for so many times its steps, from runs of the tuning seed."""
        again = {} if times < LONG else CHOSEN_LAST if seed >= LAST[0] else CHOSEN_AGAIN
        if name in FORCED:
            beside, alpha = FORCED[name]
            return self.tuned(beside, share, times, seed)._replace(alpha=alpha)
        if name in TUNED_AS and name not in again:
            return self.tuned(TUNED_AS[name], share, times)
        if share == PART and name not in TUNED_AGAIN:
            return self.tuned(name, FEW)
        arm, key = ARMS[name], (name, share, TUNING_SEED)
        part = LONG if name in again else 1 / 3 if name == "teacher" else 0.5 if arm.texts else 1
        rows = [r for r in records(self.folder) if (r["arm"], r["share"], r["seed"]) == key]
        known = {Job(r["rate"], r["dropout"], r["alpha"]): r for r in rows if abs(r["part"] - part) < 0.01}

        def best(job: Job, field: str, grid: Sequence[float], by: str = "own") -> Job:
            def value(x: float) -> float:
                tried = job._replace(**{field: x})
                if tried not in known:
                    known[tried] = self.made(*key, tried, part)[1]
                    store(self.folder, known[tried])
                    print(name, share, part, *tried, known[tried]["own"], flush=True)
                return float(known[tried][by])

            return job._replace(**{field: climb(grid, getattr(job, field), value)})

        grids = {"rate": (RATES, "own"), "dropout": (DROPOUTS, "own"), "alpha": (ALPHAS, "validation")}
        if name in again:
            job = self.tuned(name, share)
            for field in again[name]:
                grid, by = grids[field]
                job = best(job, field, [x for x in grid if x < 1], by)
            return job
        start = 0.0 if name == "labels, long" else 0.15  # what short runs chose
        rate, alpha = self.tuned(name, FEW).rate if share == PART else arm.rate, 0.8 if arm.texts else 0.0
        job = Job(rate, start, alpha)
        for field in ("rate", "dropout", "alpha")[share == PART : 3 if arm.texts else 2]:
            job = best(job, field, *grids[field])
        return job

    def work(self, seeds: Sequence[int]) -> None:
        """Make what the folder lacks, seed by seed; then the longer runs."""
        jobs = [(*cell, s, part) for part, of, cells in RUNS for s in of if s in seeds for cell in cells]
        for job in jobs:
            done = {(r["arm"], r["share"], r["seed"], r["part"]) for r in records(self.folder)}
            if job not in done:
                store(self.folder, row := self.run(*job))
                print(*job, row["nats"], row["missed"], row["seconds"], flush=True)

    def run(self, name: str, share: float, seed: int, part: float) -> Row:
        """Train and evaluate a model, and return its row of the record."""
        arm, own = ARMS[name], self.owned(seed, bool(ARMS[name].texts))
        if name in ("teacher", "labels") and part == 1:
            stored = self.stored(name, share, seed)
            row, model = dict(stored["row"]), Describer(self.data, *arm.size).eval()
            model.load_state_dict(stored["state"])
        else:
            model, row = self.made(name, share, seed, self.tuned(name, share, part, seed), part)
        texts = own.pool(arm, share)[0] if arm.texts and row["alpha"] else Pool([])
        row["answers"] = len(own.labelled(share)) + len(own.validation) * arm.validation
        row["written"] = row.get("written") or (0 if arm.texts == "human" else len(texts.words()))
        row["scored"] = row["scored"] or (0 if texts.log_p is None else len(texts.log_p))
        if name == "teacher":  # what a token costs in CPU seconds
            start, pairs, end = time.process_time(), texts_of(model, own.order, 0), time.process_time()
            tokens = len(log_q(model, pairs))
            scoring = (time.process_time() - end) / tokens
            row["costs"] = {"writing": (end - start) / tokens, "scoring": scoring}
        return row | evaluate(model, own)


# ---------------------------------------------------------------- the record


def paired(
    runs: Sequence[Row], key: str, arm: str, share: float, minus: Row | None, part: float = 1
) -> dict[str, float]:
    """Return the mean over the seeds, of a difference if `minus` is given, and half of its 95 % interval."""

    def by_seed(arm: str, share: float, part: float) -> dict[int, float]:
        return {r["seed"]: r[key] for r in runs if (r["arm"], r["share"], r["part"]) == (arm, share, part)}

    values = by_seed(arm, share, part)
    other = by_seed(minus["arm"], minus["share"], minus.get("part", part)) if minus else {}
    x = np.array([v - other.get(s, 0.0) for s, v in values.items() if not minus or s in other])
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5 if len(x) > 1 else math.nan
    return {"mean": float(x.mean()), "half": float(half), "seeds": len(x)}


def compare(folder: Path, again: Path) -> Row:
    """Return how far runs that were made again are from the first ones."""
    first, second = (
        {(r["arm"], r["share"], r["seed"], r["part"]): r for r in records(f) if "nats" in r} for f in (folder, again)
    )  # fmt: skip
    same = first.keys() & second.keys()
    far = {k: max(abs(first[c][k] - second[c][k]) for c in same) for k in ("nats", "gap", "missed", "length")}
    return {"runs": len(same), "seeds": sorted({c[2] for c in same}), "largest_differences": far}


def assemble(folder: Path, again: Path | None, data: Data) -> Row:
    """Return the record: settings, what became of the forecasts, repeats, tuning and runs."""
    rows = [shared.rounded(r | {"curve": r["curve"][-3:]}, ".5g") for r in records(folder)]
    runs = [r for r in rows if "nats" in r]
    runs.sort(key=lambda r: (r["part"], r["seed"]))  # within a seed as they were made
    forecasts = json.loads((HERE / "distillation_prediction.json").read_text())["forecasts"]
    for row in forecasts:
        of_row = [r for r in runs if row.get("from_seed", 0) <= r["seed"] < row.get("to_seed", math.inf)]
        cell = row["key"], row["arm"], row["share"], row.get("minus"), row.get("part", 1)
        row |= shared.rounded(paired(of_row, *cell), ".4g")
        (low, high), mean, half = row["between"], row["mean"], row["half"]
        row |= {"held": low <= mean <= high, "met": mean - half <= high and low <= mean + half}
    people = held_out(data)
    models = {name: Describer(data, *ARMS[name].size) for name in ("teacher", "labels", "large")}
    return {
        **shared.made(torch, np),
        "settings": {"batch": BATCH, "look": LOOK, "patience": PATIENCE, "top": TOP, "rates": RATES}
        | {"dropouts": DROPOUTS, "alphas": ALPHAS, "steps": {name: arm.steps for name, arm in ARMS.items()}},
        "parameters": {n: sum(p.numel() for p in model.parameters()) for n, model in models.items()},
        "meanings": {n: len({p.meaning for p in getattr(data, n)}) for n in ("train", "validation", "test")},
        "people": shared.rounded({key: people[key] for key in ("missed", "length")}, ".4g"),
        "forecasts": forecasts,
        "repeated": compare(folder, again) if again else shared.read(HERE / "distillation.json")["repeated"],
        "tuning": [r for r in rows if "nats" not in r],
        "runs": runs,
    }


def main() -> None:
    parser = shared.arguments("Distillation on descriptions of restaurants.", HERE, "data", seeds=26)
    parser.add_argument("--again", type=Path, help="folder of runs that were repeated, to compare")
    given = parser.parse_args()
    data = load(given.data, 1)
    if given.command == "train":
        Runs(data, given.runs).work(range(given.seeds))
    elif given.command == "assemble":
        shared.write(assemble(given.runs, given.again, data), HERE / "distillation.json")
    else:
        parser.error("the forecasts were written by hand")


if __name__ == "__main__":
    main()
