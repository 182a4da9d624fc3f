#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "models/media/media_reader.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

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
