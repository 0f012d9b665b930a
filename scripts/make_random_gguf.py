#!/usr/bin/env python3
"""Writes a model of real shape with random weights as a GGUF file of the mix Q4_K_M, without a file of 16 bits first.

Needs gguf and numpy. Usage: scripts/make_random_gguf.py qwen3-30b-a3b models/random-30b-a3b.gguf --layers 24

Its tokens are random, so its text is meaningless; only its speed is of interest. With fewer layers, a model that does
not fit this machine still shows the rates of its layers.
"""
import argparse
import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import make_model

Q4_K, Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
# Shapes of Qwen2.5 1.5B, Llama 3.1 8B and Qwen3 30B-A3B.
SHAPES = {
    "qwen2-1.5b": dict(arch="qwen2", layers=28, hidden=1536, inter=8960, heads=12, kv_heads=2, dim=128, vocab=151936,
                       tied=True),
    "llama-8b": dict(arch="llama", layers=32, hidden=4096, inter=14336, heads=32, kv_heads=8, dim=128, vocab=128256),
    "qwen3-30b-a3b": dict(arch="qwen3moe", layers=48, hidden=2048, inter=6144, heads=32, kv_heads=4, dim=128,
                          vocab=151936, experts=128, used=8, expert_inter=768),
}
BLOCK = 256           # weights of a block of both types
CHUNK = 1 << 14       # blocks drawn at once


def has_more_bits(layer, layers):
    """Whether Q4_K_M gives attn_v and ffn_down of a layer 6 bits: in its first and last eighth, and each third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def tensor_list(c):
    """Yields name, shape (rows last but one) and type. None as type: f32."""
    q, kv, hidden, layers = c["heads"] * c["dim"], c["kv_heads"] * c["dim"], c["hidden"], c["layers"]
    yield "token_embd.weight", (c["vocab"], hidden), Q6_K if c.get("tied") else Q4_K
    for i in range(layers):
        wide = Q6_K if has_more_bits(i, layers) else Q4_K
        name = f"blk.{i}."
        yield name + "attn_norm.weight", (hidden,), None
        yield name + "ffn_norm.weight", (hidden,), None
        for part, rows, kind in (("q", q, Q4_K), ("k", kv, Q4_K), ("v", kv, wide)):
            yield f"{name}attn_{part}.weight", (rows, hidden), kind
            if c["arch"] == "qwen2":
                yield f"{name}attn_{part}.bias", (rows,), None
            elif c["arch"] == "qwen3moe" and part != "v":
                yield f"{name}attn_{part}_norm.weight", (c["dim"],), None
        yield name + "attn_output.weight", (hidden, q), Q4_K
        if "experts" in c:
            n, inter = c["experts"], c["expert_inter"]
            yield name + "ffn_gate_inp.weight", (n, hidden), None
            yield name + "ffn_gate_exps.weight", (n, inter, hidden), Q4_K
            yield name + "ffn_up_exps.weight", (n, inter, hidden), Q4_K
            yield name + "ffn_down_exps.weight", (n, hidden, inter), wide
        else:
            yield name + "ffn_gate.weight", (c["inter"], hidden), Q4_K
            yield name + "ffn_up.weight", (c["inter"], hidden), Q4_K
            yield name + "ffn_down.weight", (hidden, c["inter"]), wide
    yield "output_norm.weight", (hidden,), None
    if not c.get("tied"):
        yield "output.weight", (c["vocab"], hidden), Q6_K


def random_blocks(rng, n, inputs, kind):
    """Returns the bytes of n blocks, whose weights have a mean near 0 and a deviation near inputs ** -0.5."""
    blocks = np.frombuffer(rng.bytes(n * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8).reshape(n, -1).copy()
    if kind == Q4_K:  # weight = d * scale * code - dmin * min, with scale and min below 64 and code below 16
        d = np.float16(inputs**-0.5 / 200)
        blocks[:, 0:4] = np.array([d, d * np.float16(7.5)], np.float16).view(np.uint8)
    else:             # weight = d * scale * (code - 32), with scale from -128 to 127 and code below 64
        blocks[:, -2:] = np.array([inputs**-0.5 / 1366], np.float16).view(np.uint8)
    return blocks


def write_tokenizer(writer, vocab):
    special = [vocab - 2, vocab - 1]
    made = make_model.tokenizer(vocab, special)
    tokens = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(vocab)])
    writer.add_token_merges(made["model"]["merges"])
    writer.add_bos_token_id(special[0])
    writer.add_eos_token_id(special[1])


def write_fields(writer, c):
    writer.add_context_length(32768)
    writer.add_embedding_length(c["hidden"])
    writer.add_block_count(c["layers"])
    writer.add_feed_forward_length(c["inter"])
    writer.add_head_count(c["heads"])
    writer.add_head_count_kv(c["kv_heads"])
    writer.add_key_length(c["dim"])
    writer.add_value_length(c["dim"])
    writer.add_rope_dimension_count(c["dim"])
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(c["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    if "experts" in c:
        writer.add_expert_count(c["experts"])
        writer.add_expert_used_count(c["used"])
        writer.add_expert_feed_forward_length(c["expert_inter"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="number of layers in place of the shape's")
    arguments = parser.parse_args()
    config = dict(SHAPES[arguments.shape])
    config["layers"] = arguments.layers or config["layers"]
    writer = gguf.GGUFWriter(arguments.out, config["arch"])
    write_fields(writer, config)
    write_tokenizer(writer, config["vocab"])
    tensors = list(tensor_list(config))
    for name, shape, kind in tensors:
        n = int(np.prod(shape))
        if kind is None:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * n)
        else:
            size = gguf.GGML_QUANT_SIZES[kind][1]
            row_bytes = shape[-1] // BLOCK * size
            writer.add_tensor_info(name, (*shape[:-1], row_bytes), np.dtype(np.uint8), n // BLOCK * size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for name, shape, kind in tensors:
        if kind is None:
            value = rng.standard_normal(shape, np.float32) * shape[-1] ** -0.5 if len(shape) > 1 else np.ones(shape, np.float32)
            writer.write_tensor_data(value * np.float32(not name.endswith(".bias")))
            continue
        n = int(np.prod(shape)) // BLOCK
        pieces = [random_blocks(rng, min(CHUNK, n - at), shape[-1], kind) for at in range(0, n, CHUNK)]
        writer.write_tensor_data(np.concatenate(pieces).reshape(-1))
    writer.close()


main()
