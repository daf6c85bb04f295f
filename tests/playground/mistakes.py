# tests/playground/mistakes.py — fifty mistakes that people make on the page, as questions
T = {"name": "t", "type": "f32", "shape": [8]}

MISTAKES = [
    {"mask": text} for text in [
        "kv <= ", "kv =< q", "kv <= q &&", "kv <= q and q < 3", "kv <= q & q < 3", "0 <= q - kv < 8", "s > 0", "q", "kv = q",
        "q >= kv_length", "(kv <= q", "kv <= q)", "kv <= q[0]", "not kv <= q", "kv <= 'q'", "kv <= 1e99", "kv <= 99999999999",
        "abs(q, kv) <= 3", "windw(64)", "kv ≤ q", "kv <= q;", "let w = 3", "kv <= q ? true"]
] + [
    {"score": text} for text in [
        "s + ", "kv <= q", "s + slope[h]", "s ** 2", "s ^ 2", "math.exp(s)", "np.tanh(s)", "tanh s", "s + at.kv", "s + h[0]",
        "s + 1,5", "s / f32(q", "30f * s", "p + 1", "S + 1", "s + (kv - q)*slope", "s +\n", "where(q, s, s)", "s + q_offset",
        "🙂"]
] + [
    {"prob": "s"}, {"prob": "p > 0.5"}, {"sink": "q"}, {"sink": "true"}, {"score": "s + t[q, kv]", "captures": [T]},
    {"score": "s + t", "captures": [T]}, {"captures": [{**T, "name": "q"}], "score": "s"},
    {"captures": [{**T, "name": "a b"}]}, {"captures": [{**T, "shape": [-3]}]}, {"captures": [T, T]},
    {"params": ["cap=thirty"]}, {"params": ["s=3"]}, {"lets": ["d=kv -"], "score": "s + f32(d)"}, {"q_len": 0},
    {"tile": [0, 0]}, {"mask": "(" * 100000}, {"score": "s + t[100 + kv]", "captures": [T]}]
assert len(MISTAKES) >= 50
