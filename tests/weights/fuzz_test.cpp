// Damaged files must lead to ModelError, never to a crash.
#include "engine/weights/gguf.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/weights/safetensors.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

TEST(Fuzz, MutatedFilesNeverCrash) {
  const Folder folder;
  std::mt19937 random(5);
  for (const char* name : {"tiny.gguf", "tiny/model.safetensors"}) {
    const std::string good = read_file(kFixtures / name);
    const bool gguf = std::string(name).ends_with("gguf");
    int refused = 0, read = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = good;
      for (uint64_t n = 1 + random() % 4; n > 0; --n) {
        const size_t at = random() % std::min<size_t>(bytes.size(), 4096);  // where the structure is
        switch (random() % 3) {
          case 0: bytes[at] = static_cast<char>(random()); break;
          case 1: bytes[at] = static_cast<char>(random() % 2 == 0 ? 0xff : 0); break;
          default: bytes.erase(at, random() % 9);
        }
      }
      try {
        if (gguf) {
          folder.write("m.gguf", bytes);
          const auto weights = Weights::open(folder.path() / "m.gguf");
          for (const std::string& tensor : weights->names()) weights->read(tensor, weights->find(tensor)->shape);
        } else {
          const SafetensorsFile file = SafetensorsFile::parse(bytes_of(bytes), "m");
          for (const auto& [key, tensor] : file.tensors()) {
            std::vector<float> values(static_cast<size_t>(tensor.elements()));
            expand_rows(tensor, 0, tensor.rows(), values.data());
          }
        }
        ++read;
      } catch (const ModelError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 100) << name;
    EXPECT_GT(read, 0) << name;
  }
}

TEST(Fuzz, TruncatedFilesAreErrors) {
  const std::string gguf = read_file(kFixtures / "tiny.gguf"),
                    safetensors = read_file(kFixtures / "tiny/model.safetensors");
  for (size_t n = 0; n < gguf.size(); n += n < 4096 ? 1 : 97) {
    EXPECT_THROW(GgufFile::parse(bytes_of(gguf).first(n), "m"), ModelError) << n;
  }
  for (size_t n = 0; n < safetensors.size(); n += n < 4096 ? 1 : 97) {
    EXPECT_THROW(SafetensorsFile::parse(bytes_of(safetensors).first(n), "m"), ModelError) << n;
  }
}

}  // namespace
}  // namespace smartkv
