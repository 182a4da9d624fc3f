#pragma once

#include <cstdint>
#include <string>

#include "vlmtrain/base/options.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/data/sources.h"

namespace vlmtrain::data {

/// The section `data` of the configuration.
struct DataOptions {
  Sources train;
  std::string eval;
  std::string image_root;  ///< empty: the folder of the data file
  int64_t max_length = 8192;
  LongSamplePolicy on_too_long = LongSamplePolicy::kShrink;
  TaskShareSchedule task_shares;
  Curriculum curriculum = Curriculum::kNone;
  bool packing = false;
  int64_t pack_max_tokens = 4096;
  int64_t pack_max_images = 18;
  Auto<int64_t> pack_max_tiles;
  Auto<int64_t> max_images_per_sample;
  Auto<int64_t> image_max_pixels;
  double video_fps = 2.0;
  int64_t video_max_frames = 128;  ///< as LLaMA-Factory's: transformers' 768 would fill many times max_length
  BadSamplePolicy on_bad_sample = BadSamplePolicy::kFail;
  bool check_at_start = true;
  int64_t num_workers = 2;
  std::string chat_template = "auto";
  std::string chat_template_date = "auto";
};

void declare(OptionTable& table, DataOptions& options);

/// How samples are drawn, but for the blocks of the data set.
OrderSettings order_settings(const DataOptions& options, uint64_t seed);

}  // namespace vlmtrain::data
