#include "server/openai/field_names.h"

#include <string_view>

namespace smartkv::openai {

namespace {

bool stands_alone(std::string_view text, size_t at, size_t length) {
  const bool begins = at == 0 || text[at - 1] == '\'' || text[at - 1] == ' ';
  return begins && (at + length == text.size() || text[at + length] == '\'');
}

}  // namespace

std::string FieldNames::outer(const std::string& path) const {
  for (size_t length = path.size();; --length) {
    const bool whole_names = length == path.size() || path[length] == '.' || path[length] == '[';
    if (whole_names) {
      const auto found = outer_.find(path.substr(0, length));
      if (found != outer_.end()) return found->second + path.substr(length);
    }
    if (length == 0) return path;
  }
}

ApiError FieldNames::outer(const ApiError& error) const {
  const std::string& inner = error.param;
  const std::string renamed = outer(inner);
  std::string message = error.what();
  for (size_t at = 0; !inner.empty() && inner != renamed && (at = message.find(inner, at)) != message.npos;) {
    if (stands_alone(message, at, inner.size())) {
      message.replace(at, inner.size(), renamed);
      at += renamed.size();
    } else {
      ++at;
    }
  }
  return ApiError(error.status, error.type, message, renamed, error.code, error.retry_after_s);
}

}  // namespace smartkv::openai
