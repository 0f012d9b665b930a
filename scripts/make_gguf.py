#!/usr/bin/env python3
"""Writes a LLaMA of make_model.py as a GGUF file in BF16, so that llama.cpp can be measured on the same weights.

Needs gguf and numpy. Usage: scripts/make_gguf.py models/random-1b models/random-1b.BF16.gguf
"""
import argparse
import json
import pathlib

import gguf
import numpy as np

NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
LAYER_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
               "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
               "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def rotated_in_pairs(weights, heads):
    """Permutes rows from [head][half][i] to [head][i][half]. GGUF's LLaMA rotates adjacent rows, Hugging Face's the two
    halves of a head."""
    rows, inputs = weights.shape
    return np.ascontiguousarray(weights.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2)).reshape(rows, inputs)


def tensors(path):
    """Returns the bf16 words of a safetensors file by name. They are read when they are used."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", 8 + length)
    return {name: data[slice(*entry["data_offsets"])].view(np.uint16).reshape(entry["shape"]) for name, entry in header.items()}


def write_tokenizer(writer, folder, config):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))])
    writer.add_token_merges(tokenizer["model"]["merges"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder written by make_model.py")
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    writer = gguf.GGUFWriter(arguments.out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    write_tokenizer(writer, arguments.folder, config)
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    for name, words in tensors(arguments.folder / "model.safetensors").items():
        if words.ndim == 1:
            writer.add_tensor(gguf_name(name), (words.astype(np.uint32) << 16).view(np.float32))
            continue
        rotated = [n for part, n in heads.items() if part in name]
        words = rotated_in_pairs(words, rotated[0]) if rotated else words
        writer.add_tensor(gguf_name(name), words.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
