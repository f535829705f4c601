"""A tiny sentence embedder with recipe weights: transformers' hidden states and the vectors that are pooled from them."""
import json

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

import recipe
from common import DEMO, FIXTURES, save, write_json

OUT = FIXTURES / "bert-tiny"
TEXTS = ["a red apple", "two striped umbrellas and the moon above a quiet harbour", "?"]
CONFIG = BertConfig(
    vocab_size=1536, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=112,
    max_position_embeddings=64, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "tokenizer")
    model = recipe.fill(BertModel(CONFIG, add_pooling_layer=True).eval())
    keep = ("hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "max_position_embeddings", "model_type",
            "num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size")
    config = json.loads(CONFIG.to_json_string(use_diff=False))
    write_json(OUT / "config.json", {key: config[key] for key in keep})
    recipe.save_tensor_list(OUT / "tensors.json", recipe.tensor_list(model))
    vectors = []
    with torch.no_grad():
        for text in TEXTS:
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            vectors.append(torch.nn.functional.normalize(states.mean(1), dim=-1)[0])
    write_json(OUT / "texts.json", TEXTS)
    save(OUT / "outputs.safetensors", {"vectors": torch.stack(vectors)})


if __name__ == "__main__":
    main()
