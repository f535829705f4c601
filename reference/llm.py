"""Tiny language models, one a decoder flavour, with recipe weights: transformers' logits and greedy continuations."""
import json

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

import recipe
from common import DEMO, FIXTURES, rel_err, save, write_json

OUT = FIXTURES / "llm-tiny"
PROMPT = "a very long sentence about a green turtle, two striped umbrellas, a locomotive and the moon above a quiet harbour"
NEW_TOKENS = 24
COMMON = dict(vocab_size=1536, max_position_embeddings=2048, bos_token_id=None, eos_token_id=1533, pad_token_id=1531)

MODELS = {
    # the text encoder of fixtures/z-image-tiny with its (tied) head
    "qwen3": Qwen3Config(
        hidden_size=96, intermediate_size=208, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        head_dim=24, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, **COMMON),
    "qwen3-untied": Qwen3Config(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=32, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, **COMMON),
    "llama3": LlamaConfig(
        hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=256), **COMMON),
    # a window shorter than the prompt, a head dim that isn't hidden / heads
    "mistral": MistralConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rope_theta=1e4, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=16, **COMMON),
    "qwen2": Qwen2Config(
        hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False, **COMMON),
    # dense first, then experts
    "qwen3-moe": Qwen3MoeConfig(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=56, num_experts=8, num_experts_per_tok=2,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rope_theta=1e6, rms_norm_eps=1e-6,
        norm_topk_prob=True, mlp_only_layers=[0], decoder_sparse_step=1, tie_word_embeddings=False, **COMMON),
    # a window in every other layer, capped scores and logits, a scale that isn't that of the head dim
    "gemma2": Gemma2Config(
        hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=2.0,
        final_logit_softcapping=4.0, rms_norm_eps=1e-6, tie_word_embeddings=True, **COMMON),
    # two rotations, the global one scaled
    "gemma3": Gemma3TextConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, query_pre_attn_scalar=32, sliding_window=16, sliding_window_pattern=3, rms_norm_eps=1e-6,
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4)),
        tie_word_embeddings=True, **COMMON),
    # fused matrices, part of each head turned, and a prompt beyond the short context
    "phi3": Phi3Config(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-5, tie_word_embeddings=False, original_max_position_embeddings=32, partial_rotary_factor=0.75,
        rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 6, long_factor=[1.0, 1.1, 1.5, 2.0, 3.0, 4.0]),
        **COMMON),
    "llama-yarn": LlamaConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
        rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=512), **COMMON),
}
# written with the keys of the released checkpoints (transformers 4) rather than those of transformers 5
OLD_STYLE = ("llama3", "mistral", "qwen2", "qwen3-moe", "gemma2", "gemma3", "phi3", "llama-yarn")


def write_config(folder, name: str, config, architecture: str) -> None:
    c = json.loads(config.to_json_string(use_diff=False))
    keep = {"attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
            "mlp_bias", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
            "rope_parameters", "sliding_window", "tie_word_embeddings", "use_sliding_window", "vocab_size",
            "bos_token_id", "eos_token_id", "pad_token_id", "layer_types", "max_window_layers", "moe_intermediate_size",
            "num_experts", "num_experts_per_tok", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
            "hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
            "sliding_window_pattern", "original_max_position_embeddings"}
    c = {k: v for k, v in c.items() if k in keep} | {"architectures": [architecture], "torch_dtype": "float32"}
    if name in OLD_STYLE:
        rope = c.pop("rope_parameters")
        c.pop("layer_types", None)
        if name == "gemma3":
            c["sliding_window_pattern"] = 3
            c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
        c["rope_theta"] = rope.pop("rope_theta")
        if rope.pop("partial_rotary_factor", 1.0) != 1.0:
            c["partial_rotary_factor"] = config.rope_parameters["partial_rotary_factor"]
        c["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        if name in ("qwen2", "phi3"):
            c.pop("head_dim", None)
    write_json(folder / "config.json", dict(sorted(c.items())))
    back = AutoConfig.from_pretrained(folder)
    for key in ("rope_parameters", "layer_types", "sliding_window", "head_dim", "tie_word_embeddings"):
        assert getattr(back, key, None) == getattr(config, key, None), (name, key)


def released_names(tensors: list) -> list:
    """Experts one by one, as released checkpoints have them, where this version of transformers stacks them."""
    out = []
    for name, shape in tensors:
        base, _, last = name.rpartition(".")
        if not base.endswith(".experts"):
            out.append([name, shape])
        elif last == "gate_up_proj":
            for part in ("gate_proj", "up_proj"):
                out += [[f"{base}.{e}.{part}.weight", [shape[1] // 2, shape[2]]] for e in range(shape[0])]
        else:
            out += [[f"{base}.{e}.{last}.weight", shape[1:]] for e in range(shape[0])]
    return out


def fill(model):
    """The recipe, under the names of released checkpoints."""
    recipe.fill(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            base, _, last = name.rpartition(".")
            if base.endswith(".experts"):
                for e in range(p.shape[0]):
                    parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
                    rows = p.shape[1] // len(parts)
                    p[e].copy_(torch.cat([recipe.tensor(f"{base}.{e}.{part}.weight", [rows, p.shape[2]]) for part in parts]))
    return model


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "tokenizer")
    text = tokenizer.apply_chat_template([{"role": "user", "content": PROMPT}], tokenize=False, add_generation_prompt=True,
                                         enable_thinking=True)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    for name, config in MODELS.items():
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        model = fill(AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager"))
        write_config(folder, name, config, type(model).__name__)
        tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
        recipe.save_tensor_list(folder / "tensors.json", released_names(recipe.tensor_list(model, skip=tied)))

        rows = torch.tensor([0, 17, ids.shape[1] - 1])
        seq, margins = ids, []
        with torch.no_grad():
            prompt_logits = model(ids).logits[0]
            for _ in range(NEW_TOKENS):
                last = model(seq).logits[0, -1]
                top = last.topk(2)
                margins.append((top.values[0] - top.values[1]).item())
                seq = torch.cat([seq, top.indices[:1][None]], 1)
            final = model(seq).logits[0, -1]
            generated = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=1531)
            assert torch.equal(generated, seq)  # with the KV cache too
        new = seq[0, ids.shape[1]:]
        assert config.eos_token_id not in new.tolist() and min(margins) > 1e-3, (name, min(margins))
        save(folder / "outputs.safetensors", {
            "input_ids": ids[0], "positions": rows, "logits": prompt_logits[rows], "greedy_ids": new,
            "greedy_margins": torch.tensor(margins), "logits_after_greedy": final})
        rms = prompt_logits.pow(2).mean().sqrt().item()
        with torch.no_grad():
            low = model.to(torch.bfloat16)(ids).logits[0].float()
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, logits rms {rms:.3f}, least greedy margin "
              f"{min(margins):.4f}, {len(set(new.tolist()))} distinct, bf16 logits {rel_err(low, prompt_logits):.4f}")
    write_json(OUT / "prompt.json", {"prompt": PROMPT, "chat_text": text})


if __name__ == "__main__":
    main()
