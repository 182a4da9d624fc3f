#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sources.h"
#include "vlmtrain/image/pixel_transforms.h"

namespace vlmtrain::data {

/// Values of data.outside_image_root: whether samples may name files outside of data.image_root.
enum class OutsideImageRootPolicy { kAllow, kRefuse };

/// The section `data` of the configuration. Each member is the value of the key data.<member>;
/// declare_options() documents their meaning and checks their values.
struct DataOptions {
  SourceList train;
  std::string eval;        ///< a data set, or the share of `train` that is held out
  std::string image_root;  ///< empty: the folder of the data file
  OutsideImageRootPolicy outside_image_root = OutsideImageRootPolicy::kAllow;
  std::map<std::string, std::string> columns;
  std::vector<std::string> ignore_keys;
  int64_t max_length = 8192;
  LongSamplePolicy on_too_long = LongSamplePolicy::kShrink;
  AutoOr<int64_t> text_window_tokens;  ///< nullopt: texts are not split
  TaskShareSchedule task_shares;
  Curriculum curriculum = Curriculum::kNone;
  bool packing = false;
  int64_t pack_max_tokens = 4096;
  int64_t pack_max_images = 18;
  AutoOr<int64_t> pack_max_tiles;
  AutoOr<int64_t> max_images_per_sample;
  AutoOr<int64_t> image_max_pixels;
  AutoOr<int64_t> mask_image_size;
  VolumeOptions volume;
  BoxOptions boxes;
  std::map<std::string, std::string> augment;  ///< values of image::AugmentSettings by option name
  double video_fps = 2.0;
  int64_t video_max_frames = 128;  ///< LLaMA-Factory's default; transformers' 768 exceeds max_length many times over
  VideoTokenLayout video_layout = VideoTokenLayout::kReleasedCode;
  TrainedAnswers train_on = TrainedAnswers::kAll;
  BadSamplePolicy on_bad_sample = BadSamplePolicy::kFail;
  bool check_at_start = true;
  int64_t num_workers = 2;
  std::string chat_template = "auto";
  std::string chat_template_date = "auto";
};

/// Returns data.eval as a share of the training data to hold out; nothing if it is a data set or
/// empty.
std::optional<double> parse_hold_out_share(const DataOptions& options);

/// Returns the augmentation of images and masks in training.
image::AugmentSettings make_augment_settings(const DataOptions& options);

/// Declares the keys data.* with their types, defaults, checks and descriptions. `options` must
/// outlive `table`.
void declare_options(OptionTable& table, DataOptions& options);

/// Returns the settings of the sample order. The caller sets block_starts.
OrderSettings make_order_settings(const DataOptions& options, uint64_t seed);

}  // namespace vlmtrain::data
