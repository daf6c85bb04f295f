# tests/tools/trouble.py — the command line in trouble: full disks, closed pipes, odd files, mistaken users
import json
import math
import os
import re
import signal
import stat
import subprocess
import time
import unittest

from calls import ATTUNE, ENGINE, Calls, write_npy

RUN = "run --q q.npy --k k.npy --v v.npy --target oracle --out"


class Trouble(Calls):
    turns = 2

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

    # With stdout closed, the next file to be opened would become stdout.
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

    # Results of 16 MB, so that the signal arrives before all of them are written.
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

    def test_nothing_may_be_written(self):
        for line in ("print 's + 1.0f' >said", "explain 'kv <= q' >said", "plot 'kv <= q' -o a.svg", "--version >said"):
            said = self.bash(f"ulimit -f 0; attune {line}")
            self.assertEqual((said.returncode, said.stdout), (2, ""), line)
            self.assertRegex(said.stderr, r"\[(output|file)-unwritable\]", line)

    # ---- What users get wrong.

    def test_paths_that_are_no_utf8(self):
        self.qkv()
        said = self.bash(f"""mkdir $'b\\xff'; attune {RUN} $'b\\xff' --json""")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertIn("\ufffd", json.loads(said.stdout)["files"][0]["path"])
        said = self.bash("""attune bench --row causal --seq 16 --d 16 --save ./$'b\\xff.jsonl'; cat $'b\\xff.jsonl'""")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertIn("\ufffd", json.loads(said.stdout.splitlines()[-1])["command"])

    def test_a_history_whose_date_is_no_text(self):
        bench = ["bench", "--row", "causal", "--seq", "16", "--d", "16"]
        self.assertEqual(self.attune(*bench, "--save", "./h.jsonl").returncode, 0)
        kept = json.loads((self.at / "h.jsonl").read_text().splitlines()[0])
        for key in "date", "commit":
            (self.at / "h.jsonl").write_text(json.dumps({**kept, key: 5}) + "\n")
            self.refused("bad-history", *bench, "--compare", "./h.jsonl")

    def test_covers_beyond_counting(self):
        self.refused("bad-size", "cover", "kv <= q", "--q-len", "1073741824", "--tile", "1x1", says="33 554 432")
        self.refused("bad-size", "cover", "kv <= q", "--q-len", "1048576", "--batch", "1048576", "--heads", "1048576",
                     says="2^63")
        said = self.attune("cover", "kv <= q", "--q-len", "1048576", "--batch", "1024", "--heads", "1024",
                           "--no-picture")
        self.assertEqual(said.returncode, 0)
        self.assertNotIn("-", re.sub(r"--\S+", "", said.stdout.split("tiles of", 1)[1]))

    def test_masks_that_take_long(self):
        start = time.monotonic()
        self.refused("too-slow", "cover", "sum(i, 1024, sum(j, 1024, i * j + kv)) > 0", "--q-len", "512", "--limit",
                     "1", says="2 098 179 operations")
        self.refused("too-slow", "cover", "sum(i, 1024, sum(j, 1024, sum(k, 1024, i * j + k + kv))) > 0")
        self.assertLess(time.monotonic() - start, 60)

    # Each part that stops the derivation was shown, with all that it holds: 86 MB in 45 s.
    def test_masks_of_thousands_of_terms(self):
        mask = " || ".join(f"kv == {i * 7}" for i in range(4000))
        (self.at / "long.mod").write_text(f"mask {mask}\n")
        for verb in ["explain"], ["cover", "--q-len", "128", "--no-picture"]:
            said = self.attune(*verb, "--mod", "long.mod")
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertIn("more parts", said.stdout)
            self.assertLess(len(said.stdout), 1_000_000)

    # ---- What held, and is to hold.

    def test_little_of_everything(self):
        self.qkv()
        for target in ["oracle", "cpu"] if ENGINE else ["oracle"]:
            line = RUN.replace("oracle", target)
            self.assertEqual(self.attune(*line.split(), "out").returncode, 0)
            expected = (self.at / "out/out.npy").read_bytes()
            # A sanitized program looks at memory through pipes of its own.
            for how in (f"ulimit -n {8 if 'ASAN_OPTIONS' in os.environ else 5};", "ulimit -s 128;", "unset HOME XDG_CACHE_HOME;", "chmod 500 c;",
                        f'attune() {{ env LC_ALL=de_DE.UTF-8 "{ATTUNE}" "$@"; }};'):
                (self.at / "c").mkdir(exist_ok=True)
                said = self.bash(f"{how} attune {line} again", ATTUNE_CACHE=str(self.at / "c"))
                self.assertEqual((said.returncode, said.stderr), (0, ""), how)
                self.assertEqual((self.at / "again/out.npy").read_bytes(), expected, how)

    def test_texts_that_are_deep_or_long(self):
        (self.at / "deep.mod").write_text("score " + "(" * 100_000 + "s" + ")" * 100_000 + "\n")
        self.refused("too-deep", "print", "--mod", "deep.mod")
        (self.at / "long.mod").write_text("score " + " + ".join(["s"] * 30_000) + "\n")
        self.assertEqual(self.attune("grad", "--mod", "long.mod").stdout, "d score / d s = 30000.0f\n")

    def test_inputs_that_are_no_files(self):
        self.qkv()
        os.mkfifo(self.at / "pipe.npy")
        (self.at / "folder.npy").mkdir()
        for name in "pipe.npy", "folder.npy", "/dev/zero":
            self.refused("file-kind", *RUN.replace("q.npy", name).split(), "out")

    def test_whole_numbers(self):
        offset = lambda text: self.attune("cover", "kv <= q", "--q-len", "8", "--json", "--q-offset", text)
        self.assertEqual(json.loads(offset("010").stdout)["extent"]["q_offset"], 10)
        for text in "", "0x10", "1e3", " 5", "5 ", "+5":
            self.assertIn("[bad-usage]", offset(text).stderr, text)
        self.assertIn("99999999999999999999", offset("99999999999999999999").stderr)
        self.qkv()
        said = self.attune(*RUN.split(), "out", "--q-offset", "99999999999999999999")
        self.assertEqual(said.returncode, 2)
        self.assertIn("99999999999999999999", said.stderr)
        self.assertNotIn("9223372036854775807", said.stderr)

    def test_parameters(self):
        self.refused("bad-number", "print", "s * a", "--param", "a=1e50", says="does not fit a Float")
        self.refused("bad-number", "print", "s * a", "--param", "a=0x7f", says="hexadecimal")

    def test_kernels_that_are_not_there(self):
        made = ["compile", "--mask", "kv <= q", "-o", "x.attune"]
        self.refused("bad-kernel", *made, "--target", "avx2", "--kernel", "nonsense", says="GPU")
        for kernel in "nonsense", "forward_sm80:m=-64":
            said = self.attune(*made, "--target", "sm_80", "--kernel", kernel)
            self.assertEqual(said.returncode, 2)
            self.assertRegex(said.stderr, r"\[(bad-kernel|no-compiler)\]")
        self.assertEqual(self.names(), [])

    def test_mods_that_say_a_thing_twice(self):
        for first, second in ("mask kv <= q", "mask kv < q"), ("let a=1", "let a = 2"), ("param x=1", "param x=2"):
            (self.at / "a.mod").write_text(f"{first}\n# {first}\n{second}\n")
            self.refused("bad-mod", "diff", "a.mod", "a.mod", says="given twice")

    def test_files_that_cannot_be_read(self):
        (self.at / "folder.mod").mkdir()
        (self.at / "loop.mod").symlink_to("loop.mod")
        (self.at / "a.mod").write_text("score s\n")
        for read in ["compile", "-o", "x", "--manifest"], ["diff", "a.mod"]:
            self.refused("file-missing", *read, "missing.mod")
            self.refused("file-kind", *read, "folder.mod", says="is a folder")
            self.refused("file-unreadable", *read, "loop.mod", says="symbolic links")
        self.qkv()
        (self.at / "q.npy").unlink()
        (self.at / "q.npy").symlink_to("q.npy")
        self.refused("file-unreadable", *RUN.split(), "out", says="symbolic links")
        self.refused("file-unreadable", *RUN.replace("q.npy", "q" * 300).split(), "out", says="too long")

    def test_quiet_is_quiet(self):
        self.qkv()
        said = self.attune(*RUN.split(), "out", "--quiet", "--json")
        self.assertEqual((said.returncode, said.stdout, said.stderr), (0, "", ""))
        (self.at / "a.mod").write_text("score s\n")
        said = self.attune("diff", "a.mod", "a.mod", "--quiet", "--json")
        self.assertEqual((said.returncode, said.stdout, said.stderr), (0, "", ""))

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_a_cache_that_is_a_file(self):
        self.qkv()
        (self.at / "c").write_text("")
        how = {"ATTUNE_CACHE": str(self.at / "c"), "ATTUNE_CACHE_SIZE": ""}
        said = self.attune(*RUN.replace("oracle", "cpu").split(), "out", **how)
        self.assertEqual((said.returncode, said.stderr.count("is not a folder")), (0, 1))
        said = self.attune("cache", "stats", **how)
        self.assertEqual(said.returncode, 2)
        self.assertIn("[no-cache]", said.stderr)

    def test_a_cache_where_others_may_write(self):
        self.qkv()
        (self.at / "c").mkdir()
        (self.at / "c").chmod(0o777)
        how = {"ATTUNE_CACHE": str(self.at / "c"), "ATTUNE_CACHE_SIZE": ""}
        said = self.attune(*RUN.replace("oracle", "cpu" if ENGINE else "oracle").split(), "out", **how)
        self.assertEqual((said.returncode, said.stderr.count("is not used: all users may write there")), (0, 1))
        self.assertEqual(list((self.at / "c").iterdir()), [])
        said = self.attune("cache", "stats", **how)
        self.assertEqual(said.returncode, 2)
        self.assertIn("[no-cache]", said.stderr)

    # ---- What results hold.

    def test_what_a_run_says_of_its_results(self):
        self.qkv(hq=1)
        write_npy(self.at / "v.npy", [1, 1, 4, 1], [0.5, 0.5, -2, 8])
        line = [*RUN.split(), "out", "--mask", "kv < q"]
        said = self.attune(*line)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        out, lse = said.stdout.splitlines()
        self.assertTrue(out.endswith("f32 [1, 1, 3, 1]  least 0, greatest 0.5"), out)
        self.assertRegex(lse, r"f32 \[1, 1, 3\]  least \S+, greatest \S+, 1 empty row$")
        files = json.loads(self.attune(*line, "--json").stdout)["files"]
        self.assertEqual([files[0][key] for key in ("least", "greatest", "nan")], [0, 0.5, 0])
        self.assertEqual(files[1]["empty_rows"], 1)
        write_npy(self.at / "v.npy", [1, 1, 4, 1], [math.nan] * 4)
        said = self.attune(*line[:-2])
        self.assertEqual(said.stdout.splitlines()[0].split("  ")[2], "3 NaN")
        self.assertIn("every number in out/out.npy is NaN", said.stderr)
        self.assertEqual(self.attune(*line[:-2], "--quiet").stderr, "")


if __name__ == "__main__":
    unittest.main()
