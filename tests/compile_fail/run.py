# tests/compile_fail/run.py — compiles one mistake with the user's compiler: what builds, what does not, and the message
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def compile(command, file, *flags):
    done = subprocess.run([*command, "-fsyntax-only", *flags, str(file)], capture_output=True, text=True, timeout=300)
    return done.returncode == 0, done.stdout + done.stderr


def complaint(command, file):
    """What is wrong with the case, or None. Its lines `// expect: sentence` are what FAIL must make the compiler say, and
    it must name a line of the case; `// expect: clang: sentence` and `// expect: gcc: sentence` are for one compiler."""
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    one = "clang" if "clang" in asked else "gcc"
    expected = re.findall(r"^// expect: (?:(gcc|clang): )?(.+?)\s*$", Path(file).read_text(encoding="utf-8"), re.M)
    expected = [sentence for of, sentence in expected if of in ("", one)]
    if not expected:
        return "has no line `// expect: sentence`"
    built, said = compile(command, file)
    if not built:
        return f"must compile without FAIL:\n{said}"
    built, said = compile(command, file, "-DFAIL")
    if built:
        return "compiles with FAIL, and must not"
    if not re.search(rf"{re.escape(Path(file).name)}:\d+", said):
        return f"fails, but names no line of it:\n{said}"
    missing = [sentence for sentence in expected if sentence not in said]
    return f"fails, but does not say `{missing[0]}`:\n{said}" if missing else None


def self_test(command):
    case = '// expect: say what\n#ifdef FAIL\nstatic_assert(false, "{}");\n#endif\n{}\n'
    trials = {None: case.format("say what", ""),
              "has no line": "int a;\n",
              "must compile": case.format("say what", "#error broken"),
              "compiles with FAIL": "// expect: say what\nint a;\n",
              "fails, but does not say": case.format("something else", "")}
    with tempfile.TemporaryDirectory() as folder:
        for start, text in trials.items():
            file = Path(folder) / "case.cpp"
            file.write_text(text, encoding="utf-8")
            found = complaint(command, file)
            if found is not None if start is None else not (found or "").startswith(start):
                return f"expected {start}, got {found}"
    return None


cut = sys.argv.index("--")
command, file = sys.argv[cut + 1:], sys.argv[1]
found = self_test(command) if file == "--self-test" else complaint(command, file)
sys.exit(f"{file}: {found}" if found else 0)
