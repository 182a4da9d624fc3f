#include "models/checkpoints/foreign_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::models {

namespace {

/// The names' ends that begin after a dot and have two words or more, the longest first.
std::vector<std::string_view> ends_of(std::string_view name) {
  std::vector<std::string_view> ends{name};
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const std::string_view end = name.substr(dot + 1);
    if (end.find('.') != std::string_view::npos) ends.push_back(end);
  }
  return ends;
}

std::string examples_of(std::span<const std::string> names, const std::unordered_set<std::string_view>& other) {
  constexpr size_t kMost = 3;
  std::vector<std::string> examples;
  size_t count = 0;
  for (const auto& name : names) {
    if (other.contains(name)) continue;
    if (++count <= kMost) examples.push_back(excerpt(name));
  }
  return fmt::format("{}{}", fmt::join(examples, ", "), count > kMost ? ", …" : "");
}

std::string change_text(const PrefixChange& change) {
  if (change.own.empty()) return fmt::format("without the prefix \"{}\"", change.stored);
  if (change.stored.empty()) return fmt::format("with the prefix \"{}\"", change.own);
  return fmt::format("with the prefix \"{}\" in the place of \"{}\"", change.own, change.stored);
}

}  // namespace

PrefixChange find_prefix_change(std::span<const std::string> stored, std::span<const std::string> own) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> by_end;
  for (const std::string& name : own) {
    for (const std::string_view end : ends_of(name)) by_end[end].push_back(name);
  }
  std::map<std::pair<std::string_view, std::string_view>, size_t> votes;
  for (const std::string& name : stored) {
    for (const std::string_view end : ends_of(name)) {
      const auto found = by_end.find(end);
      if (found == by_end.end()) continue;
      for (const std::string_view fitting : found->second) {
        const std::string_view before = std::string_view(name).substr(0, name.size() - end.size());
        ++votes[{before, fitting.substr(0, fitting.size() - end.size())}];
      }
      break;
    }
  }
  PrefixChange best;
  for (const auto& [change, tensors] : votes) {
    if (change.first == change.second || tensors <= best.tensors) continue;
    best = {.stored = std::string(change.first), .own = std::string(change.second), .tensors = tensors};
  }
  return best;
}

void refuse_foreign_names(const std::string& folder, std::span<const std::string> wanted,
                          std::span<const std::string> own, std::span<const std::string> stored, bool may_be_missing) {
  const std::unordered_set<std::string_view> there(stored.begin(), stored.end()), asked(wanted.begin(), wanted.end());
  const auto missing = static_cast<size_t>(
      std::ranges::count_if(wanted, [&](const std::string& name) { return !there.contains(name); }));
  if (missing * 2 <= wanted.size() || stored.empty()) return;
  PrefixChange change = find_prefix_change(stored, wanted);
  if (const PrefixChange of_modules = find_prefix_change(stored, own); of_modules.tensors > change.tensors) {
    change = of_modules;
  }
  const bool fits = change.tensors * 3 >= missing;
  if (may_be_missing && !fits) return;
  const size_t unexpected = static_cast<size_t>(
      std::ranges::count_if(stored, [&](const std::string& name) { return !asked.contains(name); }));
  throw data_error(
      "{}: the tensors in the files are not called as the model's that config.json describes ({} differences): {} of "
      "the model's {} are missing, such as {}; the files have {}. {}",
      folder, missing + unexpected, missing, wanted.size(), examples_of(wanted, there), examples_of(stored, asked),
      fits ? fmt::format("{} of them fit {}: rename the tensors so, or save the checkpoint again with transformers",
                         change.tensors, change_text(change))
           : "Take the config.json that belongs to them, or save the checkpoint again with transformers");
}

}  // namespace vlmtrain::models
