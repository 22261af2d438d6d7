"""Call every public function with hostile arguments, led by coverage, and see that each keeps its promise.

    python tools/fuzz.py                          all groups, a minute each
    python tools/fuzz.py --time 600 numpy torch   two groups, ten minutes each
    python tools/fuzz.py --only xent.nll numpy    one function of a group

The rule, the arguments and the oracle are those of tests/hostile.py, which tests/xent/test_hostile.py takes
for a few seconds. Here atheris (libFuzzer) draws: it watches which branches of code/xent and of the oracle a
call takes and keeps the bytes that found a new one, in _build/fuzz/corpus, from where the next run goes on. A
call that breaks the rule ends its group; it is printed as an expression, and the command fails. To repeat it,
paste it after

    from hostile import *    (in tests/, with code/ on the path)

atheris is not in the lock: `make fuzz` installs it beside, into _build/fuzz/site.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from common import ONE_THREAD, ROOT, say

FOLDER = ROOT / "_build" / "fuzz"
# libFuzzer needs no more: a call takes a few hundred choices, and one that finds no byte is the simplest.
LENGTH = 600
STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: \d+ corp: (\d+)/")
EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


def child(group: str, only: str, seconds: int, seed: int) -> None:
    """Fuzz one group in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["xent", "hostile", "hostile_oracle", "hostile_targets"]):
        import hostile
        import hostile_oracle
        import hostile_targets
    targets = [t for t in hostile_targets.GROUPS[group] if not only or t.name == only]
    if not targets:
        raise SystemExit(f"{only} is not in the group {group}")

    def once(data: bytes) -> None:
        source = hostile.Bytes(data)
        call = hostile.draw(source, hostile.pick(source, targets))
        try:
            hostile.judge(call)
        except hostile_oracle.Unsure:
            return
        except hostile.Violation as violation:
            print(f"\nBROKEN {violation}", flush=True)
            raise

    corpus = FOLDER / "corpus" / group
    corpus.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={LENGTH}",
        f"-artifact_prefix={FOLDER}/{group}-",
        "-len_control=0",
        "-print_final_stats=1",
        "-rss_limit_mb=0",
        "-timeout=300",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], once)
    atheris.Fuzz()


def run(group: str, options: argparse.Namespace) -> tuple[str, bool]:
    """Fuzz one group in a process of its own; return a line for the table, and whether the rule held."""
    command = [sys.executable, __file__, "--child", "--time", str(options.time), "--seed", str(options.seed)]
    command += ["--only", options.only] if options.only else []
    path = os.pathsep.join(map(str, (FOLDER / "site", ROOT / "code", ROOT / "tests")))
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    begin = time.perf_counter()
    process = subprocess.run(
        [*command, group], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = process.stdout.decode(errors="replace")
    (FOLDER / f"{group}.log").write_text(output)
    executed = EXECUTED.findall(output)
    states = STATUS.findall(output)
    calls = int(executed[-1]) if executed else int(states[-1][0]) if states else 0
    covered, kept = (states[-1][1], states[-1][2]) if states else ("-", "-")
    held = process.returncode == 0
    line = f"{group:<14}{calls:>10,}{covered:>10}{kept:>10}{time.perf_counter() - begin:>8.0f} s"
    if not held:
        broken = output.rfind("\nBROKEN ")
        line += "\n" + (output[broken:][:6000] if broken >= 0 else output[-3000:])
    return line, held


def main() -> None:
    """Read the command line and fuzz the groups, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = ("numpy", "scoring", "sequences", "distillation", "torch", "checkers")
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(groups)}; all by default")
    parser.add_argument("--time", type=int, default=60, help="seconds for each group (default 60)")
    parser.add_argument("--only", default="", help="a function of the group, by its full name")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer's choices (default 1)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for group in options.groups:
        if group not in groups:
            parser.error(f"there is no group {group!r}; there are {', '.join(groups)}")
    if options.child:
        child(options.groups[0], options.only, options.time, options.seed)
    FOLDER.mkdir(parents=True, exist_ok=True)
    say(f"{'group':<14}{'calls':>10}{'branches':>10}{'kept':>10}{'time':>10}")
    broken = []
    for group in options.groups or groups:
        line, held = run(group, options)
        say(line)
        if not held:
            broken.append(group)
    if broken:
        raise SystemExit(f"the rule was broken in {', '.join(broken)}")


if __name__ == "__main__":
    main()
