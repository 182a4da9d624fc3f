#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

// The interfaces of a model family for its media. Implementations are immutable and thread-safe.
// Their functions throw UserError (kBadData) for media that the model cannot use. `max_pixels` is
// an additional limit that shrinks the media of too long samples; nullopt: only the settings limit
// the size.

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

/// Returns the indices of all frames of a video that is a list of frames: these are already
/// selected, so they are not sampled again, as in transformers with do_sample_frames=False. Returns
/// nothing for other videos, and for lists of more than `max_frames` (data.video_max_frames).
std::optional<std::vector<int64_t>> list_preselected_frames(const image::VideoInfo& video, int64_t max_frames);

/// Throws UserError (kBadData) if video frames are normalized differently from images, since all
/// pixels of a micro-batch are normalized alike. Call it only for data with videos: other data does
/// not need the check.
void check_frame_normalization(const image::Normalization& images, const image::Normalization& frames);

/// A medium of a record whose header has been read: an image, a slice of a volume, a video or a
/// volume. Its functions throw UserError (kBadData) for unusable media. Refers to the record and to
/// the family's reader, which must outlive it. Not thread-safe.
class Medium {
 public:
  virtual ~Medium() = default;

  const io::MediaRef& file() const { return file_; }
  data::MediaKind kind() const { return kind_; }

  /// Returns the layout at the given limits. Errors name the file.
  MediaLayout lay_out(const PixelLimits& limits) const;
  /// Returns the number of tokens of lay_out().text; nothing if only the tokenizer can count them.
  virtual std::optional<int64_t> count_tokens(const PixelLimits& limits) const = 0;
  /// Returns the range of the limit that shrinks this medium; nothing if it cannot be shrunk.
  virtual std::optional<ShrinkRange> get_shrink_range() const = 0;
  /// Returns the size of an image or a slice; nothing for other media.
  virtual std::optional<image::ImageSize> image_size() const { return std::nullopt; }
  /// Returns the view of an image or a slice; nothing for other media.
  virtual std::optional<ImageView> compute_view(const PixelLimits& /*limits*/) const { return std::nullopt; }
  /// Decodes and preprocesses the medium, and releases its resources. Returns the rows for the
  /// tower. Sets `image` to the decoded and augmented image, uint8 [3, height, width]; leaves it
  /// unchanged for other media. Appends notices about the pixels to `notices`. Call once.
  virtual at::Tensor preprocess(const PixelLimits& limits, const image::Augmentation& augmentation, at::Tensor& image,
                                std::vector<io::Notice>& notices) = 0;
  /// Returns previews of `rows`, which preprocess() made with `layout` and `limits`.
  virtual std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout,
                                            const PixelLimits& limits) const = 0;
  /// Returns a notice if the layout omits frames that the record lists, or pages of an image; else
  /// nothing.
  virtual std::optional<io::Notice> find_omitted_parts(const MediaLayout& /*layout*/) const { return std::nullopt; }

 protected:
  Medium(const io::MediaRef& file, data::MediaKind kind) : file_(file), kind_(kind) {}

  /// Sets MediaLayout::decode_bytes of lay_out().
  void set_decode_bytes(int64_t bytes) { decode_bytes_ = bytes; }

 private:
  /// Returns the layout without kind and decode_bytes.
  virtual MediaLayout compute_layout(const PixelLimits& limits) const = 0;

  const io::MediaRef& file_;
  data::MediaKind kind_;
  int64_t decode_bytes_ = 0;
};

/// A volume whose slices are used as images. The slices are read once, for all media that share it.
class SlicedVolume {
 public:
  /// Reads the header. Throws UserError (kBadData) if the slices exceed the memory limit or if
  /// `reader` does not take their size.
  SlicedVolume(const io::MediaRef& file, const image::SliceSettings& settings, const ImageReader& reader);

  const io::MediaRef& file() const { return file_; }
  image::ImageSize slice_size() const { return slice_size_; }
  int64_t decode_bytes() const { return decode_bytes_; }
  /// Returns a slice as an image, uint8 [3, height, width]. The first call reads all slices and
  /// appends notices about their values.
  at::Tensor read_slice(size_t index, std::vector<io::Notice>& notices);

 private:
  const io::MediaRef& file_;
  image::SliceSettings settings_;
  image::ImageSize slice_size_;
  int64_t decode_bytes_;
  std::vector<at::Tensor> slices_;  // empty until read
};

/// Reads the header of an image, a video or a volume. Errors name the file.
std::unique_ptr<Medium> open_image(const io::MediaRef& file, const ImageReader& reader);
std::unique_ptr<Medium> open_video(const io::MediaRef& file, const VideoReader& reader);
/// Also throws UserError (kBadData) for a series of volumes unless `settings` allow it.
std::unique_ptr<Medium> open_volume(const io::MediaRef& file, const VolumeReader& reader,
                                    const data::VolumeOptions& settings);
/// Reads the header of a volume whose slices are used as images.
std::shared_ptr<SlicedVolume> open_sliced_volume(const io::MediaRef& file, const data::VolumeOptions& settings,
                                                 const ImageReader& reader);
/// Returns one slice of a volume as a medium.
std::unique_ptr<Medium> make_slice_medium(std::shared_ptr<SlicedVolume> volume, size_t index,
                                          const ImageReader& reader);

}  // namespace vlmtrain::models
