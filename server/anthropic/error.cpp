#include "server/anthropic/error.h"

#include "server/openai/api_request.h"

namespace smartkv::anthropic {

namespace {

constexpr int kOverloaded = 529;
constexpr const char* kOverloadedCode = "overloaded";

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case kOverloaded: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

int status_of(const ApiError& error) {
  return error.status == 503 || error.code == kOverloadedCode ? kOverloaded : error.status;
}

Json error_json(const ApiError& error, const std::string& request_id) {
  // Clients look for these words to know that they have to shorten the conversation.
  const char* prefix = error.code == "context_length_exceeded" ? "prompt is too long: " : "";
  return {{"type", "error"},
          {"error", {{"type", type_of(status_of(error))}, {"message", std::string(prefix) + error.what()}}},
          {"request_id", request_id}};
}

ApiError overloaded(const ApiError& error) {
  if (error.status != 429) return error;
  return ApiError(error.status, error.type, error.what(), error.param, kOverloadedCode, error.retry_after_s);
}

std::string request_id(const std::string& message_id) {
  return message_id.starts_with("msg_") ? "req_" + message_id.substr(4) : openai::make_id("req_");
}

}  // namespace smartkv::anthropic
