#include "server/openai/logprobs.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace smartkv::openai {

namespace {

// OpenAI's replacement for log(0), which JSON cannot express.
constexpr float kLowest = -9999.0f;

Json bounded(float logprob) { return std::max(logprob, kLowest); }

Json byte_list(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json scored(const Tokenizer& tokenizer, TokenId token, float logprob) {
  return {{"token", token_text(tokenizer, token)},
          {"logprob", bounded(logprob)},
          {"bytes", byte_list(tokenizer.token_bytes(token))}};
}

// Returns the number of UTF-8 characters that begin in `bytes`. The sum over the tokens of a text is the text's length.
int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  std::string bytes = tokenizer.token_bytes(token);
  if (utf8_is_valid(bytes)) return bytes;
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = "bytes:";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += {'\\', 'x', kHex[value >> 4], kHex[value & 15]};
  }
  return text;
}

std::vector<TokenLogprob> ShownLogprobs::take(const GenerationEvent& event) {
  for (size_t i = 0; i < event.logprobs.size(); ++i) {
    const TokenId token = event.tokens[i];
    held_.push_back({event.logprobs[i], decoded_, decoder_.shows(token)});
    decoded_ += static_cast<int64_t>(decoder_.push(token).size());
  }
  shown_ += static_cast<int64_t>(event.text.size());
  const bool all = event.finish != FinishReason::kNone && !event.stop_string;
  std::vector<TokenLogprob> shown;
  while (!held_.empty() && (all || held_.front().first + (held_.front().has_text ? 1 : 0) <= shown_)) {
    shown.push_back(std::move(held_.front().logprob));
    held_.pop_front();
  }
  return shown;
}

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> logprobs, int32_t top_k) {
  Json content = Json::array();
  for (const TokenLogprob& logprob : logprobs) {
    Json entry = scored(tokenizer, logprob.token, logprob.logprob);
    entry["top_logprobs"] = Json::array();
    for (size_t i = 0; i < std::min<size_t>(logprob.top.size(), static_cast<size_t>(top_k)); ++i) {
      entry["top_logprobs"].push_back(scored(tokenizer, logprob.top[i].first, logprob.top[i].second));
    }
    content.push_back(std::move(entry));
  }
  return content;
}

void LegacyLogprobs::add(const TokenLogprob& logprob) {
  Json top = Json::object();
  for (const auto& [token, value] : logprob.top) {
    // If two tokens have the same text, the likelier one counts. It comes first, and emplace() keeps it.
    top.emplace(token_text(tokenizer_, token), bounded(value));
  }
  top.emplace(token_text(tokenizer_, logprob.token), bounded(logprob.logprob));
  add_token(logprob.token, bounded(logprob.logprob), std::move(top));
}

void LegacyLogprobs::add_unscored(TokenId token) { add_token(token, nullptr, nullptr); }

void LegacyLogprobs::add_token(TokenId token, Json logprob, Json top) {
  tokens_.push_back(token_text(tokenizer_, token));
  logprobs_.push_back(std::move(logprob));
  tops_.push_back(std::move(top));
  offsets_.push_back(offset_);
  if (!(skip_special_ && tokenizer_.is_special(token))) offset_ += characters(tokenizer_.token_bytes(token));
}

Json LegacyLogprobs::take() {
  if (tokens_.empty()) return nullptr;
  return {{"tokens", std::exchange(tokens_, Json::array())},
          {"token_logprobs", std::exchange(logprobs_, Json::array())},
          {"top_logprobs", std::exchange(tops_, Json::array())},
          {"text_offset", std::exchange(offsets_, Json::array())}};
}

}  // namespace smartkv::openai
