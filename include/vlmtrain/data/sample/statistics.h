#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

/// A histogram of integers with summary statistics. All statistics are 0 if there are no numbers.
struct Histogram {
  /// The number of values from `first` to `last`.
  struct Bin {
    int64_t first = 0;
    int64_t last = 0;  ///< inclusive
    int64_t count = 0;
  };
  /// Bins in ascending order without gaps; the first and the last bin are not empty. All bins have
  /// the same width, except that the last one is wider if the largest hundredth of the numbers lies
  /// far above the others.
  std::vector<Bin> bins;

  int64_t count = 0;
  int64_t sum = 0;
  int64_t min = 0;
  int64_t median = 0;  ///< lower median of an even number of values
  int64_t percentile_95 = 0;
  int64_t max = 0;

  double mean() const { return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0; }
};

/// Returns a histogram of about a dozen bins. Their width is 1, 2 or 5 times a power of ten.
Histogram make_histogram(std::vector<int64_t> numbers);

/// The numbers of samples with media of each kind. A sample may have several kinds.
struct SampleCountsByMediaKind {
  int64_t samples = 0;  ///< number of samples with known shapes
  int64_t num_samples_with_images = 0;
  int64_t num_samples_with_videos = 0;
  int64_t num_samples_with_volumes = 0;
  int64_t num_samples_with_masks = 0;
  int64_t num_samples_without_media = 0;

  /// Returns whether there are samples and none of them has an image, video or volume.
  bool is_text_only() const { return samples > 0 && num_samples_without_media == samples; }
};

/// Counts the samples with known shapes in [begin, end).
SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes, int64_t begin, int64_t end);
/// Counts all samples with known shapes.
SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes);

/// Maximum number of notice kinds that are counted separately. Limits ledger.json and memory if
/// kinds contain names or numbers of the records; a real data set has a handful of kinds. Not
/// tuned.
inline constexpr size_t kMaxNoticeKinds = 200;

/// The kind that counts all notices beyond kMaxNoticeKinds.
inline constexpr const char* kOtherNoticesKind = "other notices, of more kinds than are counted";

/// Counts of a data set's notices by kind, with one example each. Kinds beyond kMaxNoticeKinds are
/// counted together as kOtherNoticesKind. Not thread-safe.
class NoticeCounts {
 public:
  /// The count of a kind, with one example.
  struct Count {
    int64_t samples = 0;
    std::string id;       ///< id of the first sample with the notice
    std::string example;  ///< io::Notice::example of that sample; may be empty

    bool operator==(const Count&) const = default;
  };

  /// Adds the notices of one sample. A kind counts once for a sample.
  void add(std::string_view id, const std::vector<io::Notice>& notices);

  /// Adds the kinds of `other` that are not in this object, with their counts.
  void add_missing_kinds(const NoticeCounts& other);

  bool empty() const { return kinds_.empty(); }
  const std::map<std::string, Count>& kinds() const { return kinds_; }

  /// Returns [{"kind", "samples", "example": {"id", "value"}}], sorted by kind.
  nlohmann::ordered_json to_json() const;
  /// Parses the result of to_json(). Throws nlohmann::json::exception for other values.
  static NoticeCounts from_json(const nlohmann::ordered_json& json);

  bool operator==(const NoticeCounts&) const = default;

 private:
  std::map<std::string, Count> kinds_;
};

/// Returns the fix for notices of a kind, as a clause to follow a semicolon; empty if the program
/// has none.
std::string get_notice_hint(std::string_view kind);

/// Returns a kind as a phrase: `key "source" of a record is not read`.
std::string describe_notice(std::string_view kind);

/// Logs one warning for each kind, with its count and example. `samples` is the size of the data
/// set.
void log_notices(const NoticeCounts& notices, const std::string& dataset, int64_t samples);

/// A logger of notice kinds for runs that do not count all notices before the first step. Logs each
/// kind the first time that it occurs. Not thread-safe.
class UniqueNoticeLogger {
 public:
  /// Logs the kinds of `notices` that were not logged before.
  void log(const NoticeCounts& notices, const std::string& dataset);
  /// Marks the kinds of `notices` as logged.
  void mark_logged(const NoticeCounts& notices);

 private:
  std::set<std::string> logged_kinds_;
};

/// Reports notices that depend on the pixels of a sample's media and are therefore not found in
/// headers. `sample` is the name of the sample. Logs a warning the first time that a kind occurs in
/// this process. While a NoticeCollector exists, it counts the notices instead. Thread-safe.
void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices);

/// A scope that collects the notices given to report_media_notices(). At its end it logs one
/// warning for each kind, with the number of samples and the first sample by name. A sample counts
/// once for each kind. REQUIRES: at most one object at a time.
class NoticeCollector {
 public:
  NoticeCollector();
  ~NoticeCollector();
  NoticeCollector(const NoticeCollector&) = delete;
  NoticeCollector& operator=(const NoticeCollector&) = delete;

 private:
  friend void report_media_notices(const std::string& sample, const std::vector<io::Notice>& notices);

  /// The count of a kind, with the first sample by name.
  struct NoticeKindCount {
    int64_t samples = 0;
    std::string sample;  ///< smallest sample name, so that the result does not depend on thread timing
    std::string example;
  };
  std::mutex mutex_;
  std::map<std::string, NoticeKindCount> kinds_;
  std::set<std::pair<std::string, uint64_t>> seen_notices_;  // kind and hash of the sample name
};

}  // namespace vlmtrain::data
