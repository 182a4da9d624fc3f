#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// Returns the number of windows of each record (data.text_window_tokens): io::count_text_windows()
/// of a document without media, 1 for other records and for those that cannot be used. Tokenizes
/// the documents on `workers` threads. Calls `on_progress`, if set, from time to time on the
/// caller's thread.
std::vector<int64_t> count_record_windows(const io::Records& records, const SampleProcessor& processor,
                                          int64_t window_tokens, int64_t workers,
                                          const std::function<void(int64_t num_done)>& on_progress = {});

/// The records of a data set, in which each window of a long text is a record of its own
/// (io::Record::window). The windows of a record follow each other. Records with one window are
/// unchanged. Takes 8 bytes for each record of the data set.
class WindowedRecords final : public io::Records {
 public:
  /// `window_counts` are those of count_record_windows(). REQUIRES: one count >= 1 for each record
  /// of `base`.
  WindowedRecords(std::shared_ptr<const io::Records> base, const std::vector<int64_t>& window_counts,
                  int64_t window_tokens);

  int64_t size() const override { return window_starts_.back(); }
  io::Record at(int64_t index) const override;
  io::Record at_without_media_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

 private:
  /// A window of a record of the data set.
  struct WindowLocation {
    int64_t record;
    int64_t window;
    int64_t num_windows;
  };
  WindowLocation locate(int64_t index) const;
  io::Record set_window(io::Record record, const WindowLocation& location) const;

  std::shared_ptr<const io::Records> base_records_;
  std::vector<int64_t> window_starts_;  // index of the first window of each record, then size()
  int64_t window_tokens_;
};

}  // namespace vlmtrain::data
