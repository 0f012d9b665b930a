// Reads tool calls that are written as calls of Python functions: f(a=1, b="x").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/loose_calls.h"

namespace smartkv::openai {

enum class PythonCalls : uint8_t { kMore, kText, kCalls };

// Reads one call, or a list of calls in brackets. Only functions in `names` are called; arguments are keywords with
// literal values. Returns kMore if more text has to decide. With kCalls, appends the calls and sets `*end` to the
// offset after them.
PythonCalls read_python_calls(std::string_view text, const std::vector<std::string>& names,
                              std::vector<LooseCall>* calls, size_t* end);

}  // namespace smartkv::openai
