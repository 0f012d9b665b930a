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

std::string space_separated(const std::vector<std::string>& words) { return CLI::detail::join(words, " "); }

// Returns the values of an option, or of the argument of a subcommand such as `config preset`, if there is a list of
// them. Returns none if it takes a file or any text.
std::vector<std::string> values_of(const std::string& name, const CLI::Option* option) {
  if (name == "--preset" || name == "preset") {
    std::vector<std::string> names;
    for (const ConfigPreset& preset : config_presets()) names.push_back(preset.name());
    return names;
  }
  if (name == "--kv-cache") return plannable_names({});
  const std::string type = option == nullptr ? "" : option->get_type_name();  // "TEXT:{int8,int4}", by CLI::IsMember
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin != type.npos && end != type.npos) return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
  for (const Option& row : option_table()) {
    if (flag(row) == name && !row.choices.empty()) return {row.choices.begin(), row.choices.end()};
  }
  return {};
}

struct Word {
  std::string name, help;
  bool takes_value = false;
  std::vector<std::string> values = {};  // the values that it takes, if there is a list of them
};

// Adds the options of a command, the names of its subcommands, and their options.
void add_words(const CLI::App& app, std::vector<Word>* words) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      words->push_back({"--" + name, option->get_description(), option->get_items_expected_max() > 0,
                        values_of("--" + name, option)});
    }
    if (!option->get_positional()) continue;
    for (const std::string& value : values_of("", option)) words->push_back({value, option->get_description()});
  }
  for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
    words->push_back({part->get_name(), part->get_description(), false, values_of(part->get_name(), nullptr)});
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

// Returns the script for bash. Readline ends a word at =, unless COMP_WORDBREAKS says otherwise. So --name=value
// arrives as three words or as one. If there is no list of values, readline completes files.
std::string bash_script(const CLI::App& app) {
  std::string cases, values;
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    std::vector<std::string> words;
    std::string files;
    for (const Word& word : words_of(*command)) {
      words.push_back(word.name);
      const std::string pattern = "'" + command->get_name() + " " + word.name + "'";
      if (!word.values.empty()) {
        values += "    " + pattern + ") words='" + space_separated(word.values) + "' ;;\n";
      } else if (word.takes_value) {
        files += (files.empty() ? "" : "|") + pattern;
      }
    }
    if (!files.empty()) values += "    " + files + ") words= ;;\n";
    cases += "    " + command->get_name() + ") words='" + space_separated(words) + "' ;;\n";
  }
  return R"(# Completions of smartkv for bash: source <(smartkv completions bash)
_smartkv() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} start= words= i command=
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi
  done
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $word == --*=* ]]; then
    before=${word%%=*} start=${word%%=*}= word=${word#*=}
  fi
  case $command in
    '') words=')" +
         space_separated(names) + R"( --help --version' ;;
)" + cases +
         R"(  esac
  case "$command $before" in
)" + values +
         R"(  esac
  COMPREPLY=($(compgen -P "$start" -W "$words" -- "$word"))
  if [[ -n $start && ${#COMPREPLY[@]} == 0 ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -P "$start" -f -- "$word"))
  fi
}
complete -o default -F _smartkv smartkv
)";
}

// Escapes a text for single quotes in zsh. `also` are characters with a meaning for zsh's completion functions.
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
      const std::string action = word.values.empty() ? "_files" : "(" + space_separated(word.values) + ")";
      cases += "        '" + word.name + "[" + zsh_quoted(word.help, "[]:\\") + "]" +
               (word.takes_value ? ":value:" + action : "") + "' \\\n";
    }
    std::vector<std::string> parts;
    for (const CLI::App* part : commands_of(*command)) parts.push_back(part->get_name());
    cases += parts.empty() ? "        '*:file:_files' ;;\n"
                           : "        '1:part:(" + space_separated(parts) + ")' '*:file:_files' ;;\n";
  }
  return "#compdef smartkv\n# Completions of smartkv for zsh: smartkv completions zsh > \"${fpath[1]}/_smartkv\"\n"
         "_smartkv() {\n  local -a commands=(\n" +
         names +
         "  )\n"
         "  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
         "  shift words\n  ((CURRENT--))\n  case $words[1] in\n" +
         cases +
         "  esac\n}\n"
         // If compinit loads the file, it runs as the first completion. If it is sourced, it registers itself.
         "if [[ $funcstack[1] == _smartkv ]]; then _smartkv \"$@\"; else compdef _smartkv smartkv; fi\n";
}

// Returns the text in single quotes, in which fish recognizes only \\ and \'.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "'";
}

std::string fish_script(const CLI::App& app) {
  std::string script =
      "# Completions of smartkv for fish: smartkv completions fish > ~/.config/fish/completions/smartkv.fish\n"
      "complete -c smartkv -n __fish_use_subcommand -f -l version -d 'Print the version'\n";
  for (const CLI::App* command : commands_of(app)) {
    script += "complete -c smartkv -n __fish_use_subcommand -f -a " + command->get_name() + " -d " +
              fish_quoted(command->get_description()) + "\n";
    const std::string within = "complete -c smartkv -n '__fish_seen_subcommand_from " + command->get_name() + "'";
    for (const Word& word : words_of(*command)) {
      const std::string values = word.values.empty() ? "" : " -f -a " + fish_quoted(space_separated(word.values));
      if (!word.name.starts_with("--")) {
        script += within + " -a " + word.name + " -d " + fish_quoted(word.help) + "\n";
        if (!values.empty())
          script += "complete -c smartkv -n '__fish_seen_subcommand_from " + word.name + "'" + values + "\n";
        continue;
      }
      script += within + " -l " + word.name.substr(2) + (word.takes_value ? " -r" + values : "") + " -d " +
                fish_quoted(word.help) + "\n";
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  if (shell == "fish") return fish_script(app);
  throw ConfigError("shell: expected bash, fish or zsh, found \"" + shell + '"');
}

std::function<int()> setup_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "Shell to print the script for")
      ->required()
      ->check(CLI::IsMember({"bash", "fish", "zsh"}));
  app.footer(R"(Examples:
  source <(smartkv completions bash)
  smartkv completions zsh > "${fpath[1]}/_smartkv"
  smartkv completions fish > ~/.config/fish/completions/smartkv.fish)");
  return [&app, shell] {
    std::cout << completion_script(*app.get_parent(), *shell);
    return kOk;
  };
}

}  // namespace smartkv
