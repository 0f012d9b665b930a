// Signatures of thinking blocks. They tell which blocks of a history this server has made: a block that came from
// another model, or that was changed, is not shown to the model again.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace smartkv::anthropic {

// Signs with HMAC-SHA256. Servers with equal keys accept each other's signatures.
class ThinkingSigner {
 public:
  explicit ThinkingSigner(std::string key) : key_(std::move(key)) {}

  std::string sign(std::string_view thinking) const;
  // Returns a signature that carries the thinking, encoded but not encrypted, for a block whose text is omitted.
  std::string seal(std::string_view thinking) const;
  // Returns the thinking of a block, or nullopt if the signature is not one that this signer made for it. `thinking` is
  // empty if it was omitted.
  std::optional<std::string> open(std::string_view thinking, std::string_view signature) const;

 private:
  std::string code(std::string_view thinking) const;  // 32 bytes

  std::string key_;
};

}  // namespace smartkv::anthropic
