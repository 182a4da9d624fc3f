#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/bad_samples.h"
#include "vlmtrain/data/content_prints.h"
#include "vlmtrain/data/notice_counts.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/data/sample_shapes.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// What is known of the samples of a data set without decoding their pictures.
struct SampleIndex {
  SampleShapes shapes{};                        ///< by index; unknown: bad, or not looked at
  TextColumn ids{};                             ///< of all that were looked at, by index
  DictionaryTextColumn tasks{};                 ///< of the same, by index; io::Record::task
  std::map<int64_t, SampleProblem> problems{};  ///< of the bad ones, by index
  std::map<int64_t, ShrinkInfo> shrunk{};       ///< of those whose media lose pixels, by index
  NoticeCounts notices{};                       ///< of the usable ones
  ContentFingerprints fingerprints{};           ///< where they are asked for
  int64_t decode_bytes = 0;                     ///< the most of Sample::decode_bytes
  int64_t num_from_cache = 0;                   ///< of the shapes, how many are known from an earlier call

  /// How many are not what the cache has of them: their records or files were changed since.
  int64_t num_changed = 0;
  bool is_complete = false;  ///< whether all samples were looked at

  int64_t num_usable() const { return shapes.size() - std::ssize(problems); }
};

struct SampleIndexSettings {
  int64_t workers = 1;  ///< threads, >= 1
  /// Look at so many samples only, spread over the data set; 0: at all.
  int64_t max_samples = 0;
  /// Keeps the shapes from one call to the next; empty: no file. Where io::Records::stamp() is what it was, no record
  /// is read. A sample is looked at anew if its record changed, or size or times of one of its files, and each bad one
  /// is: a medium that could not be read may be back. A file that is damaged, of another program or of another
  /// `processor` is no cache.
  std::filesystem::path cache{};
  bool write_cache = true;         ///< false: it is read alone
  std::string processor{};         ///< what the samples depend on beside records and files
  bool keep_fingerprints = false;  ///< Outlines::prints; with a cache only
  /// Hears now and then how many samples are looked at, on the caller's thread. If it throws, the call ends with that.
  std::function<void(int64_t num_done)> on_progress{};
};

/// Looks at all samples: texts are tokenized, of images and videos the headers are read. Bad samples are those for
/// which SampleProcessor::outline throws a UserError with kBadData; any other exception is rethrown as it is. Some 50
/// bytes a sample are kept.
SampleIndex index_samples(const io::Records& records, const SampleProcessor& processor,
                          const SampleIndexSettings& settings);

}  // namespace vlmtrain::data
