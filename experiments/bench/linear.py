"""Time, memory and error of the losses of a linear layer beside the plain pair and torch's own, into linear.json.

    python -m experiments.bench.linear                every case (half an hour), each written when it is done
    python -m experiments.bench.linear --device cuda  those of a GPU (five minutes)

A step is the mean loss of hidden states and a weight, and its backward pass; in bfloat16 the plain pair's logits
are widened before the loss, as is usual. The ways take turns in one process, and each counts by its fastest turn.
Memory is what a step needs at its highest point, less the two gradients, which every way has to make. The error is
that of the gradient of the weight, in terms of its norm.

The logits have a standard deviation of 4, so that a few of many classes have most of the mass, as in a trained model.
The teacher is near the student, and the labels are drawn from it; "cached" is the divergence from its 64 most
probable classes and the mass of the others.

On a CPU there is one thread, time is the processor's, which other work on the machine lengthens least, memory is the
growth of a fresh process (Linux), and the error is against the plain pair in float64. On a GPU memory is what PyTorch
allocates, Liger and cut cross-entropy stand beside the others where they are installed, and the error is against the
plain pair in float32 of the same rounded inputs. The cases of a GPU in linear.json are older: their logits have a
standard deviation of 2, labels and teacher are independent of them, and they lack torch's own loss, which came with
PyTorch 2.13, and Liger's distillation with sums in float32.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import inspect
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions as Options

import xent.torch
from experiments.shared import growth, in_fresh_process, made, read, save

RESULT = Path(__file__).with_name("linear.json")
LOSSES = ("cross_entropy", "cached", "distillation")
# Rows, classes, width, dtype.
SIZES = [(256, classes, 2048, "float32") for classes in (50_000, 128_256)]
# Of a language model with the vocabulary of Llama 3, and with one of 50,000.
GPU_SIZES = [(8192, *size, "bfloat16") for size in ((50_000, 2048), (128_256, 2048), (128_256, 4096))]
TURNS, GPU_TURNS = 2, 10
SPREAD, APART, KEPT = 4.0, 0.1, 64
KEY = ("loss", "rows", "classes", "width", "dtype", "device")
Size = tuple[int, int, int, str]
Way = Callable[..., Tensor]


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return the logits, those of half precision in float32."""
    z = F.linear(hidden, weight)
    return z if z.dtype == torch.float64 else z.float()


def plain_distillation(hidden: Tensor, weight: Tensor, taught: Tensor, teacher: Tensor) -> Tensor:
    student, target = (F.log_softmax(logits(*x), -1) for x in ((hidden, weight), (taught, teacher)))
    return F.kl_div(student, target, log_target=True, reduction="batchmean")


def plain_cached(hidden: Tensor, weight: Tensor, indices: Tensor, probs: Tensor, tail: Tensor) -> Tensor:
    log_q = F.log_softmax(logits(hidden, weight), -1)
    rest = log_q.scatter(-1, indices, -torch.inf).logsumexp(-1)
    top = F.kl_div(log_q.gather(-1, indices), probs, reduction="none").sum(-1)
    return (top + F.kl_div(rest, tail, reduction="none")).mean()


def cached(hidden: Tensor, weight: Tensor, indices: Tensor, probs: Tensor, tail: Tensor) -> Tensor:
    cache = xent.torch.TopK(indices, tail, probs=probs)
    return xent.torch.linear_distillation_loss(hidden, weight, teacher_top_k=cache)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(hidden, weight), targets)


WAYS: dict[str, dict[str, Way]] = {
    "cross_entropy": {
        "plain": plain,
        "xent": xent.torch.linear_cross_entropy,
        "torch, chunks of 64": partial(F.linear_cross_entropy, options=Options(batch_chunk_size=64)),
    },
    "distillation": {"plain": plain_distillation, "xent": xent.torch.linear_distillation_loss},
    "cached": {"plain": plain_cached, "xent": cached},
}


def ways_on_gpu() -> dict[str, dict[str, Way]]:
    """Return what a GPU has: also the plain pair compiled, and two libraries where they are installed."""
    result = {
        loss: {"plain": ways["plain"], "plain, compiled": torch.compile(ways["plain"]), "xent": ways["xent"]}
        for loss, ways in WAYS.items()
    }
    result["cross_entropy"]["torch"] = partial(F.linear_cross_entropy, options=Options())
    if importlib.util.find_spec("liger_kernel"):
        liger = importlib.import_module("liger_kernel.transformers.functional")
        fused = liger.liger_fused_linear_cross_entropy
        result["cross_entropy"] |= {
            "Liger": fused,
            "Liger, sums in float32": partial(fused, accum_dtype=torch.float32),
        }
        forward = partial(liger.liger_fused_linear_jsd, jsd_beta=0.0)
        result["distillation"]["Liger"] = forward
        if "accum_dtype" in inspect.signature(liger.liger_fused_linear_jsd).parameters:  # from 0.8.2 on
            result["distillation"]["Liger, sums in float32"] = partial(forward, accum_dtype=torch.float32)
    if importlib.util.find_spec("cut_cross_entropy"):
        cut = importlib.import_module("cut_cross_entropy")
        result["cross_entropy"] |= {
            "cut cross-entropy": cut.linear_cross_entropy,
            "cut cross-entropy, unfiltered": partial(cut.linear_cross_entropy, filter_eps=None),
        }
    return result


def data(loss: str, size: Size, device: str = "cpu") -> list[Tensor]:
    """Draw a student, and a teacher near it: its layer, labels that are drawn from it, or its cache."""
    rows, classes, width, dtype = size
    generator = torch.Generator(device).manual_seed(0)
    student = [torch.randn(n, width, generator=generator, device=device) for n in (rows, classes)]
    taught = [x + APART * torch.randn(x.shape, generator=generator, device=device) for x in student]
    for layer in (student, taught):
        layer[1].mul_(SPREAD / width**0.5)
    v = F.linear(*taught)
    kind = getattr(torch, dtype)
    learnt = [x.to(kind).requires_grad_() for x in student]
    if loss == "distillation":
        return [*learnt, *(x.to(kind) for x in taught)]
    if loss == "cached":
        cache = xent.torch.top_k_of_teacher(v, min(KEPT, classes // 2))
        assert cache.probs is not None
        return [*learnt, cache.indices, cache.probs, cache.tail]
    return [*learnt, v.softmax(-1).multinomial(1, generator=generator).squeeze(1)]


def step(way: Way, inputs: list[Tensor]) -> int:
    """Take one step, forget its gradients, and return their bytes."""
    way(*inputs).backward()
    size = sum(x.grad.nbytes for x in inputs if x.grad is not None)
    for x in inputs:
        x.grad = None
    return size


def peak(loss: str, name: str, size: Size) -> int:
    """Return by how much this process grows in one step, less the gradients."""
    torch.set_num_threads(1)
    step(WAYS[loss][name], data(loss, (8, 64, *size[2:])))  # what a first call sets up is not its memory
    inputs = data(loss, size)
    bytes_, gradients = growth(lambda: step(WAYS[loss][name], inputs))
    return bytes_ - int(gradients)


def reference(loss: str, inputs: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the gradient of the weight by the plain pair in a wider dtype."""
    wide = (x.detach().to(dtype) if x.is_floating_point() else x for x in inputs)
    exact = [x.requires_grad_(y.requires_grad) for x, y in zip(wide, inputs, strict=True)]
    return torch.autograd.grad(WAYS[loss]["plain"](*exact), exact[1])[0]


def measure(loss: str, size: Size) -> dict[str, Any]:
    """Return the fastest seconds, the bytes and the error of each way in one case."""
    case = dict(zip(KEY, (loss, *size, "cpu"), strict=True))
    inputs, seconds, error = data(loss, size), dict.fromkeys(WAYS[loss], float("inf")), {}
    exact = reference(loss, inputs, torch.float64)
    for _ in range(TURNS):
        for name, way in WAYS[loss].items():
            begin = time.process_time()
            way(*inputs).backward()
            seconds[name] = min(seconds[name], time.process_time() - begin)
            error[name] = float((inputs[1].grad.double() - exact).norm() / exact.norm())
            inputs[0].grad = inputs[1].grad = None
    del inputs, exact
    memory = {name: in_fresh_process(peak, loss, name, size) for name in WAYS[loss]}
    return {**case, "seconds": seconds, "memory": memory, "error": error}


def measure_on_gpu(loss: str, size: Size) -> dict[str, Any]:
    """Return the fastest seconds, the bytes and the error of each way in one case."""
    ways, inputs = ways_on_gpu()[loss], data(loss, size, "cuda")
    exact = reference(loss, inputs, torch.float32)
    seconds, memory, error = dict.fromkeys(ways, float("inf")), {}, {}
    for turn in range(GPU_TURNS):
        for name, way in ways.items():
            if not turn:  # and compile what has to be compiled
                way(*inputs).backward()
                error[name] = float((inputs[1].grad.float() - exact).norm() / exact.norm())
                inputs[0].grad = inputs[1].grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, begin = torch.cuda.memory_allocated(), time.perf_counter()
            gradients = step(way, inputs)
            torch.cuda.synchronize()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
            memory[name] = torch.cuda.max_memory_allocated() - before - gradients
    case = dict(zip(KEY, (loss, *size, torch.cuda.get_device_name()), strict=True))
    return {**case, "seconds": seconds, "memory": memory, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    on_gpu = parser.parse_args().device == "cuda"
    torch.set_num_threads(1)
    for size in GPU_SIZES if on_gpu else SIZES:
        for loss in LOSSES:
            case = measure_on_gpu(loss, size) if on_gpu else measure(loss, size)
            print(case, flush=True)
            store(case)


def store(case: dict[str, Any]) -> None:
    """Write one case down in the place of its like, with the date and the versions that are its own."""
    origin = made(torch, xent)
    beside = {"Liger": "liger-kernel", "cut cross-entropy": "cut-cross-entropy"}
    packages = [beside[way] for way in case["memory"] if way in beside]
    origin["versions"] |= {package: importlib.metadata.version(package) for package in packages}
    case |= origin
    cases = {tuple(old[name] for name in KEY): old for old in read(RESULT)["cases"]}
    cases[tuple(case[name] for name in KEY)] = case
    # Of a GPU, what was measured is left.
    cases = {key: c for key, c in cases.items() if c["device"] != "cpu" or key[1:5] in SIZES}
    result = {
        "settings": {"threads": 1, "turns": TURNS, "seed": 0, "spread": SPREAD, "apart": APART, "kept": KEPT},
        "cases": list(cases.values()),
    }
    save(result, RESULT)


if __name__ == "__main__":
    main()
