#!/usr/bin/env python3
"""Compares smartkv's tokens and greedy answers to a GGUF file with those of transformers on the dequantized file.

Both compute with f32. Exits with 1 if a prompt's tokens or an answer differ. Usage: check_answers.py MODEL PROGRAM
"""
import pathlib
import subprocess
import sys

import torch
import transformers

TOKENS = 40
LONG = " ".join(f"On day {i} the keeper of the light wrote {i * 7 % 31} lines about the weather." for i in range(1, 60))
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, there was a little girl who",
           "1, 2, 3, 4, 5,", "Die Stadt Wien", "日本の首都は", LONG]


def main():
    model, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    source = dict(pretrained_model_name_or_path=model.parent, gguf_file=model.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    failed = 0
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            found = oracle.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, inputs.input_ids.shape[1]:]
        expected = tokenizer.decode(found, skip_special_tokens=True)
        answer = subprocess.run(
            [program, "generate", "--model", model, "--raw", "--weights", "f32", "--temperature", "0", "--max-tokens",
             str(TOKENS), "--prompt", prompt, "--log-level", "error"], capture_output=True, text=True, check=True).stdout
        equal = answer.rstrip("\n") == expected.rstrip("\n")
        failed += not equal
        print(f"{'equal' if equal else 'DIFFERENT'}: {inputs.input_ids.shape[1]} tokens, {prompt[:40]!r}")
        if not equal:
            print(f"  transformers {expected!r}\n  smartkv      {answer!r}")
    print(f"{len(PROMPTS) - failed} of {len(PROMPTS)} answers of {TOKENS} tokens are equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
