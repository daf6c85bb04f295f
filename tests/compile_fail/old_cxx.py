# tests/compile_fail/old_cxx.py — an older C++ is refused in a few lines, and attune/c.h is not
import subprocess
import sys

include, *compiler = sys.argv[1:]


def said(text, *flags):
    done = subprocess.run([*compiler, "-I", include, "-fsyntax-only", "-x", "c++", *flags, "-"], input=text,
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


for header in "attune.h", "expr.h", "tensor.h", "watch.h", "mods.h":
    status, text = said(f"#include <attune/{header}>\n", "-std=c++17")
    if status == 0 or "attune needs C++20" not in text or len(text.splitlines()) > 20:
        sys.exit(f"{header}: with -std=c++17 the compiler says:\n{text}")
status, text = said("#include <attune/c.h>\n", "-std=c++17")
if status != 0:
    sys.exit(f"c.h: with -std=c++17 the compiler says:\n{text}")
