# tests/tools/splice.py — kernels spliced or compiled as a whole, as ATTUNE_SPLICE asks; skeletons that are damaged or
# cannot be kept
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import unittest

from calls import ATTUNE, Calls

SHAPE = ["--target", "sm_90a", "--d", "64", "--length", "longer", "-j", "1"]


def caching(folder):
    return {"ATTUNE_CACHE": str(folder / "cache"), "ATTUNE_CACHE_SIZE": "1G"}


class Splice(Calls):
    turns = 3

    @classmethod
    def setUpClass(cls):
        # Each test begins with a cache that has the kernel of `s`, compiled as a whole.
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.first = pathlib.Path(folder.name)
        said = subprocess.run([ATTUNE, "compile", "--score", "s", *SHAPE, "--quiet", "-o", "kernels.attune"], cwd=cls.first,
                              capture_output=True, text=True, timeout=200,
                              env={**os.environ, "ATTUNE_SPLICE": "off", **caching(cls.first)})
        if "no-compiler" in said.stderr:
            raise unittest.SkipTest("there is no NVRTC")
        if said.returncode:
            raise RuntimeError(said.stderr)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.first / "cache", self.at / "cache")

    def compile(self, score, splice, way="forward", quiet=True, **environment):
        asked = {"ATTUNE_SPLICE": splice} if splice else {}
        return self.attune("compile", "--score", score, "--pass", way, *SHAPE, *["--quiet"] * quiet, "-o", "kernels.attune",
                           **{**self.cache(), **asked, **environment})

    def cache(self):
        return caching(self.at)

    def entries(self):
        said = self.attune("cache", "ls", "--json", **self.cache())
        return [json.loads(line) for line in said.stdout.splitlines()]

    def made(self):
        return sorted(one["facts"].get("made", "whole") for one in self.entries() if one["facts"]["kind"] == "cubin")

    def skeletons(self):
        return [one for one in self.entries() if one["facts"]["kind"] == "skeleton"]

    def test_asked(self):
        self.assertEqual((self.made(), self.skeletons()), (["whole"], []))
        for score in ("s * 0.5f + f32(q)", "s * 0.25f + 2.0f * f32(q)"):
            self.assertEqual(self.compile(score, "on").returncode, 0)
        self.assertEqual((self.made(), len(self.skeletons())), (["spliced", "spliced", "whole"], 1))

    def logged(self, *arguments, **environment):
        said = self.compile(*arguments, ATTUNE_LOG="build", **environment)
        return [line for line in said.stderr.splitlines() if "forward_sm90:" in line]

    def test_phases(self):
        seconds = r"\d[\d.]* (us|ms|s)"
        (line,) = self.logged("s * 0.75f + f32(q)", "off")
        self.assertRegex(line, rf"compiled in {seconds} \(C\+\+ to PTX {seconds}, assembler {seconds}\): ")
        (line,) = self.logged("s * 0.5f + f32(q)", "on")
        self.assertRegex(line, rf"\(skeleton {seconds}, the mod to PTX {seconds}, splice {seconds}, assembler {seconds}\): ")
        said = self.attune("explain", "--score", "s * 0.625f", "--target", "cuda", "--arch", "90", "--d", "64", **self.cache())
        self.assertRegex(said.stdout, r"compiled now: C\+\+ to PTX \d+\.\d\d s, assembler \d+\.\d\d s")
        said = self.attune("explain", "--score", "s * 0.625f", "--target", "cuda", "--arch", "90", "--d", "64", **self.cache())
        self.assertNotIn("compiled now", said.stdout)

    def test_damaged(self):
        self.assertEqual(self.compile("s + 0.5f * f32(kv)", "on").returncode, 0)
        (skeleton,) = self.skeletons()
        with open(skeleton["file"], "r+b") as file:
            file.seek(skeleton["bytes"] // 2)
            file.write(b"damaged")
        self.assertEqual(self.compile("s + 0.25f * f32(kv)", "on").returncode, 0)
        self.assertEqual(self.made(), ["spliced", "spliced", "whole"])
        self.assertIn("0 bad", self.attune("cache", "verify", **self.cache()).stdout)

    def test_not_kept(self):
        for environment in ({"ATTUNE_CACHE": "off"}, {"ATTUNE_CACHE_MODE": "ro"}):
            (self.at / "kernels.attune").unlink(missing_ok=True)
            said = self.compile("s + 0.5f * f32(kv)", "on", **environment)
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertTrue((self.at / "kernels.attune").exists())
        self.assertEqual((self.made(), self.skeletons()), (["whole"], []))

    def test_same_bytes(self):
        # What is compiled ahead of time does not depend on spliced kernels in the cache.
        bundle, score = self.at / "kernels.attune", "s * 0.5f + f32(q)"
        made = {}
        for splice in ("on", "", "auto", "off"):
            self.assertEqual(self.compile(score, splice, "backward").returncode, 0)
            made[splice] = bundle.read_bytes()
            bundle.unlink()
        self.assertNotEqual(made["on"], made["off"])
        self.assertEqual(made[""], made["off"])
        self.assertEqual(made["auto"], made["off"])

    def test_bundled(self):
        # With ATTUNE_SPLICE=on a bundle has the skeletons too, for further mods of the tiles.
        said = self.compile("s + 0.5f * f32(kv)", "on", quiet=False)
        self.assertIn(" 1 kernels", said.stdout)
        os.rename(self.at / "kernels.attune", self.at / "other.attune")
        shutil.rmtree(self.at / "cache")
        self.assertEqual(self.compile("s + 0.25f * f32(kv)", "on", ATTUNE_BUNDLE="other.attune").returncode, 0)
        self.assertEqual((self.made(), self.skeletons()), (["spliced"], []))

    def skeleton_bundle(self):
        """A bundle of skeletons alone; then the cache is empty."""
        said = self.attune("compile", "--score", "s + 0.5f * f32(kv)", *SHAPE, "--skeleton", "true", "--json",
                           "-o", "skeletons.attune", **self.cache())
        self.assertEqual((said.returncode, json.loads(said.stdout)["kernels"]), (0, 0), said.stderr)
        shutil.rmtree(self.at / "cache")
        return self.at / "skeletons.attune"

    def kinds(self, bundle):
        listed = json.loads(self.attune("bundle", str(bundle), "--json").stdout)
        return [one["facts"]["kind"] for one in listed["entries"]]

    def test_bundle_of_skeletons(self):
        bundle = self.skeleton_bundle()
        self.assertEqual(self.kinds(bundle), ["skeleton"])
        self.assertEqual(self.compile("s + 0.25f * f32(kv)", "on", ATTUNE_BUNDLE=str(bundle)).returncode, 0)
        self.assertEqual((self.made(), self.skeletons()), (["spliced"], []))

    def test_damaged_bundle_of_skeletons(self):
        bundle = self.skeleton_bundle()
        bytes = bytearray(bundle.read_bytes())
        bytes[-1000] ^= 255
        bundle.write_bytes(bytes)
        self.assertEqual(self.compile("s + 0.25f * f32(kv)", "on", ATTUNE_BUNDLE=str(bundle)).returncode, 0)
        self.assertEqual((self.made(), len(self.skeletons())), (["spliced"], 1))  # compiled here

    def test_spills_in_bundle(self):
        # Instead of the skeleton, the note that mods spill registers in it: nobody tries.
        # Which of these spills no less than as a whole is up to the assembler.
        for score in ("0.5f * s * (1.0f + erf(s))", "s + sum(i, 16, t[h, i] * cos(0.5f * f32(i) * s))"):
            mod = ["compile", "--score", score, *["--capture", "t=f32[16, 16]"] * ("t[" in score), "--pass", "backward",
                   "--target", "sm_90a", "--d", "128", "--length", "longer", "-j", "1"]
            said = self.attune(*mod, "--skeleton", "true", "-o", "skeletons.attune", **self.cache())
            self.assertEqual(said.returncode, 0, said.stderr)
            if "skeleton" not in self.kinds("skeletons.attune"):
                break
            os.remove(self.at / "skeletons.attune")
        else:
            self.fail("no mod spills")
        shutil.rmtree(self.at / "cache")
        said = self.attune(*mod, "--quiet", "-o", "kernels.attune",
                           **{**self.cache(), "ATTUNE_SPLICE": "on", "ATTUNE_BUNDLE": "skeletons.attune"})
        self.assertEqual((said.returncode, self.skeletons()), (0, []))
        self.assertIn("another mod spilled registers in this skeleton", self.made())

    def test_full_disk(self):
        # No file may grow beyond 20 kB: neither kernels nor skeletons are kept, and nothing is left of them.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        run = subprocess.run([ATTUNE, "compile", "--score", "s + 0.5f * f32(kv)", "--pass", "backward", *SHAPE,
                              "-o", "kernels.attune"], cwd=self.at, capture_output=True, text=True, timeout=200,
                             preexec_fn=limit, env={**os.environ, **self.cache(), "ATTUNE_SPLICE": "on"})
        self.assertIn("file-unwritable", run.stderr)  # the bundle
        self.assertEqual(self.skeletons(), [])
        self.assertEqual([one for one in self.entries()
                          if one["facts"]["kernel"] == "backward_sm90" and one["facts"]["kind"] == "cubin"], [])
        self.assertIn("0 bad", self.attune("cache", "verify", **self.cache()).stdout)
        self.assertEqual(list((self.at / "cache" / "unfinished").iterdir()), [])

    def test_value(self):
        said = self.compile("s", "maybe")
        self.assertEqual(said.returncode, 2)
        self.assertIn("ATTUNE_SPLICE", said.stderr)


if __name__ == "__main__":
    unittest.main()
