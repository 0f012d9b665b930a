// An engine without a model. Its answers follow a script, at the pace that the test sets. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace smartkv::test {

// Token i < 256 is byte i. The next ones are "<s>", "</s>" and "<|im_end|>".
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256, kEos = 257, kImEnd = 258;

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const override;
  std::string decode(std::span<const TokenId> tokens, bool skip_special = true) const override;
  std::string token_bytes(TokenId token) const override;
  int64_t vocab_size() const override { return 259; }
  std::optional<TokenId> token_id(std::string_view content) const override;
  std::string token_content(TokenId token) const override { return token_bytes(token); }
  bool is_special(TokenId token) const override { return token >= kBos; }
  std::optional<TokenId> bos() const override { return kBos; }
  std::optional<TokenId> eos() const override { return kEos; }
  int64_t min_tokens(std::string_view text) const override { return static_cast<int64_t>(text.size()); }

  bool adds_bos = false;
  mutable std::atomic<int64_t> encoded = 0;  // texts encoded so far
};

class FakeEngine final : public Engine {
 public:
  FakeEngine();

  // Sets the answer to the next requests: one event for each piece and choice, the last one with `finish`. A piece's
  // tokens are its bytes. With logprobs, each token scores -0.5.
  void set_answer(std::vector<std::string> pieces, FinishReason finish = FinishReason::kStop);
  void set_stop_string(std::string stop);           // reported in the last event of every choice
  void set_drafts(std::vector<DraftRound> drafts);  // in the first event of every choice
  void set_submit_error(std::optional<RequestError> error);
  int64_t refusals() const;  // submissions that were refused with that error
  // Each stream stops after this many events until release(). Negative: never.
  void hold_after(int64_t events);
  void release() { hold_after(-1); }
  void set_context_length(int64_t n) { context_length_ = n; }
  void remove_chat_template() { template_.reset(); }
  void set_chat_template(const char* source) { template_ = std::make_unique<ChatTemplate>(source); }

  std::vector<GenerationRequest> submitted() const;
  int64_t live_streams() const;
  bool wait_for_live_streams(int64_t n) const;  // false after 10 s

  std::vector<std::unique_ptr<GenerationStream>> submit_all(std::vector<GenerationRequest> requests) override;
  void validate(const GenerationRequest& request) const override;
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const ChatTemplate* chat_template() const override { return template_.get(); }
  const ModelConfig& config() const override { return config_; }
  int64_t context_length() const override { return context_length_; }
  nlohmann::ordered_json describe() const override { return {{"dtype", "f32"}}; }
  EngineStats stats() const override;
  // Returns one sequence, with a span if a layer is named.
  std::vector<LiveSequence> live(std::optional<int64_t> layer) const override;
  // Returns two states, one of them in a file only.
  std::vector<PrefixListing> prefixes(int64_t most) const override;
  // Returns plans in which "full" fits and "compact" does not.
  std::vector<MemoryPlan> plan(const GenerationRequest& request) const override;
  void drain() override;
  void stop() override;
  bool draining() const override;
  std::string lost() const override { return is_lost ? "a process of the model has ended" : ""; }

  std::atomic<bool> is_lost = false;
  ByteTokenizer tokenizer_;

 private:
  class Stream;
  struct State {  // shared with the streams, which may outlive the engine
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    int64_t hold = -1;
    int64_t live = 0;
    bool draining = false, stopped = false;
  };

  ModelConfig config_;
  std::unique_ptr<ChatTemplate> template_;
  std::atomic<int64_t> context_length_ = 1000;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::string> pieces_ = {"Pa", "ris", "."};
  FinishReason finish_ = FinishReason::kStop;
  std::vector<DraftRound> drafts_;
  std::optional<std::string> stop_string_;
  std::optional<RequestError> submit_error_;
  int64_t refusals_ = 0;
  std::vector<GenerationRequest> submitted_;
};

}  // namespace smartkv::test
