#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::data {

/// How the tiles of one image or video lie in models of native resolution, whose tiles are patches: frame by frame,
/// each of rows · columns patches in the family's own order. Tiles of one frame see each other, those of different
/// frames do not.
struct TileGrid {
  int64_t frames = 1;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t tiles_per_frame() const { return rows * columns; }
  int64_t tiles() const { return frames * tiles_per_frame(); }
  bool operator==(const TileGrid&) const = default;
};

/// Time, height and width, where a model has a position for each.
inline constexpr int64_t kPositionAxes = 3;

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
  at::Tensor tiles;             ///< uint8 [tiles, 3, height, width]; undefined without images, or once the features are
                                ///< known; on the meta device, a shape without pixels, in a rehearsal
  std::vector<TileGrid> grids;  ///< of the tiles, one an image or video; empty: each tile is seen alone
  std::vector<int64_t> position_ids;  ///< [kPositionAxes · tokens], axis by axis; empty: 0, 1, 2 … on every axis
  int64_t images = 0;                 ///< and videos
  int64_t videos = 0;                 ///< of these
  int64_t video_frames = 0;           ///< of all of them together, as many as are looked at
  /// Most of the host's memory that reading its pixels takes beside them: of the picture or video that takes most.
  int64_t making_bytes = 0;

  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t label_tokens() const;
  /// What it takes of the host's memory: pixels and tokens.
  int64_t bytes() const;
};

/// Why a sample cannot be used. `reason` is a short fixed phrase that the ledger counts by, such as "too long"; the
/// message names the sample and the remedy.
class SampleError : public UserError {
 public:
  SampleError(std::string reason, const std::string& message)
      : UserError(ExitCode::kBadData, message), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Makes samples of records; each model family has its own. Thread-safe: loader threads share one.
class SampleProcessor {
 public:
  virtual ~SampleProcessor() = default;

  /// Decodes the images, renders the chat and tokenizes it. Throws SampleError (or another UserError with kBadData)
  /// where the record cannot be used.
  virtual Sample process(const io::Record& record, int64_t index) const = 0;

  /// As process(), but of the images only the size is read, from their headers: the tiles have a shape and no pixels
  /// (meta device). For planning: some reads of a few bytes an image instead of decoding it. A picture whose header is
  /// whole and whose pixels are not (cut off, corrupt) passes here and is an error there.
  virtual Sample outline(const io::Record& record, int64_t index) const = 0;
};

/// The sample of `records[index]`, for training and evaluation alike. Throws SampleError also if the record has a
/// problem or if the sample has no label token. Thread-safe.
Sample make_sample(const SampleProcessor& processor, const std::vector<io::Record>& records, int64_t index);

/// The same of SampleProcessor::outline, with the same errors.
Sample make_outline(const SampleProcessor& processor, const std::vector<io::Record>& records, int64_t index);

}  // namespace vlmtrain::data
