// Bodies of requests. The first byte chooses the route.
#include "server/anthropic/messages.h"
#include "server/openai/responses.h"
#include "server/openai/tokenize.h"
#include "tests/fuzz/input.h"
#include "tests/server/fake_engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  static test::FakeEngine engine;
  static const openai::ServedModel model{.engine = engine, .names = {"fake"}, .max_prompts = 8};
  if (size == 0) return 0;
  const std::string_view body = fuzz::text_of(data + 1, size - 1);
  try {
    switch (data[0] % 7) {
      case 0: openai::parse_chat(body, model); break;
      case 1: openai::parse_completion(body, model); break;
      case 2: openai::parse_responses(body, model); break;
      case 3: openai::tokenize(body, model); break;
      case 4: openai::detokenize(body, model); break;
      case 5: anthropic::parse_messages(body, model); break;
      default: anthropic::count_tokens(body, model);
    }
  } catch (const openai::ApiError& error) {
    if (error.status >= 500) throw;
  }
  return 0;
}
