# tests/tools/nvrtc.py — NVRTC that is missing, too old, or another one than that which made the skeletons
import json
import os
import sys
import unittest

FAKE = os.path.abspath(sys.argv.pop())  # a libnvrtc of a version that the environment says, which compiles nothing

from calls import Calls

SHAPE = ["--target", "sm_90a", "--d", "64", "--length", "longer", "-j", "1"]


class Nvrtc(Calls):
    def compile(self, *more, score="s + 0.5f * f32(kv)", **environment):
        return self.attune("compile", "--score", score, *SHAPE, "--quiet", "-o", "kernels.attune", *more,
                           **{"ATTUNE_CACHE": str(self.at / "cache"), "ATTUNE_CACHE_SIZE": "1G", **environment})

    def made(self):
        """How each kernel in the cache was made."""
        listed = self.attune("cache", "ls", "--json", ATTUNE_CACHE=str(self.at / "cache"))
        all_facts = [one["facts"] for one in map(json.loads, listed.stdout.splitlines())]
        return [facts.get("made", "whole") for facts in all_facts if facts["kind"] == "cubin"]

    def test_not_there(self):
        (self.at / "text.so").write_text("no library")
        for path, why in [("/nonexistent/libnvrtc.so", "was not found as /nonexistent/libnvrtc.so"),
                          (self.at / "text.so", "was not found as"),
                          ("libm.so.6", "libm.so.6 has no nvrtcVersion: attune needs NVRTC 12 or newer")]:
            for splice in "auto", "on", "off":
                said = self.compile(ATTUNE_NVRTC=str(path), ATTUNE_SPLICE=splice)
                self.assertEqual(said.returncode, 2)
                self.assertIn("[no-compiler]", said.stderr)
                self.assertIn(why, " ".join(said.stderr.split()))
        self.assertEqual(self.made(), [])
        self.assertFalse((self.at / "kernels.attune").exists())

    def test_too_old(self):
        said = self.compile(ATTUNE_NVRTC=FAKE, ATTUNE_TEST_NVRTC_VERSION="11.8")
        self.assertEqual(said.returncode, 2)
        self.assertIn("is NVRTC 11.8; attune needs 12 or newer", " ".join(said.stderr.split()))

    def test_another_version(self):
        said = self.compile("--skeleton", "true", ATTUNE_SPLICE="on")
        if "[no-compiler]" in said.stderr:
            self.skipTest("there is no NVRTC")
        self.assertEqual(said.returncode, 0, said.stderr)
        os.rename(self.at / "kernels.attune", self.at / "skeletons.attune")
        skeletons = {"ATTUNE_BUNDLE": "skeletons.attune", "ATTUNE_SPLICE": "on", "ATTUNE_CACHE": str(self.at / "cache")}
        before = self.made()
        # Skeletons of the other version are not found, and those that this one makes are none: all is whole.
        for version in "12.0", "12.8", "12.9", "13.9", "14.0":
            said = self.compile(score=f"s * {version}f", ATTUNE_NVRTC=FAKE, ATTUNE_TEST_NVRTC_VERSION=version, **skeletons)
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            os.remove(self.at / "kernels.attune")
        self.assertEqual(self.made().count("spliced"), before.count("spliced"))
        self.assertEqual(len(self.made()), len(before) + 5)
        self.assertEqual(self.compile(score="s * 0.75f + f32(kv)", **skeletons).returncode, 0)
        self.assertEqual(self.made().count("spliced"), before.count("spliced") + 1)


if __name__ == "__main__":
    unittest.main()
