// The rule of the layers, server -> engine -> cache -> kernels, and the places that may include LibTorch, XGrammar,
// spdlog, cpp-httplib or the measurements.
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

int level(const std::string& path) {
  const std::string top = path.substr(0, path.find('/'));
  return top == "kernels"                  ? 0
         : top == "cache"                  ? 1
         : top == "engine" || top == "hub" ? 2
         : top == "server"                 ? 3
         : top == "lab"                    ? 4
                                           : -1;
}

TEST(Layers, IncludesPointDownwards) {
  const std::filesystem::path root = SMARTKV_SOURCE;
  const std::regex include(R"(^\s*#include\s*([<"])([^>"]+)[>"])");
  int64_t seen = 0;
  for (const char* layer : {"kernels", "cache", "hub", "engine", "server", "lab"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / layer)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      const std::string path = std::filesystem::relative(entry.path(), root);
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        ++seen;
        const std::string target = match[2];
        if (match[1] == "\"") {
          EXPECT_LE(level(target), level(path)) << path << " includes " << target;
        }
        if (target.starts_with("torch/") || target.starts_with("ATen/") || target.starts_with("c10/")) {
          EXPECT_TRUE(path.starts_with("engine/torch/") || path.starts_with("lab/training/"))
              << path << " includes " << target;
        }
        if (target.starts_with("xgrammar/") || target.starts_with("dlpack/")) {
          EXPECT_EQ(path, "engine/sampling/grammar_constraint.cpp") << path << " includes " << target;
        }
        if (target.starts_with("spdlog/")) {
          EXPECT_EQ(path, "engine/log.cpp") << path << " includes " << target;
        }
        if (target == "httplib.h") {  // clients only
          EXPECT_TRUE(path == "server/commands/health.cpp" || path == "hub/hub_http.cpp" ||
                      path == "lab/serving/load_client.cpp")
              << path << " includes " << target;
        }
      }
    }
  }
  EXPECT_GT(seen, 100);
}

}  // namespace
}  // namespace smartkv
