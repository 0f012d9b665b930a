#include "server/commands/hub_models.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/log.h"
#include "engine/system_resources.h"
#include "hub/choose_files.h"
#include "hub/fetch.h"
#include "hub/hub_cache.h"
#include "hub/hub_error.h"
#include "server/commands/command.h"
#include "server/commands/progress_line.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::seconds;

std::string size_text(int64_t bytes) {
  std::ostringstream text;
  const bool large = bytes >= (1 << 30);
  text << std::fixed << std::setprecision(large ? 2 : 0) << static_cast<double>(bytes) / (large ? 1 << 30 : 1 << 20)
       << (large ? " GiB" : " MiB");
  return text.str();
}

std::string date_text(fs::file_time_type time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::ostringstream text;
  text << std::put_time(&parts, "%Y-%m-%d %H:%M");
  return text.str();
}

// Shows a download: a line that is redrawn on a terminal, else a line of the log every ten seconds.
class DownloadDisplay {
 public:
  void show(const FetchProgress& progress) {
    if (progress.total == 0) return;
    const std::string what = progress.file + "  " + size_text(progress.done) + " of " + size_text(progress.total);
    line_.show(static_cast<double>(progress.done) / static_cast<double>(progress.total), what);
    const auto now = std::chrono::steady_clock::now();
    if (terminal_ || now - logged_ < Seconds(10)) return;
    logged_ = now;
    log_info("fetching " + what);
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  ProgressLine line_;
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

fs::path fetch(const ModelReference& reference) {
  DownloadDisplay display;
  return fetch_model(HubSettings::from_environment(), reference,
                     {.memory_bytes = available_bytes(),
                      .progress = [&](const FetchProgress& progress) { display.show(progress); },
                      .say = [&](const std::string& sentence) { log_info(reference.repo + ": " + sentence); }});
}

ModelReference reference_of(const std::string& model) {
  if (const auto reference = parse_model_reference(model)) return *reference;
  throw HubError("model: expected ORG/NAME, ORG/NAME:QUANTIZATION or hf://ORG/NAME/FILE, found \"" + model + '"');
}

// The quantizations among a model's files, with commas; "safetensors" if there are such.
std::string kinds_of(const std::vector<std::string>& files) {
  std::set<std::string> kinds;
  for (const std::string& file : files) {
    if (file.ends_with(".safetensors")) kinds.insert("safetensors");
    if (const std::string kind = quantization_of(file); file.ends_with(".gguf"))
      kinds.insert(kind.empty() ? file : kind);
  }
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : ", ") + kind;
  return text;
}

int list_models(bool as_json) {
  const HubSettings settings = HubSettings::from_environment();
  const std::vector<CachedModel> models = HubCache(settings.cache).models();
  if (as_json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const CachedModel& model : models) {
      list.push_back(
          {{"name", model.repo}, {"bytes", model.bytes}, {"used", date_text(model.used)}, {"files", model.files}});
    }
    std::cout << list.dump(2) << '\n';
    return kOk;
  }
  size_t width = 4;
  for (const CachedModel& model : models) width = std::max(width, model.repo.size());
  if (models.empty()) {
    std::cout << "No models in " << settings.cache.string() << ". smartkv pull ORG/NAME fetches one.\n";
    return kOk;
  }
  const auto row = [&](const std::string& name, const std::string& size, const std::string& used,
                       const std::string& kinds) {
    std::cout << std::left << std::setw(static_cast<int>(width) + 2) << name << std::right << std::setw(10) << size
              << "  " << std::left << std::setw(18) << used << kinds << '\n';
  };
  row("NAME", "SIZE", "LAST USE (UTC)", "FILES");
  for (const CachedModel& model : models)
    row(model.repo, size_text(model.bytes), date_text(model.used), kinds_of(model.files));
  return kOk;
}

constexpr const char* kVariables =
    "Variables: HF_HUB_CACHE or HF_HOME (where models are), HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY, "
    "NO_PROXY,\n"
    "SSL_CERT_FILE.";

}  // namespace

fs::path find_model(const fs::path& model) {
  const auto reference = model_reference(model);
  return reference ? fetch(*reference) : model;
}

std::function<int()> setup_pull(CLI::App& app) {
  auto model = std::make_shared<std::string>();
  app.add_option("model", *model, "ORG/NAME, ORG/NAME:QUANTIZATION or hf://ORG/NAME/FILE")->required();
  app.footer(std::string("Prints the path of the model. A download that was interrupted goes on where it ended.\n") +
             kVariables +
             "\nExamples:\n  smartkv pull Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M\n"
             "  smartkv pull hf://Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf");
  return [model] {
    std::cout << fetch(reference_of(*model)).string() << '\n';
    return kOk;
  };
}

std::function<int()> setup_models(CLI::App& app) {
  auto as_json = std::make_shared<bool>(false);
  app.add_flag("--json", *as_json, "Print a JSON array");
  app.footer(std::string("Lists the models that were fetched, by SmartKV or others.\n") + kVariables);
  return [as_json] { return list_models(*as_json); };
}

std::function<int()> setup_rm(CLI::App& app) {
  auto model = std::make_shared<std::string>();
  app.add_option("model", *model, "ORG/NAME, or ORG/NAME:QUANTIZATION for one of its quantizations")->required();
  app.footer(std::string("Removes a model that was fetched.\n") + kVariables);
  return [model] {
    const ModelReference reference = reference_of(*model);
    if (!reference.file.empty()) throw HubError("rm: expected ORG/NAME or ORG/NAME:QUANTIZATION, found " + *model);
    const int64_t freed =
        HubCache(HubSettings::from_environment().cache).remove(reference.repo, reference.quantization);
    std::cout << reference.text() << " removed, " << size_text(freed) << " freed\n";
    return kOk;
  };
}

}  // namespace smartkv
