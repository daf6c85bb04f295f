# tests/python/in_jax/dense.py — attention written out in jnp, and mods that read alike in attune and in jnp
"""What the tests of attune.jax compare with.

A mod is written once: `f` has the functions (attune, or FUNCTIONS of jnp), `s` and `at` are values of the kernel, or
arrays of all scores and positions.
"""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

# XLA reads it when it first computes: devices of the CPU, for the tests of split arrays.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
B, H, S, D = 2, 4, 19, 8
# What attune is compared with is f32 on GPUs too, where JAX would multiply TF32.
jax.config.update("jax_default_matmul_precision", "highest")

FUNCTIONS = SimpleNamespace(
    where=jnp.where, tanh=jnp.tanh, exp=jnp.exp, exp2=jnp.exp2, log=jnp.log, sqrt=jnp.sqrt, rsqrt=jax.lax.rsqrt,
    sin=jnp.sin, cos=jnp.cos, abs=jnp.abs, min=jnp.minimum, max=jnp.maximum, clamp=jnp.clip, sigmoid=jax.nn.sigmoid,
    erf=jax.scipy.special.erf, floor=jnp.floor, f32=lambda x: x * 1.0,
    sum=lambda n, body: sum(body(i) for i in range(n)))


def random(rng, *shape, dtype=jnp.float32):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def qkv(rng, batch=B, heads=H, q_len=S, kv_len=S, width=D, kv_heads=None, v_width=None, dtype=jnp.float32):
    kv_heads = kv_heads or heads
    shapes = (heads, q_len, width), (kv_heads, kv_len, width), (kv_heads, kv_len, v_width or width)
    return tuple(random(rng, batch, *shape, dtype=dtype) for shape in shapes)


def dense(q, k, v, score=None, mask=None, scale=None):
    """The output and lse; `score(f, s, at)`, `mask(f, at)`."""
    k, v = (jnp.repeat(jnp.broadcast_to(x, (q.shape[0], *x.shape[1:])), q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhid,bhjd->bhij", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    b, h, i, j = np.ogrid[tuple(slice(n) for n in s.shape)]
    at = SimpleNamespace(batch=b, head=h, q=i, kv=j, q_len=s.shape[2], kv_len=s.shape[3])
    s = s if score is None else score(FUNCTIONS, s, at)
    keep = jnp.broadcast_to(True if mask is None else mask(FUNCTIONS, at), s.shape)
    some = keep.any(-1, keepdims=True)
    s = jnp.where(keep, s, -jnp.inf)
    p = jnp.where(some, jax.nn.softmax(jnp.where(some, s, 0.0), -1), 0.0)
    return p @ v, jnp.where(some[..., 0], jax.nn.logsumexp(jnp.where(some, s, 0.0), -1), -jnp.inf)


def close(ours, theirs, tolerance=2e-5):
    """Equal within a share of the whole, in the Frobenius norm, which counts as 0.1 where it is less."""
    assert ours.shape == theirs.shape
    ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
    finite = np.isfinite(theirs)
    assert np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
    off = np.linalg.norm((ours - theirs)[finite])
    assert off <= tolerance * max(0.1, np.linalg.norm(theirs[finite])), f"off by {off}"


# Each maker takes a source of random arrays and gives (kind, mod, captures); mods read captures by their keyword.
MODS = {}


def score(*shapes):
    def keep(mod):
        MODS[mod.__name__] = ("score", mod, shapes)
        return mod
    return keep


def mask(*shapes):
    def keep(mod):
        MODS[mod.__name__] = ("mask", mod, shapes)
        return mod
    return keep


@score()
def relative(f, s, at): return s + (at.q - at.kv)


@score()
def softcap(f, s, at): return 20.0 * f.tanh(s / 20.0)


@score()
def squared(f, s, at): return s * s - 0.5


@score()
def checkered(f, s, at): return f.where(f.abs(at.q - at.kv) % 2 == 1, s * 0.5, s)


@score()
def gaussian(f, s, at): return s - f.f32((at.q - at.kv) * (at.q - at.kv)) * 0.02


@score()
def causal_by_score(f, s, at): return f.where(at.q >= at.kv, s, -1e9)


@score()
def bounded(f, s, at): return f.clamp(s, -1.0, 1.5) + f.min(s, f.max(0.25 * s, -0.5))


@score()
def transcendental(f, s, at): return f.sin(s) + f.exp(-f.abs(s)) + f.log(s * s + 1.0) + f.rsqrt(s * s + 2.0) + f.erf(s)


@score()
def alibi_formula(f, s, at): return s + (at.kv - at.q) * f.exp2(-2.0 * f.f32(at.head + 1))


@score((H,))
def alibi(f, s, at, one): return s + one[at.head] * (at.kv - at.q)


@score((H, S, S))
def biased(f, s, at, one): return s + one[at.head, at.q, at.kv]


@score((2 * S,), (H,))
def gated(f, s, at, one, two): return s * f.sigmoid(two[at.head]) + one[at.q - at.kv + S]


@score((S,), (S,))
def outer(f, s, at, one, two): return s + f.tanh(one[at.q]) * two[at.kv]


@score((S, 3), (S, 3))
def dotted(f, s, at, one, two): return s + f.sum(3, lambda i: one[at.q, i] * two[at.kv, i])


@mask()
def causal(f, at): return at.kv <= at.q


@mask()
def window(f, at): return (at.kv <= at.q) & (at.q - at.kv < 5)


@mask()
def prefix(f, at): return (at.kv < 6) | (at.kv <= at.q)


@mask()
def dilated(f, at): return (f.abs(at.q - at.kv) <= 6) & ((at.q - at.kv) % 2 == 0)


@mask()
def blocks(f, at): return (at.q // 4 == at.kv // 4) & ~(at.q == at.kv + 2)


@mask(("ints", 3, B, S))
def documents(f, at, one): return one[at.batch, at.q] == one[at.batch, at.kv]


@mask(("ints", S, B))
def padded(f, at, one): return at.kv < one[at.batch]


def made(name, rng):
    """(kind, mod, captures) of one of MODS."""
    kind, mod, shapes = MODS[name]
    return kind, mod, [jnp.asarray(rng.integers(0, shape[1], shape[2:]), jnp.int32) if shape[0] == "ints" else
                       random(rng, *shape) for shape in shapes]
