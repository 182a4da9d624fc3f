#include "base/options/declarations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

void OptionDeclarations::add_option(Option option) {
  const std::string& key = option.key;
  VLMTRAIN_CHECK(find_option(key) == nullptr && !key_by_alias.contains(key), "option {} is declared twice", key);
  VLMTRAIN_CHECK(key.find('.') != std::string::npos, "option {} has no section", key);
  for (OptionHint& hint : option.info.hints) {
    if (hint.text.empty()) hint.text = key;
    VLMTRAIN_CHECK(hint.text.find(key) != std::string::npos, "a hint of {} does not name it: {}", key, hint.text);
    add_hints(hint.names, key, "the equivalent in vlmtrain: " + hint.text);
  }
  add_last_component(key, key);
  for (const std::string& alias : option.info.aliases) {
    VLMTRAIN_CHECK(alias != key && find_option(alias) == nullptr, "alias {} of {} is a declared key", alias, key);
    const auto [other, is_new] = key_by_alias.try_emplace(alias, key);
    VLMTRAIN_CHECK(is_new, "alias {} belongs to {} and {}", alias, other->second, key);
    add_last_component(alias, key);
  }
  options.push_back(std::move(option));
}

void OptionDeclarations::add_last_component(const std::string& name, const std::string& key) {
  std::string last_component(get_last_component(name));
  const auto hint = hints.find(last_component);
  VLMTRAIN_CHECK(hint == hints.end() || hint->second.suggestion->find(key) != std::string::npos,
                 "{} has the name of a hint that does not name {}: {}", name, key, *hint->second.suggestion);
  keys_by_last_component.emplace(std::move(last_component), key);
}

void OptionDeclarations::add_hints(const std::vector<std::string>& names, const std::string& key,
                                   std::string suggestion) {
  const auto shared_suggestion = std::make_shared<const std::string>(std::move(suggestion));
  for (const std::string& name : names) {
    VLMTRAIN_CHECK(hints.try_emplace(name, Hint{key, shared_suggestion}).second, "hint {} is declared twice", name);
    const auto [first, last] = keys_by_last_component.equal_range(name);
    for (auto other = first; other != last; ++other) {
      VLMTRAIN_CHECK(shared_suggestion->find(other->second) != std::string::npos,
                     "hint {} has the name of {}, which it does not name: {}", name, other->second, *shared_suggestion);
    }
  }
}

const OptionDeclarations::Option* OptionDeclarations::find_option(std::string_view key) const {
  const auto it = std::ranges::find(options, key, &Option::key);
  return it == options.end() ? nullptr : &*it;
}

std::string OptionDeclarations::resolve_alias(const std::string& name) const {
  const auto it = key_by_alias.find(name);
  return it == key_by_alias.end() ? name : it->second;
}

bool OptionDeclarations::is_section(const std::string& key) const {
  return std::ranges::any_of(options, [&](const Option& option) { return option.key.starts_with(key + "."); });
}

std::vector<std::string> OptionDeclarations::list_keys_and_aliases() const {
  std::vector<std::string> names;
  for (const auto& option : options) names.push_back(option.key);
  for (const auto& [alias, key] : key_by_alias) names.push_back(alias);
  return names;
}

std::optional<std::string> OptionDeclarations::find_nearest_key(std::string_view key) const {
  const std::string_view word = get_last_component(key);
  const std::vector<std::string> names = list_keys_and_aliases();
  const auto find_matching_key = [&](std::string_view last_component) {
    const auto it = std::ranges::find(names, last_component, get_last_component);
    return it == names.end() ? std::nullopt : std::optional(resolve_alias(*it));
  };
  if (auto exact_match = find_matching_key(word)) return exact_match;
  if (const auto suggestion = find_nearest_word(key, names)) return resolve_alias(*suggestion);
  std::vector<std::string> words;
  words.reserve(names.size());
  for (const std::string& name : names) words.emplace_back(get_last_component(name));
  const auto suggestion = find_nearest_word(word, words);
  return suggestion ? find_matching_key(*suggestion) : std::nullopt;
}

std::optional<std::string> OptionTable::find_key(std::string_view name) const {
  const std::vector<std::string> names = declarations_->list_keys_and_aliases();
  auto it = std::ranges::find(names, name);
  if (it == names.end() && name.find('.') == std::string_view::npos)
    it = std::ranges::find(names, name, get_last_component);
  if (it == names.end()) return std::nullopt;
  std::string key = declarations_->resolve_alias(*it);
  const auto hint = declarations_->hints.find(std::string(name));
  if (hint != declarations_->hints.end() && hint->second.key != key) return std::nullopt;
  return key;
}

std::string OptionDeclarations::make_key_suggestion(std::string_view key) const {
  const auto hint = hints.find(std::string(get_last_component(key)));
  if (hint != hints.end()) return *hint->second.suggestion;
  const auto suggestion = find_nearest_key(key);
  return suggestion ? fmt::format("did you mean {}?", *suggestion) : "`vlmtrain options` lists all keys";
}

std::string OptionTable::make_key_suggestion(std::string_view key) const {
  return declarations_->make_key_suggestion(key);
}

std::optional<std::string> find_nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  // Longer than any key. The limit bounds the time, which grows with the product of both lengths.
  constexpr size_t kMaxWordLength = 200;
  if (word.size() > kMaxWordLength) return std::nullopt;
  std::optional<std::string> nearest_word;
  // The first distance that is too large. Not tuned.
  size_t distance_bound = std::min(word.size(), std::max<size_t>(3, word.size() / 3));
  for (const auto& candidate : candidates) {
    // distance_row[j]: distance between the first i characters of `word` and the first j of
    // `candidate`.
    std::vector<size_t> distance_row(candidate.size() + 1);
    std::iota(distance_row.begin(), distance_row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal_distance = distance_row[0];
      distance_row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substitution_distance = diagonal_distance + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal_distance = distance_row[j];
        distance_row[j] = std::min({distance_row[j] + 1, distance_row[j - 1] + 1, substitution_distance});
      }
    }
    if (distance_row.back() < distance_bound) {
      distance_bound = distance_row.back();
      nearest_word = candidate;
    }
  }
  return nearest_word;
}

namespace {

/// Returns the names in backticks, separated by commas.
std::string format_names(const std::vector<std::string>& names) {
  return fmt::format("`{}`", fmt::join(names, "`, `"));
}

/// Returns for example "integer (tokens, at least 1)".
std::string describe_type(const std::string& type, const std::string& unit, const std::string& condition) {
  if (unit.empty() && condition.empty()) return type;
  return fmt::format("{} ({}{}{})", type, unit, unit.empty() || condition.empty() ? "" : ", ", condition);
}

}  // namespace

std::string_view to_string(ResumeRule rule) {
  switch (rule) {
    case ResumeRule::kFree:
      return "free";
    case ResumeRule::kIfRequested:
      return "changed";
    case ResumeRule::kNever:
      return "never";
  }
  throw InternalError("unknown resume rule");
}

std::optional<ResumeRule> OptionTable::find_resume_rule(std::string_view key) const {
  const auto* const option = declarations_->find_option(key);
  return option == nullptr ? std::nullopt : std::optional<ResumeRule>(option->info.resume);
}

std::vector<std::string> OptionTable::list_keys(ResumeRule rule) const {
  std::vector<std::string> keys;
  for (const auto& option : declarations_->options) {
    if (option.info.resume == rule) keys.push_back(option.key);
  }
  return keys;
}

std::string OptionTable::format_value(std::string_view key) const {
  const auto* const option = declarations_->find_option(key);
  VLMTRAIN_CHECK(option != nullptr, "no option {} is declared", key);
  YAML::Emitter out;
  option->emit_value(out);
  return out.c_str();
}

std::string OptionTable::to_yaml() const {
  YAML::Emitter out;
  std::vector<std::string> section_names;
  std::map<std::string, std::vector<const OptionDeclarations::Option*>> sections;
  for (const auto& option : declarations_->options) {
    const std::string section = option.key.substr(0, option.key.find('.'));
    if (sections[section].empty()) section_names.push_back(section);
    sections[section].push_back(&option);
  }
  out << YAML::BeginMap;
  for (const auto& section : section_names) {
    out << YAML::Key << section << YAML::Value << YAML::BeginMap;
    for (const auto* option : sections[section]) {
      out << YAML::Key << option->key.substr(section.size() + 1) << YAML::Value;
      option->emit_value(out);
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

namespace {

/// Returns the text with links to the pages that it names, relative to docs/reference:
/// "docs/how-to/resume.md" → "[resume](../how-to/resume.md)".
std::string link_pages(std::string_view text) {
  constexpr std::string_view kPrefix = "docs/", kSuffix = ".md";
  std::string linked;
  for (size_t begin = text.find(kPrefix); begin != std::string_view::npos; begin = text.find(kPrefix)) {
    const size_t end = text.find(kSuffix, begin);
    if (end == std::string_view::npos) break;
    const std::string_view path = text.substr(begin + kPrefix.size(), end - begin - kPrefix.size());
    linked += text.substr(0, begin);
    linked += fmt::format("[{}](../{}.md)", path.substr(path.find('/') + 1), path);
    text.remove_prefix(end + kSuffix.size());
  }
  return linked.append(text);
}

}  // namespace

std::string OptionTable::to_markdown() const {
  std::string text = fmt::format(
      "# Configuration\n\n"
      "`vlmtrain options --markdown` writes this page from the declarations in the code. Every key can be\n"
      "overridden on the command line: `vlmtrain --config train.yaml {}=10`.\n\n"
      "The column `resume` shows whether a run may resume with another value (docs/how-to/resume.md): `free`,\n"
      "only with `{}=changed`, or `never`.\n",
      keys::training::kMaxSteps, keys::training::kResume);
  for (const auto& [section, doc] : declarations_->sections) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| key | type | default | resume | meaning |\n|---|---|---|---|---|\n",
                        section, doc);
    for (const auto& option : declarations_->options) {
      if (!option.key.starts_with(section + ".")) continue;
      const auto& aliases = option.info.aliases;
      text += fmt::format("| `{}` | {} | `{}` | {} | {}{}", option.key,
                          describe_type(option.type, option.info.unit, option.condition), option.default_value_text,
                          to_string(option.info.resume), option.info.doc,
                          aliases.empty() ? "" : fmt::format(" Alias: {}.", format_names(aliases)));
      for (const auto& [name, value] : option.info.value_aliases) {
        text += fmt::format(" `{}` is an alias of `{}`.", name, value);
      }
      text += " |\n";
    }
  }
  text +=
      "\n## Keys of other trainers\n\n"
      "These keys are errors, in every section, because their meaning may differ. The message names the equivalent.\n\n"
      "| key | equivalent |\n|---|---|\n";
  const auto add_hints = [&text](const std::vector<OptionHint>& hints) {
    for (const auto& [names, equivalent] : hints) text += fmt::format("| {} | {} |\n", format_names(names), equivalent);
  };
  for (const auto& option : declarations_->options) add_hints(option.info.hints);
  add_hints(declarations_->foreign_keys);
  return link_pages(text);
}

}  // namespace vlmtrain
