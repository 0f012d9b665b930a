// Texts of answers with thinking and tool calls, whole and in pieces. The first byte chooses the form of calls, the
// second one the thinking and the size of the pieces.
#include <cstdlib>

#include "server/openai/answer_parser.h"
#include "tests/fuzz/input.h"

namespace {

using namespace smartkv;

openai::ApiRequest request_of(uint8_t form, bool thinks) {
  openai::ApiRequest request;
  request.chat = true;
  GenerationRequest& generation = request.generations.emplace_back();
  openai::ToolFunction function;
  function.name = "f";
  function.parameters = {{"type", "object"}, {"properties", {{"s", {{"type", "string"}}}}}};
  request.tools.emplace().functions.push_back(function);
  request.tools->settle(static_cast<openai::ToolForm>(form % (static_cast<int>(openai::ToolForm::kGemma4) + 1)));
  request.channels = request.tools->form == openai::ToolForm::kHarmony;
  if (!thinks) return request;
  generation.thinking.emplace();
  generation.thinking->open = "<think>";
  generation.thinking->close = "</think>";
  return request;
}

// Returns everything that the parser returns, in one text. Each part is joined, however many pieces it comes in.
std::string parsed(const openai::ApiRequest& request, std::string_view text, size_t piece) {
  openai::AnswerParser parser(request);
  std::string thinking, answer, calls;
  do {
    GenerationEvent event;
    event.text = text.substr(0, piece);
    text.remove_prefix(event.text.size());
    if (text.empty()) event.finish = FinishReason::kStop;
    for (const openai::AnswerPiece& one : parser.take(event)) {
      thinking += one.reasoning;
      answer += one.text;
      if (!one.name.empty()) calls += "|" + one.name + ":";
      calls += one.arguments;
    }
  } while (!text.empty());
  return thinking + "\n" + answer + "\n" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const openai::ApiRequest request = request_of(data[0], (data[1] & 1) != 0);
  const std::string_view text = fuzz::text_of(data + 2, size - 2);
  if (parsed(request, text, text.size()) != parsed(request, text, 1 + (data[1] >> 1))) std::abort();
  return 0;
}
