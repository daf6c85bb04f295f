# tests/docs/pictures.py — the figures of docs/pictures are what `attune cover` and `attune ranks` draw; --write draws them
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

# Each is attune cover 'MASK' --q-len 256 --tile 16x16 --svg docs/pictures/NAME.svg, with what it captures.
MASKS = {
    "causal": "kv <= q",
    "window": "kv <= q && (q - kv < 64 || kv < 8)",
    "documents": "kv <= q && doc[q] == doc[kv]",
    "prefix": "kv < 70 || kv <= q",
    "neighbourhood": "abs(q % 16 - kv % 16) <= 3 && abs(q / 16 - kv / 16) <= 3",
    "strided": "kv <= q && (q / 16 == kv / 16 || kv / 16 % 4 == 3)",
}
# Each is attune ranks 'MASK' MORE --svg docs/pictures/NAME.svg.
RANKS = {
    "ranks-causal": ["kv <= q", "--q-len", "32768", "--heads", "16/16", "--ranks", "4"],
    "ranks-documents": ["kv <= q && doc[q / 128] == doc[kv / 128]", "--q-len", "32768", "--ranks", "8"],
}
LENGTHS = [23, 58, 40, 9, 71, 55]  # of the documents


def write_documents(path):
    ids = [i for i, n in enumerate(LENGTHS) for _ in range(n)]
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(ids)},), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(ids)}i", *ids))


def draw(attune, name, folder):
    words = ["ranks", *RANKS[name]] if name in RANKS else ["cover", MASKS[name], "--q-len", "256", "--tile", "16x16",
                                                           "--no-picture"]
    command = [attune, *words, "--svg", str(folder / f"{name}.svg")]
    if "doc[" in words[1]:
        write_documents(folder / "doc.npy")
        command += ["--capture", f"doc={folder / 'doc.npy'}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


attune = str(Path(sys.argv[1]).resolve())
pictures = Path(__file__).resolve().parents[2] / "docs/pictures"
wrong = []
with tempfile.TemporaryDirectory() as temporary:
    for name in [*MASKS, *RANKS]:
        drawn = draw(attune, name, Path(temporary))
        xml.etree.ElementTree.fromstring(drawn)
        file = pictures / f"{name}.svg"
        if "--write" in sys.argv:
            pictures.mkdir(exist_ok=True)
            file.write_text(drawn, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != drawn:
            wrong.append(f"{file.name} is not what attune draws")
sys.exit("\n".join(wrong) + "\nif the new figures are right: pictures.py ATTUNE --write" if wrong else 0)
