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
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared import NGrams, made, rounded

RESULT = Path(__file__).with_suffix(".json")
MODELS = {"words, trigram": (2, (1, 4, 16, 64, 256, 1024)), "characters, 5-gram": (4, (1, 2, 4, 8, 16, 32))}
POSITIONS = 4000  # held-out positions looked at, drawn without replacement
SEED = 0


def tokens(name: str, text: str) -> list[str]:
    """Split a text: into words, punctuation and line ends, or into characters."""
    return re.findall(r"\n|\w+(?:'\w+)*|[^\w\s]", text) if name.startswith("words") else list(text)


def measure(name: str, text: str) -> dict[str, Any]:
    """Return what k tokens leave out, over held-out positions: mean, quantiles, and by place in the line."""
    order, ks = MODELS[name]
    words = tokens(name, text)
    cut = len(words) * 9 // 10
    vocabulary = {w: i for i, w in enumerate(sorted(set(words)))}
    ids = np.array([vocabulary[w] for w in words])
    model = NGrams([ids[:cut].tolist()], len(vocabulary), order)
    at = np.sort(np.random.default_rng(SEED).choice(np.arange(cut, len(ids)), POSITIONS, replace=False))
    ends = np.flatnonzero(ids == vocabulary["\n"])
    place = at - ends[np.searchsorted(ends, at) - 1]  # 1 for the first token of a line
    left, surprise = np.empty((len(at), len(ks))), np.empty(len(at))
    for row, i in enumerate(at):
        *_, p = model.orders(ids[i - order : i].tolist())
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
    text = json.dumps(rounded(result, ".4f"))
    RESULT.write_text(text.replace('"words', '\n"words').replace('"char', '\n"char') + "\n")


if __name__ == "__main__":
    main()
