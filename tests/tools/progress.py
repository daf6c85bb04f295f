# tests/tools/progress.py — the command line says on a terminal that it waits for compilers, and nowhere else
import os
import unittest

from calls import ATTUNE, ENGINE, Calls

from screen import on_terminal, told
from turn import in_turn

# Seconds of the compiler, of which one passes before it is told.
SLOW = " + ".join(f"sin(s * {i}.5f)" for i in range(300))


@unittest.skipUnless(ENGINE, "there is no compiler for this machine's CPU")
class Progress(Calls):
    def setUp(self):
        super().setUp()
        self.qkv()

    def shown(self, *arguments, **environment):
        """What the terminal shows in the end, and whether it ever said what is compiled."""
        os.chdir(self.at)
        screen, status = on_terminal([ATTUNE, *map(str, arguments)], ATTUNE_CACHE="off", **environment)
        self.assertEqual(status, 0, screen.text())
        return screen.text(), [page for page in screen.ever if "attune compiles forward-f32" in page]

    RUN = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "results", "--score", SLOW]

    def test_run(self):
        text, pages = told(lambda: self.shown(*self.RUN), lambda made: made[1])
        self.assertTrue(any(page.split("\n")[0].startswith("forward [") for page in pages))
        self.assertTrue(all(page.count("\n") == 1 for page in pages))  # the bar, and the line below
        self.assertTrue(text.startswith("results/out.npy"), text)
        self.assertNotIn("compile", text)

    def test_compile(self):
        text, pages = told(lambda: self.shown("compile", "--score", SLOW, "--target", "host", "-o", "kernels.attune"),
                           lambda made: made[1])
        self.assertTrue(pages)
        self.assertRegex(text, r"^kernels.attune  \d+ kernels, \S+ KB$")

    def test_not_wanted(self):
        for nth, (more, environment) in enumerate([[["--quiet"], {}], [["--progress", "none"], {}],
                                                   [["--progress=none"], {}], [[], {"ATTUNE_PROGRESS": "off"}]]):
            if not in_turn(nth, 4):
                continue
            self.assertEqual(self.shown(*self.RUN, *more, **environment)[1], [], more)

    def test_piped(self):
        said = self.attune(*self.RUN, ATTUNE_CACHE="off")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        said = told(lambda: self.attune(*self.RUN, "--quiet", ATTUNE_CACHE="off", ATTUNE_PROGRESS="on"),
                    lambda said: said.stderr)
        self.assertRegex(said.stderr, r"^attune compiles forward-f32: \d+\.\d s\nattune compiled 1 kernel in \d+\.\d s\n$")


if __name__ == "__main__":
    unittest.main()
