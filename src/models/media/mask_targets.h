#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/media/mask_input.h"
#include "models/media/media_opener.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/augment.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

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
