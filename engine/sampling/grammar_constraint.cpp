// The only file that includes XGrammar.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>
#include <xgrammar/work.h>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/grammar_backend.h"
#include "engine/sampling/sampler.h"

namespace smartkv {
namespace {

// While it lives, `work` counts the work that XGrammar does on this thread.
class CountedWork {
 public:
  explicit CountedWork(xgrammar::Work* work) : outer_(std::exchange(xgrammar::current_work, work)) {}
  ~CountedWork() { xgrammar::current_work = outer_; }
  CountedWork(const CountedWork&) = delete;
  CountedWork& operator=(const CountedWork&) = delete;

 private:
  xgrammar::Work* outer_;
};

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class CompileWork final : public xgrammar::Work {
 public:
  CompileWork(const CompileLimits& limits, const std::atomic<bool>& stopped)
      : limits_(limits), stopped_(stopped), end_(thread_seconds() + limits.seconds) {
    most_bytes = limits.bytes;
  }

  void Check() override {
    if (stopped_) throw CompileStopped();
    if (bytes > limits_.bytes)
      throw GrammarError("", "the grammar takes more than " + std::to_string(limits_.bytes >> 10) + " KiB to compile");
    if (steps > limits_.steps)
      throw GrammarError("", "the grammar takes more than " + std::to_string(limits_.steps) + " steps to compile");
    if (thread_seconds() > end_) {
      char message[64];
      std::snprintf(message, sizeof(message), "the grammar takes more than %g s to compile", limits_.seconds);
      throw CompileTimeout(message);
    }
    next_steps = std::min(steps + kInterval, limits_.steps + 1);
  }

 private:
  static constexpr int64_t kInterval = 50'000;  // steps between checks, a few milliseconds
  CompileLimits limits_;
  const std::atomic<bool>& stopped_;
  double end_;
};

// The budget of an output's matching. Each accepted token earns kPerToken steps, which take about 0.1 s; at most
// kMostSaved are available at a time. A typical grammar takes thousands of steps per token, or tens of thousands if it
// follows much of the vocabulary byte by byte. `bytes` counts the states after the accepted tokens.
class MatchWork final : public xgrammar::Work {
 public:
  MatchWork() {
    next_steps = kMostSaved;
    most_bytes = kMostBytes;
  }
  void earn() { steps = std::max<int64_t>(0, steps - kPerToken); }
  void Check() override {
    if (bytes > kMostBytes) next_steps = 0;  // exhausted from now on
    if (next_steps == 0)
      throw SamplingError("the grammar takes more than " + std::to_string(kMostBytes >> 20) + " MiB to follow");
    throw SamplingError("the grammar is too ambiguous: its tokens take more than " + std::to_string(kPerToken) +
                        " steps each");
  }
  bool exhausted() const { return steps >= next_steps; }

 private:
  static constexpr int64_t kPerToken = 1'000'000, kMostSaved = 10 * kPerToken, kMostBytes = int64_t{64} << 20;
};

class XgrammarConstraint final : public Constraint {
 public:
  XgrammarConstraint(const xgrammar::CompiledGrammar& grammar, int64_t vocabulary)
      : matcher_(grammar), texts_(grammar.GetTokenizerInfo()), mask_(static_cast<size_t>((vocabulary + 31) / 32)) {}

  std::span<const uint32_t> allowed() override {
    int64_t shape = static_cast<int64_t>(mask_.size()), stride = 1;
    DLTensor tensor{};
    tensor.data = mask_.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &shape;
    tensor.strides = &stride;
    const CountedWork counted(&work_);
    xgrammar::CountWork(0);  // throws if the budget is already spent
    matcher_.FillNextTokenBitmask(&tensor);
    return mask_;
  }

  bool accept(TokenId token) override {
    const bool has_text = !texts_.GetDecodedVocab()[static_cast<size_t>(token)].empty();
    const CountedWork counted(&work_);
    xgrammar::CountWork(0);
    if (!(has_text || is_end(token)) || !matcher_.AcceptToken(token)) return false;
    work_.earn();
    return true;
  }
  void rollback(int64_t n) override {
    if (n <= 0 || work_.exhausted()) return;
    MatchWork popped;  // a separate budget, so that rolling back never throws
    const CountedWork counted(&popped);
    matcher_.Rollback(static_cast<int>(n));
    work_.bytes += popped.bytes;
  }
  bool ended() const override { return matcher_.IsTerminated(); }

 private:
  bool is_end(TokenId token) const {
    const std::vector<int>& ends = matcher_.GetStopTokenIds();
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  xgrammar::GrammarMatcher matcher_;
  xgrammar::TokenizerInfo texts_;
  std::vector<uint32_t> mask_;
  MatchWork work_;
};

class XgrammarGrammar final : public CompiledGrammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, int64_t vocabulary)
      : grammar_(std::move(grammar)), vocabulary_(vocabulary) {}

  std::unique_ptr<Constraint> start() const override {
    return std::make_unique<XgrammarConstraint>(grammar_, vocabulary_);
  }
  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  xgrammar::CompiledGrammar grammar_;
  int64_t vocabulary_;
};

// Special tokens that grammars of tool calls name: Token(ID). Their text is a byte that no text has, because XGrammar
// never accepts a token without text.
constexpr std::array<std::string_view, 13> kMarkTokens = {
    "[TOOL_CALLS]", "[ARGS]",    "[CALL_ID]",   "<|tool_call|>", "<|/tool_call|>", "<|tool_call>", "<tool_call|>",
    "<|\"|>",       "<|start|>", "<|channel|>", "<|message|>",   "<|constrain|>",  "<|end|>"};
constexpr const char* kNoText = "\xff";

// Returns the text of each token. Special tokens have none, so that they never match text of a grammar.
xgrammar::TokenizerInfo vocabulary_info(const Tokenizer& tokenizer, int64_t vocabulary,
                                        const std::vector<TokenId>& ends) {
  std::vector<std::string> texts(static_cast<size_t>(vocabulary));
  for (int64_t i = 0; i < vocabulary; ++i) {
    const auto token = static_cast<TokenId>(i);
    if (!tokenizer.is_special(token)) texts[static_cast<size_t>(i)] = tokenizer.token_bytes(token);
  }
  for (const std::string_view mark : kMarkTokens) {
    const auto token = tokenizer.token_id(mark);
    if (token && *token < vocabulary && tokenizer.is_special(*token)) texts[static_cast<size_t>(*token)] = kNoText;
  }
  return {texts, xgrammar::VocabType::RAW, static_cast<int>(vocabulary), ends, false};
}

// Strips the source location and the line break from a message of XGrammar, such as "FILE.cc:564: text\n".
std::string plain_message(std::string what) {
  const size_t file = what.find(".cc:");
  const size_t end = file == std::string::npos ? file : what.find(": ", file);
  if (end != std::string::npos) what.erase(0, end + 2);
  what.erase(what.find_last_not_of(" \n") + 1);
  return what;
}

}  // namespace

struct GrammarBackend::Impl {
  const Tokenizer* tokenizer;
  int64_t vocabulary;
  std::vector<TokenId> ends;
  std::mutex mutex;
  std::optional<xgrammar::GrammarCompiler> compiler;

  // Returns the compiler, and starts it on first use. Starting takes about 0.1 s and 10 MB, so only constrained
  // requests pay.
  xgrammar::GrammarCompiler started() {
    const std::lock_guard lock(mutex);
    if (!compiler) compiler.emplace(vocabulary_info(*tokenizer, vocabulary, ends), 1, false);
    return *compiler;
  }
};

GrammarBackend::GrammarBackend(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends)
    : impl_(new Impl{&tokenizer, vocabulary, std::move(ends), {}, {}}) {}

GrammarBackend::~GrammarBackend() = default;

std::shared_ptr<const CompiledGrammar> GrammarBackend::compile(const std::string& grammar, const CompileLimits& limits,
                                                               const std::atomic<bool>& stopped) {
  try {
    xgrammar::GrammarCompiler compiler = impl_->started();
    CompileWork work(limits, stopped);
    const CountedWork counted(&work);
    auto compiled = std::make_shared<XgrammarGrammar>(compiler.CompileGrammar(grammar), impl_->vocabulary);
    const std::unique_ptr<Constraint> beginning = compiled->start();
    const std::span<const uint32_t> first = beginning->allowed();
    if (std::all_of(first.begin(), first.end(), [](uint32_t word) { return word == 0; })) {
      throw GrammarError("", "no text matches the grammar");
    }
    return compiled;
  } catch (const GrammarError&) {
    throw;
  } catch (const CompileTimeout&) {
    throw;
  } catch (const CompileStopped&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw GrammarError("", plain_message(error.what()));
  }
}

}  // namespace smartkv
