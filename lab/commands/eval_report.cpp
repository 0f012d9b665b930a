#include "lab/commands/eval_report.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "server/commands/command.h"
#include "server/commands/options.h"

namespace smartkv {
namespace {

constexpr std::string_view kHtml = ".html";

std::string markdown_file(const std::string& html) { return html.substr(0, html.size() - kHtml.size()) + ".md"; }

// Replaces `file` as a whole. Throws std::runtime_error.
void replace_file(const std::string& file, const std::string& content) {
  const std::string part = file + ".part-" + std::to_string(getpid());
  {
    std::ofstream stream(part, std::ios::binary);
    if (!(stream << content).flush()) throw std::runtime_error(part + ": cannot be written");
  }
  std::filesystem::rename(part, file);
}

void write_page(const ReportPage& page, const std::string& out) {
  replace_file(out, page.to_html());
  replace_file(markdown_file(out), page.to_markdown());
}

// Shows the topic and how much of it is done: on one line of a terminal, else a line for each tenth.
class ReportDisplay {
 public:
  void begin(const std::string& topic) {
    topic_ = topic;
    tenths_ = 0;
    std::fprintf(stderr, "%s%s: started after %.0f s\n", terminal_ ? "\r\x1b[K" : "", topic.c_str(), seconds());
  }
  void show(double done) {
    const int tenths = static_cast<int>(10 * done);
    if (terminal_) {
      std::fprintf(stderr, "\r%s: %3.0f%%%s", topic_.c_str(), 100 * done, done >= 1 ? "\r\x1b[K" : "");
    } else if (tenths > tenths_) {
      std::fprintf(stderr, "%s: %d%% after %.0f s\n", topic_.c_str(), 10 * tenths, seconds());
    }
    tenths_ = std::max(tenths_, tenths);
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string topic_;
  int tenths_ = 0;
};

}  // namespace

std::vector<std::string> report_topics() { return ModelReportOptions().topics; }

void check_report(const EvalReportArguments& arguments) {
  if (!arguments.out.ends_with(kHtml) || arguments.out.size() == kHtml.size())
    throw ConfigError("--out: expected a file name that ends in .html, found \"" + arguments.out + "\"");
  const std::filesystem::path folder = std::filesystem::path(arguments.out).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    throw ConfigError("--out: " + folder.string() + " is not a folder");
}

std::vector<ReportText> report_texts(const std::vector<std::string>& given, const ReportModel& model) {
  if (given.empty()) return shipped_texts(model);
  std::vector<ReportText> texts;
  for (const std::string& text : given) {
    const size_t at = text.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == text.size())
      throw ConfigError("--text: expected KIND=FILE for eval report, found \"" + text + "\"");
    const std::string kind = text.substr(0, at), file = text.substr(at + 1);
    if (std::any_of(texts.begin(), texts.end(), [&](const ReportText& other) { return other.kind == kind; }))
      throw ConfigError("--text: " + kind + " is given twice");
    texts.push_back({kind, std::filesystem::path(file).filename().string(), read_tokens(file, model.tokenizer)});
  }
  return texts;
}

int run_report(const ReportModel& model, const std::vector<ReportText>& texts, const ModelReportOptions& options,
               const EvalReportArguments& arguments, const nlohmann::ordered_json& conditions) {
  ReportDisplay display;
  const auto finished = [&](ReportPage page) {
    page.conditions = conditions;
    const std::string weights = conditions.value("weights", "");
    if (weights != "bf16" && weights != "f16" && weights != "f32") {
      page.notes.emplace_back(
          "Products with integer weights round their inputs, too. This adds a divergence of its own to all rows but "
          "that of full; --weights bf16 shows the cost of the cache alone.");
    }
    write_page(page, arguments.out);
  };
  const ReportPage page = measure_model(
      model, texts, options,
      {[&](const std::string& topic) { display.begin(topic); }, [&](double done) { display.show(done); }, finished});
  finished(page);
  std::cout << arguments.out << "\n" << markdown_file(arguments.out) << "\n";
  return kOk;
}

}  // namespace smartkv
