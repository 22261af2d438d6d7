"""Measure every recipe: the error as it comes, what the check says of it, and the error after the repair.

    python experiments/trainers/run.py            # writes result.json
    python experiments/trainers/run.py GPT-2 T5   # recipes with these words in their names; writes nothing

Fails if a repair leaves more than 1e-6, or if the check and the measurement disagree.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import platform
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false")

import on_policy
import recipes
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from recipes import RECIPES, Recipe
from tiny import Batch, cross_entropy, full_batch_gradient, gradient, joined, micro_batches, targets

import xent.torch

STEPS = 4
SEEDS = [1, 2, 3, 4, 5]  # five data sets: the error is the data's as much as the trainer's
TOLERANCE = 1e-6  # a float32 gradient against float64: some 2e-7 here
LIBRARIES = ["torch", "transformers", "accelerate", "trl", "lightning"]
Row = dict[str, Any]


def measure(recipe: Recipe) -> Row:
    """Return a recipe's row; under torch.distributed every rank calls this."""
    start = time.perf_counter()
    return {
        "recipe": recipe.name,
        "ranks": recipe.ranks,
        "error": [relative_error(recipe, repaired=False, seed=seed) for seed in SEEDS],
        "error_equal_counts": relative_error(recipe, repaired=False, ragged=False),
        "check": check(recipe, repaired=False),
        "check_trainer": check_trainer(recipe, repaired=False),
        "repair": recipe.repair,
        "error_repaired": [relative_error(recipe, repaired=True, seed=seed) for seed in SEEDS],
        "check_repaired": check(recipe, repaired=True),
        "check_trainer_repaired": check_trainer(recipe, repaired=True),
        "source": recipe.source,
        "seconds": round(time.perf_counter() - start, 1),
    }


def relative_error(recipe: Recipe, repaired: bool, seed: int = SEEDS[0], ragged: bool = True) -> float:
    """Take one step and compare its gradient with the full batch's, in float64 and without any trainer."""
    model = recipe.model()
    everyone = micro_batches(model, STEPS * recipe.ranks, seed, ragged)
    expected = full_batch_gradient(model, everyone)
    model = recipe.wrap(model)
    recipe.step(model, mine(everyone), repaired)
    return float((gradient(model).double() - expected).norm() / expected.norm())


def check(recipe: Recipe, repaired: bool) -> Row:
    """Return what xent's check says of the first data set."""
    model = recipe.model()
    everyone = micro_batches(model, STEPS * recipe.ranks, SEEDS[0])
    report = xent.torch.check_accumulation(
        recipe.wrap(model),
        mine(everyone),
        joined(everyone),
        lambda model, batches: recipe.step(model, batches, repaired),
        reference=lambda model, batch: cross_entropy(model, batch).backward(),
        targets=lambda batch: targets(model, batch),
    )
    return {"ok": report.ok, "cause": report.cause}


def check_trainer(recipe: Recipe, repaired: bool) -> Row | None:
    """Hand the trainer over as it is, with the first data set in its loader."""
    model = recipe.model()
    batches = mine(micro_batches(model, STEPS * recipe.ranks, SEEDS[0]))
    return recipes.handed_over(lambda: recipe.step(model, batches, repaired))


def mine(everyone: list[Batch]) -> list[Batch]:
    """Return this rank's micro-batches: every second one of two ranks, as the Trainer deals them out."""
    return everyone[dist.get_rank() :: dist.get_world_size()] if dist.is_initialized() else everyone


def measure_on_ranks(rank: int, chosen: list[int], everything: bool, meeting_place: str, rows: Any) -> None:
    """Be one of two ranks, and measure these recipes."""
    quiet()
    # The Trainer looks for these, as torchrun sets them.
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{meeting_place}", timeout, rank=rank, world_size=2)
    measured = [measure(RECIPES[i]) for i in chosen]
    written = on_policy.measure(SEEDS[:3]) if everything else []
    if rank == 0:
        rows.put((measured, written))
    dist.barrier()
    dist.destroy_process_group()


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def faults(row: Row) -> list[str]:
    """Return what must not be."""
    found = []
    if not max(row["error_repaired"]) < TOLERANCE:
        found.append(f"{row['recipe']}: {max(row['error_repaired']):.1e} is left after the repair")
    if row["check"]["ok"] != (row["error"][0] < TOLERANCE) or not row["check_repaired"]["ok"]:
        found.append(f"{row['recipe']}: the check says {row['check']}, and then {row['check_repaired']}")
    for name in ("check", "check_repaired"):
        said = row[name.replace("check", "check_trainer")]
        if said and "ok" in said and said != row[name]:
            found.append(f"{row['recipe']}: handed over, {said}; by hand, {row[name]}")
    return found


def main(words: list[str]) -> int:
    quiet()
    chosen = [i for i, r in enumerate(RECIPES) if not words or any(word in r.name for word in words)]
    rows = [measure(RECIPES[i]) for i in chosen if RECIPES[i].ranks == 1]
    written = [] if words else on_policy.measure(SEEDS[:3])
    if on_ranks := [i for i in chosen if RECIPES[i].ranks == 2]:
        queue = mp.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(measure_on_ranks, (on_ranks, not words, f"{folder}/ranks", queue), nprocs=2)
        measured, more = queue.get()
        rows, written = rows + measured, written + more
    rows.sort(key=lambda row: [recipe.name for recipe in RECIPES].index(row["recipe"]))
    for row in rows:
        low, high, after = min(row["error"]), max(row["error"]), max(row["error_repaired"])
        print(f"{row['recipe']}: {low:.2g} to {high:.2g}, repaired {after:.1e}; {row['check']['cause']}")
    if not words:
        result = {
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "versions": {library: version(library) for library in LIBRARIES},
            "settings": {"steps": STEPS, "seeds": {"model": 0, "data": SEEDS}},
            "rows": rows,
            "on_policy": written,
        }
        Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    wrong = [fault for row in rows for fault in faults(row)]
    for fault in wrong:
        print(fault, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
