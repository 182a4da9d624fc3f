#include "vlmtrain/data/media_notices.h"

#include <set>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::data {

namespace {

std::mutex report_mutex;  // guards both below
NoticeCollector* active_collector = nullptr;
std::set<std::string> reported_kinds;  // as a warning of their own

}  // namespace

void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices) {
  if (notices.empty()) return;
  const std::lock_guard lock(report_mutex);
  for (const io::Notice& notice : notices) {
    if (active_collector != nullptr) {
      const std::lock_guard collector_lock(active_collector->mutex_);
      if (!active_collector->seen_.emplace(notice.kind, ContentHash().add(sample).value()).second) continue;
      NoticeCollector::KindCount& kind_count = active_collector->kinds_[notice.kind];
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
  VLMTRAIN_CHECK(active_collector == nullptr, "notices are collected by one at a time");
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
