# tests/tools/cache.py — attune cache from outside: its lists, complaints, removals and refusals
import json
import os
import pathlib
import pty
import subprocess
import time
import unittest

from calls import ATTUNE, ENGINE, Calls


class Cache(Calls):
    def entry(self, key, bytes=b"code", **facts):
        # An entry not written by attune, but as docs/cache.md describes one. Only its checksums are attune's.
        path = self.at / "cache/entries" / key[:2] / key[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{name}: {value}\n" for name, value in facts.items())
        path.write_bytes(f"attune cache 1\nkey: {key}{'0' * 32}\n{lines}bytes: {len(bytes)}\n".encode() + bytes)
        return path

    def cache(self, *arguments, code=0, **environment):
        said = self.attune("cache", *arguments, **{"ATTUNE_CACHE": str(self.at / "cache"), "ATTUNE_CACHE_SIZE": "1G",
                                                   **environment})
        self.assertEqual(said.returncode, code, said.stderr)
        return said

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_entries(self):
        self.qkv()
        kept = {"ATTUNE_CACHE": str(self.at / "cache"), "ATTUNE_CACHE_SIZE": "1G"}
        run = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out, "--mask", "kv <= q"]
        self.assertEqual(self.attune(*run, **kept).returncode, 0)
        rows = [json.loads(line) for line in self.cache("ls", "--json").stdout.splitlines()]
        self.assertGreaterEqual(len(rows), 2)
        (forward,) = [r for r in rows if r["facts"]["kernel"].startswith("forward")]
        self.assertEqual((forward["facts"]["mask"], forward["facts"]["kind"], forward["layer"]),
                         ("kv <= q", "CPU object", "user"))
        self.assertGreater(float(forward["facts"]["seconds"]), 0)
        self.assertEqual(forward["bytes"], pathlib.Path(forward["file"]).stat().st_size)
        table = self.cache("ls").stdout.splitlines()
        self.assertEqual(len(table), len(rows) + 1)
        self.assertEqual(sum("mask kv <= q" in line for line in table), 1)
        self.assertEqual(self.cache("ls", "--sort", "size").stdout.count("\n"), len(table))

        said = self.cache("show", forward["id"][:6]).stdout
        self.assertIn("mask       kv <= q\n", said)
        self.assertEqual(json.loads(self.cache("show", forward["id"], "--json").stdout), forward)
        self.cache("show", forward["id"], "--out", "forward.o")
        self.assertTrue((self.at / "forward.o").read_bytes().startswith(b"\x7fELF"))

        stats = json.loads(self.cache("stats", "--json").stdout)["user"]
        self.assertEqual((stats["entries"], stats["bytes"], stats["limit"], stats["mode"]),
                         (len(rows), sum(r["bytes"] for r in rows), 1 << 30, "written"))
        self.assertEqual(stats["kinds"]["CPU object"]["entries"], len(rows))
        self.assertIn(f"entries  {len(rows)}\n", self.cache("stats").stdout)
        self.assertIn("0 bad", self.cache("verify").stdout)

        # As the cache of the system, below that of another user, the same entries are used and never written.
        below = {"ATTUNE_CACHE": str(self.at / "mine"), "ATTUNE_CACHE_SYSTEM": str(self.at / "cache")}
        self.assertEqual(self.attune(*run, **{**kept, **below}).returncode, 0)
        self.assertFalse((self.at / "mine/entries").exists())
        self.assertEqual({json.loads(line)["layer"] for line in self.cache("ls", "--json", **below).stdout.splitlines()},
                         {"system"})
        self.assertEqual(json.loads(self.cache("clear", "--yes", "--json", **below).stdout)["removed"]["entries"], 0)

        sound = {"sound": len(rows), "bad": 0, "removed": 0, "entries": []}
        self.assertEqual(json.loads(self.cache("verify", "--json").stdout), sound)

        # A damaged entry is found, reported and built again.
        path = pathlib.Path(forward["file"])
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        bad = json.loads(self.cache("verify", "--json", code=1).stdout)
        self.assertEqual([bad[key] for key in ("sound", "bad", "removed")], [len(rows) - 1, 1, 0])
        self.assertEqual([one["wrong"] for one in bad["entries"]], ["its bytes are damaged"])
        self.assertIn("[bad-entry]", self.cache("show", forward["id"], "--out", "x", code=2).stderr)
        self.assertFalse((self.at / "x").exists())
        self.assertIn("[cache-read-only]", self.cache("verify", "--repair", code=2, ATTUNE_CACHE_MODE="ro").stderr)
        self.assertIn("1 removed", self.cache("verify", "--repair").stdout)
        self.assertFalse(path.exists())
        self.assertEqual(self.attune(*run, **kept).returncode, 0)
        self.assertTrue(path.exists())

        self.assertIn("[not-confirmed]", self.cache("clear", code=2).stderr)
        self.assertIn("would remove", self.cache("clear", "--dry").stdout)
        self.assertTrue(path.exists())
        gone = json.loads(self.cache("clear", "--yes", "--json").stdout)
        self.assertEqual((gone["removed"]["entries"], gone["left_bytes"]), (len(rows), 0))
        self.assertFalse(path.exists())
        self.assertIn("no entries in ", self.cache("ls").stdout)
        self.assertEqual(self.cache("clear").returncode, 0)  # nothing to ask for

    def test_odd_files(self):
        os.mkfifo(self.entry("ab" * 16).with_name("c" * 30))
        self.entry("abab" + "0" * 28, kind="thing").with_name("d" * 30).mkdir()
        self.entry("1" * 32).write_bytes(b"attune cache 9\nwhatever")
        rows = {json.loads(line)["id"]: json.loads(line) for line in self.cache("ls", "--json").stdout.splitlines()}
        self.assertEqual(len(rows), 5)
        self.assertEqual(rows["ab" + "c" * 30]["wrong"], "it is not a regular file")
        self.assertIn("other version", self.cache("ls").stdout)
        self.assertIn("4 bad", self.cache("verify", code=1).stdout)  # that of another version is not for us to judge
        self.assertIn("[ambiguous-entry]", self.cache("show", "abab", code=2).stderr)
        self.assertIn("[unknown-entry]", self.cache("show", "f", code=2).stderr)
        self.assertIn("4 removed", self.cache("verify", "--repair").stdout)
        self.assertEqual(len(self.cache("ls", "--json").stdout.splitlines()), 1)

    def test_pruning(self):
        now = int(time.time())
        for i in range(5):
            os.utime(self.entry(f"{i:032x}", bytes=b"x" * 900), (now, now - i * 86400))
        each = (self.at / "cache/entries/00" / f"{0:030x}").stat().st_size
        removed = lambda *arguments: json.loads(self.cache("prune", "--json", *arguments).stdout)["removed"]["entries"]
        self.assertEqual(removed(), 0)
        self.assertEqual(removed("--older-than", "84h", "--dry"), 1)
        self.assertEqual(removed("--older-than", "84h"), 1)
        self.assertEqual(removed("--older-than", "2d"), 2)
        self.assertEqual(removed("--to", str(each)), 1)
        self.assertEqual(removed("--to", "0"), 1)
        for wrong in "", "x", "1T", "-1", "1.5G", "M":
            self.assertIn("[bad-number]", self.cache("prune", "--to", wrong, code=2).stderr)
        self.assertIn("[bad-number]", self.cache("prune", "--older-than", "30y", code=2).stderr)

    def test_clearing_asks_at_a_terminal(self):
        path = self.entry("0" * 32)
        for answer, stays in ("n", True), ("", True), ("y", False):
            ours, theirs = pty.openpty()
            os.write(ours, answer.encode() + b"\n")
            said = subprocess.run([ATTUNE, "cache", "clear"], stdin=theirs, capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "ATTUNE_CACHE": str(self.at / "cache")})
            os.close(ours), os.close(theirs)
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertIn("remove 1 entry, ", said.stderr)
            self.assertEqual(path.exists(), stays, answer)

    def refused(self, code, *arguments, fix=""):
        said = self.attune(*arguments)
        self.assertEqual((said.returncode, said.stdout), (2, ""))
        self.assertIn(f"[{code}]", said.stderr)
        self.assertIn(fix, said.stderr)

    def test_mistakes(self):
        self.refused("no-verb", "cache")
        self.refused("unknown-verb", "cache", "sl", fix="ls")
        self.refused("unknown-option", "cache", "ls", "--jsn", fix="--json")
        self.refused("bad-usage", "cache", "show")
        self.refused("bad-choice", "cache", "ls", "--sort", "age")
        self.assertIn("[no-cache]", self.cache("ls", code=2, ATTUNE_CACHE="off").stderr)
        self.assertIn("[no-cache]", self.cache("ls", code=2, ATTUNE_CACHE="", HOME="", XDG_CACHE_HOME="").stderr)
        for verb in ("ls", "show", "stats", "verify", "clear", "prune"):
            said = self.attune("cache", verb, "--help")
            self.assertEqual(said.returncode, 0)
            self.assertIn("\nEXAMPLES\n", said.stdout)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_a_home_that_cannot_be_written_is_no_failure(self):
        self.qkv()
        run = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out, "--target", "cpu"]
        (self.at / "file").write_text("")
        for home in "", "/proc/nowhere", str(self.at / "file"), "relative":
            said = self.attune(*run, HOME=home, XDG_CACHE_HOME="", ATTUNE_CACHE="", ATTUNE_CACHE_SIZE="1G")
            self.assertEqual((said.returncode, said.stderr), (0, ""), home)
        self.assertFalse((self.at / "relative").exists())


if __name__ == "__main__":
    unittest.main()
