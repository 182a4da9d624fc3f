#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Splits the long texts of data sets into windows (data.text_window_tokens). Loads the processor of
/// the model when it is first needed.
class TextSplitter {
 public:
  /// `config` must outlive the object. Throws UserError (kUsage) if a window is larger than a sample
  /// or a pack may be.
  explicit TextSplitter(const Config& config);

  /// Returns the records with each window of a long text as a record of its own; `records` itself
  /// if data.text_window_tokens is auto or if no text is longer. The number of windows is cached in
  /// the user's cache folder. `name` is for the log.
  std::shared_ptr<const io::Records> split(std::shared_ptr<const io::Records> records, const std::string& name);

 private:
  /// Returns data::count_record_windows(), with a progress bar.
  std::vector<int64_t> count_windows(const io::Records& records, int64_t window_tokens);

  const Config& config_;
  models::ProcessorSettings settings_;
  std::unique_ptr<models::Processor> processor_;  // null until it is needed
};

}  // namespace vlmtrain::train
