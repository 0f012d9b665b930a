// Traces and logs of agents. The first byte chooses. The trace of every log that is accepted is read again.
#include <cstdlib>

#include "lab/serving/agent_log.h"
#include "lab/serving/agent_trace.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  std::vector<AgentTurn> turns;
  try {
    turns = data[0] % 2 == 1 ? convert_agent_log(text) : parse_agent_trace(text);
  } catch (const TraceError&) {
    return 0;
  }
  std::string trace;
  for (const AgentTurn& turn : turns) trace += trace_line(turn) + "\n";
  if (parse_agent_trace(trace) != turns) std::abort();
  return 0;
}
