#include "vlmtrain/train/sample_limits.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/largest.h"
#include "vlmtrain/data/sample_stream.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kAheadOfOne = 16;
/// Of each kind of largest sample, this many global batches are measured where not all are.
constexpr int64_t kBatchesMeasured = 4;
/// Image tokens' squares below which a picture shows nothing.
constexpr int64_t kLeastSquares = 16;

template <class Size>
int64_t most(const planner::Workload& workload, const Size& size) {
  int64_t most = 0;
  for (const auto& batch : workload.candidates) {
    for (const auto& shape : batch.shapes) most = std::max(most, size(shape));
  }
  return most;
}

int64_t pixels_of(const data::SampleShape& shape) {
  if (shape.images == 0) return 0;
  if (shape.grids.empty()) {
    return (shape.pixel_rows + shape.images - 1) / shape.images * shape.row.height * shape.row.width;
  }
  int64_t patches = 0;
  for (const auto& grid : shape.grids) patches = std::max(patches, grid.patches_per_frame());
  return patches * shape.row.width * shape.row.width;
}

int64_t tokens_of(const data::SampleShape& shape) {
  return shape.tokens;
}

int64_t pictures_of(const data::SampleShape& shape) {
  return std::max<int64_t>(1, shape.images - shape.videos - shape.volumes);
}

template <class Act>
void for_each_shape(const data::Outlines& samples, const Act& act) {
  for (int64_t index = 0; index < samples.shapes.size(); ++index) {
    if (const auto shape = samples.shapes[index]) act(index, *shape);
  }
}

/// The records under changed settings. What is measured first are those that are the largest without.
class LimitedRecords {
 public:
  LimitedRecords(const io::Records& records, const Config& config, const planner::Workload& workload)
      : records_(records), config_(config), usual_workload_(workload) {}

  /// What half of the samples do not exceed.
  int64_t median(int64_t (*size)(const data::SampleShape& shape)) {
    measure_usual();
    std::vector<int64_t> sizes;
    for_each_shape(usual_, [&](int64_t, const data::SampleShape& shape) { sizes.push_back(size(shape)); });
    const auto middle = sizes.begin() + std::ssize(sizes) / 2;
    std::nth_element(sizes.begin(), middle, sizes.end());
    return *middle;
  }

  /// Where a limit only leaves samples out.
  std::optional<planner::LimitedSamples> without_larger(int64_t (*size)(const data::SampleShape& shape), int64_t most) {
    measure_usual();
    data::Outlines kept = usual_;
    for_each_shape(usual_, [&](int64_t index, const data::SampleShape& shape) {
      if (size(shape) > most) kept.shapes.remove(index);
    });
    return limited(kept);
  }

  std::optional<planner::LimitedSamples> measure(const data::DataOptions& changed, bool all) {
    measure_usual();
    data::Outlines measured;
    try {
      // All are those, too, that are too long without the limit.
      measured = measure(changed, all ? every_record() : largest_records());
    } catch (const UserError& error) {
      if (error.code() == ExitCode::kUsage) return std::nullopt;  // a number that this processor does not take
      throw;
    }
    auto samples = limited(measured);
    if (samples && !all) samples->left_out = 0;  // the largest alone do not say
    return samples;
  }

 private:
  void measure_usual() {
    if (usual_.shapes.known() == 0) usual_ = measure(config_.data, every_record());
    if (usual_.shapes.known() == 0) throw data_error("{}: none of its samples can be used", config_.data.train.name());
  }

  std::optional<planner::LimitedSamples> limited(const data::Outlines& kept) const {
    if (kept.shapes.known() == 0) return std::nullopt;
    const int64_t left_out = std::max<int64_t>(0, usual_.shapes.known() - kept.shapes.known());
    planner::Workload workload{.candidates = planner::worst_batches(kept, samples_of_step()),
                               .global_batch_size = usual_workload_.global_batch_size,
                               .packed = usual_workload_.packed};
    return planner::LimitedSamples{
        .workload = std::move(workload), .left_out = left_out, .samples = usual_.shapes.known()};
  }

  int64_t samples_of_step() const { return usual_workload_.samples_per_rank() * usual_workload_.world_size; }

  std::vector<int64_t> every_record() const {
    std::vector<int64_t> indices(static_cast<size_t>(records_.size()));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    return indices;
  }

  /// By tokens, tiles, labels, images and text: whichever of them a limit leaves to decide.
  const std::vector<int64_t>& largest_records() {
    if (!largest_.empty()) return largest_;
    std::set<int64_t> chosen;
    const auto add = [&](const auto& size) {
      const auto largest = data::largest_by(usual_.shapes, size, kBatchesMeasured * samples_of_step());
      chosen.insert(largest.begin(), largest.end());
    };
    add([](const data::SampleShape& shape) { return shape.tokens; });
    add([](const data::SampleShape& shape) { return shape.pixel_rows; });
    add([](const data::SampleShape& shape) { return shape.label_tokens; });
    add([](const data::SampleShape& shape) { return shape.images; });
    add([](const data::SampleShape& shape) { return shape.tokens - shape.image_tokens; });
    largest_.assign(chosen.begin(), chosen.end());
    return largest_;
  }

  /// Anything but a bad sample, such as memory that runs out, says nothing about the sample.
  static void pass_over_bad_sample(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const UserError& bad) {
      if (bad.code() != ExitCode::kBadData) throw;
    }
  }

  /// Those that can be used.
  data::Outlines measure(const data::DataOptions& changed, const std::vector<int64_t>& indices) const {
    const auto processor =
        models::load_processor(config_.model.path, processor_settings(changed, config_.model.adapter));
    data::Outlines measured{.shapes = data::SampleShapes(records_.size()), .ids = TextColumn(records_.size())};
    data::SampleStream stream(
        [&indices, next = size_t{0}]() mutable -> std::optional<int64_t> {
          return next < indices.size() ? std::optional{indices[next++]} : std::nullopt;
        },
        [&](int64_t index) { return data::make_outline(*processor, records_.at(index), index); },
        {.workers = config_.data.num_workers, .ahead = kAheadOfOne * config_.data.num_workers});
    while (const auto item = stream.next()) {
      if (item->error) {
        pass_over_bad_sample(item->error);
      } else {
        measured.ids.set(item->sample.index, item->sample.id);
        measured.shapes.set(item->sample.index, data::shape_of(item->sample));
      }
    }
    return measured;
  }

  const io::Records& records_;
  const Config& config_;
  planner::Workload usual_workload_;
  data::Outlines usual_;  // without other settings; shapes and ids alone
  std::vector<int64_t> largest_;
};

}  // namespace

int64_t most_pixels(const planner::Workload& workload) {
  return most(workload, pixels_of);
}

int64_t pixel_unit(const planner::Workload& workload) {
  return most(workload, [](const data::SampleShape& shape) {
    if (shape.grids.empty()) return shape.row.height * shape.row.width;
    const int64_t patches_per_token = shape.image_tokens > 0 ? shape.pixel_rows / shape.image_tokens : 1;
    return patches_per_token * shape.row.width * shape.row.width;
  });
}

int64_t least_pixels(const planner::Workload& workload) {
  const bool has_grids = most(workload, [](const data::SampleShape& shape) { return std::ssize(shape.grids); }) > 0;
  return pixel_unit(workload) * (has_grids ? kLeastSquares : 1);
}

std::vector<planner::SampleLimit> sample_limits(const io::Records& records, const Config& config,
                                                const planner::Workload& workload) {
  const auto limited = std::make_shared<LimitedRecords>(records, config, workload);
  std::vector<planner::SampleLimit> limits;
  const auto add = [&](planner::SampleLimit limit, auto data::DataOptions::*option) {
    limit.measure = [limited, &config, option](int64_t number, bool all) {
      data::DataOptions changed = config.data;
      changed.*option = number;
      return limited->measure(changed, all);
    };
    limits.push_back(std::move(limit));
  };
  if (const int64_t pixels = most_pixels(workload); pixels > 0) {
    add({.form = "data.image_max_pixels={}",
         .now = pixels,
         .least = [pixels = least_pixels(workload)] { return pixels; },
         .unit = pixel_unit(workload),
         .meaning = "makes larger pictures smaller",
         .measure = {}},
        &data::DataOptions::image_max_pixels);
  }
  const auto frames = [](const data::SampleShape& shape) {
    return shape.videos > 0 ? shape.video_frames / shape.videos : 0;
  };
  if (const int64_t most_frames = most(workload, frames); most_frames > 0) {
    add({.form = "data.video_max_frames={}",
         .now = most_frames,
         .least = [] { return kLeastFrames; },
         .unit = kFramesOfAPatch,
         .meaning = "looks at fewer frames of a video",
         .measure = {}},
        &data::DataOptions::video_max_frames);
  }
  const int64_t images = most(workload, pictures_of);
  const auto leave_out = [&](planner::SampleLimit limit, int64_t (*size)(const data::SampleShape& shape)) {
    limit.least = [limited, size] { return limited->median(size); };
    limit.measure = [limited, size](int64_t number, bool) { return limited->without_larger(size, number); };
    limits.push_back(std::move(limit));
  };
  if (images > 1) {
    leave_out({.form = "data.max_images_per_sample={} data.on_bad_sample=skip",
               .now = images,
               .least = {},
               .unit = 1,
               .meaning = "takes no sample with more images",
               .measure = {}},
              pictures_of);
  }
  const bool shrinks = config.data.on_too_long == data::LongSamplePolicy::kShrink;
  leave_out({.form = "data.max_length={} data.on_bad_sample=skip",
             .now = most(workload, tokens_of),
             .least = {},
             .unit = 1,
             .meaning = shrinks ? "makes pictures of longer samples smaller" : "takes no longer sample",
             .measure = {}},
            tokens_of);
  if (shrinks) {
    limits.back().measure = [limited, &config](int64_t number, bool all) {
      data::DataOptions changed = config.data;
      changed.max_length = number;
      return limited->measure(changed, all);
    };
  }
  return limits;
}

}  // namespace vlmtrain::train
