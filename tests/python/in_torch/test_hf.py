# tests/python/in_torch/test_hf.py — tiny random models of transformers: eager and attune give the same
"""Families of models, left-padded: logits, gradients of every weight, and generation with a cache."""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import attune  # noqa: E402
import attune.hf  # noqa: E402
import attune.torch  # noqa: E402

attune.hf.enable()

EVERY = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
NARROW = {"head_dim": 8, "sliding_window": 5}
FAMILIES = {
    "llama": {}, "mistral": {"sliding_window": 5}, "qwen3": {"head_dim": 8}, "gemma2": NARROW, "gemma3_text": NARROW,
    "phi3": {}, "gpt_oss": {**NARROW, **EXPERTS}, "mixtral": EXPERTS, "cohere2": {"sliding_window": 5}, "granite": {},
    "olmo2": {}, "gpt_neox": {}, "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}, "smollm3": {},
    "llama4_text": {"head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 8, "intermediate_size_mlp": 48},
    "deepseek_v3": {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bart": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
}


def model_of(family, **more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**EVERY, **FAMILIES[family], **more})
    kind = transformers.AutoModelForSeq2SeqLM if family == "bart" else transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation="eager").eval()


def padded():
    tokens = torch.randint(3, 99, (2, 19))
    keep = torch.ones_like(tokens)
    keep[0, :4] = 0
    return {"input_ids": tokens, "attention_mask": keep}


def told(model, implementation, given):
    """Logits where there are tokens, gradients by name, and generated tokens."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    logits = model(**given).logits[given["attention_mask"].bool()]
    logits.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients, model.generate(**given, max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gives_what_eager_gives(family):
    model, given = model_of(family), padded()
    logits, gradients, tokens = told(model, "eager", given)
    ours, our_gradients, our_tokens = told(model, "attune", given)
    assert (ours - logits).abs().max() < 1e-6
    bound = 1e-4 if family in ("opt", "bart") else 1e-5
    assert gradients.keys() == our_gradients.keys()
    for name, gradient in gradients.items():
        assert (our_gradients[name] - gradient).norm() <= bound * max(1e-6, gradient.norm()), name
    assert torch.equal(tokens, our_tokens)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_generation_makes_no_kernel_after_the_second_token(family):
    model, given, facts, made = model_of(family, eos_token_id=None), padded(), [], []
    model.set_attn_implementation("attune")

    class Count(transformers.StoppingCriteria):
        def __call__(self, *_, **__):
            made.append(sum(fact["fact"] == "built" for fact in facts))
            return torch.zeros(2, dtype=torch.bool)

    with attune.watch(facts.append):
        model.generate(**given, max_new_tokens=64, do_sample=False, stopping_criteria=[Count()])
    assert len(made) == 64 and made[-1] == made[1]


@pytest.mark.parametrize("prompt", [1, 2, 9])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "llama4_text"])
def test_generation_without_padding(family, prompt):
    model = model_of(family, eos_token_id=None)
    given = {"input_ids": torch.randint(3, 99, (2, prompt)), "max_new_tokens": 12, "do_sample": False}
    tokens = model.generate(**given)
    model.set_attn_implementation("attune")
    assert torch.equal(model.generate(**given), tokens)


def masks_of(mask_function, steps, keep=None, local_size=None):
    """The masks of a cache's steps of one token."""
    return [attune.hf.mask(2, 1, keys, first_key + keys - 1, first_key, mask_function, keep, local_size)
            for first_key, keys in steps]


def test_a_token_that_sees_all_keys_has_no_mask():
    masking = transformers.masking_utils
    grown, full = [(0, 5), (0, 6)], [(3, 4), (4, 4)]
    window = masking.sliding_window_causal_mask_function
    assert all(m.mask_mod is None for m in masks_of(masking.causal_mask_function, grown, torch.ones(2, 6).bool()))
    assert all(m.mask_mod is None for m in masks_of(window(4), full, local_size=4))
    assert all(m.mask_mod is not None for m in masks_of(window(3), full, local_size=3))
    assert all(m.mask_mod is not None for m in masks_of(window(4), full))
    ahead = attune.hf.mask(2, 1, 8, 5, 0, masking.causal_mask_function)  # a cache of a fixed size
    assert ahead.mask_mod is not None


@pytest.mark.parametrize("local_size", [None, 3])
def test_a_mask_with_padding_is_traced_at_one_token(local_size, monkeypatch):
    masking = transformers.masking_utils
    function = masking.causal_mask_function if local_size is None else (
        masking.sliding_window_causal_mask_function(local_size))
    keep, q = torch.ones(2, 9, dtype=torch.bool), torch.randn(2, 2, 1, 8)
    keep[0, :2] = False
    attune.hf._texts.clear()
    calls = []
    monkeypatch.setattr(attune.hf, "spell", lambda *a: calls.append(a) or attune.torch._mod.spell(*a))
    for keys in (4, 7, 9):
        mask = masks_of(function, [(0, keys)], keep[:, :keys], local_size)[0]
        kept = [mask.mask_mod(torch.tensor(b), torch.tensor(0), torch.tensor(0), torch.arange(keys)) for b in (0, 1)]
        k, v = torch.randn(2, 2, 2, keys, 8)
        out = attune.hf.attention(None, q, k, v, mask, scaling=0.5)[0]
        scores = (q @ k.mT * 0.5).masked_fill(~torch.stack(kept)[:, None, None], float("-inf"))
        assert (out.transpose(1, 2) - torch.softmax(scores, -1) @ v).abs().max() < 1e-6
    assert len(calls) == 1


def test_masks_with_ones_own_functions_are_traced_at_every_step():
    masking, q = transformers.masking_utils, torch.randn(2, 2, 1, 8)
    for last in (2, 4):
        own = masking.or_masks(masking.causal_mask_function, lambda b, h, q_idx, kv_idx: kv_idx == last)
        mask = attune.hf.mask(2, 1, 6, 1, 0, own)
        k, v = torch.randn(2, 2, 2, 6, 8)
        out = attune.hf.attention(None, q, k, v, mask, scaling=0.5)[0].transpose(1, 2)
        seen = [0, 1, last]
        assert (out - torch.softmax(q @ k[:, :, seen].mT * 0.5, -1) @ v[:, :, seen]).abs().max() < 1e-6


def test_a_cache_of_a_fixed_size():
    model, given = model_of("llama"), padded()
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    tokens = model.generate(**given, **options)
    model.set_attn_implementation("attune")
    assert torch.equal(model.generate(**given, **options), tokens)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "t5", "vit"])
def test_encoders_and_biases_of_positions(kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"bert": {"vocab_size": 99}, "modernbert": {"vocab_size": 99, "local_attention": 6, "pad_token_id": 0},
            "t5": {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
            "vit": {"image_size": 16, "patch_size": 4}}[kind]
    config = transformers.AutoConfig.for_model(kind, **({} if kind == "t5" else sizes), **more)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    given = {"pixel_values": torch.randn(2, 3, 16, 16)} if kind == "vit" else padded()
    if kind == "t5":
        given["decoder_input_ids"] = given["input_ids"]
    keep = given["attention_mask"].bool() if "attention_mask" in given else slice(None)
    with torch.no_grad():
        wanted = model(**given)[0][keep]
        model.set_attn_implementation("attune")
        assert (model(**given)[0][keep] - wanted).abs().max() < 3e-6


def test_a_mask_and_packed_positions_of_ones_own():
    model = model_of("llama")
    tokens = torch.randint(3, 99, (2, 19))
    hidden = torch.ones(19, 19, dtype=torch.bool).triu(1)
    ways = [{"attention_mask": torch.zeros(2, 1, 19, 19).masked_fill(hidden, torch.finfo(torch.float32).min)},
            {"position_ids": torch.cat([torch.arange(8), torch.arange(11)]).expand(2, -1), "use_cache": False}]
    for given in ways:
        model.set_attn_implementation("eager")
        wanted = model(input_ids=tokens, **given).logits
        model.set_attn_implementation("attune")
        assert (model(input_ids=tokens, **given).logits - wanted).abs().max() < 1e-6


def test_dropout_in_training_drops():
    model, given = model_of("llama", attention_dropout=0.5).train(), padded()
    model.set_attn_implementation("attune")
    first, second = (model(**given).logits for _ in range(2))
    assert not torch.equal(first, second)
    first.sum().backward()


def test_a_model_compiles():
    model, given = model_of("llama"), padded()
    model.set_attn_implementation("attune")
    with torch.no_grad():
        ours = torch.compile(model, fullgraph=True, backend="eager")(**given).logits
        assert (ours - model(**given).logits).abs().max() < 1e-6
