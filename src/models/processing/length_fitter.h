#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "models/media/media_opener.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/object_writer.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

/// The layouts of a sample's media, and its tokens.
struct SampleLayout {
  PixelLimits limits;
  std::vector<MediaLayout> media_layouts;
  EncodedChat chat;
  std::optional<text::RenderedChat> written_chat{};  ///< the chat with its boxes; nothing without an ObjectWriter
  std::optional<data::ShrinkInfo> shrink_info{};     ///< set if media were shrunk

  int64_t tokens() const { return std::ssize(chat.token_ids); }
};

/// The limits of a sample's tokens.
struct LengthLimits {
  int64_t max_length = 0;  ///< data.max_length
  data::LongSamplePolicy on_too_long = data::LongSamplePolicy::kShrink;
  /// The number of positions beyond which the model cannot process a sample, and the phrase for it
  /// in messages, such as "lm_max_position_embeddings (8192), beyond which …".
  int64_t max_positions = std::numeric_limits<int64_t>::max();
  std::string position_description{};
};

/// Returns the tokens of a record: of its conversation, or of its document or window.
EncodedChat encode_record(const io::Record& record, const text::RenderedChat& chat, std::span<const MediaLayout> media,
                          const ChatEncoder& encoder);

/// Lays out samples. Media of a sample with too many tokens are shrunk: images first, then video
/// frames, down to the family's minimum. The result depends on sizes only, so that samples from
/// headers equal those with pixels. Thread-safe.
class LengthFitter {
 public:
  /// `pixels_per_row` is TowerInputFormat::row.pixels().
  LengthFitter(LengthLimits limits, int64_t pixels_per_row)
      : length_limits_(std::move(limits)), pixels_per_row_(pixels_per_row) {}

  const LengthLimits& limits() const { return length_limits_; }

  /// Returns the layout that fits the limits and removes the fewest pixels. `objects` writes the
  /// boxes of the record; null: it has none. Throws data::SampleTooLongError if no layout fits, and
  /// data::SampleError for unusable media and boxes.
  SampleLayout fit(const io::Record& record, const text::RenderedChat& chat, const MediaList& media,
                   const ObjectWriter* objects, const ChatEncoder& encoder) const;

 private:
  [[noreturn]] void throw_sample_too_long_error(const io::Record& record, const MediaList& media, int64_t tokens,
                                                std::optional<int64_t> min_tokens) const;

  LengthLimits length_limits_;
  int64_t pixels_per_row_;
};

}  // namespace vlmtrain::models
