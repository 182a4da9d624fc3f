#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/options/declarations.h"
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

}  // namespace vlmtrain
