#include "server/commands/common.h"
#include "hub/model_reference.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <future>
#include <iostream>

#include "engine/log.h"
#include "engine/weights/model_name.h"
#include "server/commands/environment.h"
#include "server/commands/hub_models.h"
#include "server/commands/presets.h"
#include "server/commands/progress_line.h"
#include "server/commands/sampling_defaults.h"

namespace smartkv {

namespace {

LogLevel to_log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

// Returns whether an option is a list of names. On the command line names are separated by commas, or the option is
// given several times.
bool is_list(const Option& option) {
  ServerOptions options;
  return std::holds_alternative<std::vector<std::string>*>(option.field(options));
}

std::string comma_separated(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return all;
}

// Waits up to `timeout` for a signal of the set. Returns it, or 0 if none arrived.
int take_signal(const sigset_t& set, std::chrono::milliseconds timeout) {
  const timespec time{.tv_sec = timeout.count() / 1000, .tv_nsec = timeout.count() % 1000 * 1'000'000};
  return std::max(0, ::sigtimedwait(&set, nullptr, &time));
}

}  // namespace

void complete(ServerOptions* options) {
  http::HttpOptions& http = options->http;
  // Files with a secret usually end in a line break, which no client sends.
  while (http.api_key.ends_with('\n') || http.api_key.ends_with('\r')) http.api_key.pop_back();
  ErrorList errors;
  if (!std::all_of(http.api_key.begin(), http.api_key.end(), [](char c) { return c > ' ' && c <= '~'; })) {
    errors.add("api_key: expected visible ASCII characters, found others");
  }
  if (http.http_threads == 0) http.http_threads = options->engine.max_sequences + options->engine.max_queue + 32;
  // A growing string may allocate twice its size.
  constexpr int64_t kHeads = 256 << 10;
  if (const int64_t least = 2 * http.max_body_bytes + kHeads; http.max_buffered_bytes < least) {
    errors.add("max_buffered_bytes: expected at least 2 x max_body_bytes + 256 KiB = " + std::to_string(least) +
               ", found " + std::to_string(http.max_buffered_bytes));
  }
  errors.collect([&] { openai::ChangingLines(options->dropped_lines, options->moved_lines); });
  errors.throw_if_any();
}

OptionFlags::OptionFlags(CLI::App& app, bool server) : server_(server), summaries_(app) {
  app.add_option("--config", config_,
                 "Config file (JSON, comments allowed). Options have the names below, with _ for -")
      ->type_name("FILE");
  if (server) {
    app.add_option("--preset", preset_, "Preset options, which override those of --config: " + preset_names())
        ->type_name("NAME");
  }
  for (const Option& option : option_table()) {
    if (option.server && !server) continue;
    const nlohmann::ordered_json fallback = value_of(option, ServerOptions());
    const bool no_text = fallback.is_string() && fallback.get_ref<const std::string&>().empty();
    const bool unset = fallback.is_null() || fallback.empty() || no_text;
    std::string help(option.help);
    for (size_t i = 0; i < option.choices.size(); ++i) {
      help += (i == 0 ? " (" : "|") + std::string(option.choices[i]);
    }
    if (!option.choices.empty()) help += ')';
    if (!unset) help += " [" + (fallback.is_string() ? fallback.get<std::string>() : fallback.dump()) + "]";
    std::vector<std::string>& given = given_[std::string(option.name)];
    if (!option.entry.empty()) {
      help += " (config file: " + std::string(option.name) + "; environment: " + variable(option.name) + ")";
      app.add_option(flag(option), given, help)->type_name("NAME=FILE")->allow_extra_args(false);
      continue;
    }
    if (is_list(option)) {
      app.add_option(flag(option), given, help)->type_name("TEXT,...")->allow_extra_args(false);
      continue;
    }
    app.add_option_function<std::string>(
           flag(option), [&given](const std::string& text) { given = {text}; }, help)
        ->type_name(fallback.is_number() ? "N" : "TEXT")
        ->take_last();
  }
}

ServerOptions OptionFlags::resolve_without_model() const {
  ServerOptions options;
  const std::string config = config_.empty() ? value_of_variable("SMARTKV_CONFIG") : config_;
  if (!config.empty()) read_config_file(config, &options);
  const std::string preset = preset_.empty() && server_ ? value_of_variable("SMARTKV_PRESET") : preset_;
  if (!preset.empty()) apply_preset(preset, &options);
  read_environment(server_, &options);
  for (const Option& option : option_table()) {
    const auto given = given_.find(std::string(option.name));
    if (given == given_.end() || given->second.empty()) continue;
    if (is_list(option)) {
      set_option_text(option, comma_separated(given->second), "command line", &options);
      continue;
    }
    for (const std::string& text : given->second) set_option_text(option, text, "command line", &options);
  }
  summaries_.apply(given_.count("kv_cache") > 0 && !given_.at("kv_cache").empty(), &options);
  complete(&options);
  return options;
}

ServerOptions OptionFlags::resolve() const {
  ServerOptions options = resolve_without_model();
  if (options.engine.model.path.empty()) {
    throw ConfigError("no model given: use --model FILE or ORG/NAME, or --config FILE with the option \"model\"");
  }
  set_log_level(to_log_level(options.log_level));
  set_log_format(options.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  for (const std::string& line : unknown_variables()) log_warning(line);
  if (options.served_model_name.empty() && model_reference(options.engine.model.path)) {
    options.served_model_name = {options.engine.model.path.string()};
  }
  options.engine.model.path = find_model(options.engine.model.path);
  if (!options.engine.draft_model.empty()) options.engine.draft_model = find_model(options.engine.draft_model);
  return options;
}

Signals::Signals(std::initializer_list<int> signals) {
  ::sigemptyset(&set_);
  for (const int signal : signals) ::sigaddset(&set_, signal);
  ::pthread_sigmask(SIG_BLOCK, &set_, &previous_);
}

Signals::~Signals() {
  clear();
  ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

int Signals::wait() {
  int signal = 0;
  while (::sigwait(&set_, &signal) != 0) {
  }
  return signal;
}

int Signals::poll(std::chrono::milliseconds timeout) {
  sigset_t ending = set_;
  ::sigdelset(&ending, SIGHUP);
  return take_signal(ending, timeout);
}

void Signals::clear() {
  while (take_signal(set_, std::chrono::milliseconds(0)) != 0) {
  }
}

std::unique_ptr<Engine> load_engine(const ServerOptions& options, Signals& signals) {
  ProgressLine progress;
  auto loading = std::async(std::launch::async, [&] {
    return Engine::create(options.engine,
                          [&](double fraction, const std::string& what) { progress.show(fraction, what); });
  });
  do {
    if (const int signal = signals.poll(std::chrono::milliseconds(20)); signal != 0) {
      progress.clear();
      flush_log(std::chrono::seconds(1));
      std::cerr << "smartkv: interrupted while loading\n";
      std::_Exit(128 + signal);  // the loader cannot be interrupted, and there is nothing to save
    }
  } while (loading.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready);
  progress.clear();
  return loading.get();
}

openai::ServedModel served_model(const Engine& engine, const ServerOptions& options) {
  std::vector<std::string> names = options.served_model_name;
  if (names.empty()) names = model_names(options.engine.model.path, model_title(options.engine.model.path));
  const std::string signing_key = names.front() + '\n' + options.http.api_key;
  return {.engine = engine,
          .names = std::move(names),
          .sampling = sampling_defaults(options),
          .max_prompts = std::max<int64_t>(1, options.engine.max_queue),
          .changing_lines = {options.dropped_lines, options.moved_lines},
          .signing_key = signing_key};
}

}  // namespace smartkv
