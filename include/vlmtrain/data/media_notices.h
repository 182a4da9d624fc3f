#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/notice.h"

namespace vlmtrain::data {

/// Reports what pixels alone show of a sample's media, by kind: headers, which are read at a run's start, do not. Each
/// kind is a warning the first time that the process meets it; while a NoticeCollector lives they are counted instead.
/// Thread-safe.
void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices);

/// The notices that are reported while the object lives, each sample once, as one warning of each kind with its count
/// and first sample; written at the end. One lives at a time.
class NoticeCollector {
 public:
  NoticeCollector();
  ~NoticeCollector();
  NoticeCollector(const NoticeCollector&) = delete;
  NoticeCollector& operator=(const NoticeCollector&) = delete;

 private:
  friend void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices);

  struct KindCount {
    int64_t samples = 0;
    std::string sample;  ///< the first by its name, whichever thread met it first
    std::string example;
  };
  std::mutex mutex_;
  std::map<std::string, KindCount> kinds_;
  std::set<std::pair<std::string, uint64_t>> seen_;  // kinds and hashes of samples' names
};

}  // namespace vlmtrain::data
