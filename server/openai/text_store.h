// Keeps texts by name within a limit of bytes. The least recently used are deleted first. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace smartkv::openai {

class TextStore {
 public:
  virtual ~TextStore() = default;

  // Keeps a text under a name, instead of one that has it. Returns false if it is longer than the limit, or cannot be
  // written.
  virtual bool put(const std::string& name, std::string text) = 0;
  virtual std::optional<std::string> get(const std::string& name) = 0;  // marks it as used
  virtual bool erase(const std::string& name) = 0;                      // returns whether it was there
};

// In memory. Each text counts its own bytes and those of its entry.
std::unique_ptr<TextStore> texts_in_memory(int64_t max_bytes);
// In files NAME.response of `folder`, which only the owner may read. Several processes may share the folder; each keeps
// it within its own limit. Other files in it are left alone. Makes the folder if it does not exist. Throws
// std::runtime_error, naming the folder, if it cannot be used. REQUIRES: names are safe as file names.
std::unique_ptr<TextStore> texts_in_folder(int64_t max_bytes, std::filesystem::path folder);

}  // namespace smartkv::openai
