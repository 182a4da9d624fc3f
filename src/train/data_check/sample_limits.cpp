#include "vlmtrain/train/sample_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/loader/sample_stream.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

/// Number of samples that are prefetched per worker, so that workers remain busy while one decodes
/// a large sample. Not tuned.
constexpr int64_t kPrefetchedSamplesPerWorker = 16;
/// If not all samples are measured: number of global batches of the largest samples by each size.
/// Not tuned.
constexpr int64_t kNumMeasuredBatches = 4;
/// Smallest useful number of tokens per image: a grid of 4 by 4 tokens. Not tuned.
constexpr int64_t kMinImageTokens = 16;

/// Returns the maximum size of a sample in the largest batches. `get_size` maps a shape to a
/// number.
template <class Size>
int64_t find_max_size(const planner::Workload& workload, const Size& get_size) {
  int64_t max_value = 0;
  for (const auto& batch : workload.worst_batches) {
    for (const auto& shape : batch.shapes) max_value = std::max(max_value, get_size(shape));
  }
  return max_value;
}

/// Returns the maximum number of pixels per image (mean per image for models with tiles); 0 without
/// images.
int64_t compute_max_pixels_per_image(const data::SampleShape& shape) {
  if (shape.num_media() == 0) return 0;
  if (shape.patch_grids.empty()) {
    return (shape.pixel_rows + shape.num_media() - 1) / shape.num_media() * shape.row.height * shape.row.width;
  }
  int64_t patches = 0;
  for (const auto& grid : shape.patch_grids) patches = std::max(patches, grid.patches_per_frame());
  return patches * shape.row.width * shape.row.width;
}

int64_t count_tokens(const data::SampleShape& shape) {
  return shape.tokens;
}

int64_t count_images(const data::SampleShape& shape) {
  return std::max<int64_t>(1, shape.num_images);
}

template <class Action>
void for_each_shape(const data::SampleIndex& samples, const Action& action) {
  for (int64_t index = 0; index < samples.shapes.size(); ++index) {
    if (const auto shape = samples.shapes[index]) action(index, *shape);
  }
}

/// Measures the shapes of the records with changed settings. The shapes with the run's own settings
/// are the baseline, which is measured once, on first use.
class SampleLimitEvaluator {
 public:
  SampleLimitEvaluator(std::shared_ptr<const io::Records> records, const Config& config,
                       const planner::Workload& workload)
      : records_(std::move(records)), config_(config), baseline_workload_(workload) {}

  const Config& config() const { return config_; }

  /// Returns the median size of the samples.
  int64_t compute_median_size(int64_t (*get_size)(const data::SampleShape& shape)) {
    measure_baseline();
    std::vector<int64_t> sizes;
    for_each_shape(baseline_index_, [&](int64_t, const data::SampleShape& shape) { sizes.push_back(get_size(shape)); });
    const auto middle = sizes.begin() + std::ssize(sizes) / 2;
    std::nth_element(sizes.begin(), middle, sizes.end());
    return *middle;
  }

  /// Returns the samples with a size of at most `max_size`, for limits that only drop samples;
  /// nullopt if none remains.
  std::optional<planner::LimitedSamples> drop_larger_samples(int64_t (*get_size)(const data::SampleShape& shape),
                                                             int64_t max_size) {
    measure_baseline();
    data::SampleIndex remaining = baseline_index_;
    for_each_shape(baseline_index_, [&](int64_t index, const data::SampleShape& shape) {
      if (get_size(shape) > max_size) remaining.shapes.mark_unknown(index);
    });
    return make_limited_samples(remaining);
  }

  /// Returns the samples with changed options. Measures all of them or only the largest ones of the
  /// baseline. Returns nullopt if no sample is usable or the processor rejects the options.
  std::optional<planner::LimitedSamples> measure_limited_samples(const data::DataOptions& options, bool all) {
    measure_baseline();
    data::SampleIndex measured_samples;
    try {
      // Not only usable samples of the baseline: with the limit, samples may fit that were too
      // long.
      measured_samples = measure_samples(options, all ? list_all_indices() : find_largest_sample_indices());
    } catch (const UserError& error) {
      if (error.code() == ExitCode::kUsage) return std::nullopt;  // the processor rejects the number
      throw;
    }
    auto samples = make_limited_samples(measured_samples);
    if (samples && !all) samples->num_dropped = 0;  // unknown, since only the largest samples were measured
    return samples;
  }

 private:
  /// Throws UserError (kBadData) if no sample is usable.
  void measure_baseline() {
    if (baseline_index_.shapes.num_known_shapes() == 0)
      baseline_index_ = measure_samples(config_.data, list_all_indices());
    if (baseline_index_.shapes.num_known_shapes() == 0)
      throw data_error("{}: none of its samples can be used", config_.data.train.name());
  }

  std::optional<planner::LimitedSamples> make_limited_samples(const data::SampleIndex& remaining) const {
    if (remaining.shapes.num_known_shapes() == 0) return std::nullopt;
    const int64_t num_dropped =
        std::max<int64_t>(0, baseline_index_.shapes.num_known_shapes() - remaining.shapes.num_known_shapes());
    planner::Workload workload{.worst_batches = planner::find_worst_batches(remaining, samples_per_step()),
                               .global_batch_size = baseline_workload_.global_batch_size,
                               .packing = baseline_workload_.packing};
    return planner::LimitedSamples{.workload = std::move(workload),
                                   .num_dropped = num_dropped,
                                   .num_samples = baseline_index_.shapes.num_known_shapes()};
  }

  int64_t samples_per_step() const { return baseline_workload_.samples_per_rank() * baseline_workload_.world_size; }

  std::vector<int64_t> list_all_indices() const {
    std::vector<int64_t> indices(static_cast<size_t>(records_->size()));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    return indices;
  }

  /// Returns the indices of the largest samples by tokens, tiles, label tokens, images and text
  /// tokens. Any of them may be the largest with a limit.
  const std::vector<int64_t>& find_largest_sample_indices() {
    if (!largest_sample_indices_.empty()) return largest_sample_indices_;
    std::set<int64_t> indices;
    const auto add = [&](const auto& size) {
      const auto largest =
          data::find_largest_samples(baseline_index_.shapes, size, kNumMeasuredBatches * samples_per_step());
      indices.insert(largest.begin(), largest.end());
    };
    add([](const data::SampleShape& shape) { return shape.tokens; });
    add([](const data::SampleShape& shape) { return shape.pixel_rows; });
    add([](const data::SampleShape& shape) { return shape.label_tokens; });
    add([](const data::SampleShape& shape) { return shape.num_media(); });
    add([](const data::SampleShape& shape) { return shape.tokens - shape.image_tokens; });
    largest_sample_indices_.assign(indices.begin(), indices.end());
    return largest_sample_indices_;
  }

  /// Rethrows errors that a bad sample does not cause, such as out of memory.
  static void rethrow_unless_bad_sample(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const UserError& user_error) {
      if (user_error.code() != ExitCode::kBadData) throw;
    }
  }

  /// Returns the shapes and ids of the usable samples among `indices`.
  data::SampleIndex measure_samples(const data::DataOptions& options, const std::vector<int64_t>& indices) const {
    const auto processor = models::load_processor(config_.model.folder(),
                                                  make_processor_settings(options, config_.model.adapter_folder()));
    data::SampleIndex measured_samples{.shapes = data::SampleShapes(records_->size()),
                                       .ids = TextColumn(records_->size())};
    data::SampleStream stream(
        [&indices, next = size_t{0}]() mutable -> std::optional<int64_t> {
          return next < indices.size() ? std::optional{indices[next++]} : std::nullopt;
        },
        [&](int64_t index) { return data::make_header_sample(*processor, records_->at(index), index); },
        {.num_workers = config_.data.num_workers,
         .max_prefetch_samples = kPrefetchedSamplesPerWorker * config_.data.num_workers});
    while (const auto item = stream.next()) {
      if (item->error) {
        rethrow_unless_bad_sample(item->error);
      } else {
        measured_samples.ids.set(item->sample.index, item->sample.id);
        measured_samples.shapes.set(item->sample.index, data::get_sample_shape(item->sample));
      }
    }
    return measured_samples;
  }

  std::shared_ptr<const io::Records> records_;
  Config config_;
  planner::Workload baseline_workload_;
  data::SampleIndex baseline_index_;  // without changed settings; only shapes and ids
  std::vector<int64_t> largest_sample_indices_;
};

}  // namespace

int64_t compute_max_image_pixels(const planner::Workload& workload) {
  return find_max_size(workload, compute_max_pixels_per_image);
}

int64_t compute_pixel_granularity(const planner::Workload& workload) {
  return find_max_size(workload, [](const data::SampleShape& shape) {
    if (shape.patch_grids.empty()) return shape.row.height * shape.row.width;
    const int64_t patches_per_token = shape.image_tokens > 0 ? shape.pixel_rows / shape.image_tokens : 1;
    return patches_per_token * shape.row.width * shape.row.width;
  });
}

int64_t compute_min_suggested_image_pixels(const planner::Workload& workload) {
  const bool has_grids =
      find_max_size(workload, [](const data::SampleShape& shape) { return std::ssize(shape.patch_grids); }) > 0;
  return compute_pixel_granularity(workload) * (has_grids ? kMinImageTokens : 1);
}

std::vector<planner::SampleLimit> make_sample_limits(std::shared_ptr<const io::Records> records, const Config& config,
                                                     const planner::Workload& workload) {
  const auto evaluator = std::make_shared<SampleLimitEvaluator>(std::move(records), config, workload);
  std::vector<planner::SampleLimit> limits;
  const auto add = [&](planner::SampleLimit limit, auto data::DataOptions::*option) {
    limit.measure = [evaluator, option](int64_t value, bool all) {
      data::DataOptions options = evaluator->config().data;
      options.*option = value;
      return evaluator->measure_limited_samples(options, all);
    };
    limits.push_back(std::move(limit));
  };
  if (const int64_t pixels = compute_max_image_pixels(workload); pixels > 0) {
    add({.argument_format = fmt::format("{}={{}}", keys::data::kImageMaxPixels),
         .max_useful_value = pixels,
         .find_min = [pixels = compute_min_suggested_image_pixels(workload)] { return pixels; },
         .granularity = compute_pixel_granularity(workload),
         .description = "downscales larger images",
         .measure = {}},
        &data::DataOptions::image_max_pixels);
  }
  const auto frames = [](const data::SampleShape& shape) {
    return shape.num_videos > 0 ? shape.video_frames / shape.num_videos : 0;
  };
  if (const int64_t max_frames = find_max_size(workload, frames); max_frames > 0) {
    add({.argument_format = fmt::format("{}={{}}", keys::data::kVideoMaxFrames),
         .max_useful_value = max_frames,
         .find_min = [] { return kMinSuggestedFrames; },
         .granularity = kFramesPerTemporalPatch,
         .description = "uses fewer frames per video",
         .measure = {}},
        &data::DataOptions::video_max_frames);
  }
  const int64_t images = find_max_size(workload, count_images);
  const auto add_drop_limit = [&](planner::SampleLimit limit, int64_t (*size)(const data::SampleShape& shape)) {
    limit.find_min = [evaluator, size] { return evaluator->compute_median_size(size); };
    limit.measure = [evaluator, size](int64_t value, bool) { return evaluator->drop_larger_samples(size, value); };
    limits.push_back(std::move(limit));
  };
  if (images > 1) {
    add_drop_limit(
        {.argument_format = fmt::format("{}={{}} {}=skip", keys::data::kMaxImagesPerSample, keys::data::kOnBadSample),
         .max_useful_value = images,
         .find_min = {},
         .granularity = 1,
         .description = "drops samples with more images",
         .measure = {}},
        count_images);
  }
  const bool shrinks_samples = config.data.on_too_long == data::LongSamplePolicy::kShrink;
  add_drop_limit({.argument_format = fmt::format("{}={{}} {}=skip", keys::data::kMaxLength, keys::data::kOnBadSample),
                  .max_useful_value = find_max_size(workload, count_tokens),
                  .find_min = {},
                  .granularity = 1,
                  .description = shrinks_samples ? "downscales the images of longer samples" : "drops longer samples",
                  .measure = {}},
                 count_tokens);
  if (shrinks_samples) {
    limits.back().measure = [evaluator](int64_t value, bool all) {
      data::DataOptions options = evaluator->config().data;
      options.max_length = value;
      return evaluator->measure_limited_samples(options, all);
    };
  }
  return limits;
}

}  // namespace vlmtrain::train
