# tests/tools/offline.py — a call that may not compile names the command that builds its kernels; with them it computes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from turn import in_turn  # noqa: E402

ATTUNE, CALLS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
ENGINE = sys.argv.pop(1) == "ON"
NAMES = ["plain", "captures", "params", "sinks", "same_names", "dropped", "dropped_without_sink", "sums",
         "probabilities", "heads"]
# A driver that launches nothing, where there is one.
FAKE = pathlib.Path(CALLS).parent / "driver"
# The folder of kernels that tests share: each is compiled once, whatever build's test needs it first.
KEPT = {"ATTUNE_CACHE": os.environ["ATTUNE_TEST_CACHE"]} if os.environ.get("ATTUNE_TEST_CACHE") else {}
# The programs that show SASS, and their arguments before the cubin.
DISASSEMBLERS = {"cuobjdump": " --dump-sass", "nvdisasm": ""}


def do(folder, *command, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("ATTUNE_")}
    # A cache of its own, so that the only kernels are those of a bundle.
    env |= {"ATTUNE_CACHE": str(folder / "cache"), "PATH": f"{pathlib.Path(ATTUNE).parent}:{env['PATH']}", **environment}
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=100, env=env)


class Offline(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)

    def do(self, *command, **environment):
        return do(self.at, *command, **environment)

    def round_trip(self, *call, compiler=True, **environment):
        """The call is refused; the command that the message names builds its kernels; then the call succeeds."""
        nowhere = environment if compiler else {"ATTUNE_NVRTC": "/nonexistent", **environment}
        refused = self.do(CALLS, *call, ATTUNE_JIT="off", ATTUNE_CACHE_SIZE="0", **nowhere)
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
        self.assertIn("[kernel-missing]", refused.stdout)
        command = refused.stdout.splitlines()[-1].strip()
        self.assertTrue(command.startswith("attune compile "), command)
        built = self.do("bash", "-c", command + " --quiet", **KEPT)
        self.assertEqual((built.returncode, built.stderr), (0, ""), command)
        done = self.do(CALLS, *call, ATTUNE_JIT="off", ATTUNE_CACHE_SIZE="0", ATTUNE_BUNDLE="kernels.attune", **nowhere)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}")
        self.assertTrue(done.stdout.startswith("ok"), done.stdout)
        return done.stdout

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_forwards_in_cpp(self):
        for nth, name in enumerate(NAMES):
            if in_turn(nth, 2):
                with self.subTest(name):
                    self.round_trip("f32", name)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_types_widths_and_few_queries(self):
        for nth, way in enumerate(["bf16", "f16", "decode", "strides"]):
            if not in_turn(nth, 2):
                continue
            with self.subTest(way):
                self.round_trip(way, "captures" if way == "bf16" else "params")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_backwards(self):
        for nth, (way, name) in enumerate([("backward", "captures"), ("backward", "probabilities"),
                                           ("gradients", "plain")]):
            if not in_turn(nth, 3):
                continue
            with self.subTest(way + " " + name):
                self.round_trip(way, name)

    def test_kernels_of_gpus(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        for nth, (name, spec) in enumerate([("captures", "odd"), ("dropped", "wide")]):
            if not in_turn(nth, 2):
                continue
            with self.subTest(f"{name} {spec}"):
                # Without a compiler too: kernels are found by their content alone.
                self.assertIn("ok, 0 compiled", self.round_trip("consider", name, spec, compiler=False))

    def test_backwards_of_gpus(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        if not (FAKE / "libcuda.so.1").exists():
            self.skipTest("built without the CUDA engine")
        there = {"LD_LIBRARY_PATH": str(FAKE)}
        for nth, way in enumerate(["gpu_documents", "gpu_gradients", "gpu_causal"]):
            if not in_turn(nth, 3):
                continue
            with self.subTest(way):
                self.round_trip(way, "plain", compiler=False, **there)
        # Without o there is a forward to build, which is a pass of its own: it is asked for when the rest is there.
        off = {"ATTUNE_JIT": "off", "ATTUNE_CACHE_SIZE": "0", **there}
        passes, bundles = [], []
        for number in range(3):
            said = self.do(CALLS, "gpu_alone", "plain", ATTUNE_BUNDLE=":".join(bundles), **off)
            if said.returncode == 0:
                break
            command = said.stdout.splitlines()[-1].strip()
            passes.append("backward" if "--pass backward" in command else "forward")
            bundles.append(f"kernels{number}.attune")
            built = self.do("bash", "-c", command.replace("kernels.attune", bundles[-1]) + " --quiet", **KEPT)
            self.assertEqual((built.returncode, built.stderr), (0, ""), command)
        self.assertEqual((said.stdout, passes), ("ok\n", ["backward", "forward"]))
        # What such a call records builds all of it.
        done = self.do(CALLS, "gpu_alone", "plain", ATTUNE_RECORD="calls.json", ATTUNE_CACHE="off", **there)
        self.assertEqual(done.stdout, "ok\n")
        lines = [json.loads(line) for line in (self.at / "calls.json").read_text().splitlines()]
        self.assertEqual(sorted(line["passes"] for line in lines), ["backward", "forward"])
        built = self.do(ATTUNE, "compile", "--manifest", "calls.json", "-o", "recorded.attune", "--quiet")
        self.assertEqual((built.returncode, built.stderr), (0, ""))
        done = self.do(CALLS, "gpu_alone", "plain", ATTUNE_BUNDLE="recorded.attune", **off)
        self.assertEqual(done.stdout, "ok\n")

    def test_a_backward_of_a_gpu_as_files(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        made = self.do(ATTUNE, "compile", "--target", "sm_80", "--pass", "backward", "--d", "64", "--length", "to_1k",
                       "--score", "s + bias[h]", "--capture", "bias=f32[4]", "--grads", "bias", "--emit", "cu,h",
                       "--emit-dir", "plain", "--json")
        self.assertEqual(made.returncode, 0, made.stderr)
        names = sorted(pathlib.Path(path).name.split("-")[0] for path in json.loads(made.stdout)["files"])
        self.assertEqual(names, ["keys_sm80", "queries_sm80", "rows", "store_sums"])  # sources, and no headers

    def test_a_compiler_does_not_try_again_what_a_bundle_says_it_tried(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        made = self.do(ATTUNE, "compile", "--target", "sm_90a", "--d", "64", "--length", "to_1k", "-o", "all.attune",
                       "--emit", "cu,cubin,h", "--emit-dir", "plain", "--json")
        self.assertEqual(made.returncode, 0, made.stderr)
        said = json.loads(made.stdout)
        self.assertEqual(len(said["files"]), 3 * said["kernels"])
        for path in map(self.at.joinpath, said["files"]):
            self.assertGreater(path.stat().st_size, 1000)
            if path.suffix == ".h" and shutil.which("cc"):
                # The header asserts the sizes that the kernels were compiled with.
                self.check_header(path)
        done = self.do(CALLS, "consider", "plain", "hopper", ATTUNE_BUNDLE="all.attune", ATTUNE_CACHE_SIZE="0")
        self.assertEqual(done.stdout, "ok, 0 compiled\n")

    def check_header(self, path):
        """Every standard of C and C++ accepts an emitted header."""
        for compiler, language, standards in [("cc", "c", ["c99", "gnu99", "c11", "gnu11"]),
                                              ("c++", "c++", ["c++11", "gnu++20"])]:
            for standard in standards if shutil.which(compiler) else []:
                checked = self.do(compiler, f"-std={standard}", "-pedantic-errors", "-Wall", "-Werror", f"-x{language}",
                                  "-fsyntax-only", path)
                self.assertEqual((checked.returncode, checked.stderr), (0, ""), standard)

    def test_a_header_takes_every_name(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        captures = ["restrict", "typeof", "linux", "unix", "asm", "inline", "NULL", "class", "_Bool", "first", "data"]
        params = ["int", "signed", "template", "stride", "i386", "_Atomic"]
        arguments = [f"--capture={name}=i32[64]" for name in captures] + [f"--param={name}=2.0" for name in params]
        made = self.do(ATTUNE, "compile", "--target", "sm_80", "--d", "64", "--length", "to_1k", "--emit", "h",
                       "--emit-dir", "named", "--mask", f"{captures[0]}[q] == {captures[0]}[kv]", "--score",
                       "s + " + " + ".join([f"f32({name}[h])" for name in captures] + params), *arguments, "--quiet")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        headers = list((self.at / "named").iterdir())
        self.assertEqual(len(headers), 2)
        for path in headers:
            self.check_header(path)
            for name in captures + params:
                self.assertIn(f" u_{name};", path.read_text())

    def test_heads_that_share_a_tile(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        for heads, length, blocks, tiles in [
                (1, "to_1k", "3 blocks", "ceil(q_len / 64) * q_heads * batch"),
                (1, "to_4k", "one block", "ceil(q_len / 192) * q_heads * batch"),
                (4, "to_1k", "3 blocks", "ceil(q_len / 16) * q_heads / group * ceil(group / 4) * batch")]:
            folder = self.at / f"shared{heads}{length}"
            made = self.do(ATTUNE, "compile", "--target", "sm_90a", "--d", "64", "--length", length, "--q-len",
                           "64", "--group", str(heads), "--mask", "kv <= q", "--emit", "h", "--emit-dir", folder, "--quiet")
            self.assertEqual((made.returncode, made.stderr), (0, ""))
            for path in folder.iterdir():
                self.assertIn(f"{blocks} per SM, at most tiles: tiles = {tiles}\n", path.read_text())
        refused = self.do(ATTUNE, "compile", "--target", "sm_90a", "--group", "0", "-o", "none.attune")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("it takes a number from 1", refused.stderr)

    def emitted(self, kind, **environment):
        """What `--emit` writes for the kernels of a small mod, for one architecture in a turn: {file's name: text}."""
        folder = self.at / kind
        archs = [arch for nth, arch in enumerate(["sm_80", "sm_90a"]) if in_turn(nth, 2)]
        done = self.do(ATTUNE, "compile", "--mask", "kv <= q", "--target", ",".join(archs), "--d", "64", "--length",
                       "to_1k", "--emit", kind, "--emit-dir", folder, "--quiet", **environment)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        found = {path.name: path.read_text() for path in folder.iterdir()}
        self.assertEqual({pathlib.Path(name).suffix for name in found}, {f".{kind}"})
        for arch in archs:
            self.assertTrue(any(f"-{arch}-" in name for name in found), list(found))
        return found

    def test_ptx(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        for name, text in self.emitted("ptx").items():
            with self.subTest(name):
                self.assertEqual(re.findall(r"^\.target (\w+)", text, re.M), [name.split("-")[1]])
                self.assertEqual(len(re.findall(r"\.entry \w*attune\w*\(", text)), 1)

    def test_sass(self):
        folders = os.environ["PATH"] + ":/usr/local/cuda/bin"
        if not any(shutil.which(program, path=folders) for program in DISASSEMBLERS):
            said = self.refused("no-disassembler", "--target", "sm_80", "--emit", "sass", "--emit-dir", "none",
                                fix="install the CUDA toolkit")
            self.assertIn("neither cuobjdump nor nvdisasm is found", said)
            self.assertFalse((self.at / "none").exists())
        elif "missing" not in self.do(CALLS, "nvrtc").stdout:
            for name, text in self.emitted("sass").items():
                with self.subTest(name):
                    self.assertTrue(re.search(r"\bEXIT\b", text), text[:1000])

    def test_sass_is_what_a_disassembler_prints(self):
        if "missing" in self.do(CALLS, "nvrtc").stdout:
            self.skipTest("there is no NVRTC")
        tools = self.at / "tools"
        tools.mkdir()
        for program, arguments in DISASSEMBLERS.items():
            # This machine's own comes first otherwise.
            for other in DISASSEMBLERS:
                (tools / other).write_text("#!/bin/bash\nexit 1\n")
                (tools / other).chmod(0o755)
            with self.subTest(program):
                script = tools / program
                script.write_text(f"""#!/bin/bash
                    [[ $1 == --version ]] && exit
                    echo {program} "$@"
                    head -c 4 "${{@: -1}}"
                    """)
                script.chmod(0o755)
                path = f"{tools}:{os.environ['PATH']}"
                for text in self.emitted("sass", PATH=path).values():
                    self.assertRegex(text, rf"^{program}{arguments} /\S+\n\x7fELF$")
                script.write_text("#!/bin/bash\n[[ $1 == --version ]]\n")
                refused = self.do(ATTUNE, "compile", "--target", "sm_80", "--length", "to_1k", "--emit", "sass",
                                  "--emit-dir", "refused", PATH=path)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn("the disassembler rejects a cubin", refused.stderr)
                self.assertFalse((self.at / "refused").exists())
                script.unlink()
                shutil.rmtree(self.at / "sass")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_a_record_is_a_manifest_of_what_was_used(self):
        for name in ["captures", "sinks", "captures"]:
            done = self.do(CALLS, "f32", name, ATTUNE_RECORD="used.json")
            self.assertEqual(done.stdout, "ok\n")
        lines = [json.loads(line) for line in (self.at / "used.json").read_text().splitlines()]
        self.assertEqual([line["passes"] for line in lines], ["forward"] * 3)
        self.assertEqual(list(lines[0]["mods"]["captures"]), ["slope", "t0", "t1"])
        built = self.do(ATTUNE, "compile", "--manifest", "used.json", "-o", "used.attune", "--json")
        self.assertEqual(built.returncode, 0, built.stderr)
        for name in ["captures", "sinks"]:
            done = self.do(CALLS, "f32", name, ATTUNE_JIT="off", ATTUNE_CACHE_SIZE="0", ATTUNE_BUNDLE="used.attune")
            self.assertEqual(done.stdout, "ok\n")
        self.assertEqual(self.do(CALLS, "f32", "params", ATTUNE_JIT="off", ATTUNE_BUNDLE="used.attune").returncode, 2)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_bundles_are_the_same_bytes_each_time_and_for_each_number_of_threads(self):
        files = []
        for threads in (1, 3):
            name = f"{threads}.attune"
            done = self.do(ATTUNE, "compile", "--mask", "kv <= q", "--capture", "x=f32[4]", "--target",
                           "avx2,portable", "--pass", "forward,backward", "-j", threads, "-o", name,
                           "--emit", "o,ll", "--emit-dir", f"plain{threads}", "--progress", "plain",
                           ATTUNE_CACHE_SIZE="0")
            self.assertEqual(done.returncode, 0, done.stderr)
            steps = done.stderr.splitlines()
            self.assertTrue(steps[-1].startswith(f"{len(steps)}/{len(steps)} "), steps)
            kinds = sorted(path.suffix for path in (self.at / f"plain{threads}").iterdir())
            self.assertEqual(kinds, [".ll"] * len(steps) + [".o"] * len(steps))
            files.append((self.at / name).read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertNotIn(str(self.at).encode(), files[0])
        said = self.do(ATTUNE, "bundle", "1.attune", "--verify", "--json")
        entries = json.loads(said.stdout)["entries"]
        self.assertEqual([e["good"] for e in entries], [True] * len(entries))
        self.assertEqual({e["facts"]["kind"] for e in entries}, {"CPU object"})
        self.assertTrue(all(0 < e["stored"] <= e["bytes"] for e in entries))
        *listed, total = self.do(ATTUNE, "bundle", "1.attune").stdout.splitlines()
        self.assertRegex(total, rf"^{len(entries)} entries, [0-9.]+ KB stored of [0-9.]+ KB$")
        for line, e in zip(listed, entries):
            self.assertEqual(line.split(maxsplit=3), [e["key"][:32], str(e["stored"]), str(e["bytes"]), e["label"]])
        (self.at / "1.attune").write_bytes(files[0][:-1] + bytes([files[0][-1] ^ 1]))
        broken = self.do(ATTUNE, "bundle", "1.attune", "--verify")
        self.assertEqual(broken.returncode, 2)
        self.assertIn("[bundle-damaged]", broken.stderr)

    def refused(self, code, *arguments, fix="", manifest=None):
        if manifest is not None:
            (self.at / "plan.json").write_text(manifest)
            arguments += ("--manifest", "plan.json", "-o", "out.attune")
        done = self.do(ATTUNE, "compile", *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"[{code}]", done.stderr)
        self.assertIn(fix, done.stderr)
        self.assertFalse((self.at / "out.attune").exists())
        return done.stderr

    def test_the_page_lists_the_fields_of_a_shape(self):
        help_page = subprocess.run([ATTUNE, "compile", "--help"], capture_output=True, text=True).stdout
        options = help_page[help_page.index("  --pass"):help_page.index("  -o FILE")]
        fields = [name.replace("-", "_") for name in re.findall(r"^  --([a-z0-9-]+)", options, re.M)[1:]]
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/offline.md").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^\| `([a-z0-9_]+)` \|", page, re.M), fields)

    def test_mistakes(self):
        out = ("-o", "out.attune")
        self.refused("no-output", "--target", "avx2")
        self.refused("no-target", *out)
        for nothing in ",", ",,", "":
            self.refused("no-target", "--target", nothing, *out)
        self.refused("bad-choice", "--target", "avx2", "--pass", ",", *out)
        self.refused("bad-choice", "--target", "avx2", "--emit", ",", "--emit-dir", "d", *out)
        self.refused("unknown-target", "--target", "sm_90", *out, fix="did you mean sm_90a?")
        self.refused("unknown-target", "--target", "sm_95", *out)
        self.refused("manifest-value", "--target", "sm_80", "--d", "600", *out)
        self.refused("manifest-value", "--target", "sm_80", "--length", "short", *out)
        self.refused("bad-choice", "--target", "avx2", "--pass", "forwards", *out, fix="forward")
        self.refused("emit-half", "--target", "avx2", "--emit", "cu")
        self.refused("bad-choice", "--target", "avx2", "--emit", "cubins", "--emit-dir", "d", fix="cubin")
        self.refused("manifest-and-options", "--manifest", "plan.json", "--target", "avx2", *out)
        self.refused("file-missing", "--manifest", "plan.json", *out)
        self.refused("manifest-json", manifest="{")
        self.refused("manifest-json", manifest='{"targets": "sm_80"}\n{"targets": \n', fix="plan.json:2")
        self.refused("manifest-key", manifest='{"target": "sm_80"}', fix="did you mean targets?")
        self.refused("manifest-key", manifest='{"targets": "sm_80", "mods": {"scor": "s"}}', fix="did you mean score?")
        self.refused("manifest-key", manifest='[{"targets": "sm_80", "shapes": {"dtyp": "f16"}}]', fix="dtype?")
        self.refused("manifest-value", manifest='{"targets": 80}')
        self.refused("manifest-value", manifest='{"targets": "sm_80", "shapes": {"d": [64, "wide"]}}')
        self.refused("manifest-value", manifest='{"targets": "sm_80", "mods": {"captures": ["x"]}}')
        self.refused("unknown-name", manifest='{"targets": "sm_80", "mods": {"score": "s + slop[h]"}}')
        for target, kinds, wrong in (("avx2", "cubin", "cubin"), ("avx2", "cubin,ll", "cubin"), ("avx2", "ll,h", "h"),
                                     ("sm_80", "cu,o", "o")):
            said = self.refused("emit-target", "--target", target, "--mask", "kv <= q", "--emit", kinds, "--emit-dir",
                                "d", *out)
            self.assertIn(f"--emit {wrong}\n", said)
            self.assertFalse((self.at / "d").exists())
        if ENGINE:
            self.refused("unknown-capture", manifest='{"targets": "avx2", "passes": "backward", "shapes": {"grads": '
                         '"slop"}, "mods": {"score": "s + slope[h]", "captures": {"slope": "f32[4]"}}}', fix="slope?")


unittest.main(verbosity=2)
