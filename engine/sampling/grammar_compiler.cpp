#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "engine/sampling/constraint.h"
#include "engine/sampling/ebnf.h"
#include "engine/sampling/grammar_backend.h"

namespace smartkv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskInterval{20};
constexpr const char* kStopped = "the grammar compiler has stopped";
// Most bytes of compiled grammars: those that requests hold and those that the compiler keeps.
constexpr int64_t kMostHeld = int64_t{512} << 20;

}  // namespace

struct GrammarCompiler::Impl {
  struct Job {
    std::string text;
    std::atomic<bool> stopped = false;  // set once no caller waits for it any more
    // Guarded by the mutex:
    int64_t waiting = 0;  // callers that wait for it
    bool done = false;
    std::shared_ptr<const CompiledGrammar> grammar;
    std::exception_ptr failure;
    int64_t bytes = 0;
    std::list<std::shared_ptr<Job>>::iterator place = {};  // its place in `kept`, once it is compiled
  };
  using JobPtr = std::shared_ptr<Job>;

  struct Tier {
    double seconds;
    std::deque<JobPtr> queue;
    JobPtr running;
    std::thread thread;  // started on first use
  };

  Impl(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends,
       const std::vector<double>& tier_seconds, double most_wait)
      : backend(tokenizer, vocabulary, std::move(ends)), wait_seconds(most_wait), tiers(tier_seconds.size()) {
    for (size_t i = 0; i < tiers.size(); ++i) tiers[i].seconds = tier_seconds[i];
  }

  // REQUIRES, for the next four: the mutex is held.
  JobPtr find_or_add(const std::string& grammar) {
    if (const auto known = jobs.find(grammar); known != jobs.end()) {
      if (known->second->done) kept.splice(kept.begin(), kept, known->second->place);
      return known->second;
    }
    auto job = std::make_shared<Job>();
    job->text = grammar;
    jobs.emplace(grammar, job);
    try {
      enqueue(0, job);
    } catch (...) {  // the system is out of threads or memory
      forget(job);
      throw;
    }
    return job;
  }

  void enqueue(size_t tier, JobPtr job) {
    if (!tiers[tier].thread.joinable()) tiers[tier].thread = std::thread([this, tier] { work(tier); });
    tiers[tier].queue.push_back(std::move(job));
    changed.notify_all();
  }

  // One caller stops waiting. Ends the compilation if it was the last.
  void leave(const JobPtr& job) {
    if (--job->waiting > 0 || job->done) return;
    job->stopped = true;
    forget(job);
    for (Tier& tier : tiers) std::erase(tier.queue, job);
  }

  // Removes the job from `jobs`.
  void forget(const JobPtr& job) {
    const auto entry = jobs.find(job->text);
    if (entry != jobs.end() && entry->second == job) jobs.erase(entry);
  }

  void finish(const JobPtr& job, std::shared_ptr<const CompiledGrammar> grammar, std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    job->grammar = std::move(grammar);
    job->failure = std::move(failure);
    job->done = true;
    if (job->failure || job->stopped) {
      forget(job);
    } else {
      job->bytes = job->grammar->bytes() + static_cast<int64_t>(job->text.size());
      kept.push_front(job);
      job->place = kept.begin();
      kept_bytes += job->bytes;
      while (kept_bytes > kKeptBytes) {
        kept_bytes -= kept.back()->bytes;
        jobs.erase(kept.back()->text);
        kept.pop_back();
      }
    }
    changed.notify_all();
  }

  // Returns the grammar with its bytes counted in `held` while it lives. It may outlive the compiler.
  std::shared_ptr<const CompiledGrammar> counted(std::shared_ptr<const CompiledGrammar> grammar) {
    const CompiledGrammar* const address = grammar.get();
    const int64_t bytes = grammar->bytes();
    *held += bytes;
    return {address, [owned = std::move(grammar), total = held, bytes](const CompiledGrammar*) { *total -= bytes; }};
  }

  void compile(size_t tier, const JobPtr& job) {
    try {
      auto compiled = counted(backend.compile(job->text, {tiers[tier].seconds, kMostSteps, kMostBytes}, job->stopped));
      if (*held > kMostHeld) {
        throw CompileAborted(CompileAborted::Why::kBusy,
                             "the grammars of running and waiting requests take too much memory at the moment");
      }
      finish(job, std::move(compiled), nullptr);
    } catch (const CompileTimeout& timeout) {
      try {
        if (tier + 1 == tiers.size()) throw GrammarError("", timeout.what());
        const std::lock_guard lock(mutex);
        if (!stopping && !job->stopped) enqueue(tier + 1, job);
      } catch (...) {  // includes a failure to start a thread
        finish(job, nullptr, std::current_exception());
      }
    } catch (const CompileStopped&) {  // by stop(), while a caller still waits
      try {
        throw CompileAborted(CompileAborted::Why::kStopped, kStopped);
      } catch (...) {  // includes a lack of memory for the message
        finish(job, nullptr, std::current_exception());
      }
    } catch (...) {
      finish(job, nullptr, std::current_exception());
    }
  }

  void work(size_t tier) {
    constexpr int kNiceness = 5;  // like HTTP workers: the model's threads have priority if cores are scarce
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
    std::unique_lock lock(mutex);
    Tier& own = tiers[tier];
    for (;;) {
      changed.wait(lock, [&] { return stopping || !own.queue.empty(); });
      if (stopping) return;
      const JobPtr job = own.running = std::move(own.queue.front());
      own.queue.pop_front();
      lock.unlock();
      compile(tier, job);
      lock.lock();
      own.running = nullptr;
    }
  }

  GrammarBackend backend;
  double wait_seconds;
  const std::shared_ptr<std::atomic<int64_t>> held = std::make_shared<std::atomic<int64_t>>(0);  // bytes
  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::unordered_map<std::string, JobPtr> jobs;  // by text: the jobs that wait, run, or are kept
  std::list<JobPtr> kept;                        // compiled grammars, most recently used first
  int64_t kept_bytes = 0;
  std::vector<Tier> tiers;
  bool stopping = false;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends,
                                 const std::vector<double>& tier_seconds, double wait_seconds)
    : impl_(std::make_unique<Impl>(tokenizer, vocabulary, std::move(ends), tier_seconds, wait_seconds)) {}

GrammarCompiler::~GrammarCompiler() {
  stop();
  for (Impl::Tier& tier : impl_->tiers) {
    if (tier.thread.joinable()) tier.thread.join();
  }
}

void GrammarCompiler::stop() {
  const std::lock_guard lock(impl_->mutex);
  impl_->stopping = true;
  for (const Impl::Tier& tier : impl_->tiers) {
    if (tier.running != nullptr) tier.running->stopped = true;
  }
  impl_->changed.notify_all();
}

std::shared_ptr<const CompiledGrammar> GrammarCompiler::compile(const std::string& grammar,
                                                                const std::function<bool()>& gone) {
  using Why = CompileAborted::Why;
  if (grammar.size() > kMostText) {
    throw GrammarError("", "the grammar has " + std::to_string(grammar.size()) + " bytes; at most " +
                               std::to_string(kMostText) + " are supported");
  }
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(impl_->wait_seconds));
  std::unique_lock lock(impl_->mutex);
  if (impl_->stopping) throw CompileAborted(Why::kStopped, kStopped);
  const Impl::JobPtr job = impl_->find_or_add(grammar);
  ++job->waiting;
  const auto abort = [&](Why why, const char* message) {
    impl_->leave(job);
    throw CompileAborted(why, message);
  };
  while (!job->done) {
    if (impl_->stopping) abort(Why::kStopped, kStopped);
    if (Clock::now() > end) abort(Why::kBusy, "the server is compiling too many grammars at the moment");
    impl_->changed.wait_for(lock, kAskInterval);
    if (job->done || !gone) continue;
    lock.unlock();  // gone() may take a lock of its own
    bool is_gone = false;
    try {
      is_gone = gone();
    } catch (...) {
      lock.lock();
      impl_->leave(job);
      throw;
    }
    lock.lock();
    if (is_gone) abort(Why::kGone, "no request waits for the grammar any more");
  }
  --job->waiting;
  if (job->failure) std::rethrow_exception(job->failure);
  return job->grammar;
}

}  // namespace smartkv
