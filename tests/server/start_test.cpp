// Reasons why a server does not start: models that cannot be read, and signals while one is loaded.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include <httplib.h>

#include "engine/log.h"
#include "server/http/listening_socket.h"
#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

using test::Ran;
using test::run;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kServedModel = SMARTKV_SOURCE "/tests/fixtures/architectures/llama.gguf";

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

// Short outputs wait in a buffer until the end, long ones fail while they are written.
TEST(StandardOutput, ThatCannotBeWrittenIsAnError) {
  for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
           {"smartkv", "--version"}, {"smartkv", "serve", "--help"}, {"smartkv", "config", "schema"}}) {
    std::cout.flush();
    const int full = ::open("/dev/full", O_WRONLY), kept = ::dup(STDOUT_FILENO);
    ::dup2(full, STDOUT_FILENO);
    ::testing::internal::CaptureStderr();
    const int code = run_command_line(static_cast<int>(arguments.size()), arguments.data());
    flush_log(std::chrono::seconds(10));  // other tests may have moved the log to a thread
    const std::string error = ::testing::internal::GetCapturedStderr();
    ::dup2(kept, STDOUT_FILENO);
    ::close(kept);
    ::close(full);
    EXPECT_EQ(code, kRuntimeError) << arguments[1];
    EXPECT_THAT(error, HasSubstr("standard output cannot be written")) << arguments[1];
  }
}

TEST_F(Start, AModelThatCannotBeReadIsNamedWithTheReason) {
  std::ifstream file(kServedModel, std::ios::binary);
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
    fs::copy_file(kServedModel, folder_ / name);
    // The file can be read, but has no tokenizer.
    expect_refused(folder_ / name, "key \"tokenizer.ggml.tokens\": expected an array of strings");
  }
  const fs::path text = folder_ / "text.bin";
  std::ofstream(text) << "no model";
  expect_refused(text, "expected a GGUF file or a folder");
  const fs::path fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(fifo, "expected a GGUF file or a folder");
}

// This program has no torch module beside it. torch_server_test.cpp runs the program that has one.
TEST_F(Start, ABackendOrDeviceThatCannotBeHadIsNamed) {
  const auto error_of = [](const char* option, const char* value) {
    const Ran ran = run(
        {"serve", "--port", "0", "--model", SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf", option, value});
    EXPECT_EQ(ran.code, kRuntimeError) << option;
    EXPECT_EQ(ran.out, "");
    return ran.error;
  };
  EXPECT_THAT(error_of("--backend", "torch"),
              AllOf(HasSubstr("backend: torch needs "), HasSubstr("/libsmartkv_torch_backend.so, which does not exist"),
                    HasSubstr("scripts/build_torch.sh")));
  EXPECT_THAT(error_of("--device", "cuda:0"),
              AllOf(HasSubstr("device: expected cpu, "), HasSubstr("built without CUDA")));
}

// Loading a model may take minutes, so a taken port must be reported first.
TEST_F(Start, ATakenPortIsReportedBeforeTheModelIsLoaded) {
  int port = 0;
  const int taken = http::open_listening_socket("127.0.0.1", &port);
  const std::string text = std::to_string(port);
  const Ran ran = run({"serve", "--port", text.c_str(), "--model", "/nonexistent.gguf"});
  ::close(taken);
  EXPECT_EQ(ran.code, kRuntimeError);
  EXPECT_THAT(ran.error, AllOf(HasSubstr("cannot listen on 127.0.0.1:" + text), Not(HasSubstr("nonexistent"))));
}

TEST_F(Start, AContextBeyondTheModelsNeedsRopeScaling) {
  const test::TinyModelFolder model("start_context");
  const std::string path = model.path();
  const auto start = [&](std::vector<const char*> more) {
    std::vector<const char*> arguments = {"generate",     "--model", path.c_str(),       "--prompt", "a",
                                          "--max-tokens", "1",       "--kv-cache-bytes", "1GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const Ran refused = start({"--context-length", "100000"});
  EXPECT_EQ(refused.code, kRuntimeError);
  EXPECT_THAT(refused.error, HasSubstr("context_length: expected at most 1024, the model's own context length, found "
                                       "100000; rope_scaling yarn, linear"));
  for (const char* scaling : {"yarn", "linear", "dynamic", R"({"type": "yarn", "factor": 100})"}) {
    const Ran ran = start({"--context-length", "100000", "--rope-scaling", scaling});
    EXPECT_EQ(ran.code, kOk) << scaling << ran.error;
    EXPECT_THAT(ran.error, HasSubstr("context_length: 100000 exceeds the model's own 1024")) << scaling;
  }
  EXPECT_THAT(start({"--context-length", "100000", "--rope-scaling", R"({"type": "linear", "factor": 2})"}).error,
              HasSubstr("context_length: expected at most 2048, the model's own 1024 times the factor of rope_scaling, "
                        "found 100000"));
  EXPECT_EQ(start({"--rope-scaling", R"({"type": "linear", "factor": 2})"}).code, kOk);
  EXPECT_EQ(start({"--context-length", "1024"}).error.find("exceeds"), std::string::npos);
  EXPECT_THAT(start({"--rope-scaling", "yarn"}).error,
              HasSubstr("rope_scaling: expected a factor, or a context_length beyond the model's own 1024"));
  EXPECT_THAT(start({"--context-length", "99999999", "--rope-scaling", "yarn"}).error,
              HasSubstr("context_length: expected at most 1048576, 1024 times"));
  EXPECT_THAT(start({"--rope-scaling", "longrope"}).error,
              HasSubstr("rope_scaling: expected none, linear, dynamic or yarn, found \"longrope\""));
  EXPECT_THAT(start({"--rope-scaling", R"({"type": "yarn", "factor": 0.5})"}).error,
              HasSubstr("rope_scaling.factor: expected a number from 1"));
}

// Runs a server to which the signal was sent before it began to load its model.
void serve_with_pending(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::raise(signal);
  const std::array arguments = {"smartkv", "serve", "--port", "0", "--model", kServedModel};
  run_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// Serves without keys and TLS, so that SIGHUP has nothing to reload. Sends SIGTERM once SIGHUP has been handled.
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
    std::_Exit(99);  // SIGHUP was never handled
  }).detach();
  const std::array arguments = {"smartkv", "serve", "--port", "0", "--model", model.c_str()};
  std::_Exit(run_command_line(static_cast<int>(arguments.size()), arguments.data()));
}

TEST_F(Start, AHangupWithoutKeysAndTlsChangesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TinyModelFolder model("start_hangup");
  EXPECT_EXIT(serve_through_a_hangup(model.path()), ::testing::ExitedWithCode(kOk), "nothing to reload");
}

// Serves with a delay between SIGTERM and draining, which a second signal ends. Exits with 9x if something goes wrong.
[[noreturn]] void serve_on_after_the_signal(const std::string& model) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  int port = 0;
  ::close(http::open_listening_socket("127.0.0.1", &port));
  std::thread([port] {
    httplib::Client client("127.0.0.1", port);
    const auto wait_for_health = [&](int status) {
      for (int i = 0; i < 3000; ++i) {
        if (const auto health = client.Get("/health"); health && health->status == status) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      std::_Exit(90);
    };
    wait_for_health(200);
    ::kill(::getpid(), SIGTERM);
    wait_for_health(503);
    const auto answer = client.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})", "application/json");
    if (!answer || answer->status != 200) std::_Exit(91);
    ::kill(::getpid(), SIGTERM);
  }).detach();
  const std::string text = std::to_string(port);
  const std::array arguments = {"smartkv",          "serve", "--port",           text.c_str(), "--model", model.c_str(),
                                "--shutdown-delay", "600",   "--kv-cache-bytes", "16MiB"};
  std::_Exit(run_command_line(static_cast<int>(arguments.size()), arguments.data()));
}

TEST_F(Start, RequestsAreTakenForTheDelayAfterTheSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TinyModelFolder model("start_delay");
  EXPECT_EXIT(serve_on_after_the_signal(model.path()), ::testing::ExitedWithCode(kOk),
              "requests are accepted for 600 s more");
}

// Serves with its log in a pipe that is full and never read.
[[noreturn]] void serve_with_a_blocked_log(const std::string& model) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::_Exit(92);
  int port = 0;
  ::close(http::open_listening_socket("127.0.0.1", &port));
  ::fcntl(pipe[1], F_SETFL, O_NONBLOCK);
  const std::array<char, 4096> bytes{};
  while (::write(pipe[1], bytes.data(), bytes.size()) > 0) {
  }
  ::fcntl(pipe[1], F_SETFL, 0);
  ::dup2(pipe[1], STDERR_FILENO);
  std::thread([port] {
    httplib::Client client("127.0.0.1", port);
    for (int i = 0; i < 3000 && !client.Get("/health"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (int i = 0; i < 20; ++i) {
      const auto answer = client.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})", "application/json");
      if (!answer || answer->status != 200) std::_Exit(93);
    }
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(60));
    std::_Exit(94);  // the log blocks the server
  }).detach();
  const std::string text = std::to_string(port);
  const std::array arguments = {"smartkv", "serve",       "--port",           text.c_str(),
                                "--model", model.c_str(), "--kv-cache-bytes", "16MiB"};
  std::exit(run_command_line(static_cast<int>(arguments.size()), arguments.data()));
}

TEST_F(Start, ABlockedLogHoldsUpNeitherAnswersNorTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TinyModelFolder model("start_blocked_log");
  EXPECT_EXIT(serve_with_a_blocked_log(model.path()), ::testing::ExitedWithCode(kOk), "");
}

// Exit codes are as a shell reports them: 128 plus the signal.
TEST_F(Start, ASignalWhileTheModelIsLoadedEndsTheServerWithoutAnAnswer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(serve_with_pending(signal), ::testing::ExitedWithCode(128 + signal), "interrupted while loading");
  }
}

}  // namespace
}  // namespace smartkv
