# tests/tools/memory.py — the command line with too little memory: a result or an Error, never a signal
import collections
import os
import re
import resource
import subprocess
import unittest

from calls import ATTUNE, Calls

from turn import in_turn

KERNEL = "sin(tanh(s * 1.5f)) + exp(s)"


class Memory(Calls):
    def run_limited(self, limits, *arguments):
        def limit():
            for which, most in limits.items():
                resource.setrlimit(which, (most, resource.getrlimit(which)[1]))

        return subprocess.run([ATTUNE, *map(str, arguments)], cwd=self.at, capture_output=True, text=True, timeout=60,
                              preexec_fn=limit, env={**os.environ, "ATTUNE_CACHE": "off"})

    def run_within(self, kib, *arguments):
        return self.run_limited({resource.RLIMIT_AS: kib * 1024}, *arguments)

    def outcomes(self, limits, *arguments):
        seen = collections.Counter()
        for kib in limits:
            ended = self.run_within(kib, *arguments)
            said = ended.stderr.strip()
            # With less than that, the process does not start.
            if ended.returncode == 127 and "error while loading shared libraries" in said:
                continue
            with self.subTest(kib=kib):
                self.assertIn(ended.returncode, (0, 2), said)
                if ended.returncode == 2:
                    self.assertIn("[no-memory]", said)
            seen[ended.returncode] += 1
        return seen

    # The least memory, in steps of 1 MiB, that a command succeeds with.
    def least(self, *arguments):
        low, high = 1, 4096
        while high - low > 1:
            middle = (low + high) // 2
            if self.run_within(middle * 1024, *arguments).returncode == 0:
                high = middle
            else:
                low = middle
        return high

    def sweep(self, *arguments):
        starts, done = self.least("--version"), self.least(*arguments)
        self.assertLess(starts, done)
        every = range((starts - 2) * 1024, (done + 2) * 1024, max(64, (done - starts + 4) * 1024 // 40))
        limits = [kib for nth, kib in enumerate(every) if in_turn(nth, 2)] + [(done + 2) * 1024]
        seen = self.outcomes(limits, *arguments)
        self.assertGreater(seen[0], 0)
        self.assertGreater(seen[2], 5)

    def test_a_kernel_is_compiled_or_memory_is_said_to_be_out(self):
        self.sweep("compile", "--target", "avx2", "--score", KERNEL, "-j", "1", "-o", self.at / "x.attune", "--quiet")

    def test_a_kernel_larger_than_what_is_asked_for_beforehand(self):
        deep = "s"
        for i in range(90):
            deep = f"sin(tanh({deep}) * {i}.5f)"
        build = ("compile", "--target", "avx2", "--score", deep, "-j", "1", "-o", self.at / "x.attune", "--quiet")
        least = self.least("compile", "--target", "avx2", "--score", KERNEL, "-j", "1", "-o", self.at / "x.attune",
                           "--quiet")
        said = set()
        for kib in range(least * 1024, (least + 32) * 1024, 6000):
            ended = self.run_within(kib, *build)
            self.assertIn(ended.returncode, (0, 2), ended.stderr)
            said |= set(re.findall("attune: (.*?)  ", ended.stderr))
        self.assertIn("memory ran out while a kernel was compiled", said)

    def test_as_many_threads_as_there_are_kernels(self):
        ended = self.attune("compile", "--target", "avx2", "-j", "100000", "-o", "x.attune", "--quiet",
                            ATTUNE_CACHE="off")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    # A thread cannot start where its stack is larger than the address space.
    def test_fewer_threads_where_fewer_start(self):
        for stack in (512, 150):
            ended = self.run_limited({resource.RLIMIT_STACK: stack << 20, resource.RLIMIT_AS: 400 << 20}, "compile",
                                     "--target", "avx2", "--target", "avx512", "--target", "portable", "-j", "4",
                                     "-o", "x.attune", "--quiet")
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
