// Chat templates: parsing and rendering.
#include "engine/text/chat_template.h"

#include "tests/fuzz/input.h"

namespace {

const nlohmann::ordered_json& context() {
  static const auto json = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                 {"role": "assistant", "content": "Hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3, "x": 1.5, "none": null})");
  return json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  try {
    // Limits that keep every input fast.
    const ChatTemplate chat_template(fuzz::text_of(data, size), {.max_steps = 20'000, .max_output_bytes = 1 << 20});
    chat_template.render(context(), [] { return std::tm{}; });
  } catch (const ChatTemplateError&) {
  }
  return 0;
}
