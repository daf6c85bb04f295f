# tests/tools/verbs.py — the everyday verbs from outside: help, completion, diff, repl, history, explain
import html
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unittest

EDITOR = sys.argv.pop(3) == "ON"  # was it built with libedit?

from calls import ATTUNE, ENGINE, Calls, write_npy  # noqa: E402

ALIBI = ["--score", "s + slope[h] * f32(kv - q)", "--capture", "slope=f32[16]"]


def sections(page):
    """{title: lines} of a page of help"""
    parts = re.split(r"^(\S.*)\n", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


class Verbs(Calls):
    turns = 2

    def done(self, *arguments, status=0, **how):
        said = self.attune(*arguments, **how)
        self.assertEqual((said.returncode, said.stderr), (status, ""), arguments)
        return said.stdout

    def refused(self, code, *arguments, fix="", **how):
        said = self.attune(*arguments, **how)
        self.assertEqual((said.returncode, said.stdout), (2, ""), said.stderr)
        self.assertIn(f"[{code}]", said.stderr)
        self.assertIn(fix, said.stderr)

    def verbs(self):
        return re.findall(r"^  (\w+)", sections(self.done("--help"))["VERBS"], re.M)

    # ---- help ----

    def test_help_has_what_a_manual_has(self):
        self.assertGreater(len(self.verbs()), 10)
        for verb in self.verbs():
            page = sections(self.done(verb, "--help"))
            self.assertTrue({"NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT"} <= set(page), verb)
            self.assertIn(f"attune {verb}", page["SYNOPSIS"])
            self.assertIn("ATTUNE_CACHE ", page["ENVIRONMENT"])
            for line in self.done(verb, "--help").splitlines():
                self.assertTrue(len(line) <= 100 or " " not in line.strip() or line.startswith("  attune"), line)
        self.assertIn("  1  they differ", sections(self.done("diff", "--help"))["EXIT STATUS"])

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_examples_of_help_run(self):
        self.qkv(b=1, hq=4, hkv=2, sq=8, skv=8, d=4, dv=4)
        write_npy(self.at / "slope.npy", [4], [1, 2, 3, 4])
        ran = 0
        for verb in self.verbs():
            examples = sections(self.done(verb, "--help"))["EXAMPLES"].replace("\\\n", " ")
            for line in examples.strip().splitlines():
                # Examples that need a GPU, its compiler or somebody's input are run elsewhere.
                if verb == "tune" or "--target cuda" in line or "--target sm_" in line:
                    continue
                folder = os.path.dirname(ATTUNE)
                said = subprocess.run(["bash", "-c", line], cwd=self.at, capture_output=True, text=True, timeout=60,
                                      env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
                self.assertIn(said.returncode, (0, 1) if verb == "diff" else (0,), line + "\n" + said.stderr)
                self.assertEqual(said.stderr, "", line)
                ran += 1
        self.assertGreater(ran, 12)

    def test_man(self):
        page = self.done("man")
        self.assertTrue(page.startswith(".TH ATTUNE 1 "))
        for verb in self.verbs():
            self.assertIn(f".SH attune {verb}\n", page)
        self.assertIn("\\-\\-score", page)
        if not shutil.which("groff"):
            self.skipTest("[skip] no groff to read it")
        said = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-K", "utf-8"], input=page, capture_output=True,
                              text=True, encoding="utf-8", timeout=60)
        self.assertEqual((said.returncode, said.stderr), (0, ""))

    # ---- completion ----

    def completed(self, *words):
        script = 'source c.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attune; printf "%s\\n" "${COMPREPLY[@]}"'
        said = subprocess.run(["bash", "-c", script, "bash", *words], cwd=self.at, capture_output=True, text=True,
                              timeout=20)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        return said.stdout.split()

    def test_bash_completes(self):
        (self.at / "c.bash").write_text(self.done("completion", "bash"))
        (self.at / "slope.npy").write_text("")
        self.assertEqual(self.completed("attune", "exp"), ["explain"])
        self.assertLessEqual(set(self.verbs()), set(self.completed("attune", "")))
        self.assertEqual(self.completed("attune", "run", "--cu"), ["--cu-seqlens-q", "--cu-seqlens-kv"])
        # An option's words, after a = too, which bash takes for a separate word.
        self.assertEqual(self.completed("attune", "run", "--target", "c"), ["cuda", "cpu"])
        self.assertEqual(self.completed("attune", "run", "--target", "=", "c"), ["cuda", "cpu"])
        self.assertEqual(self.completed("attune", "run", "--target", "="), ["auto", "cuda", "cpu", "oracle"])
        self.assertEqual(self.completed("attune", "diff", "--only", "so"), ["source"])
        self.assertEqual(self.completed("attune", "bench", "--row", "ca"), ["causal"])
        self.assertIn("bash", self.completed("attune", "completion", ""))
        # Files, for captures too.
        self.assertEqual(self.completed("attune", "run", "--q", "sl"), ["slope.npy"])
        self.assertEqual(self.completed("attune", "run", "--capture", "slope", "=", "sl"), ["slope.npy"])
        self.assertEqual(self.completed("attune", "run", "--scale", ""), [])
        # Every option of every verb, taken from help rather than listed here.
        for verb in self.verbs():
            shown = set(re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", self.done(verb, "--help"), re.M))
            self.assertLessEqual(shown, set(self.completed("attune", verb, "--")), verb)

    def test_other_shells_read_their_scripts(self):
        for shell in "zsh", "fish":
            script = self.done("completion", shell)
            self.assertIn("cu-seqlens-kv", script)
            if not shutil.which(shell):
                print(f"[skip] there is no {shell} to read its script")
                continue
            (self.at / "script").write_text(script)
            said = subprocess.run([shell, "-n", "script"], cwd=self.at, capture_output=True, text=True, timeout=20)
            self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.refused("bad-choice", "completion", "ksh")

    # ---- diff ----

    def test_diff_shows_what_differs(self):
        said = self.done("diff", "kv <= q", "kv <= q && q - kv < 1024", status=1)
        self.assertIn("-mask   kv <= q\n+mask   kv <= q && q - kv < 1024\n", said)
        self.assertIn("-kind    causal, scaled, longer\n+kind    window, scaled, longer\n", said)
        self.assertIn("+++ B source\n", said)
        self.assertTrue(said.endswith("the same: derivatives\n"))
        self.assertNotIn("\x1b", said)
        self.assertIn("\x1b[32m+mask", self.done("diff", "kv <= q", "kv < q", "--color", "always", status=1))
        self.assertEqual(self.done("diff", "kv <= q", "kv < q", "--quiet", status=1), "")

    def test_diff_of_what_is_the_same(self):
        self.assertEqual(self.done("diff", "kv <= q", "!(kv > q)", "--only", "levels,plan"), "the same: levels, plan\n")
        said = self.done("diff", "kv <= q", "!(kv > q)", "--only", "ir", status=1)
        self.assertIn("--- A written", said)
        self.assertNotIn("simplified\n@@", said)

    def test_diff_of_sides(self):
        said = json.loads(self.done("diff", *ALIBI, "--a-mask", "kv <= q", "--only", "ir,source", "--json", status=1))
        self.assertFalse(said["same"])
        stages = {stage["stage"]: stage for stage in said["stages"]}
        self.assertEqual(set(stages), {"written", "simplified", "source", "source of lists"})
        self.assertIn("mask   kv <= q", stages["written"]["a"])
        self.assertIn("mask   true", stages["written"]["b"])
        self.assertIn("slope[h]", stages["written"]["b"])
        self.assertTrue(stages["source of lists"]["same"])
        self.assertTrue(stages["source"]["diff"].startswith("--- A source\n+++ B source\n@@ -"))

    def test_diff_of_files(self):
        (self.at / "a.mod").write_text("# ALiBi\ncapture slope=f32[16]\n\nlet d=f32(kv - q)\nscore s + slope[h] * d\n")
        said = self.done("diff", "a.mod", "s", "--only", "derivatives", status=1)
        self.assertIn("-  capture  slope[h] += f32(kv - q)", said)
        self.assertEqual(self.done("diff", "a.mod", "a.mod", "--quiet"), "")
        (self.at / "b.mod").write_text("capture slope=f32[16]\nmsk kv <= q\n")
        self.refused("bad-mod", "diff", "a.mod", "b.mod", fix="mask")
        self.refused("file-missing", "diff", "a.mod", "c.mod")
        self.refused("no-expression", "diff")
        self.refused("unknown-name", "diff", "kv <= q", "kv <= w")
        self.refused("bad-choice", "diff", "s", "s", "--only", "rooms")

    # ---- bench ----

    def bench(self, *arguments, **environment):
        return self.done("bench", "--row", "causal", "--seq", "128", "--d", "32", "--seconds", "0.02", *arguments,
                         **environment)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_results_are_kept_and_compared(self):
        self.bench("--save", "r.jsonl")
        self.bench("--save", "r.jsonl", "--threads", "1", "2")
        kept = [json.loads(line) for line in (self.at / "r.jsonl").read_text().splitlines()]
        self.assertEqual([line["threads"] for line in kept], [1, 1, 2])
        for line in kept:
            self.assertRegex(line["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertTrue(line["command"].startswith("attune bench --row causal "), line["command"])
            self.assertRegex(line["version"], r"^\d+\.\d+\.\d+$")
            self.assertTrue(line["machine"]["processor"] and line["machine"]["cpus"] > 0)
            self.assertIn("commit", line)
        one = json.loads(self.bench("--compare", "r.jsonl", "--json"))["compared"]
        self.assertEqual((one["results"], one["same_machine"]), (2, True))
        self.assertTrue(0 < one["least"] <= one["ratio"] <= one["most"])
        self.assertIn("times as fast as r.jsonl (2 results), spread ", self.bench("--compare", "r.jsonl"))
        # A factor of a million, either way, is not noise on any machine.
        for factor, verdict in (1e6, "faster"), (1e-6, "slower"):
            (self.at / "f.jsonl").write_text(json.dumps(
                {**kept[0], "seconds": {k: v * factor for k, v in kept[0]["seconds"].items()}}) + "\n")
            self.assertEqual(json.loads(self.bench("--compare", "f.jsonl", "--json"))["compared"]["verdict"], verdict)
        wide = {**kept[0], "seconds": {"p10": 1e-9, "median": kept[0]["seconds"]["median"], "p90": 10}}
        (self.at / "n.jsonl").write_text(json.dumps(wide) + "\n")
        self.assertIn("within the noise", self.bench("--compare", "n.jsonl"))
        (self.at / "m.jsonl").write_text(json.dumps({**wide, "machine": {"processor": "another", "cpus": 1}}) + "\n")
        self.assertIn("on another machine", self.bench("--compare", "m.jsonl"))
        # Results of other sizes are not compared.
        self.assertIn("has no such result", self.bench("--compare", "r.jsonl", "--heads", "2"))

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_results_by_name(self):
        state = {"XDG_STATE_HOME": str(self.at / "state")}
        self.bench("--save", "base", **state)
        self.assertTrue((self.at / "state/attune/bench/base.jsonl").exists())
        self.assertIn("times as fast as base", self.bench("--compare", "base", **state))
        self.refused("file-missing", "bench", "--compare", "nothing", **state)
        (self.at / "folder.jsonl").mkdir()
        self.refused("file-unwritable", "bench", "--seq", "64", "--seconds", "0.01", "--row", "full", "--save", "folder.jsonl")
        self.refused("no-state", "bench", "--save", "base", XDG_STATE_HOME="", HOME="")
        (self.at / "bad.jsonl").write_text('{"row": "causal"}\n')
        self.refused("bad-history", "bench", "--compare", "bad.jsonl")

    # ---- explain ----

    def test_report_says_a_command_that_draws_the_same(self):
        page = self.done("report", "--score", "s + slope[h] * f32(kv - q) + bias[kv]", "--capture", "slope=f32[4]",
                         "--capture", "bias=f32[48]", "--heads", "4", "--h", "2", "--fill", "slope=slopes", "--q-len",
                         "48", "--mask", "kv <= q")
        command = html.unescape(re.search(r"<pre>(attune plot.*?)</pre>", page, re.S).group(1))
        for part in ("--fill 'slope=slopes'", "--fill 'bias=normal'", "--heads 4", "--q-len 48", "--h 2"):
            self.assertIn(part, command)
        self.assertIn("<svg", self.done(*shlex.split(command.replace("\\\n", " "))[1:]))

    def test_report_draws_as_many_positions_as_the_mod_needs(self):
        def drawn(*mod):
            return re.search(r"(\d[\d ]*) queries ×", self.done("report", *mod)).group(1)

        self.assertEqual(drawn("kv <= q"), "128")
        self.assertEqual(drawn("kv <= q && q - kv < 1000"), "2 048")
        self.assertEqual(drawn("kv <= q && q - kv < w", "--param", "w=300"), "1 024")
        self.assertEqual(drawn("kv <= q && q - kv < 1000", "--q-len", "64"), "64")
        self.assertEqual(drawn("kv / 600 == 0 && u[kv] > 0", "--capture", "u=i32[700]"), "700")

    def test_explain_has_its_page_in_parts(self):
        said = json.loads(self.done("explain", *ALIBI, "--mask", "kv <= q", "--json"))
        titles = [s["title"] for s in said["sections"]]
        self.assertEqual(titles[0], "your expressions, simplified")
        self.assertLess({"what a tile keeps", "free in the softmax", "levels", "derivatives", "time"}, set(titles))
        self.assertIn("cancels along a row", said["text"])
        self.assertNotIn("cpu", said)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_explain_measures_the_cpu(self):
        call = ["--mask", "kv <= q", "--dtype", "f32", "--heads", "2", "--seq", "128", "--d", "32"]
        cpu = json.loads(self.done("explain", *call, "--target", "cpu", "--json"))["cpu"]
        self.assertEqual((cpu["heads"], cpu["products"], cpu["masked"]), (2, "f32", True))
        self.assertEqual(cpu["flop"], 2 * (128 * 129 // 2) * 2 * 64)
        self.assertGreater(cpu["peak_gflops_one_thread"], 0)
        self.assertAlmostEqual(cpu["bound"]["seconds"], cpu["flop"] / cpu["peak_gflops_one_thread"] / 1e9)
        self.assertNotIn("measured", cpu)
        measured = json.loads(self.done("explain", *call, "--measure", "--json"))["cpu"]["measured"]
        self.assertTrue(0 < measured["seconds"]["p10"] <= measured["seconds"]["median"] <= measured["seconds"]["p90"])
        self.assertIn("% of the bound", self.done("explain", *call, "--measure"))

    def test_explain_says_what_bounds_a_gpu(self):
        call = ["explain", "kv <= q", "--target", "cuda", "--arch", "80", "--dtype", "f32", "--d", "32", "--seq", "1024"]
        said = self.attune(*call, "--json")
        if "[no-compiler]" in said.stderr:
            self.skipTest("[skip] no NVRTC")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        cuda = json.loads(said.stdout)["cuda"]
        bound = cuda["bound"]
        self.assertEqual((bound["card"], bound["specials_a_pair"]), ("A100", 1))
        self.assertEqual(bound["seconds"], max(bound[k] for k in ("products_seconds", "exponent_seconds",
                                                                  "memory_seconds")))
        self.assertEqual(bound["flop"], 16 * 1024 * 1025 / 2 * 2 * 64)
        self.assertGreater(bound["visited_flop"], bound["flop"])
        occupancy = cuda["candidates"][0]["occupancy"]
        self.assertTrue(0 < occupancy["blocks"] and 0 < occupancy["warps"] <= occupancy["most_warps"] == 64)
        self.refused("bad-usage", *call, "--measure", fix="--target cpu")

    # ---- repl ----

    def repl(self, *lines, status=0, **environment):
        said = self.attune("repl", given="".join(line + "\n" for line in lines), **environment)
        self.assertEqual(said.returncode, status, said.stderr)
        return said

    def test_repl_shows_expressions(self):
        said = self.repl("kv <= q && q - kv < 1", "", "# a comment", "c * tanh(s / 4.0f)", status=2)
        self.assertIn("mask        kv == q\n▘▖\n", said.stdout)
        self.assertIn("64 queries down, 64 keys across\n", said.stdout)
        self.assertIn("[unknown-name]", said.stderr)
        self.assertIn("    c * tanh(s / 4.0f)\n       ^\n", said.stderr)
        said = self.repl(":param c=30.0", "c * tanh(s / c)", LC_ALL="C").stdout
        self.assertEqual(said, "score       c * tanh(s / c)\n"
                               "d score / d s = c * (1.0f - tanh(s / c) * tanh(s / c)) / c\n")
        # The picture of a window reaches down to where the window ends.
        self.assertIn("4096 queries down", self.repl("kv <= q && q - kv < 1024").stdout)

    def test_repl_makes_a_mod(self):
        said = self.repl(":capture slope=f32[2]", ":let d=f32(kv - q)", ":score s + slope[h] * d", ":mask kv <= q",
                         ":mask kv <= w", ":param slope=1", ":save m.mod", ":clear", ":show", ":load m.mod", ":drop mask",
                         ":show", ":drop mask", ":drop slope", ":show", status=2)
        mod = "capture slope=f32[2]\nlet d=f32(kv - q)\nscore s + slope[h] * d\n"
        self.assertEqual((self.at / "m.mod").read_text(), mod + "mask kv <= q\n")
        # Lines that could not be read, and names that could not be dropped, changed nothing.
        self.assertTrue(said.stdout.endswith(mod + "mask kv <= q\n" + mod + mod), said.stdout)
        self.assertEqual(re.findall(r"\[([a-z-]+)\]$", said.stderr, re.M),
                         ["unknown-name", "name-taken", "unknown-name", "unknown-name"])

    def test_repl_hands_a_mod_to_verbs(self):
        mod = [":capture slope=f32[16]", ":score s + slope[h] * f32(kv - q)", ":mask kv <= q"]
        said = self.repl(*mod, ":cuda --d 64", ":explain", ":cover --no-picture --q-len 256", ":print --json",
                         ":diff --b-mask 'kv < q' --only ir")
        for part in ("struct User {", "cancels along a row", "tiles of 128 x 128", '"simplified"', "+mask   kv < q"):
            self.assertIn(part, said.stdout)
        said = self.repl(":cover --tile x", ":cover 'kv <= q", ":covr", ":help", status=2)
        self.assertEqual(re.findall(r"\[([a-z-]+)\]$", said.stderr, re.M), ["bad-tile", "stray-argument", "unknown-verb"])
        self.assertIn("did you mean :cover?", said.stderr)
        self.assertIn("  :run [OPTION]...", said.stdout)
        self.assertEqual(self.repl(":quit", ":help").stdout, "")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_repl_runs_a_mod(self):
        said = self.repl(":mask kv <= q", ":run", ":run --dtype bf16 --seq 40 --kv-seq 50 --d 24 --heads 4 --kv-heads 2",
                         ":run --threads 2", ":run --help", status=2)
        self.assertIn("f32, B=1 H=2/2 S=64x64 D=16/16: ", said.stdout)
        self.assertIn("bf16, B=1 H=4/2 S=40x50 D=24/24: ", said.stdout)
        off = [float(x) for x in re.findall(r"error against the oracle: o (\S+),", said.stdout)]
        self.assertTrue(off[0] < 1e-5 and off[1] < 1e-2, off)
        self.assertEqual(re.findall(r"\[([a-z-]+)\]$", said.stderr, re.M), ["bad-usage"])
        self.assertIn("--kv-heads N", said.stdout)

    def test_diff_in_the_repl_compares_the_mod_with_another(self):
        said = self.repl(":mask kv <= q", ":diff 'kv < q' --only ir")
        self.assertIn("-mask   kv <= q\n+mask   kv < q\n", said.stdout)

    def typed(self, *keys, wait):
        """What a terminal shows when these lines are typed, each after the text in `wait` has appeared."""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.at)
            os.execve(ATTUNE, [ATTUNE, "repl"], {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm",
                                                 "XDG_STATE_HOME": str(self.at / "state"), "HOME": str(self.at)})
        shown, end = b"", time.monotonic() + 90
        steps = list(zip(keys, wait))
        seen, last = 0, ""
        try:
            while time.monotonic() < end:
                if steps and steps[0][1].encode() in shown[seen:]:
                    seen = len(shown)
                    last = steps.pop(0)[0]
                    os.write(terminal, last.encode())
                ready, _, _ = select.select([terminal], [], [], 0.3)
                if not ready:
                    # A Ctrl-C between the prompt and the start of reading a line interrupts nothing.
                    if last == "\x03":
                        os.write(terminal, b"\x03")
                    continue
                try:
                    more = os.read(terminal, 4096)
                except OSError:  # Linux's way to say that the child is gone
                    more = b""
                if not more:
                    break
                shown += more
            _, status = os.waitpid(child, 0) if time.monotonic() < end else (0, None)
        finally:
            if time.monotonic() >= end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            os.close(terminal)
        self.assertEqual(steps, [], shown)
        self.assertEqual(status, 0, shown)
        return shown.decode()

    @unittest.skipUnless(EDITOR, "built without libedit")
    def test_repl_on_a_terminal(self):
        shown = self.typed("30.0f * tanh\t", "s)\r", ":capture slope=f32[4]\r", "s + slo\t", "[h]\r", "never", "\x03",
                           ":qu\t", "\r",
                           wait=["attune> ", "(", "attune> ", "attune> ", "pe", "attune> ", "never", "attune> ", "it "])
        self.assertIn("an expression, or :help", shown)
        self.assertIn("d score / d s = 30.0f * (1.0f - tanh(s) * tanh(s))", shown.replace("\r\n", "\n"))
        self.assertIn("slope[h] += 1.0f", shown)
        self.assertNotIn("[unknown-name]", shown)  # what Ctrl-C gave up was not read
        self.assertIn("only shown; :score makes it the mod's", shown)
        history = self.at / "state/attune/repl_history"
        self.assertIn("tanh(s)", history.read_text().replace("\\040", " "))
        # Ctrl-R follows a completion: before the editor has the terminal, Ctrl-R would be the terminal's own.
        self.assertIn("only shown; :mask", self.typed("caus\t", ")\r", "caus\t", "\x12", "\x03", ":quit\r",
                                                       wait=["attune> ", "al(", "attune> ", "al(", "bck", "attune> "]))
        # The up key brings back earlier lines, those of other processes too.
        again = self.typed("\x1b[A" * 6 + "\r", ":quit\r", wait=["attune> ", "attune> "])
        self.assertIn("d score / d s = ", again)


if __name__ == "__main__":
    unittest.main()
