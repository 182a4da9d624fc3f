#include "vlmtrain/data/media_notices.h"

#include <set>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::data {

namespace {

std::mutex report_mutex;  // guards both below
CollectedNotices* collected = nullptr;
std::set<std::string> reported_kinds;  // as a warning of their own

}  // namespace

void report_media(const std::string& sample, const std::vector<io::Notice>& notices) {
  if (notices.empty()) return;
  const std::lock_guard lock(report_mutex);
  for (const io::Notice& notice : notices) {
    if (collected != nullptr) {
      const std::lock_guard own(collected->mutex_);
      if (!collected->counted_.emplace(notice.kind, ContentHash().add(sample).value()).second) continue;
      CollectedNotices::Kind& kind = collected->kinds_[notice.kind];
      if (++kind.samples == 1 || sample < kind.sample) {
        kind.sample = sample;
        kind.example = notice.example;
      }
    } else if (reported_kinds.insert(notice.kind).second) {
      spdlog::warn("sample {}: {}: {} (reported once)", sample, notice.kind, notice.example);
    }
  }
}

CollectedNotices::CollectedNotices() {
  const std::lock_guard lock(report_mutex);
  VLMTRAIN_CHECK(collected == nullptr, "notices are collected by one at a time");
  collected = this;
}

CollectedNotices::~CollectedNotices() {
  const std::lock_guard lock(report_mutex);
  collected = nullptr;
  for (const auto& [kind, found] : kinds_) {
    spdlog::warn("{}: {}; the first is {}: {}", counted(found.samples, "sample"), kind, found.sample, found.example);
  }
}

}  // namespace vlmtrain::data
