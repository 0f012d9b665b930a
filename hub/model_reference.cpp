#include "hub/model_reference.h"

#include <algorithm>

#include "hub/hub_error.h"

namespace smartkv {
namespace {

constexpr std::string_view kScheme = "hf://";

// Whether the hub would accept it as the name of an owner, a repository, a revision or a quantization.
bool is_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' && text.front() != '-' && text.back() != '.' &&
         text.find("..") == std::string_view::npos && std::ranges::all_of(text, fits);
}

// Whether it is a relative path that stays in its folder.
bool is_file(std::string_view text) {
  while (!text.empty()) {
    const auto slash = std::min(text.find('/'), text.size());
    const std::string_view part = text.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.find('\\') != std::string_view::npos) return false;
    if (slash == text.size()) return true;
    text.remove_prefix(slash + 1);
  }
  return false;
}

// Cuts `text` at the first `mark` and returns what is behind it. Empty if there is none.
std::optional<std::string> cut(std::string_view* text, char mark) {
  const auto at = text->find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::string rest(text->substr(at + 1));
  *text = text->substr(0, at);
  return rest;
}

}  // namespace

std::string ModelReference::text() const {
  std::string all = (file.empty() ? "" : std::string(kScheme)) + repo;
  if (revision != "main") all += "@" + revision;
  if (!quantization.empty()) all += ":" + quantization;
  if (!file.empty()) all += "/" + file;
  return all;
}

std::optional<ModelReference> parse_model_reference(std::string_view text) {
  const bool scheme = text.starts_with(kScheme);
  std::string_view rest = scheme ? text.substr(kScheme.size()) : text;
  const auto found = [&]() -> std::optional<ModelReference> {
    ModelReference reference;
    const auto first = rest.find('/');
    if (first == std::string_view::npos) return std::nullopt;
    const auto second = rest.find('/', first + 1);
    if (second != std::string_view::npos) {
      if (!scheme) return std::nullopt;
      reference.file = rest.substr(second + 1);
      if (!is_file(reference.file)) return std::nullopt;
      rest = rest.substr(0, second);
    }
    if (const auto quantization = cut(&rest, ':')) {
      if (!is_name(*quantization) || !reference.file.empty()) return std::nullopt;
      reference.quantization = *quantization;
    }
    if (const auto revision = cut(&rest, '@')) {
      if (!is_name(*revision)) return std::nullopt;
      reference.revision = *revision;
    }
    if (!is_name(rest.substr(0, first)) || !is_name(rest.substr(first + 1))) return std::nullopt;
    reference.repo = rest;
    return reference;
  }();
  if (scheme && !found) {
    throw HubError("model: expected hf://ORG/NAME or hf://ORG/NAME/FILE, found " + std::string(text));
  }
  return found;
}

std::optional<ModelReference> model_reference(const std::filesystem::path& model) {
  std::error_code error;
  if (std::filesystem::exists(model, error)) return std::nullopt;
  return parse_model_reference(model.string());
}

}  // namespace smartkv
