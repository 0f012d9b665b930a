#include "server/anthropic/thinking_signature.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <new>

namespace smartkv::anthropic {

namespace {

constexpr size_t kCodeBytes = 32;

const unsigned char* bytes(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

std::string base64(std::string_view text) {
  std::string encoded((text.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()), bytes(text), static_cast<int>(text.size()));
  encoded.resize(static_cast<size_t>(size));
  return encoded;
}

// Returns nullopt if the text is not base64.
std::optional<std::string> from_base64(std::string_view text) {
  std::string decoded(text.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(decoded.data()), bytes(text), static_cast<int>(text.size()));
  const auto padding = static_cast<size_t>(text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  if (size < static_cast<int>(padding)) return std::nullopt;
  decoded.resize(static_cast<size_t>(size) - padding);
  return decoded;
}

}  // namespace

std::string ThinkingSigner::code(std::string_view thinking) const {
  std::string result(kCodeBytes, '\0');
  const unsigned char* made = HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), bytes(thinking),
                                   thinking.size(), reinterpret_cast<unsigned char*>(result.data()), nullptr);
  if (made == nullptr) throw std::bad_alloc();
  return result;
}

std::string ThinkingSigner::sign(std::string_view thinking) const { return base64(code(thinking)); }

std::string ThinkingSigner::seal(std::string_view thinking) const { return base64(code(thinking).append(thinking)); }

std::optional<std::string> ThinkingSigner::open(std::string_view thinking, std::string_view signature) const {
  const std::optional<std::string> decoded = from_base64(signature);
  if (!decoded || decoded->size() < kCodeBytes) return std::nullopt;
  std::string text = thinking.empty() ? decoded->substr(kCodeBytes) : std::string(thinking);
  const std::string expected = thinking.empty() ? code(text) + text : code(text);
  const bool same =
      expected.size() == decoded->size() && CRYPTO_memcmp(expected.data(), decoded->data(), expected.size()) == 0;
  return same ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace smartkv::anthropic
