# cmake/older_glibc.py — older_glibc.py VERSION FOLDER CC: stubs of this machine's glibc with an older one's symbols
"""A stub has the names and versions of a library and no code. glibc keeps old versions of its symbols, so that each has
the newest that VERSION knew; those that came later are left out, and the linker misses them."""

import re
import subprocess
import sys
from pathlib import Path


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def symbols(library: str, newest: str) -> dict[str, tuple[str, str]]:
    """The version and the kind of each symbol, as far as an older glibc had it."""
    out: dict[str, tuple[str, str]] = {}
    listed = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    row = re.compile(r" (FUNC|IFUNC|OBJECT) +(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +\d+ (\w+)@@?GLIBC_([\d.]+)$", re.M)
    for kind, name, version in row.findall(listed):
        if number(version) <= number(newest) and (name not in out or number(out[name][0]) < number(version)):
            out[name] = version, kind
    return out


def stub(folder: Path, cc: str, name: str, of: dict[str, tuple[str, str]]) -> None:
    source, script = folder / f"{name}.s", folder / f"{name}.map"
    lines = ['.section .note.GNU-stack,"",@progbits', ".text"]
    nodes: dict[str, list[str]] = {}
    for symbol, (version, kind) in sorted(of.items()):
        lines += [f".globl {symbol}", f".type {symbol}, {'@object' if kind == 'OBJECT' else '@function'}", f"{symbol}:"]
        nodes.setdefault(version, []).append(symbol)
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.write_text("".join(f"GLIBC_{v} {{ {'; '.join(nodes[v])}; }};\n" for v in sorted(nodes, key=number)),
                      encoding="utf-8")
    versions = [f"-Wl,--version-script={script}"] if nodes else []
    subprocess.run([cc, "-shared", "-nostdlib", f"-Wl,-soname,{name}", *versions, source, "-o", folder / name], check=True)


def main() -> None:
    version, at, cc = sys.argv[1:]
    folder = Path(at)
    folder.mkdir(parents=True, exist_ok=True)

    def here(name: str) -> str:
        return subprocess.run([cc, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()

    for name in "libc.so.6", "libm.so.6":
        stub(folder, cc, name, symbols(here(name), version))
    for name in "libpthread.so.0", "libdl.so.2":
        stub(folder, cc, name, {})
    (folder / "libm.so").write_text(f"INPUT({folder}/libm.so.6)\n", encoding="utf-8")
    (folder / "libc.so").write_text(
        f"GROUP({folder}/libc.so.6 {here('libc_nonshared.a')} AS_NEEDED({here('ld-linux-x86-64.so.2')}))\n", encoding="utf-8")


main()
