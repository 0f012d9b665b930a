// What keeps a server from starting: models that cannot be read, and signals while one is loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run;

constexpr const char* kModel = SMARTKV_SOURCE "/tests/fixtures/architectures/llama.gguf";

class Start : public ::testing::Test {
 protected:
  Start() : folder_(fs::path(::testing::TempDir()) / "start_test") {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~Start() override { fs::remove_all(folder_); }

  void expect_refused(const fs::path& model, const std::string& why) {
    const Ran ran = run({"serve", "--port", "0", "--model", model.c_str()});
    EXPECT_EQ(ran.code, kRuntimeError) << model;
    EXPECT_THAT(ran.error, AllOf(HasSubstr(model.filename().string()), HasSubstr(why)));
    EXPECT_EQ(ran.out, "");
  }

  fs::path folder_;
};

TEST_F(Start, AModelThatCannotBeReadIsNamedWithTheReason) {
  std::ifstream file(kModel, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  ASSERT_FALSE(whole.empty());
  const auto written = [&](const char* name, const std::string& contents) {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  };
  expect_refused(folder_ / "missing.gguf", "no such file");
  expect_refused(folder_, "config.json");
  expect_refused(written("empty.gguf", ""), "truncated");
  expect_refused(written("text.gguf", "hello, this is no model"), "not a GGUF file");
  expect_refused(written("metadata.gguf", whole.substr(0, 100)), "");
  expect_refused(written("tensors.gguf", whole.substr(0, whole.size() - 1000)), "truncated: tensor");
  ASSERT_EQ(::mkfifo((folder_ / "fifo.gguf").c_str(), 0600), 0);
  expect_refused(folder_ / "fifo.gguf", "expected a regular file");
}

TEST_F(Start, AModelGoesByItsContentsNotItsEnding) {
  for (const char* name : {"Qwen2.5-0.5B.GGUF", "llama", "llama.bin"}) {
    fs::copy_file(kModel, folder_ / name);
    expect_refused(folder_ / name, "key \"tokenizer.ggml.tokens\": expected an array of strings");  // read, but it has no tokenizer
  }
  const fs::path text = folder_ / "text.bin";
  std::ofstream(text) << "no model";
  expect_refused(text, "expected a GGUF file or a folder");
  const fs::path fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(fifo, "expected a GGUF file or a folder");
}

// Beside this program there is no module; torch_server_test.cpp runs the one that has it.
TEST_F(Start, ABackendOrDeviceThatCannotBeHadIsNamed) {
  const auto error_of = [](const char* option, const char* value) {
    const Ran ran = run({"serve", "--port", "0", "--model", SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf", option, value});
    EXPECT_EQ(ran.code, kRuntimeError) << option;
    EXPECT_EQ(ran.out, "");
    return ran.error;
  };
  EXPECT_THAT(error_of("--backend", "torch"),
              AllOf(HasSubstr("backend: torch needs "), HasSubstr("/libsmartkv_torch_backend.so, which is not there"),
                    HasSubstr("scripts/build_torch.sh")));
  EXPECT_THAT(error_of("--device", "cuda:0"),
              AllOf(HasSubstr("device: expected cpu, "), HasSubstr("built without CUDA")));
}

// A server to which the signal was sent before it began to load its model.
void serve_with_pending(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::raise(signal);
  const std::array arguments = {"smartkv", "serve", "--port", "0", "--model", kModel};
  run_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// Serves without keys and TLS, which has nothing to reload. SIGTERM comes once SIGHUP was taken.
[[noreturn]] void serve_through_a_hangup(const std::string& model) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGHUP);
  ::sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::kill(::getpid(), SIGHUP);
  std::thread([] {
    for (int i = 0; i < 3000; ++i) {
      sigset_t pending;
      ::sigpending(&pending);
      if (::sigismember(&pending, SIGHUP) == 0) ::kill(::getpid(), SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::_Exit(99);  // nobody took it
  }).detach();
  const std::array arguments = {"smartkv", "serve", "--port", "0", "--model", model.c_str()};
  std::_Exit(run_command_line(static_cast<int>(arguments.size()), arguments.data()));
}

TEST_F(Start, AHangupWithoutKeysAndTlsChangesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::TinyModelFolder model("start_hangup");
  EXPECT_EXIT(serve_through_a_hangup(model.path()), ::testing::ExitedWithCode(kOk), "nothing to reload");
}

// Exit codes are a shell's.
TEST_F(Start, ASignalWhileTheModelIsLoadedEndsTheServerWithoutAnAnswer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(serve_with_pending(signal), ::testing::ExitedWithCode(128 + signal), "interrupted while loading");
  }
}

}  // namespace
}  // namespace smartkv
