# tools/bench/splice_soak.py — random mods compiled spliced and as wholes by many processes, without a GPU
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time

TEST = "random mods spliced have no register and no spill that they have not as wholes"


def main():
    p = argparse.ArgumentParser(description="Compiles random mods both ways and compares registers, spills and machine "
                                            "code. Prints what is WRONG with its seed and expressions, then one line of "
                                            "JSON. The next run goes on from seed --from plus --mods.")
    p.add_argument("--codegen-test", required=True, help="the program test_codegen")
    p.add_argument("--mods", type=int, default=1000)
    p.add_argument("--from", type=int, default=0, dest="first", help="the first mod's seed")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--seconds", type=int, default=130, help="no mod begins later")
    o = p.parse_args()
    began, ranges = time.monotonic(), [o.first + o.mods * i // o.jobs for i in range(o.jobs + 1)]
    with tempfile.TemporaryDirectory() as cache:
        # Skeletons are shared by all.
        processes = [subprocess.Popen([o.codegen_test, TEST], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env={**os.environ, "ATTUNE_CACHE": cache, "ATTUNE_CACHE_SIZE": "4G",
                                           "ATTUNE_TEST_SAY": "1", "ATTUNE_FUZZ": str(end - begin),
                                           "ATTUNE_FUZZ_FROM": str(begin), "ATTUNE_FUZZ_SECONDS": str(o.seconds)})
                     for begin, end in zip(ranges, ranges[1:]) if end > begin]
        said = [process.communicate()[0] for process in processes]
    total, reasons, wrong, most, share = collections.Counter(), collections.Counter(), 0, 0, 0
    for process, text in zip(processes, said):
        lines = [line for line in text.splitlines() if line.startswith('{"from"')]
        if not lines:
            print(f"WRONG a process ended with {process.returncode} and said:\n{text[-2000:]}")
            wrong += 1
            continue
        one = json.loads(lines[-1])
        reasons.update(one.pop("whole"))
        most = max(most, one.pop("most_instructions"))
        share += one.pop("instructions") * one["spliced"]
        if one.pop("wrong"):
            wrong += text.count("WRONG ")
            print(text[text.index("WRONG "):text.index('{"from"')], end="")
        total.update({name: one[name] for name in one if name not in ("from", "seconds")})
    print(json.dumps({"from": o.first, "seconds": round(time.monotonic() - began), **total, "whole": reasons,
                      "instructions": round(share / max(total["spliced"], 1), 4), "most_instructions": most,
                      "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
