#include "vlmtrain/data/index/text_windows.h"

#include <algorithm>
#include <utility>

#include "data/index/parallel_for.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Returns the number of tokens of a document, or 0 if it cannot be used.
int64_t count_document_tokens(const SampleProcessor& processor, const io::Record& record) {
  try {
    return processor.process_headers(record, 0).tokens();
  } catch (const SampleTooLongError& error) {
    return error.tokens();  // of a document that the windows make short enough
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    return 0;  // the check of the data reports it
  }
}

}  // namespace

std::vector<int64_t> count_record_windows(const io::Records& records, const SampleProcessor& processor,
                                          int64_t window_tokens, int64_t workers,
                                          const std::function<void(int64_t num_done)>& on_progress) {
  std::vector<int64_t> counts(static_cast<size_t>(records.size()), 1);
  const auto count_windows = [&](int64_t index) {
    const io::Record record = records.at_without_media_bytes(index);
    const bool is_text =
        record.problem.empty() && record.is_document() && record.images.empty() && record.videos.empty();
    if (!is_text) return;
    counts[static_cast<size_t>(index)] =
        io::count_text_windows(count_document_tokens(processor, record), window_tokens);
  };
  parallel_for(records.size(), workers, count_windows, on_progress);
  return counts;
}

WindowedRecords::WindowedRecords(std::shared_ptr<const io::Records> base, const std::vector<int64_t>& window_counts,
                                 int64_t window_tokens)
    : base_records_(std::move(base)), window_tokens_(window_tokens) {
  VLMTRAIN_CHECK(std::ssize(window_counts) == base_records_->size(), "{} counts of windows for {} records",
                 window_counts.size(), base_records_->size());
  window_starts_.reserve(window_counts.size() + 1);
  window_starts_.push_back(0);
  for (const int64_t count : window_counts) {
    VLMTRAIN_CHECK(count >= 1, "{} windows", count);
    window_starts_.push_back(window_starts_.back() + count);
  }
}

WindowedRecords::WindowLocation WindowedRecords::locate(int64_t index) const {
  VLMTRAIN_CHECK(index >= 0 && index < size(), "window {} of {}", index, size());
  const auto next = std::ranges::upper_bound(window_starts_, index);
  return {
      .record = next - window_starts_.begin() - 1, .window = index - *(next - 1), .num_windows = *next - *(next - 1)};
}

io::Record WindowedRecords::set_window(io::Record record, const WindowLocation& location) const {
  if (location.num_windows == 1) return record;
  record.window = io::TextWindow{.index = location.window, .tokens = window_tokens_};
  record.id += fmt::format(", window {}", location.window + 1);
  record.location += fmt::format(", window {} of {}", location.window + 1, location.num_windows);
  return record;
}

io::Record WindowedRecords::at(int64_t index) const {
  const WindowLocation location = locate(index);
  return set_window(base_records_->at(location.record), location);
}

io::Record WindowedRecords::at_without_media_bytes(int64_t index) const {
  const WindowLocation location = locate(index);
  return set_window(base_records_->at_without_media_bytes(location.record), location);
}

std::vector<int64_t> WindowedRecords::block_starts() const {
  std::vector<int64_t> starts = base_records_->block_starts();
  for (int64_t& start : starts) start = window_starts_[static_cast<size_t>(start)];
  return starts;
}

uint64_t WindowedRecords::version_hash() const {
  const uint64_t base_hash = base_records_->version_hash();
  if (base_hash == 0) return 0;
  ContentHash hash;
  hash.add(base_hash).add(static_cast<uint64_t>(window_tokens_));
  for (const int64_t start : window_starts_) hash.add(static_cast<uint64_t>(start));
  return hash.value();
}

}  // namespace vlmtrain::data
