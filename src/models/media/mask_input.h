#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/media/media_opener.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

struct SegmentationMasks;  // data/sample/sample.h

}  // namespace vlmtrain::data

namespace vlmtrain::image {

struct DecodedMask;  // image/mask.h

}  // namespace vlmtrain::image

namespace vlmtrain::models {

/// The input size of a mask encoder, and the token that stands for a mask.
struct MaskInputSettings {
  int64_t side = 1024;   ///< side of the mask encoder's square input, in pixels
  int64_t token_id = 0;  ///< id of `token`
  std::string token{};   ///< token in answers that stands for a mask, such as "<SEG>"
};

/// Returns the region that a resized image fills in a square of side `side`. The longer side of the
/// image is resized to `side`; the rest of the square, at the right or bottom, is padding (Kirillov
/// et al. 2023, arXiv 2304.02643; SamImageProcessor of transformers).
data::ValidRegion compute_valid_region(image::ImageSize size, int64_t side);

/// Returns the mask encoder's input, uint8 [3, side, side], for an image, uint8 [3, height, width].
/// Resizes bilinearly with antialiasing and pads with the color that the encoder normalizes to
/// zero, rounded to bytes.
at::Tensor make_mask_image(const at::Tensor& image, int64_t side);

/// Resizes a mask, uint8 [height, width] of 0 and 1, to [side, side] like its image, but to the
/// nearest pixel and padded with 0.
at::Tensor make_square_mask(const at::Tensor& mask, int64_t side);

/// Returns a mask in the size of its image, uint8 [height, width]. Throws UserError (kBadData) if
/// the mask is invalid or does not have `image_size`.
image::DecodedMask read_mask(const io::MaskSource& source, image::ImageSize image_size);

/// Returns the masks of a record, each in the size of its image, uint8 [height, width] of 0 and 1.
/// Throws as read_mask().
std::vector<at::Tensor> load_masks(const io::Record& record);

/// Returns the masks of a sample without values: `pixels` and `targets` are on the meta device.
/// `image_sizes` are the sizes of the record's images. Throws data::SampleError if the record does
/// not have one mask per mask token of its answers, or if a mask and its image differ in size.
data::SegmentationMasks make_meta_masks(const io::Record& record, const data::Sample& sample,
                                        std::span<const image::ImageSize> image_sizes, const MaskInputSettings& input);

/// Returns the indices of the record's images that have masks, ascending. Row i of
/// SegmentationMasks::pixels belongs to the i-th of them.
std::vector<int64_t> find_masked_image_indices(const io::Record& record);

/// Returns the values of SegmentationMasks::targets, uint8 [masks, side, side] of 0 and 1.
/// `augmentation` must be the augmentation of the record's images. Appends notices about the files
/// to `notices`, at most one per kind. Throws data::SampleError for an invalid mask.
at::Tensor load_mask_targets(const io::Record& record, std::span<const image::ImageSize> image_sizes,
                             const image::Augmentation& augmentation, int64_t side, std::vector<io::Notice>& notices);

/// Adds the mask encoder's input and the mask targets to the samples of a family that predicts
/// masks. Thread-safe.
class MaskTargets {
 public:
  explicit MaskTargets(MaskInputSettings input) : input_(std::move(input)) {}

  /// Throws data::SampleError for a record with masks and a volume that is used as slices.
  static void check_media(const io::Record& record, const MediaList& media);

  /// Adds masks without values to a sample with labels. Prompts have no answer, hence no masks.
  /// Throws as make_meta_masks().
  void add_meta_masks(const io::Record& record, const MediaList& media, data::Sample& sample) const;

  /// Allocates SegmentationMasks::pixels of a sample with meta masks.
  static void allocate_pixels(data::SegmentationMasks& masks);
  /// Converts `image`, uint8 [3, height, width], the record's image with this index, to its row of
  /// SegmentationMasks::pixels. Does nothing if the image has no masks.
  void set_pixels(const io::Record& record, int64_t image_index, const at::Tensor& image,
                  data::SegmentationMasks& masks) const;
  /// Sets SegmentationMasks::targets. Throws as load_mask_targets().
  void set_targets(const io::Record& record, const MediaList& media, const image::Augmentation& augmentation,
                   data::SegmentationMasks& masks, std::vector<io::Notice>& notices) const;

  /// Returns Processor::make_mask_prompt().
  std::optional<data::Sample> make_prompt(const io::Record& record, const data::Sample& prompt,
                                          const std::vector<int64_t>& answer) const;

 private:
  MaskInputSettings input_;
};

}  // namespace vlmtrain::models
