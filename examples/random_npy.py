# examples/random_npy.py — .npy files of normal random numbers without NumPy: random_npy.py q.npy 1x4x64x16 k.npy …
import math
import random
import struct
import sys

random.seed(1)
for name, extents in zip(sys.argv[1::2], sys.argv[2::2]):
    shape = tuple(int(n) for n in extents.split("x"))
    numbers = [random.gauss(0, 1) for _ in range(math.prod(shape))]
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    with open(name, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack(f"<{len(numbers)}f", *numbers))
