# tests/screen.py — runs a program on its own terminal, reads the screen, repeats runs until they report a wait
import os
import pty
import select
import subprocess
import time


class Screen:
    """The lines that a terminal of endless height shows; of escape sequences those that attune writes."""

    def __init__(self):
        self.lines, self.row, self.column, self.kept, self.ever = [""], 0, 0, (0, 0), set()

    def down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def write(self, text):
        at = 0
        while at < len(text):
            sequence = text[at:at + 2] if text[at] == "\x1b" else text[at]
            if sequence == "\x1b[":
                sequence += text[at + 2]
            at += len(sequence)
            line = self.lines[self.row]
            if sequence == "\r":
                self.column = 0
            elif sequence in ("\n", "\x1bD"):
                self.down()
            elif sequence == "\x1bM":
                self.row -= 1
            elif sequence == "\x1b7":
                self.kept = self.row, self.column
            elif sequence == "\x1b8":
                self.row, self.column = self.kept
            elif sequence == "\x1b[K":
                self.lines[self.row] = line[:self.column]
            else:
                assert sequence.isprintable() and len(sequence) == 1, repr(sequence)
                self.lines[self.row] = line[:self.column].ljust(self.column) + sequence + line[self.column + 1:]
                self.column += 1
            self.ever.add("\n".join(self.lines))

    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")


def on_terminal(command, timeout=120, **environment):
    """Runs a command whose standard files are a terminal, and returns the Screen and the exit status."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                             env={**os.environ, "TERM": "xterm", **environment})
    os.close(theirs)
    screen, end = Screen(), time.monotonic() + timeout
    while time.monotonic() < end:
        ready, _, _ = select.select([ours], [], [], 0.1)
        try:
            said = os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        screen.write(said.decode())
    os.close(ours)
    return screen, child.wait(timeout=10)


def told(run, is_told):
    """Repeats a run until it reports its wait: on a busy machine the compiler may end before the report."""
    for _ in range(4):
        made = run()
        if is_told(made):
            break
    return made
