#include "vlmtrain/data/sample/statistics.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <set>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::data {

namespace {

/// Maximum number of regular bins, so that a histogram is readable as a table and as a small
/// figure. Not tuned.
constexpr int64_t kMaxHistogramBins = 14;

/// Returns the smallest number that at least `percent` % of the sorted numbers do not exceed.
int64_t compute_percentile(const std::vector<int64_t>& sorted, int64_t percent) {
  const auto index = (std::ssize(sorted) * percent + 99) / 100 - 1;
  return sorted[static_cast<size_t>(std::max<int64_t>(index, 0))];
}

int64_t round_down_to_multiple(int64_t number, int64_t width) {
  const int64_t remainder = number % width;
  return number - (remainder < 0 ? remainder + width : remainder);
}

/// Returns the smallest bin width with which [min, max] fits into kMaxHistogramBins bins.
int64_t choose_bin_width(int64_t min, int64_t max) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      const int64_t width = factor * power;
      if ((max - round_down_to_multiple(min, width)) / width < kMaxHistogramBins) return width;
    }
  }
}

}  // namespace

Histogram make_histogram(std::vector<int64_t> numbers) {
  Histogram histogram;
  if (numbers.empty()) return histogram;
  std::ranges::sort(numbers);
  histogram.count = std::ssize(numbers);
  histogram.sum = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  histogram.min = numbers.front();
  histogram.median = compute_percentile(numbers, 50);
  histogram.percentile_95 = compute_percentile(numbers, 95);
  histogram.max = numbers.back();

  const int64_t percentile_99 = compute_percentile(numbers, 99);
  const int64_t narrow_bin_width = choose_bin_width(histogram.min, percentile_99);
  // A tail bin is worth it if the other bins become less than half as wide.
  const bool needs_tail_bin = choose_bin_width(histogram.min, histogram.max) > 2 * narrow_bin_width;
  const int64_t width = needs_tail_bin ? narrow_bin_width : choose_bin_width(histogram.min, histogram.max);
  auto next = numbers.begin();
  for (int64_t first = round_down_to_multiple(histogram.min, width); next != numbers.end(); first += width) {
    const bool is_tail_bin = needs_tail_bin && first > percentile_99;
    const int64_t last = is_tail_bin ? histogram.max : first + width - 1;
    const auto bin_end = std::upper_bound(next, numbers.end(), last);
    histogram.bins.push_back({.first = first, .last = last, .count = bin_end - next});
    next = bin_end;
  }
  return histogram;
}

SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes, int64_t begin, int64_t end) {
  SampleCountsByMediaKind counts;
  for (int64_t index = begin; index < end; ++index) {
    const SampleShape* const media_shape = shapes.find_media_shape(index);
    if (media_shape == nullptr) continue;
    ++counts.samples;
    counts.num_samples_with_images += media_shape->num_images > 0 ? 1 : 0;
    counts.num_samples_with_videos += media_shape->num_videos > 0 ? 1 : 0;
    counts.num_samples_with_volumes += media_shape->num_volumes > 0 ? 1 : 0;
    counts.num_samples_with_masks += media_shape->masks > 0 ? 1 : 0;
    counts.num_samples_without_media += media_shape->num_media() == 0 ? 1 : 0;
  }
  return counts;
}

SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes) {
  return count_samples_by_media_kind(shapes, 0, shapes.size());
}

namespace {

using nlohmann::ordered_json;

/// Kinds that are logged, so that many kinds do not flood the log; ledger.json lists all of them.
/// Not tuned.
constexpr size_t kMaxLoggedNoticeKinds = 20;

/// Returns a phrase such as `sample a: "web"`.
std::string describe_notice_example(const NoticeCounts::Count& count) {
  const std::string value = count.example.empty() ? "" : fmt::format(": {}", make_excerpt(count.example));
  return fmt::format("sample {}{}", to_printable(count.id), value);
}

std::mutex report_mutex;  // guards the two variables below
NoticeCollector* active_collector = nullptr;
std::set<std::string> reported_kinds;  // logged without a collector

}  // namespace

void NoticeCounts::add(std::string_view id, const std::vector<io::Notice>& notices) {
  std::vector<Count*> counted_kinds;
  for (const io::Notice& notice : notices) {
    auto entry = kinds_.find(notice.kind);
    if (entry == kinds_.end()) {
      const bool is_full = kinds_.size() >= kMaxNoticeKinds;
      entry = kinds_.try_emplace(is_full ? kOtherNoticesKind : notice.kind).first;
    }
    Count& count = entry->second;
    if (std::ranges::find(counted_kinds, &count) != counted_kinds.end()) continue;
    counted_kinds.push_back(&count);
    if (count.samples++ > 0) continue;
    count.id = id;
    count.example = notice.example;
  }
}

void NoticeCounts::add_missing_kinds(const NoticeCounts& other) {
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

std::string get_notice_hint(std::string_view kind) {
  if (kind.starts_with("key \"")) return fmt::format("list it in {} to ignore it", keys::data::kIgnoreKeys);
  if (kind.starts_with("more positions")) {
    return fmt::format("the model was not trained at these positions; lower {} to avoid them", keys::data::kMaxLength);
  }
  return {};
}

std::string describe_notice(std::string_view kind) {
  return kind.starts_with("key \"") ? fmt::format("{} is not read", to_printable(kind)) : to_printable(kind);
}

void log_notices(const NoticeCounts& notices, const std::string& dataset, int64_t samples) {
  size_t num_logged = 0;
  for (const auto& [kind, count] : notices.kinds()) {
    if (num_logged++ == kMaxLoggedNoticeKinds) break;
    const std::string hint = get_notice_hint(kind);
    spdlog::warn("data {}: {}: {} of {}, such as {}{}{}", to_printable(dataset), describe_notice(kind),
                 format_with_commas(count.samples), pluralize(samples, "sample"), describe_notice_example(count),
                 hint.empty() ? "" : "; ", hint);
  }
  const size_t kinds = notices.kinds().size();
  if (kinds > kMaxLoggedNoticeKinds) {
    spdlog::warn("data {}: {} more kinds of notices; ledger.json and vlmtrain inspect name each", to_printable(dataset),
                 kinds - kMaxLoggedNoticeKinds);
  }
}

void UniqueNoticeLogger::log(const NoticeCounts& notices, const std::string& dataset) {
  if (notices.kinds().size() == logged_kinds_.size()) return;
  for (const auto& [kind, count] : notices.kinds()) {
    if (!logged_kinds_.insert(kind).second || logged_kinds_.size() > kMaxLoggedNoticeKinds) continue;
    const std::string hint = get_notice_hint(kind);
    spdlog::warn("data {}: {}, first found in {}; ledger.json counts such samples{}{}", to_printable(dataset),
                 describe_notice(kind), describe_notice_example(count), hint.empty() ? "" : "; ", hint);
  }
}

void UniqueNoticeLogger::mark_logged(const NoticeCounts& notices) {
  for (const auto& [kind, count] : notices.kinds()) logged_kinds_.insert(kind);
}

void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices) {
  if (notices.empty()) return;
  const std::lock_guard lock(report_mutex);
  for (const io::Notice& notice : notices) {
    if (active_collector != nullptr) {
      const std::lock_guard collector_lock(active_collector->mutex_);
      if (!active_collector->seen_notices_.emplace(notice.kind, ContentHash().add(sample).value()).second) continue;
      NoticeCollector::NoticeKindCount& kind_count = active_collector->kinds_[notice.kind];
      if (++kind_count.samples == 1 || sample < kind_count.sample) {
        kind_count.sample = sample;
        kind_count.example = notice.example;
      }
    } else if (reported_kinds.insert(notice.kind).second) {
      spdlog::warn("sample {}: {}: {} (reported once)", sample, notice.kind, notice.example);
    }
  }
}

NoticeCollector::NoticeCollector() {
  const std::lock_guard lock(report_mutex);
  VLMTRAIN_CHECK(active_collector == nullptr, "another notice collector is active");
  active_collector = this;
}

NoticeCollector::~NoticeCollector() {
  const std::lock_guard lock(report_mutex);
  active_collector = nullptr;
  for (const auto& [kind, count] : kinds_) {
    spdlog::warn("{}: {}; the first is {}: {}", pluralize(count.samples, "sample"), kind, count.sample, count.example);
  }
}

}  // namespace vlmtrain::data
