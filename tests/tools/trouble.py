# tests/tools/trouble.py — the command line where disks, pipes, files and users are against it
import json
import os
import signal
import stat
import subprocess
import time
import unittest

from calls import ATTUNE, ENGINE, Calls, write_npy

RUN = "run --q q.npy --k k.npy --v v.npy --target oracle --out"


class Trouble(Calls):
    # A line of bash, in which `attune` is the command line.
    def bash(self, line, **environment):
        return subprocess.run(["bash", "-c", f'attune() {{ "{ATTUNE}" "$@"; }}\n{line}'], cwd=self.at,
                              capture_output=True, text=True, timeout=60, encoding="utf-8", errors="surrogateescape",
                              env={**os.environ, "LC_ALL": "C.UTF-8", **environment})

    def refused(self, code, *arguments, says=""):
        said = self.attune(*arguments)
        self.assertEqual((said.returncode, said.stdout), (2, ""), said.stderr)
        self.assertIn(f"[{code}]", said.stderr)
        self.assertIn(says, said.stderr)

    def names(self):
        return sorted(str(p.relative_to(self.at)) for p in self.at.rglob("*"))

    # ---- Output that cannot be written.

    PRINTING = ["print 'kv <= q'", "grad 's * s'", "explain 'kv <= q'", "explain --json 'kv <= q'", "cover 'kv <= q'",
                "cover --json 'kv <= q'", "cache ls", "cache stats --json", "diff --score s --mask 'kv <= q' --json",
                "completion bash", "man", "--help", "--version", "cover --help", "bundle x",
                "cuda 'kv <= q' --kernel forward_sm80 --json", f"{RUN} out", f"{RUN} out --json",
                "repl <<< ':mask kv <= q'", "verify --calls 1 --target oracle"]

    def test_output_that_cannot_be_written(self):
        self.qkv()
        self.attune("compile", "--mask", "kv <= q", "--target", "avx2", "-o", "x")
        ran = 0
        for line in self.PRINTING:
            if self.bash(f"attune {line}", ATTUNE_CACHE=str(self.at / "c")).returncode != 0:
                continue  # a verb that this build lacks
            ran += 1
            for to in "> /dev/full", ">&-":
                said = self.bash(f"attune {line} {to}", ATTUNE_CACHE=str(self.at / "c"))
                self.assertEqual(said.returncode, 2, f"{line} {to}: {said.stderr}")
                self.assertIn("[output-unwritable]", said.stderr, line)
                self.assertEqual(said.stderr.count("attune:"), 1, said.stderr)
        self.assertGreater(ran, 13)

    # The next file to be opened would take the place of stdout.
    def test_a_closed_stdout_is_no_file(self):
        self.qkv()
        self.assertEqual(self.bash(f"attune {RUN} out --quiet >&-").returncode, 0)
        self.bash("attune print 'kv <= q' --json <&- >&- 2>&-")
        self.assertEqual(sorted(p.name for p in (self.at / "out").iterdir()), ["lse.npy", "out.npy"])

    def test_a_closed_pipe_ends_quietly(self):
        for trap in "", "trap '' PIPE; ":
            said = self.bash(f"{trap}set -o pipefail; attune man | true")
            self.assertEqual((said.stdout, said.stderr), ("", ""))
            self.assertIn(said.returncode, (0, 128 + signal.SIGPIPE))

    # ---- Files that are written.

    def test_files_that_are_no_files(self):
        os.mkfifo(self.at / "pipe")
        (self.at / "folder").mkdir()
        (self.at / "loop").symlink_to("loop")
        (self.at / "to pipe").symlink_to("pipe")
        for name in "pipe", "folder", "to pipe":
            self.refused("file-kind", "cover", "kv <= q", "--svg", name)
        self.refused("file-unwritable", "cover", "kv <= q", "--svg", "loop")
        self.assertTrue(stat.S_ISFIFO((self.at / "pipe").stat().st_mode))
        self.assertEqual(self.names(), ["folder", "loop", "pipe", "to pipe"])

    def test_files_behind_links(self):
        (self.at / "folder").mkdir()
        (self.at / "link").symlink_to("folder/figure")
        for again in range(2):
            self.assertEqual(self.attune("cover", "kv <= q", "--svg", "link").returncode, 0)
            self.assertIn("<svg", (self.at / "folder/figure").read_text())
            self.assertTrue((self.at / "link").is_symlink())
            self.assertEqual(self.names(), ["folder", "folder/figure", "link"])
            (self.at / "folder/figure").write_text("old")

    def test_files_on_stdout(self):
        self.attune("cover", "kv <= q", "--svg", "figure")
        said = self.attune("cover", "kv <= q", "--svg", "-")
        self.assertEqual((said.returncode, said.stderr, said.stdout), (0, "", (self.at / "figure").read_text()))
        self.assertEqual(self.names(), ["figure"])
        self.assertEqual(self.bash("attune cover 'kv <= q' --svg - > /dev/full").returncode, 2)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_a_bundle_on_stdout(self):
        said = self.bash("attune compile --mask 'kv <= q' --target avx2 -o - > a; attune bundle a")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertIn("forward", said.stdout)
        os.mkfifo(self.at / "n")
        self.refused("file-kind", "compile", "--mask", "kv <= q", "--target", "avx2", "-o", "n")

    def test_all_of_them_or_none(self):
        self.qkv()
        (self.at / "out/lse.npy").mkdir(parents=True)
        (self.at / "out/out.npy").write_text("old")
        before = self.names()
        self.refused("file-kind", *RUN.split(), "out")
        self.assertEqual((self.at / "out/out.npy").read_text(), "old")
        self.assertEqual(self.names(), before)

    # Results of 16 MB, so that the signal meets one of them unfinished.
    def test_a_signal_leaves_nothing_unfinished(self):
        self.qkv(hq=1, sq=256, skv=1, d=1, dv=1 << 14)
        met = False
        for attempt in range(20):
            call = subprocess.Popen([ATTUNE, *RUN.split(), "out", "--quiet"], cwd=self.at)
            end = time.monotonic() + 20
            while call.poll() is None and time.monotonic() < end and not met:
                met = any(p.name.endswith(".part") for p in (self.at / "out").glob("*"))
            call.send_signal(signal.SIGINT)
            status = call.wait()
            self.assertIn(status, (0, -signal.SIGINT))
            self.assertEqual([n for n in self.names() if n.endswith(".part")], [])
            if met and status != 0:
                break

    # ---- A limit on the size of files.

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_a_cache_beyond_the_limit_on_files(self):
        self.qkv()
        cpu = RUN.replace("oracle", "cpu")
        measured = "explain --mask 'kv <= q' --target cpu --measure --seq 64"
        for limit, line in (12, f"{cpu} out"), (1, f"{cpu} out"), (0, f"{measured} | cat"):
            said = self.bash(f"set -o pipefail; ulimit -f {limit}; attune {line}", ATTUNE_CACHE=str(self.at / "c"),
                             ATTUNE_CACHE_SIZE="1000000000")
            self.assertEqual((said.returncode, said.stderr), (0, ""), limit)
            self.assertEqual([n for n in self.names() if n.startswith("c/unfinished/")], [])

    def test_a_result_beyond_the_limit_on_files(self):
        self.qkv(sq=256, dv=64)
        said = self.bash(f"ulimit -f 4; attune {RUN} out")
        self.assertEqual((said.returncode, said.stdout), (2, ""))
        self.assertIn("[file-unwritable]", said.stderr)
        self.assertEqual(list((self.at / "out").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
