# tools/bench/splice_soak.py — random mods compiled spliced and as wholes by many processes, without a GPU
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TEST = "random mods spliced have no register and no spill that they have not as wholes"
MEANS = ("seed", "seconds", "most_instructions", "instructions", "whole", "wrong")  # not added up as they are


def compare(o, seed, cache, deadline):
    """A mod both ways, in a process of its own: what the test says of it. None if there was no time for it."""
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    environment = {**os.environ, "ATTUNE_CACHE": cache, "ATTUNE_CACHE_SIZE": "4G", "ATTUNE_TEST_SAY": "1", "ATTUNE_FUZZ": "1",
                   "ATTUNE_FUZZ_FROM": str(seed)}
    try:
        ran = subprocess.run([o.codegen_test, TEST], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=environment, timeout=left)
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"seed"')]
    if not lines:
        return {"seed": seed, "wrong": f"WRONG seed {seed}: exit status {ran.returncode}\n{ran.stdout[-2000:]}"}
    begin = ran.stdout.find("WRONG ")
    wrong = ran.stdout[begin:ran.stdout.index('{"seed"', begin)] if begin >= 0 else ""
    return {**json.loads(lines[-1]), "wrong": wrong}


def total(results):
    counts, whole = collections.Counter(), collections.Counter()
    for one in results:
        counts.update({name: value for name, value in one.items() if name not in MEANS})
        whole.update(one.get("whole", {}))
    return {**counts, "instructions": round(sum(one.get("instructions", 0) for one in results) / max(counts["spliced"], 1), 4),
            "most_instructions": max((one.get("most_instructions", 0) for one in results), default=0), "whole": whole,
            "wrong": sum(bool(one["wrong"]) for one in results)}


def main():
    p = argparse.ArgumentParser(description="Compiles random mods both ways and compares registers, spills and machine "
                                            "code. Prints what is WRONG with its seed and expressions, the total every ten "
                                            "seconds and at the end, as JSON. A run with the same --results goes on where "
                                            "the last one was stopped.")
    p.add_argument("--codegen-test", required=True, help="the program test_codegen")
    p.add_argument("--mods", type=int, default=1000)
    p.add_argument("--from", type=int, default=0, dest="first", help="the first mod's seed")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--seconds", type=int, default=130, help="what is not done by then is left for the next run")
    p.add_argument("--results", default="splice_soak.jsonl", help="a line for each mod that is done")
    p.add_argument("--cache", help="where skeletons are kept; by default a folder that is deleted at the end")
    o = p.parse_args()
    began, file = time.monotonic(), pathlib.Path(o.results)
    # A run that was stopped may have left half a line.
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    results = {one["seed"]: one for one in map(json.loads, lines)}
    seeds = [seed for seed in range(o.first, o.first + o.mods) if seed not in results]
    said = began
    with tempfile.TemporaryDirectory() as own, file.open("w") as kept, \
            concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        kept.writelines(json.dumps(one) + "\n" for one in results.values())
        jobs = [pool.submit(compare, o, seed, o.cache or own, began + o.seconds) for seed in seeds]
        for job in concurrent.futures.as_completed(jobs):
            one = job.result()
            if one is None:
                continue
            results[one["seed"]] = one
            print(json.dumps(one), file=kept, flush=True)
            if one["wrong"]:
                print(one["wrong"].rstrip(), flush=True)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f"{said - began:.0f} s: {json.dumps(total(results.values()))}", flush=True)
    all = total(results.values())
    print(json.dumps({"from": o.first, "seconds": round(time.monotonic() - began), "seeds": len(results),
                      "left": len(set(seeds) - set(results)), **all}))
    return 1 if all["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
