#include "vlmtrain/data/notice_counts.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::data {

namespace {

using nlohmann::ordered_json;

/// Kinds that the log names; the ledger names each.
constexpr size_t kLoggedKinds = 20;

/// `sample a: "web"`.
std::string example_words(const NoticeCounts::Count& count) {
  const std::string value = count.example.empty() ? "" : fmt::format(": {}", excerpt(count.example));
  return fmt::format("sample {}{}", printable(count.id), value);
}

}  // namespace

void NoticeCounts::add(std::string_view id, const std::vector<io::Notice>& notices) {
  std::vector<Count*> added;
  for (const io::Notice& notice : notices) {
    auto found = kinds_.find(notice.kind);
    if (found == kinds_.end()) {
      const bool is_too_many = kinds_.size() >= kMostNoticeKinds;
      found = kinds_.try_emplace(is_too_many ? kOtherNotices : notice.kind).first;
    }
    Count& count = found->second;
    if (std::ranges::find(added, &count) != added.end()) continue;
    added.push_back(&count);
    if (count.samples++ > 0) continue;
    count.id = id;
    count.example = notice.example;
  }
}

void NoticeCounts::add_missing(const NoticeCounts& other) {
  for (const auto& [kind, count] : other.kinds_) kinds_.try_emplace(kind, count);
}

ordered_json NoticeCounts::to_json() const {
  auto json = ordered_json::array();
  for (const auto& [kind, count] : kinds_) {
    json.push_back(
        {{"kind", kind}, {"samples", count.samples}, {"example", {{"id", count.id}, {"value", count.example}}}});
  }
  return json;
}

NoticeCounts NoticeCounts::from_json(const ordered_json& json) {
  NoticeCounts notices;
  for (const auto& entry : json) {
    const ordered_json& example = entry.at("example");
    notices.kinds_[entry.at("kind").get<std::string>()] = {
        .samples = entry.at("samples"), .id = example.at("id"), .example = example.at("value")};
  }
  return notices;
}

std::string hint_of_notice(std::string_view kind) {
  if (kind.starts_with("key \"")) return "list it in data.ignore_keys if it is to be left out";
  if (kind.starts_with("more positions")) {
    return "it trains at positions that the model has not seen; lower data.max_length to avoid them";
  }
  return {};
}

std::string notice_words(std::string_view kind) {
  return kind.starts_with("key \"") ? fmt::format("{} is not read", printable(kind)) : printable(kind);
}

void log_notices(const NoticeCounts& notices, const std::string& dataset, int64_t samples) {
  size_t logged = 0;
  for (const auto& [kind, count] : notices.kinds()) {
    if (logged++ == kLoggedKinds) break;
    const std::string hint = hint_of_notice(kind);
    spdlog::warn("data {}: {}: {} of {} samples, such as {}{}{}", printable(dataset), notice_words(kind),
                 grouped(count.samples), grouped(samples), example_words(count), hint.empty() ? "" : "; ", hint);
  }
  const size_t kinds = notices.kinds().size();
  if (kinds > kLoggedKinds) {
    spdlog::warn("data {}: {} more kinds of notices; ledger.json and vlmtrain inspect name each", printable(dataset),
                 kinds - kLoggedKinds);
  }
}

void NewNotices::log(const NoticeCounts& notices, const std::string& dataset) {
  if (notices.kinds().size() == known_.size()) return;
  for (const auto& [kind, count] : notices.kinds()) {
    if (!known_.insert(kind).second || known_.size() > kLoggedKinds) continue;
    const std::string hint = hint_of_notice(kind);
    spdlog::warn("data {}: {}, first met in {}; ledger.json counts such samples{}{}", printable(dataset),
                 notice_words(kind), example_words(count), hint.empty() ? "" : "; ", hint);
  }
}

void NewNotices::pass_over(const NoticeCounts& notices) {
  for (const auto& [kind, count] : notices.kinds()) known_.insert(kind);
}

}  // namespace vlmtrain::data
