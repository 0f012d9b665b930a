#include "server/commands/completions.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

#include "engine/memory_plan.h"
#include "server/commands/command.h"
#include "server/commands/options.h"
#include "server/commands/presets.h"

namespace smartkv {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// What an option takes, where that is a list; empty: a file or anything.
std::vector<std::string> values_of(const std::string& name) {
  if (name == "--preset") {
    std::vector<std::string> names;
    for (const ConfigPreset& preset : config_presets()) names.push_back(preset.name());
    return names;
  }
  if (name == "--kv-cache") return plannable_names({});
  for (const Option& option : option_table()) {
    if (flag(option) == name) return {option.choices.begin(), option.choices.end()};
  }
  return {};
}

struct Word {
  std::string name, help;
  bool takes_value = false;
};

// Options of a command and of what it is divided into, and the names of its parts.
void add_words(const CLI::App& app, std::vector<Word>* words) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      words->push_back({"--" + name, option->get_description(), option->get_items_expected_max() > 0});
    }
  }
  for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
    words->push_back({part->get_name(), part->get_description()});
    add_words(*part, words);
  }
}

std::vector<Word> words_of(const CLI::App& command) {
  std::vector<Word> words;
  add_words(command, &words);
  std::vector<Word> once;
  for (Word& word : words) {
    const auto same = [&](const Word& other) { return other.name == word.name; };
    if (std::none_of(once.begin(), once.end(), same)) once.push_back(std::move(word));
  }
  return once;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string bash_script(const CLI::App& app) {
  std::string cases, values;
  std::vector<std::string> names, with_values;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    std::vector<std::string> words;
    for (const Word& word : words_of(*command)) {
      words.push_back(word.name);
      const std::vector<std::string> known = values_of(word.name);
      if (known.empty() || std::find(with_values.begin(), with_values.end(), word.name) != with_values.end()) continue;
      with_values.push_back(word.name);
      values += "    " + word.name + ") words='" + joined(known) + "' ;;\n";
    }
    cases += "    " + command->get_name() + ") words='" + joined(words) + "' ;;\n";
  }
  return R"(# Completions of smartkv for bash: source <(smartkv completions bash)
_smartkv() {
  local word=${COMP_WORDS[COMP_CWORD]} words= i command=
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi
  done
  case $command in
    '') words=')" + joined(names) + R"( --help --version' ;;
)" + cases + R"(  esac
  case ${COMP_WORDS[COMP_CWORD-1]} in
)" + values + R"(    --*) [[ $word == -* ]] || words= ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _smartkv smartkv
)";
}

// In single quotes; `also`: characters that mean something to zsh's completion functions there.
std::string zsh_quoted(const std::string& text, std::string_view also) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else if (c == '\n') {
      quoted += ' ';
    } else {
      if (also.find(c) != also.npos) quoted += '\\';
      quoted += c;
    }
  }
  return quoted;
}

std::string zsh_script(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(app)) {
    names += "    '" + command->get_name() + ":" + zsh_quoted(command->get_description(), ":\\") + "'\n";
    cases += "    " + command->get_name() + ")\n      _arguments \\\n";
    for (const Word& word : words_of(*command)) {
      if (!word.name.starts_with("--")) continue;
      const std::vector<std::string> known = values_of(word.name);
      const std::string action = known.empty() ? "_files" : "(" + joined(known) + ")";
      cases += "        '" + word.name + "[" + zsh_quoted(word.help, "[]:\\") + "]" + (word.takes_value ? ":value:" + action : "") + "' \\\n";
    }
    std::vector<std::string> parts;
    for (const CLI::App* part : commands_of(*command)) parts.push_back(part->get_name());
    cases += parts.empty() ? "        '*:file:_files' ;;\n" : "        '1:part:(" + joined(parts) + ")' '*:file:_files' ;;\n";
  }
  return "#compdef smartkv\n# Completions of smartkv for zsh: smartkv completions zsh > \"${fpath[1]}/_smartkv\"\n"
         "_smartkv() {\n  local -a commands=(\n" + names + "  )\n"
         "  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
         "  shift words\n  ((CURRENT--))\n  case $words[1] in\n" + cases + "  esac\n}\n"
         // Loaded by compinit, the file runs as the first completion; sourced, it declares itself.
         "if [[ $funcstack[1] == _smartkv ]]; then _smartkv \"$@\"; else compdef _smartkv smartkv; fi\n";
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  throw ConfigError("shell: expected bash or zsh, found \"" + shell + '"');
}

std::function<int()> setup_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash or zsh")->required();
  app.footer(R"(Examples:
  source <(smartkv completions bash)
  smartkv completions zsh > "${fpath[1]}/_smartkv")");
  return [&app, shell] {
    std::cout << completion_script(*app.get_parent(), *shell);
    return kOk;
  };
}

}  // namespace smartkv
