"""How much probability a cache of the top k leaves out, in conditional distributions that are not made up.

    python -m experiments.language_models.mass PATH/tinyshakespeare.txt      writes mass.json (a minute)

The distributions are those of interpolated n-gram models of Tiny Shakespeare (Witten and Bell's weights): a
trigram over words and punctuation, and a 5-gram over characters. They are fitted on the first nine tenths and
looked at on the rest. A trigram knows less than a transformer, so that its
distributions are flatter; the size of the effect is its own, and the shape is what carries over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.shared import made

RESULT = Path(__file__).with_suffix(".json")
MODELS = {"words, trigram": (2, (1, 4, 16, 64, 256, 1024)), "characters, 5-gram": (4, (1, 2, 4, 8, 16, 32))}
POSITIONS = 4000  # held-out positions looked at, drawn without replacement
SEED = 0


def tokens(name: str, text: str) -> list[str]:
    """Split a text: into words, punctuation and line ends, or into characters."""
    return re.findall(r"\n|\w+(?:'\w+)*|[^\w\s]", text) if name.startswith("words") else list(text)


class NGrams:
    """Interpolated counts: p(v | c) = (count(c v) + types(c) p(v | shorter c)) / (count(c) + types(c))."""

    def __init__(self, ids: NDArray[np.int64], vocabulary: int, order: int) -> None:
        self.vocabulary, self.order = vocabulary, order
        self.counts: list[dict[tuple[int, ...], dict[int, int]]] = [
            defaultdict(lambda: defaultdict(int)) for _ in range(order + 1)
        ]
        for i in range(len(ids)):
            for n in range(min(order, i) + 1):
                self.counts[n][tuple(ids[i - n : i].tolist())][int(ids[i])] += 1

    def __call__(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the distribution after a context of at least `order` tokens; the rest is uniform."""
        p = np.full(self.vocabulary, 1 / self.vocabulary)
        for n in range(self.order + 1):
            seen = self.counts[n].get(context[len(context) - n :])
            if not seen:
                break
            index, count = np.array(list(seen)), np.array(list(seen.values()), dtype=float)
            p = p * (len(index) / (count.sum() + len(index)))
            p[index] += count / (count.sum() + len(index))
        return p


def measure(name: str, text: str) -> dict[str, Any]:
    """Return what k tokens leave out, over held-out positions: mean, quantiles, and by place in the line."""
    order, ks = MODELS[name]
    words = tokens(name, text)
    cut = len(words) * 9 // 10
    vocabulary = {w: i for i, w in enumerate(sorted(set(words)))}
    ids = np.array([vocabulary[w] for w in words])
    model = NGrams(ids[:cut], len(vocabulary), order)
    at = np.sort(np.random.default_rng(SEED).choice(np.arange(cut, len(ids)), POSITIONS, replace=False))
    ends = np.flatnonzero(ids == vocabulary["\n"])
    place = at - ends[np.searchsorted(ends, at) - 1]  # 1 for the first token of a line
    left, surprise = np.empty((len(at), len(ks))), np.empty(len(at))
    for row, i in enumerate(at):
        p = model(tuple(ids[i - order : i].tolist()))
        total = np.sort(p)[::-1].cumsum()
        left[row] = 1 - total[np.array(ks) - 1]
        surprise[row] = -np.log(p[ids[i]])
    return {
        "vocabulary": len(vocabulary),
        "positions": len(at),
        "cross_entropy": surprise.mean(),
        "k": list(ks),
        "left_out": left.mean(0),
        "left_out_tenth_and_ninth_decile": np.quantile(left, [0.1, 0.9], axis=0),
        "left_out_first_second_and_later_in_line": [
            left[where].mean(0) for where in (place == 1, place == 2, place > 2)
        ],
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [rounded(v) for v in value]
    return value if isinstance(value, (int, str)) else round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a cache of the top k leaves out.")
    parser.add_argument("text", type=Path, help="tinyshakespeare.txt")
    data = parser.parse_args().text.read_bytes()
    result = {
        **made(np),
        "text_sha256": hashlib.sha256(data).hexdigest(),
        "seed": SEED,
        **{name: measure(name, data.decode()) for name in MODELS},
    }
    RESULT.write_text(
        json.dumps(rounded(result), indent=None).replace('"words', '\n"words').replace('"char', '\n"char')
        + "\n"
    )


if __name__ == "__main__":
    main()
