# tests/tools/nvcc.py — the sources that attune cuda writes, compiled by nvcc as they are, without a warning
import os
import subprocess
import sys
import unittest

DEVICE_FILES, NVCC = os.path.abspath(sys.argv.pop()), sys.argv.pop()

from calls import Calls  # noqa: E402

ALIBI = ["--score", "s + slope[h] * f32(kv - q)", "--mask", "kv <= q", "--capture", "slope=f32[16]"]
SOFTCAP = ["--score", "20.0f * tanh(s / 20.0f)", "--prob", "p > 1e-3f ? p : 0.0f", "--sink", "f32(h)"]
DOCUMENTS = ["--mask", "doc[q] == doc[kv]", "--capture", "doc=i32[300]"]
SHARED = ["--seq", "8", "--kv-seq", "4096", "--heads", "4", "--kv-heads", "1"]  # heads share a tile
FEW = ["--seq", "1", "--kv-seq", "4096", "--heads", "4", "--kv-heads", "1"]  # blocks share keys too


class Pages(Calls):
    turns = 2

    def compiles(self, kernel, arch, *arguments):
        said = self.attune("cuda", *arguments, "--arch", arch)
        self.assertEqual((said.returncode, said.stderr), (0, ""), arguments)
        (self.at / "page.cu").write_text(said.stdout)
        target = "sm_90a" if arch == 90 else f"sm_{arch}"
        made = subprocess.run([NVCC, "-std=c++20", "-cubin", f"-arch={target}", "-Werror", "all-warnings", "-I",
                               DEVICE_FILES, "-o", "page.cubin", "page.cu"], cwd=self.at, capture_output=True, text=True)
        # One error's line may hold all of a macro's text.
        said = [line[:200] for line in (made.stdout + made.stderr).splitlines()]
        self.assertEqual((made.returncode, said), (0, []), arguments)
        self.assertIn(kernel.encode(), (self.at / "page.cubin").read_bytes())

    def test_pages_for_hopper(self):
        self.compiles("forward_sm90", 90, *ALIBI)
        self.compiles("forward_sm90", 90, *DOCUMENTS, "--d", "64", "--packed", "--max", *SHARED)

    def test_pages_for_any_card(self):
        self.compiles("forward_sm80", 80, *ALIBI, "--d", "64")
        self.compiles("forward_sm80", 86, *SOFTCAP, "--dtype", "f16", "--dv", "100", "--packed", "--max", *SHARED)
        self.compiles("forward_sm80", 120, *DOCUMENTS, "--dtype", "f32", "--d", "33", "--dv", "5", "--exact", "true")

    def test_pages_for_few_queries(self):
        self.compiles("decode_sm80", 90, *DOCUMENTS, "--packed", "--max", *FEW)
        self.compiles("decode_sm80", 86, *ALIBI, "--dtype", "f16", "--d", "72", "--dv", "40", *FEW)

    def test_pages_that_list_tiles(self):
        self.compiles("cover", 90, *DOCUMENTS, "--lists")


if __name__ == "__main__":
    unittest.main()
