#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/masks.h"
#include "vlmtrain/io/notice.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

enum class MediaKind { kImage, kVideo, kVolume };

/// What a row of Sample::pixel_values is, which the model's family decides: a tile (a crop of a picture that is seen
/// alone), a patch of a picture in its own resolution, a volume.
struct PixelRow {
  at::ScalarType dtype = at::kByte;
  int64_t channels = 3;
  int64_t depth = 0;  ///< 0: rows have no such axis
  int64_t height = 0;
  int64_t width = 0;

  /// Of `pixels` [rows, channels, height, width] or [rows, channels, depth, height, width].
  static PixelRow from_tensor(const at::Tensor& pixels);
  /// The sizes of so many.
  std::vector<int64_t> sizes(int64_t rows) const;
  int64_t bytes() const;
  int64_t pixels() const { return std::max<int64_t>(depth, 1) * height * width; }
  bool operator==(const PixelRow&) const = default;
};

/// How the patches of one picture or video lie in models of native resolution: frame by frame, each of rows · columns
/// patches in the family's own order. Patches of one frame see each other, those of different frames do not.
struct PatchGrid {
  int64_t frames = 1;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t patches_per_frame() const { return rows * columns; }
  int64_t patches() const { return frames * patches_per_frame(); }
  bool operator==(const PatchGrid&) const = default;
};

/// Time, height and width, where a model has a position for each.
inline constexpr int64_t kPositionAxes = 3;

/// What the media of a sample lost so that it fits data.max_length.
struct ShrinkInfo {
  int64_t tokens = 0;  ///< it would have had
  int64_t pixels = 0;  ///< the tower would have been given
  int64_t tokens_after = 0;
  int64_t pixels_after = 0;
  int64_t image_max_pixels = 0;  ///< what each picture was limited to; 0: to nothing beside the settings
  int64_t frame_max_pixels = 0;  ///< the same of each frame of its videos

  bool operator==(const ShrinkInfo&) const = default;
};

/// A conversation ready for the model: token ids with the places of the image features, labels, and pixels.
struct Sample {
  int64_t index = 0;  ///< its place in the data set
  uint64_t seed = 0;  ///< what dropout draws for it follows from; the Loader gives it one each time it is drawn
  std::string id;
  std::string task;
  int64_t task_number = 0;                     ///< among the tasks of its run (data::Tasks)
  std::vector<int64_t> token_ids;              ///< [tokens]
  std::vector<char> is_label;                  ///< [tokens], 1 where the model has to produce the token
  std::vector<int64_t> image_token_positions;  ///< ascending places in token_ids that take the vision features
  /// [rows, channels, height, width] or [rows, channels, depth, height, width], as PixelRow; undefined without media,
  /// or once the features are known; on the meta device, a shape without pixels, in a rehearsal.
  at::Tensor pixel_values;
  Masks masks;                        ///< of a family that draws them
  std::vector<int64_t> modalities;    ///< of rows that are volumes, one each, as the family numbers them; 0: not known
  std::vector<PatchGrid> grids;       ///< of rows that are patches, one a picture or video; empty: each is seen alone
  std::vector<int64_t> position_ids;  ///< [kPositionAxes · tokens], axis by axis; empty: 0, 1, 2 … on every axis
  int64_t num_media = 0;              ///< media of all kinds
  int64_t num_videos = 0;             ///< of these
  int64_t num_volumes = 0;            ///< of these
  int64_t video_frames = 0;           ///< of all videos together, as many as are looked at
  /// Most of the host's memory that reading its pixels takes beside them: of the medium that takes most.
  int64_t decode_bytes = 0;
  std::optional<ShrinkInfo> shrunk;  ///< nothing: its media are as the settings have them
  /// Of its record, then of what was made of it: frames left out, a blank image, text that the template leaves out. At
  /// most one of a kind. An outline has those that need no pixels.
  std::vector<io::Notice> notices;

  /// One more medium.
  void add_media(MediaKind kind, int64_t frames = 0);
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t label_tokens() const;
  /// What it takes of the host's memory: pixels and tokens.
  int64_t bytes() const;
};

/// Why a sample cannot be used. `reason` is a short fixed phrase that the ledger counts by, such as "too long"; the
/// message names the sample and the remedy.
class SampleError : public UserError {
 public:
  /// `is_dropped`: whatever data.on_bad_sample says.
  SampleError(std::string reason, const std::string& message, bool is_dropped = false)
      : UserError(ExitCode::kBadData, message), reason_(std::move(reason)), is_dropped_(is_dropped) {}
  const std::string& reason() const { return reason_; }
  bool is_dropped() const { return is_dropped_; }

 private:
  std::string reason_;
  bool is_dropped_;
};

/// A sample of more tokens than it may have.
class SampleTooLongError final : public SampleError {
 public:
  SampleTooLongError(int64_t tokens, const std::string& message, bool is_dropped = false)
      : SampleError("too long", message, is_dropped), tokens_(tokens) {}
  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_;
};

/// Positions that a model was made for.
struct PositionLimit {
  int64_t positions = 0;
  std::string key;  ///< of config.json, which names the number
};

/// Makes samples of records; each model family has its own. Thread-safe: loader threads share one.
class SampleProcessor {
 public:
  virtual ~SampleProcessor() = default;

  /// Decodes the images, renders the chat and tokenizes it. Throws SampleError (or another UserError with kBadData)
  /// where the record cannot be used.
  virtual Sample process(const io::Record& record, int64_t index) const = 0;

  /// As process(), but of the images only the size is read, from their headers: pixel_values have a shape and no
  /// values (meta device). For planning: some reads of a few bytes an image instead of decoding it. A picture whose
  /// header is whole and whose pixels are not (cut off, corrupt) passes here and is an error there.
  virtual Sample process_headers(const io::Record& record, int64_t index) const = 0;

  /// As process(), with its pictures changed at random where the settings ask for it (data.augment), by `seed` alone.
  virtual Sample process_augmented(const io::Record& record, int64_t index, uint64_t /*seed*/) const {
    return process(record, index);
  }

  /// Positions that the model was made for, where a sample with more of them trains all the same: it gets a notice.
  /// Nothing: not known, or longer samples are refused.
  virtual std::optional<PositionLimit> position_limit() const { return std::nullopt; }
};

/// The sample of the record whose place in the data set is `index`, for training and evaluation alike. Throws
/// SampleError also if the record has a problem or if the sample has no label token. `augmentation_seed`: the sample's
/// seed in training; nothing: it is as the record says. Thread-safe.
Sample make_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                   std::optional<uint64_t> augmentation_seed = std::nullopt);

/// The same of SampleProcessor::outline, with the same errors.
Sample make_header_sample(const SampleProcessor& processor, const io::Record& record, int64_t index);

}  // namespace vlmtrain::data
