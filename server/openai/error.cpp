#include "server/openai/error.h"

#include <algorithm>
#include <new>

#include "engine/text/exact_integer.h"

namespace smartkv::openai {

namespace {

constexpr const char* kInvalidRequest = "invalid_request_error";
constexpr const char* kServerError = "server_error";

Json null_if_empty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

ApiError::ApiError(int status_code, std::string error_type, const std::string& message, std::string error_param,
                   std::string error_code, int retry_after)
    : std::runtime_error(message),
      status(status_code),
      type(std::move(error_type)),
      param(std::move(error_param)),
      code(std::move(error_code)),
      retry_after_s(retry_after) {}

Json ApiError::body() const {
  return {
      {"error", {{"message", what()}, {"type", type}, {"param", null_if_empty(param)}, {"code", null_if_empty(code)}}}};
}

ApiError invalid_request(const std::string& param, const std::string& message) {
  return ApiError(400, kInvalidRequest, message, param);
}

ApiError model_not_found(const std::string& model) {
  return ApiError(404, kInvalidRequest, "The model '" + model + "' does not exist", "model", "model_not_found");
}

ApiError unknown_url(const std::string& method, const std::string& path) {
  return ApiError(404, kInvalidRequest, "Unknown URL: " + method + " " + path, "", "unknown_url");
}

ApiError server_error(const std::string& message) { return ApiError(500, kServerError, message); }

ApiError out_of_memory(const std::string& message) {
  return ApiError(503, kServerError, message, "", "out_of_memory", 1);
}

ApiError lost(const std::string& message) { return ApiError(503, kServerError, message, "", "unavailable", 1); }

ApiError draining() {
  return ApiError(503, kServerError, "The server is shutting down and accepts no new requests", "", "draining", 1);
}

ApiError to_api_error(const RequestError& error) {
  switch (error.kind) {
    case RequestError::Kind::kInvalid: return invalid_request(error.param, error.what());
    case RequestError::Kind::kContextLength:
      return ApiError(400, kInvalidRequest, error.what(), error.param, "context_length_exceeded");
    case RequestError::Kind::kTooLarge:
      return ApiError(413, kInvalidRequest, error.what(), error.param, "request_too_large");
    case RequestError::Kind::kOverloaded:
      return ApiError(429, "rate_limit_error", error.what(), error.param, "rate_limit_exceeded",
                      std::max(1, error.retry_after_s));
    case RequestError::Kind::kDraining: return draining();
    case RequestError::Kind::kLost: return lost(error.what());
    case RequestError::Kind::kClientGone: return ApiError(kClientClosedRequest, kInvalidRequest, error.what());
  }
  return server_error(error.what());
}

ApiError internal_error(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return out_of_memory("The server ran out of memory for the request");
  }
  return server_error(std::string("Internal error: ") + error.what());
}

namespace {

bool holds_exact_integers(const Json& json) {
  if (json.is_structured()) return std::any_of(json.begin(), json.end(), holds_exact_integers);
  return is_exact_integer(json);
}

std::string dump_exact(const Json& json) {
  if (is_exact_integer(json)) return digits_of(json);
  if (!holds_exact_integers(json)) return dump(json);
  std::string text;
  for (auto item = json.begin(); item != json.end(); ++item) {
    if (!text.empty()) text += ',';
    if (json.is_object()) text += dump(item.key()) + ':';
    text += dump_exact(*item);
  }
  return json.is_object() ? '{' + text + '}' : '[' + text + ']';
}

}  // namespace

std::string dump(const Json& json) {
  return holds_exact_integers(json) ? dump_exact(json) : json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace smartkv::openai
