"""Descriptions of restaurants: the cleaned E2E data as prompts and replies, and what a reply says of its prompt.

The data are not part of this repository: `e2e.csv` has a row (split, meaning, text) for each text of the development
and the test part of the cleaned E2E data (Novikova, Dušek and Rieser 2017; Dušek, Howcroft and Rieser 2019; CC BY-SA
4.0). Restaurants' names differ between the two parts, so the names of a restaurant and of its neighbour are
placeholders here, and the meanings that are then the same stand in one part of a split of our own.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

SHA256 = "f3ca400ab3010526d632e6a66061f95a0ad287f6f1694a09b225fc02cdc7cbc2"
END, UNKNOWN = 0, 1  # the numbers of <eos> and of a word that the vocabulary lacks
SLOTS = ("name", "eatType", "food", "priceRange", "rating", "area", "familyFriendly", "near")
NAMES = {"name": "NAME", "near": "NEAR"}
WORD = re.compile(r"NAME|NEAR|£?\d+(?:-£?\d+)?|[^\W\d_]+(?:['’][^\W\d_]+)?|[^\w\s]")
VALIDATION, TEST, SPLIT_SEED = 300, 400, 0  # meanings

# How people say the values that have words of their own; prices and ratings share theirs ("high", "average").
SAID = {
    ("name", "NAME"): r"NAME",
    ("near", "NEAR"): r"NEAR",
    ("eatType", "coffee shop"): r"coffee|caf[eé]",
    ("eatType", "restaurant"): r"restaurant|eatery|dining|diner",
    ("eatType", "pub"): r"\bpubs?\b",
    ("food", "Chinese"): r"chinese|china",
    ("food", "English"): r"english|british food|british fare",
    ("food", "Fast food"): r"\bfast\W*food",
    ("food", "French"): r"french|france",
    ("food", "Indian"): r"\bindian?\b|curr(?:y|ies)",
    ("food", "Italian"): r"italian|italy",
    ("food", "Japanese"): r"japan|sushi",
    ("area", "city centre"): r"city|cent(?:er|re|ral)|downtown|town",
    ("area", "riverside"): r"river|water|\bbanks?\b",
    ("familyFriendly", "yes"): r"famil|kid|child",
    ("familyFriendly", "no"): r"famil|kid|child|adult",
}
PATTERNS = {key: re.compile(pattern) for key, pattern in SAID.items()}


class Pair(NamedTuple):
    """A meaning as a row of slots' values, a reply as word numbers with <eos>, and who wrote it."""

    meaning: tuple[str, ...]  # by SLOTS, "" where it says nothing
    reply: tuple[int, ...]
    terse: bool = False


class Data(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    words: list[str]  # by number

    def spell(self, reply: Iterable[int]) -> str:
        """Return the words of a reply, without its end."""
        return " ".join(self.words[i] for i in reply if i != END)


def read(path: Path) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return (meaning, words) of each text, with placeholders for the names; the file has to be the one meant."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{path} is another text: its SHA-256 is {found}, expected {SHA256}")
    result = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            values, text = dict(re.findall(r"(\w+)\[([^\]]*)\]", row["meaning"])), row["text"]
            for slot in sorted(NAMES.keys() & values.keys(), key=lambda s: -len(values[s])):
                pattern = re.sub(r"^The\\ ", "(?:the )?", re.escape(values[slot]))
                text = re.sub(pattern, NAMES[slot], text, flags=re.IGNORECASE)
                values[slot] = NAMES[slot]
            words = [w if w in NAMES.values() else w.lower() for w in WORD.findall(text)]
            result.append((tuple(values.get(slot, "") for slot in SLOTS), words))
    return result


def terse(meaning: Sequence[str]) -> list[str]:
    """Return what the second writer says: the name, what it is and where, such as "NAME : french pub , riverside ."."""
    value = dict(zip(SLOTS, meaning, strict=True))
    kind = f"{value['food']} {value['eatType'] or 'place'}".lower().split()
    area = [",", *value["area"].split()] if value["area"] else []
    return ["NAME", ":", *kind, *area, "."]


def load(path: Path, writers: int) -> Data:
    """Return the pairs of one writer, people, or of two: each person's text is then joined by a terse one.

    Meanings are split at random; the vocabulary has what occurs twice in the training texts of people.
    """
    texts = read(path)
    meanings = sorted({meaning for meaning, _ in texts})
    order = np.random.default_rng(SPLIT_SEED).permutation(len(meanings))
    held = {
        meanings[i]: part for part, some in ((2, order[:TEST]), (1, order[TEST:][:VALIDATION])) for i in some
    }
    count = Counter(w for meaning, words in texts if not held.get(meaning) for w in words)
    spoken = {w for meaning in meanings for w in terse(meaning)}
    words = ["<eos>", "<unk>", *sorted(spoken | {w for w, n in count.items() if n >= 2})]
    number = {w: i for i, w in enumerate(words)}
    parts: list[list[Pair]] = [[], [], []]
    for meaning, said in texts:
        for brief in (False, True)[:writers]:
            reply = (*(number.get(w, UNKNOWN) for w in (terse(meaning) if brief else said)), END)
            parts[held.get(meaning, 0)].append(Pair(meaning, reply, brief))
    return Data(*parts, words)


def slots_missed(meaning: Sequence[str], said: str) -> tuple[int, int]:
    """Return how many of a meaning's slots a text leaves out or gets wrong, and how many can be looked for.

    Prices and ratings are not looked for. Food and area are wrong where the text names another one, too.
    """
    missed = looked = 0
    given: Mapping[str, str] = dict(zip(SLOTS, meaning, strict=True))
    for slot in SLOTS:
        if (slot, given[slot]) in PATTERNS:
            others = [
                p for (s, v), p in PATTERNS.items() if s == slot in ("food", "area") and v != given[slot]
            ]
            looked += 1
            missed += not PATTERNS[slot, given[slot]].search(said) or any(p.search(said) for p in others)
    return missed, looked


def held_out(data: Data) -> dict[str, float]:
    """Return the length of the held-out texts, where each meaning counts once, and the share of slots people miss."""
    meanings = dict.fromkeys(p.meaning for p in data.test)
    means = [np.mean([len(p.reply) for p in data.test if p.meaning == m]) for m in meanings]
    people = [slots_missed(p.meaning, data.spell(p.reply)) for p in data.test if not p.terse]
    missed, looked = np.sum(people, axis=0)
    return {"length": float(np.mean(means)), "missed": float(missed / looked)}
