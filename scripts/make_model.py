#!/usr/bin/env python3
"""Makes a LLaMA of real size with random weights for measurements: a Hugging Face folder in BF16, streamed to disk.

Needs numpy. Usage: scripts/make_model.py 1b models/random-1b

The tokenizer is byte-level BPE with random merges, so its file has the size of a real one. The model's text is
meaningless; only its speed is of interest.
"""
import argparse
import json
import pathlib
import random

import numpy as np

COMMON = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu", rms_norm_eps=1e-5,
              rope_theta=500000.0, vocab_size=128256, max_position_embeddings=131072, torch_dtype="bfloat16",
              bos_token_id=128000, eos_token_id=128001, attention_bias=False, mlp_bias=False)
# The shapes of Llama 3.2 1B and 3B, and of Llama 3.1 8B.
SHAPES = {
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, head_dim=64, tie_word_embeddings=True),
    "3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
               num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, tie_word_embeddings=False),
}
BLOCK = 1 << 20  # random values drawn at once


def tensor_shapes(c):
    hidden, inter, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield layer + f"self_attn.{name}_proj.weight", (rows, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, q)
        yield layer + "mlp.gate_proj.weight", (inter, hidden)
        yield layer + "mlp.up_proj.weight", (inter, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inter)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_weights(path, config, rng):
    header, end = {}, 0
    for name, shape in tensor_shapes(config):
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensor_shapes(config):
            if len(shape) == 1:
                out.write(bf16(np.ones(shape)).tobytes())
                continue
            left = int(np.prod(shape))
            while left > 0:
                n = min(left, BLOCK)
                out.write(bf16(rng.standard_normal(n, np.float32) / np.float32(shape[1]) ** 0.5).tobytes())
                left -= n


def byte_symbols():
    """Returns GPT-2's symbols for bytes: the bytes themselves if printable, otherwise characters from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def tokenizer(vocab_size, special):
    """Returns the tokenizer. `special` are ids that are not the result of a merge."""
    draw = random.Random(1)
    vocab, merges = {symbol: i for i, symbol in enumerate(byte_symbols())}, []
    tokens = list(vocab)
    while len(vocab) < vocab_size:
        if len(vocab) in special:
            vocab[f"<|special_{len(vocab)}|>"] = len(vocab)
            continue
        left, right = draw.choice(tokens), draw.choice(tokens)
        if len(left + right) > 12 or left + right in vocab:
            continue
        vocab[left + right] = len(vocab)
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    added = [{"id": i, "content": f"<|special_{i}|>", "special": True, "normalized": False} for i in special]
    return {"version": "1.0", "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "post_processor": None,
            "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": merges}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=pathlib.Path, help="folder to write")
    arguments = parser.parse_args()
    config = COMMON | SHAPES[arguments.shape]
    arguments.out.mkdir(parents=True)
    (arguments.out / "config.json").write_text(json.dumps(config, indent=1))
    special = [config["bos_token_id"], config["eos_token_id"]]
    (arguments.out / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"], special)))
    write_weights(arguments.out / "model.safetensors", config, np.random.default_rng(1))


if __name__ == "__main__":
    main()
