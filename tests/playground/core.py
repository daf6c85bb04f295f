# tests/playground/core.py — whether the playground's WebAssembly exists and is built from the current sources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lacking(engine):
    """Why this WebAssembly cannot be tested, or None."""
    if not engine.exists():
        return "there is no WebAssembly: ./dev site makes it, with Debian's emscripten"
    newest = max(p.stat().st_mtime for room in ("include", "ir", "compiler", "codegen", "runtime", "playground")
                 for p in (ROOT / room).rglob("*") if p.suffix in {".h", ".cpp", ".cuh", ".def"})
    if newest > engine.stat().st_mtime:
        return "the WebAssembly is older than the sources: ./dev site makes it anew"
    return None
