// The only file that includes XGrammar.
#include <algorithm>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "engine/sampling/constraint.h"
#include "engine/sampling/ebnf.h"

namespace smartkv {
namespace {

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
    matcher_.FillNextTokenBitmask(&tensor);
    return mask_;
  }

  bool accept(TokenId token) override {
    const bool has_text = !texts_.GetDecodedVocab()[static_cast<size_t>(token)].empty();
    return (has_text || is_end(token)) && matcher_.AcceptToken(token);
  }
  void rollback(int64_t n) override {
    if (n > 0) matcher_.Rollback(static_cast<int>(n));
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

// The text of each token. Special tokens have none, so that no text is made of them.
xgrammar::TokenizerInfo vocabulary_info(const Tokenizer& tokenizer, int64_t vocabulary, const std::vector<TokenId>& ends) {
  std::vector<std::string> texts(static_cast<size_t>(vocabulary));
  for (int64_t i = 0; i < vocabulary; ++i) {
    const auto token = static_cast<TokenId>(i);
    if (!tokenizer.is_special(token)) texts[static_cast<size_t>(i)] = tokenizer.token_bytes(token);
  }
  return {texts, xgrammar::VocabType::RAW, static_cast<int>(vocabulary), ends, false};
}

// XGrammar's messages begin with a place in its sources, "FILE.cc:564: ", and end in a line break.
std::string plain_message(std::string what) {
  const size_t file = what.find(".cc:");
  const size_t end = file == std::string::npos ? file : what.find(": ", file);
  if (end != std::string::npos) what.erase(0, end + 2);
  what.erase(what.find_last_not_of(" \n") + 1);
  return what;
}

}  // namespace

struct GrammarCompiler::Impl {
  using Compiled = std::shared_future<std::shared_ptr<const CompiledGrammar>>;
  struct Entry {
    std::string text;
    Compiled grammar;
    int64_t bytes = 0;  // known once it is compiled
  };

  xgrammar::GrammarCompiler& compiler() {  // mutex held; starting takes some 0.1 s and 10 MB, which only constrained requests pay
    if (!xgrammar_) xgrammar_.emplace(vocabulary_info(*tokenizer, vocabulary, ends), 1, false);
    return *xgrammar_;
  }

  void drop_oldest() {  // mutex held
    while (bytes > kKeptBytes && entries.size() > 1) {
      bytes -= entries.back().bytes;
      by_text.erase(entries.back().text);
      entries.pop_back();
    }
  }

  const Tokenizer* tokenizer;
  int64_t vocabulary;
  std::vector<TokenId> ends;
  std::mutex compiling;  // one at a time: a grammar may take a core for seconds
  std::mutex mutex;      // everything below
  std::optional<xgrammar::GrammarCompiler> xgrammar_;
  std::list<Entry> entries;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_text;
  int64_t bytes = 0;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends)
    : impl_(std::make_unique<Impl>()) {
  impl_->tokenizer = &tokenizer;
  impl_->vocabulary = vocabulary;
  impl_->ends = std::move(ends);
}

GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const CompiledGrammar> GrammarCompiler::compile(const std::string& grammar) {
  if (grammar.size() > kMostText) {
    throw GrammarError("", "the grammar has " + std::to_string(grammar.size()) + " bytes, at most " + std::to_string(kMostText) + " are supported");
  }
  std::promise<std::shared_ptr<const CompiledGrammar>> promise;
  std::optional<xgrammar::GrammarCompiler> compiler;
  {
    std::unique_lock lock(impl_->mutex);
    if (const auto known = impl_->by_text.find(grammar); known != impl_->by_text.end()) {
      impl_->entries.splice(impl_->entries.begin(), impl_->entries, known->second);
      const Impl::Compiled compiled = known->second->grammar;
      lock.unlock();
      return compiled.get();
    }
    compiler = impl_->compiler();
    impl_->entries.push_front({grammar, promise.get_future().share()});
    impl_->by_text.emplace(grammar, impl_->entries.begin());
  }
  try {
    std::unique_lock compiling(impl_->compiling);
    auto compiled = std::make_shared<XgrammarGrammar>(compiler->CompileGrammar(grammar), impl_->vocabulary);
    compiling.unlock();
    const std::unique_ptr<Constraint> beginning = compiled->start();
    const std::span<const uint32_t> first = beginning->allowed();
    if (std::all_of(first.begin(), first.end(), [](uint32_t word) { return word == 0; })) {
      throw GrammarError("", "no text obeys the grammar");
    }
    promise.set_value(compiled);
    const std::lock_guard lock(impl_->mutex);
    if (const auto entry = impl_->by_text.find(grammar); entry != impl_->by_text.end()) {
      impl_->bytes += entry->second->bytes = compiled->bytes();
      impl_->drop_oldest();
    }
    return compiled;
  } catch (const std::exception& error) {
    const auto failure = std::make_exception_ptr(GrammarError("", plain_message(error.what())));
    promise.set_exception(failure);
    const std::lock_guard lock(impl_->mutex);
    if (const auto entry = impl_->by_text.find(grammar); entry != impl_->by_text.end()) {
      impl_->entries.erase(entry->second);
      impl_->by_text.erase(entry);
    }
    std::rethrow_exception(failure);
  }
}

}  // namespace smartkv
