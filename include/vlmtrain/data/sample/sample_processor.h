#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

struct Sample;  // sample.h

/// The answers of a conversation that are in the loss, among those that the record does not exclude.
enum class TrainedAnswers {
  kAll,   ///< all answers
  kLast,  ///< only the last answer
};

/// The layout of videos in the token stream, for families whose implementations disagree.
enum class VideoTokenLayout {
  kReleasedCode,   ///< as in the code released with the checkpoints, and in vLLM
  kTransformers5,  ///< as in transformers 5.3 and later
};

/// The error of a sample that cannot be used. `reason` is a short fixed phrase that the ledger
/// counts by, such as "too long". The message names the sample and the fix.
class SampleError : public UserError {
 public:
  /// If `is_dropped`, the sample is dropped regardless of data.on_bad_sample.
  SampleError(std::string reason, const std::string& message, bool is_dropped = false)
      : UserError(ExitCode::kBadData, message), reason_(std::move(reason)), is_dropped_(is_dropped) {}
  const std::string& reason() const { return reason_; }
  bool is_dropped() const { return is_dropped_; }

 private:
  std::string reason_;
  bool is_dropped_;
};

/// The error of a sample with more than data.max_length tokens.
class SampleTooLongError final : public SampleError {
 public:
  SampleTooLongError(int64_t tokens, const std::string& message, bool is_dropped = false)
      : SampleError("too long", message, is_dropped), tokens_(tokens) {}
  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_;
};

/// The number of positions that a model was trained with.
struct PositionLimit {
  int64_t max_positions = 0;
  std::string key;  ///< key of config.json with the number
};

/// The interface of the model families for converting records to samples. Thread-safe: loader
/// threads share one processor. `index` is the index of the record in the data set.
class SampleProcessor {
 public:
  virtual ~SampleProcessor() = default;

  /// Decodes the media, renders the chat template and tokenizes it. Throws SampleError, or another
  /// UserError with kBadData, if the record cannot be used.
  virtual Sample process(const io::Record& record, int64_t index) const = 0;

  /// Returns the same sample from the headers of the media only, with pixel_values on the meta
  /// device. For planning and checking, at the cost of a few small reads. Does not detect corrupt
  /// pixel data after a valid header.
  virtual Sample process_headers(const io::Record& record, int64_t index) const = 0;

  /// Returns the sample with randomly augmented images (data.augment). The augmentation depends on
  /// `seed` only. By default, images are not augmented.
  virtual Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const;

  /// Returns the number of positions of the model if longer samples are trained on with a notice;
  /// nothing if the number is unknown or longer samples are rejected.
  virtual std::optional<PositionLimit> position_limit() const { return std::nullopt; }
};

/// Returns the sample of a record for training or evaluation. `augmentation_seed` is set in
/// training; without it, images are not augmented. Throws the errors of the processor, and
/// SampleError if the record is unusable or the sample has no label token. Thread-safe.
Sample make_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                   std::optional<uint64_t> augmentation_seed = std::nullopt);

/// Returns the sample of SampleProcessor::process_headers() with the same checks and errors.
Sample make_header_sample(const SampleProcessor& processor, const io::Record& record, int64_t index);

}  // namespace vlmtrain::data
