// Limits of compiling and following a grammar, which callers wait for which, and how compiling ends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <string>

#include "engine/sampling/constraint.h"
#include "engine/sampling/ebnf.h"
#include "engine/sampling/grammar_backend.h"
#include "engine/sampling/sampler.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// Longer than a busy machine takes for work that ends at once, and shorter than any slow_grammar() takes.
constexpr seconds kPatience{120};
constexpr double kForever = 600;

constexpr const char* kSmall = "root ::= \"yes\" | \"no\"\n";

// Returns one rule of many random words. Compiling it merges states for minutes.
std::string slow_grammar(int words = 30'000, unsigned seed = 1) {
  std::minstd_rand random(seed);
  std::string text = "root ::= \"\"";
  for (int i = 0; i < words; ++i) {
    text += " | \"";
    for (int j = 0; j < 20; ++j) text += static_cast<char>('a' + random() % 26);
    text += '"';
  }
  return text + '\n';
}

class GrammarCompilerTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrammarCompiler> compiler(std::vector<double> tier_seconds) const {
    return std::make_unique<GrammarCompiler>(tokenizer_, tokenizer_.vocab_size(), std::vector<TokenId>{258},
                                             std::move(tier_seconds), kForever);
  }
  static std::string failure(GrammarCompiler* compiler, const std::string& grammar) {
    try {
      compiler->compile(grammar);
    } catch (const GrammarError& error) {
      return error.what();
    }
    return "compiled";
  }

  ByteTokenizer tokenizer_;
};

TEST_F(GrammarCompilerTest, TimeIsBounded) {
  const auto some = compiler({0.02, 0.1});
  EXPECT_EQ(failure(some.get(), slow_grammar()), "the grammar takes more than 0.1 s to compile");
  EXPECT_EQ(failure(some.get(), kSmall), "compiled");
}

TEST_F(GrammarCompilerTest, StepsAndMemoryAreBounded) {
  GrammarBackend backend(tokenizer_, tokenizer_.vocab_size(), {258});
  const std::atomic<bool> stopped = false;
  const std::string text = "root ::= (\"x\" [a-z]){0,127}\n";
  const auto why = [&](CompileLimits limits) -> std::string {
    try {
      backend.compile(text, limits, stopped);
    } catch (const GrammarError& error) {
      return error.what();
    }
    return "compiled";
  };
  EXPECT_EQ(why({10, 100'000'000, int64_t{1} << 20}), "compiled");
  EXPECT_EQ(why({10, 100'000'000, int64_t{1} << 14}), "the grammar takes more than 16 KiB to compile");
  EXPECT_EQ(why({10, 1'000, int64_t{1} << 20}), "the grammar takes more than 1000 steps to compile");
}

TEST_F(GrammarCompilerTest, MoreRulesThanAutomataCanNameAreRefused) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < 40'000; ++i)
    text += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + " \"b\"\n";
  text += "r40000 ::= \"c\"\n";
  EXPECT_NE(failure(compiler({60}).get(), text), "compiled");
}

TEST_F(GrammarCompilerTest, AutomataThatDoubleStaySmall) {
  std::string text = "root ::= [ab]* \"a\"";
  for (int i = 0; i < 24; ++i) text += " [ab]";
  EXPECT_EQ(failure(compiler({20}).get(), text + "\n"), "compiled");
}

TEST_F(GrammarCompilerTest, NestingIsBounded) {
  EXPECT_NE(failure(compiler({10}).get(),
                    "root ::= " + std::string(400'000, '(') + "\"a\"" + std::string(400'000, ')') + "\n"),
            "compiled");
}

TEST_F(GrammarCompilerTest, SmallGrammarsDoNotWaitForLargeOnes) {
  const auto some = compiler({0.05, kForever});
  std::atomic<bool> gone = false;
  std::vector<std::future<void>> large;
  for (unsigned i = 0; i < 3; ++i) {
    large.push_back(std::async(std::launch::async, [&, i] {
      EXPECT_THROW(some->compile(slow_grammar(30'000, i), [&] { return gone.load(); }), CompileAborted);
    }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // all compile or wait by then
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    some->compile("root ::= \"" + std::to_string(i) + "\"\n");
    EXPECT_LT(Clock::now() - start, kPatience);
  }
  EXPECT_EQ(large[0].wait_for(seconds(0)), std::future_status::timeout);
  gone = true;
  for (auto& one : large) EXPECT_EQ(one.wait_for(kPatience), std::future_status::ready);
}

TEST_F(GrammarCompilerTest, EndsWithItsLastCaller) {
  const auto some = compiler({kForever});
  std::atomic<bool> first_gone = false, second_gone = false;
  const auto wait = [&](const std::atomic<bool>& gone) {
    return std::async(std::launch::async, [&] {
      try {
        some->compile(slow_grammar(), [&] { return gone.load(); });
        return CompileAborted::Why::kBusy;
      } catch (const CompileAborted& aborted) {
        return aborted.why;
      }
    });
  };
  auto first = wait(first_gone), second = wait(second_gone);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  first_gone = true;
  ASSERT_EQ(first.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(first.get(), CompileAborted::Why::kGone);
  EXPECT_EQ(second.wait_for(seconds(0)), std::future_status::timeout);
  second_gone = true;
  ASSERT_EQ(second.wait_for(kPatience), std::future_status::ready);
  const auto start = Clock::now();
  some->compile(kSmall);  // on the only thread
  EXPECT_LT(Clock::now() - start, kPatience);
}

TEST_F(GrammarCompilerTest, StopEndsWhatRunsAndWhatWaits) {
  auto some = compiler({kForever});
  std::vector<std::future<void>> callers;
  for (unsigned i = 0; i < 2; ++i) {
    callers.push_back(std::async(std::launch::async,
                                 [&, i] { EXPECT_THROW(some->compile(slow_grammar(30'000, i)), CompileAborted); }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  some->stop();
  for (auto& caller : callers) EXPECT_EQ(caller.wait_for(kPatience), std::future_status::ready);
  EXPECT_THROW(some->compile(kSmall), CompileAborted);
  const auto start = Clock::now();
  some = nullptr;
  EXPECT_LT(Clock::now() - start, kPatience);
}

TEST_F(GrammarCompilerTest, EqualGrammarsAreCompiledOnce) {
  const auto some = compiler({10});
  const auto first = some->compile(kSmall);
  EXPECT_EQ(some->compile(kSmall), first);
}

// The number of parses grows with the cube of the length, so each token of an ambiguous grammar may take longer than
// the one before.
TEST_F(GrammarCompilerTest, FollowingAnAmbiguousGrammarIsBounded) {
  const auto grammar = compiler({10})->compile("root ::= x\nx ::= x x x | x x | \"a\" | \"\"\n");
  const std::unique_ptr<Constraint> constraint = grammar->start();
  const auto start = Clock::now();
  EXPECT_THROW(
      {
        for (int i = 0; i < 100'000; ++i) {
          constraint->allowed();
          ASSERT_TRUE(constraint->accept('a'));
        }
      },
      SamplingError);
  EXPECT_LT(Clock::now() - start, kPatience);
  EXPECT_THROW(constraint->allowed(), SamplingError);
  EXPECT_NO_THROW(constraint->rollback(1));
}

}  // namespace
}  // namespace smartkv
