# tests/python/in_torch/test_serving_peers.py — tools/bench/serving_peers.py on the host: its cases, their results, what
# it tells FlashInfer
"""The script that compares serving calls, with small sizes, and with a FlashInfer that computes what its pages say."""

import json
import sys
import types

import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools/bench"))
import serving_peers  # noqa: E402


class Wrapper:
    """FlashInfer's three wrappers by plain torch: what a level's starts, indices and last pages say."""

    def __init__(self, *given, **_):
        self.given = given

    def plan(self, *given, causal=False, pos_encoding_mode="NONE", logits_soft_cap=0.0, window_left=-1, q_data_type,
             kv_data_type):
        tables, self.heads = [], given[-4]
        for level in zip(*(x if isinstance(x, list) else [x] for x in given[:-4])):
            starts, indices, last = level[-3:]
            queries = level[0] if len(level) == 4 else torch.arange(len(last) + 1)
            tables += [(range(*queries[b : b + 2].tolist()), indices[slice(*starts[b : b + 2].tolist())].long(), int(n))
                       for b, n in enumerate(last)]
        assert all(0 < n <= given[-1] for _, _, n in tables)
        self.tables, self.how = tables, (pos_encoding_mode, logits_soft_cap, window_left)

    def run(self, q, pools):
        alibi, cap, left = self.how
        out = torch.empty_like(q)
        for row in range(len(q)):
            parts = [[pool.float()[pages].flatten(0, 1)[: (len(pages) - 1) * pool.shape[1] + last] for pool in pools]
                     for rows, pages, last in self.tables if row in rows]
            k, v = (torch.cat(x).repeat_interleave(self.heads // x[0].shape[1], 1) for x in zip(*parts))
            s = torch.einsum("hd,nhd->hn", q[row], k) / q.shape[-1] ** 0.5
            back = torch.arange(len(k) - 1, -1, -1)
            if alibi == "ALIBI":
                s = s - torch.exp2(-8.0 * torch.arange(1, self.heads + 1) / self.heads)[:, None] * back
            s = cap * torch.tanh(s / cap) if cap else s
            s = s.masked_fill(back > left, -torch.inf) if left >= 0 else s
            out[row] = torch.einsum("hn,nhd->hd", s.softmax(-1), v)
        return out


class OfMla:
    """FlashInfer's MLA, by the loop."""

    def __init__(self, *_):
        pass

    def plan(self, starts_q, starts_pages, pages, lengths, heads, width, rotary, page, causal, scale, *types):
        assert not causal
        self.scale, self.entries = scale, []
        for b, n in enumerate(lengths.tolist()):
            at = pages[starts_pages[b]:starts_pages[b + 1]].long()
            assert len(at) * page >= n
            self.entries.append((slice(*starts_q[b:b + 2].tolist()), at, n))

    def run(self, q, q_rotary, columns, rotary):
        out = torch.empty_like(q)
        for rows, pages, n in self.entries:
            k, more = (x.float()[pages].flatten(0, 1)[:n] for x in (columns, rotary))
            s = torch.einsum("qhd,nd->qhn", q[rows], k) + torch.einsum("qhd,nd->qhn", q_rotary[rows], more)
            out[rows] = torch.einsum("qhn,nd->qhd", (s * self.scale).softmax(-1), k)
        return out


@pytest.fixture
def measured(tmp_path, monkeypatch):
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["serving_peers.py", "--small", "--no-flex", "--seconds", "0.001", "--rounds",
                                          "2", "--out", str(tmp_path), *options])
        with pytest.raises(SystemExit) as ended:
            serving_peers.main()
        return ended.value.code, json.loads((tmp_path / "serving_peers.json").read_text(encoding="utf-8"))
    return run


@pytest.fixture
def flashinfer(monkeypatch):
    names = ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper",
             "MultiLevelCascadeAttentionWrapper"]
    made = types.ModuleType("flashinfer")
    made.__spec__, made.__version__ = types.SimpleNamespace(name="flashinfer"), "a stand-in"
    for name in names:
        setattr(made, name, Wrapper)
    made.mla = types.SimpleNamespace(BatchMLAPagedAttentionWrapper=OfMla)
    monkeypatch.setitem(sys.modules, "flashinfer", made)


def test_every_case_is_what_torch_computes_in_f32(measured, flashinfer):
    code, data = measured("--flashinfer", "all")
    failures = [why for case in data["cases"] for why in case["failed"].values()]
    assert failures == ["ValueError: it reads no table"] and code == 1
    assert len(data["cases"]) + len(data["skipped"]) == len(list(serving_peers.all_cases()))
    for case in data["cases"]:
        assert {"attune", *serving_peers.PEERS[case["kind"]]} - {"flex"} <= {*case["measured"], *case["failed"]}


def test_rows_are_chosen_and_joined(measured, tmp_path):
    code, data = measured("--rows", "mods:alibi", "pages:page16", "--no-cudnn", "--flashinfer", "off")
    assert code == 0 and [case["row"] for case in data["cases"]] == ["full", "alibi"]
    page = (tmp_path / "serving_peers.md").read_text(encoding="utf-8")
    assert "| mods, 16x8k: alibi |" in page and (tmp_path / "serving_peers.svg").exists()
    assert measured("--from", str(tmp_path / "serving_peers.json"))[1]["cases"] == data["cases"]


def test_a_wrong_result_fails_its_row(measured, monkeypatch):
    import torch_serving

    monkeypatch.setitem(torch_serving.TEXTS, "alibi", {"score": "s - slope[h] * f32(kv - q)"})
    code, data = measured("--rows", "mods:alibi")
    assert code == 1 and "differs from f32" in data["cases"][0]["failed"]["attune"]


def test_lengths_change_and_their_sum_stays():
    case = next(case for case in serving_peers.all_cases() if case.kind == "lengths")
    turns = [serving_peers.lengths(case, turn) for turn in range(4)]
    assert len({tuple(turn) for turn in turns}) == 4 and {sum(turn) for turn in turns} == {case.tokens()}
    assert all(1 <= n <= case.keys for turn in turns for n in turn)
