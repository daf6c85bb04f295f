# tests/tools/support.py — attune support: its table against calls' kernels, its filters, and questions about a cache
import json
import re
import unittest

from calls import SANITIZED, Calls

MODS = {
    "plain": ["--score", "s"],
    "score": ["--score", "s + slope[h] * f32(kv - q)", "--capture", "slope=f32[16384]"],
    "mask": ["--mask", "kv <= q"],
    "data mask": ["--mask", "doc[q] == doc[kv]", "--capture", "doc=i32[16384]"],
    "dropout": ["--prob", "p * where(random(7) < 0.9f, 1.0f, 0.0f)"],
    "p^k": ["--prob", "p * p"],
    "prob": ["--prob", "max(p - 0.01f, 0.0f)"],
    "sink": ["--sink", "slope[h]", "--capture", "slope=f32[16384]"],
    "grads q-kv": ["--score", "s + table[q - kv + 8192]", "--capture", "table=f32[16384]", "--grads", "table"],
    "dS": ["--score", "s + dense[h, q, kv]", "--capture", "dense=bf16[32, 8192, 8192]", "--grads", "dense"],
    "grads": ["--score", "s + bias[kv]", "--capture", "bias=f32[16384]", "--grads", "bias"],
}


def call_of(row):
    """The options of explain and cuda that ask for a row's call; none: no option says it."""
    q, *cache = row["dtype"].split("/")
    d, *values = row["d"].split("/")
    decode, mla = row["call"] == "decode", row["d"] == "576/512"
    out = ["--arch", row["arch"], "--dtype", q, "--d", d, "--heads", 32, "--kv-heads", 1 if mla else 8, "--batch", 2]
    out += ["--cache-dtype", *cache] if cache else []
    out += [] if not values else ["--v-columns" if mla else "--dv", *values]
    cached = row["layout"] in ("lengths", "paged")
    if row["call"] == "backward":
        if cached or cache or row["dtype"] == "e4m3":
            return None
        out += ["--backward"]
    out += ["--seq", 1 if decode else 512 if cached else 4096]
    if row["layout"] == "packed":
        out += ["--packed", *(["--kv-seq", 8192] if decode else [])]
    elif decode or cached:
        out += ["--decode", "--kv-len", "8192,5000" if row["layout"] == "lengths" else 8192]
    return out + (["--page-size", 64 if mla else 16] if row["layout"] == "paged" else []) + MODS[row["mod"]]


class Support(Calls):
    def rows(self, *asked):
        said = self.attune("support", *asked, "--json")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        return [json.loads(line) for line in said.stdout.splitlines()]

    def refused(self, code, *arguments, fix=""):
        said = self.attune(*arguments)
        self.assertEqual((said.returncode, said.stdout), (2, ""), arguments)
        self.assertIn(f"[{code}]", said.stderr)
        self.assertIn(fix, said.stderr)
        return said.stderr

    def test_rows_are_what_calls_get(self):
        rows = self.rows()
        self.assertEqual(len(rows), 6 * 6 * 8 * 4 * (8 + 8 + 11))
        asked = 0
        while asked < (8 if SANITIZED else 50):
            row = self.random.choice(rows)
            call = call_of(row)
            if call is None:
                self.assertIn("refused", row)
                continue
            said = self.attune("cuda", *call, "--json")
            asked += 1
            if "refused" in row:
                self.assertIn(f"[{row['refused']['code']}]", said.stderr, row)
                self.assertIn(row["refused"]["problem"], said.stderr)
                continue
            self.assertEqual((said.returncode, said.stderr), (0, ""), row)
            source = json.loads(said.stdout)
            # Of sources, those of kernels that were chosen.
            sources = [one for one in source.get("sources", [source]) if "candidates" in one]
            self.assertEqual([one["candidates"][0]["kernel"] for one in sources], row["kernels"], row)

    def test_filters(self):
        rows = self.rows("--arch", "90", "--call", "decode", "--dtype", "bf16,f16", "--d", "128", "--mod", "prob")
        self.assertEqual({(row["arch"], row["call"], row["d"], row["mod"]) for row in rows}, {(90, "decode", "128", "prob")})
        self.assertEqual({row["dtype"] for row in rows}, {"bf16", "f16"})
        self.assertTrue(any("prob mod" in why for row in rows for why in row["others"]))
        for asked in ["--arch", "95"], ["--dtype", "f64"], ["--d", "100"], ["--layout", "ragged"], ["--mod", "causal"]:
            self.refused("bad-choice", "support", *asked)
        for verb in ["support", "--arch", "70"], ["compile", "kv <= q", "--target", "sm_70", "-o", "a.attune"]:
            self.assertIn("write one of these", self.attune(*verb).stderr)
        self.assertEqual(self.rows("--call", "prefill", "--arch", "90"), self.rows("--call", "forward", "--arch", "90"))
        self.refused("stray-argument", "support", "kv <= q")

    def test_the_table_says_what_was_measured_and_what_was_not(self):
        said = self.attune("support").stdout
        self.assertLess(len(said.splitlines()), 100)
        self.assertLess(max(map(len, said.splitlines())), 160)
        self.assertEqual({card for card in re.findall(r"^  ([A-Z]+\d+),", said, re.M)}, {"H100", "H200"})
        self.assertIn("no kernels for Blackwell yet", said)
        self.assertNotIn("Blackwell", self.attune("support", "--arch", "90").stdout)
        shares = [one["share"] for row in self.rows("--arch", "90") for one in row.get("measured", []) if "share" in one]
        self.assertGreater(len(shares), 20)

    # ---- questions about a cache ----

    def test_kernels_of_calls_over_a_cache(self):
        def kernel(*call):
            said = self.attune("cuda", "kv <= q", *call, "--json")
            self.assertEqual((said.returncode, said.stderr), (0, ""), call)
            return json.loads(said.stdout)["candidates"][0]["kernel"]

        heads = ["--heads", "32", "--kv-heads", "8"]
        self.assertEqual(kernel("--decode", "--kv-len", "8192", *heads), "decode_sm80")
        self.assertEqual(kernel("--decode", "--kv-len", "random:900", "--batch", "3", "--page-size", "16"), "decode_sm80")
        self.assertEqual(kernel("--decode", "--seq", "512", "--kv-len", "8192", "--page-size", "16", *heads), "forward_sm90")
        self.assertEqual(kernel("--seq", "512", "--kv-seq", "8192", "--q-offset", "7000"), "forward_sm90")
        self.assertEqual(kernel("--decode", "--kv-len", "8192", "--cache-dtype", "e4m3"), "decode_sm80")
        mla = ["--heads", "128", "--kv-heads", "1", "--d", "576", "--v-columns", "512"]
        self.assertEqual(kernel("--decode", "--kv-len", "8192", "--page-size", "64", *mla), "mla_sm90")
        self.refused("engine-call", "cuda", "kv <= q", "--arch", "80", "--decode", *mla)

    def test_options_of_a_cache_that_do_not_go_together(self):
        for verb in ["cuda", "kv <= q"], ["explain", "kv <= q", "--target", "cuda"], ["bench", "--target", "cuda"], ["tune"]:
            self.refused("bad-usage", *verb, "--page-size", "16", fix="--decode")
            self.refused("bad-usage", *verb, "--kv-len", "5,4", fix="--decode")
            self.refused("bad-usage", *verb, "--decode", "--q-offset", "3")
            self.refused("bad-usage", *verb, "--dv", "64", "--v-columns", "64")
            self.refused("v-columns", *verb, "--d", "64", "--v-columns", "65")
            self.refused("bad-size", *verb, "--q-offset", "-1")
            self.refused("bad-size", *verb, "--decode", "--seq", "5", "--kv-len", "4")
            self.refused("bad-choice", *verb, "--cache-dtype", "f16")
        for verb in ["cuda", "kv <= q"], ["explain", "kv <= q", "--target", "cuda"]:
            self.refused("bad-usage", *verb, "--decode", "--backward")
            self.refused("bad-usage", *verb, "--decode", "--packed")

    def test_where_queries_stand_is_asked(self):
        call = ["--seq", "1", "--kv-seq", "8192"]
        for target in ["--target", "cuda", "--arch", "90"], ["--target", "cpu"]:
            said = self.refused("no-position", "explain", "kv <= q", *call, *target, fix="--decode")
            self.assertIn("--q-offset N", said)
        self.refused("no-position", "bench", "--row", "causal", *call, fix="--decode")
        self.assertEqual(self.attune("cuda", "kv <= q", *call).returncode, 0)  # a page is the same wherever they stand

    def test_explain_of_plain_attention_needs_no_expression(self):
        said = self.attune("explain")
        self.assertEqual((said.returncode, said.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
