// Reads a tokenizer.json, and encodes and decodes text with the result.
#include "engine/text/tokenizer_json.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  try {
    const auto json = parse_json(fuzz::text_of(data, size), "tokenizer.json");
    const auto tokenizer = make_bpe_tokenizer(parse_tokenizer_json(json, TokenizerConfig{}, "tokenizer.json"));
    for (const char* text : {"", "Hello, <s> w\xc3\xb6rld 123  \n", "\xff\xe2\x96 a", "\xe2\x96\x81 aaaa bb"}) {
      const auto tokens = tokenizer->encode(text);
      tokenizer->decode(tokens);
      for (const TokenId token : tokens) tokenizer->token_bytes(token);
    }
  } catch (const TokenizerError&) {
  }
  return 0;
}
