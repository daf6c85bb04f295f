# python/examples/first.py — a first notebook: a score and a mask of your own, what became of them, gradients, a picture
# %% Tensors: NumPy here, and any library that speaks DLPack.
import attune
import numpy as np

rng = np.random.default_rng(3)
q = rng.standard_normal((2, 4, 64, 16), np.float32)
k, v = (rng.standard_normal((2, 2, 64, 16), np.float32) for _ in range(2))
slope = np.exp2(-2.0 * np.arange(1, 5, dtype=np.float32))  # a number for each head
doc = np.arange(64, dtype=np.int32) // 24  # the document that each position belongs to

# %% The score and the mask, as ordinary Python. The arrays are captured by name.
# [attention]
alibi = attune.Score(lambda s, at: s + slope[at.head] * (at.kv - at.q))
causal = attune.Mask(lambda at: at.kv <= at.q)
inside = attune.Mask(lambda at: doc[at.q] == doc[at.kv])

attention = attune.Attention(alibi | attune.mods.softcap(30), causal & inside)
o, lse = attention(q, k, v, lse=True)  # the first call compiles, later ones only run
# [attention]

# %% What the compiler made of it. In a notebook, `attention` alone shows it as a table.
print(attention.explain())

# %% Gradients, of the captured table too.
gradients = attention.backward(q, k, v, grad_o=np.ones_like(o), o=o, lse=lse)
print(gradients.captured["slope"])

# %% A picture of the tiles, the scores and the probabilities of the second head.
picture = attune.show(attention, q=q, k=k, head=1)
print(picture)

# %% Mistakes point at your own line.
try:
    attune.Attention(mask=lambda at: at.kv <= at.q and at.q - at.kv < 8)
except attune.Error as error:
    print(error)

# %% The first token of a document sees itself alone: its output is its value.
assert all(np.array_equal(o[1, 3, i], v[1, 1, i]) for i in (0, 24, 48))
print("ok")
