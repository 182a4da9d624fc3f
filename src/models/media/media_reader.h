#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/record.h"

// The interfaces of a model family for its media. Implementations are immutable and thread-safe.
// Their functions throw UserError (kBadData) for media that the model cannot use. `max_pixels` is
// an additional limit that shrinks the media of too long samples; nullopt: only the settings limit
// the size.

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

/// A converter of images to text and to rows of pixels.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  /// Throws UserError (kBadData) for a size that the family does not take.
  virtual void check_size(image::ImageSize /*size*/) const {}
  virtual MediaLayout lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const = 0;
  /// Returns the view of an image of `size` in the rows of preprocess(), by which the coordinates of
  /// boxes are converted. Of several views, that of the whole image.
  virtual ImageView compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const = 0;
  /// Returns the rows of pixels of a decoded image, uint8 [3, height, width]. Shape and dtype are
  /// those of TowerInputFormat::row, the number of rows that of lay_out().
  virtual at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const = 0;
  /// Returns previews of `rows`, which preprocess() made from an image of `size`. The default shows
  /// each row as an image.
  virtual std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                            std::optional<int64_t> max_pixels) const;
  /// Returns the range of pixel limits; nothing if shrinking does not save tokens.
  virtual std::optional<ShrinkRange> get_shrink_range() const { return std::nullopt; }
  /// Returns the number of tokens of lay_out().text without building it; nothing if only the
  /// tokenizer can count them.
  virtual std::optional<int64_t> count_tokens(image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
    return std::nullopt;
  }
};

/// A converter of videos to text and to rows of pixels. `max_pixels` is a limit per frame.
class VideoReader {
 public:
  virtual ~VideoReader() = default;

  /// Throws UserError (kBadData) for a video that the family does not take, and if the video
  /// processor's settings in the checkpoint are not supported. Called for each video, so that other
  /// data sets can be used with such a checkpoint.
  virtual void check(const image::VideoInfo& info) const = 0;
  virtual MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const = 0;
  /// Returns the rows of pixels of the sampled frames, as ImageReader::preprocess().
  virtual at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> max_pixels) const = 0;
  /// Returns a preview of each frame. The default shows each row of `rows` as a frame.
  virtual std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout) const;
  /// As for images.
  virtual std::optional<ShrinkRange> get_shrink_range() const { return std::nullopt; }
  virtual std::optional<int64_t> count_tokens(const image::VideoInfo& /*info*/,
                                              std::optional<int64_t> /*max_pixels*/) const {
    return std::nullopt;
  }
};

/// A converter of volumes to text and to rows of voxels.
class VolumeReader {
 public:
  virtual ~VolumeReader() = default;

  /// Returns the maximum number of volumes of a sample; nullopt: no limit.
  virtual std::optional<int64_t> max_volumes() const = 0;
  /// Returns the layout of a volume. Throws UserError (kBadData) if the family requires a known
  /// modality and `modality`, which may be empty, is another.
  virtual MediaLayout lay_out(const image::VolumeInfo& info, const std::string& modality) const = 0;
  virtual at::Tensor preprocess(const io::MediaRef& file) const = 0;
};

/// The readers of a family; null for media that it does not take.
struct MediaReaders {
  std::unique_ptr<const ImageReader> images{};
  std::unique_ptr<const VideoReader> videos{};
  std::unique_ptr<const VolumeReader> volumes{};
};

/// Splits `image` [3, rows · tile_size, columns · tile_size] into square tiles, and copies
/// them row by row to `cells` [rows · columns, 3, tile_size, tile_size].
void split_tiles(const at::Tensor& image, int64_t tile_size, const at::Tensor& cells);

/// Returns a preview that joins the tiles of split_tiles(), `cells` [rows · columns, 3, height,
/// width], to one image.
MediaPreview make_tiled_preview(const at::Tensor& cells, int64_t rows, int64_t columns);

/// Returns a preview of the downscaled full image [3, height, width].
MediaPreview make_overview_preview(const at::Tensor& tile);

/// Returns previews of `tiles` [rows · columns + 1, 3, height, width]: the cells of an image, then
/// its downscaled full image.
std::vector<MediaPreview> preview_cells_and_overview(const at::Tensor& tiles, int64_t rows, int64_t columns);

}  // namespace vlmtrain::models
