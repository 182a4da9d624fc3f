#include "app/plan_samples/synthetic_samples.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "app/plan_samples/sample_variants.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/train/sample_limits.h"

namespace vlmtrain::app {

namespace {

/// Returns the variants that training would accept, in the same order.
std::vector<SampleVariant> select_accepted_variants(std::vector<SampleVariant> variants) {
  std::erase_if(variants, [](const SampleVariant& variant) { return !variant.rejection_reason.empty(); });
  return variants;
}

/// Returns whether training drops rejected variants and continues with the others.
bool drops_rejected_variants(const train::Config& config, const std::vector<SampleVariant>& variants) {
  return variants.size() > 1 && config.data.on_bad_sample == data::BadSamplePolicy::kSkip &&
         !select_accepted_variants(variants).empty();
}

/// Returns the shapes of the samples of one rank in an average step; `num_samples` is their number.
/// Each variant has its share, up to rounding, and is spread evenly over the step.
std::vector<data::SampleShape> make_average_step_shapes(const std::vector<SampleVariant>& variants,
                                                        int64_t num_samples) {
  std::vector<double> shares;
  shares.reserve(variants.size());
  for (const auto& variant : variants) shares.push_back(variant.share);
  std::vector<data::SampleShape> shapes;
  shapes.reserve(static_cast<size_t>(num_samples));
  for (const size_t variant : planner::interleave_evenly(planner::distribute_proportionally(shares, num_samples))) {
    shapes.push_back(variants[variant].shape);
  }
  return shapes;
}

/// Returns the workload of a run. Its worst batch consists of the largest variant alone, since a
/// random step may. The largest variant is the last one, because variants ascend by number of
/// images.
planner::Workload make_workload(const std::vector<SampleVariant>& variants, const PlanArguments& arguments,
                                const train::Config& config) {
  planner::Workload workload{.worst_batches = {{.shapes = {variants.back().shape}, .first_sample_id = {}}},
                             .global_batch_size = config.training.global_batch_size,
                             .world_size = arguments.world_size};
  if (variants.size() > 1)
    workload.average_step_shapes = make_average_step_shapes(variants, workload.samples_per_rank());
  return workload;
}

/// Returns the samples after `change(arguments, config)` has set a limit, or nothing if the limit
/// is invalid or training would reject the samples.
template <class Change>
std::optional<planner::LimitedSamples> make_limited_samples(PlanArguments arguments, train::Config config,
                                                            const Change& change) {
  change(arguments, config);
  try {
    const auto variants = make_sample_variants(arguments.samples, config);
    const auto accepted_variants = select_accepted_variants(variants);
    if (accepted_variants.empty() ||
        (accepted_variants.size() < variants.size() && !drops_rejected_variants(config, variants)))
      return std::nullopt;
    planner::LimitedSamples limited_samples{.workload = make_workload(accepted_variants, arguments, config)};
    if (accepted_variants.size() == variants.size()) return limited_samples;
    const double remaining_share =
        std::accumulate(accepted_variants.begin(), accepted_variants.end(), 0.0,
                        [](double sum, const SampleVariant& variant) { return sum + variant.share; });
    limited_samples.num_samples = config.training.global_batch_size;
    limited_samples.num_dropped =
        std::llround((1 - remaining_share) * static_cast<double>(limited_samples.num_samples));
    return limited_samples;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kUsage) return std::nullopt;  // an invalid number
    throw;
  }
}

/// Returns the largest value of `limit` with which every sample is accepted, by binary search;
/// nothing if there is no such value.
std::optional<int64_t> find_largest_accepted_value(const planner::SampleLimit& limit) {
  int64_t lower = limit.find_min() / limit.granularity, upper = limit.max_useful_value / limit.granularity;
  if (lower > upper || !limit.measure(lower * limit.granularity, /*all=*/true)) return std::nullopt;
  while (lower < upper) {
    const int64_t middle = lower + (upper - lower + 1) / 2;
    if (limit.measure(middle * limit.granularity, /*all=*/true)) {
      lower = middle;
    } else {
      upper = middle - 1;
    }
  }
  return lower * limit.granularity;
}

/// Returns the error for rejected samples, with the changes of arguments that make them accepted.
UserError make_rejection_error(const std::vector<SampleVariant>& variants,
                               const std::vector<planner::SampleLimit>& sample_limits) {
  const auto first_rejected_variant =
      std::ranges::find_if(variants, [](const SampleVariant& variant) { return !variant.rejection_reason.empty(); });
  std::vector<std::string> suggestions;
  const int64_t max_length = std::ranges::max(variants, {}, &SampleVariant::required_max_length).required_max_length;
  if (max_length > 0) suggestions.push_back(fmt::format("{}={}", keys::data::kMaxLength, max_length));
  if (!select_accepted_variants(variants).empty())
    suggestions.emplace_back(fmt::format("{}=skip", keys::data::kOnBadSample));
  for (const auto& limit : sample_limits) {
    // The suggestion data.on_bad_sample=skip above has the same effect.
    if (limit.argument_format.starts_with(fmt::format("{}=", keys::data::kMaxImagesPerSample))) continue;
    const auto value = find_largest_accepted_value(limit);
    if (value) suggestions.push_back(fmt::format(fmt::runtime(limit.argument_format), *value));
  }
  if (suggestions.empty()) suggestions.emplace_back("smaller samples");
  return usage_error("{}, so training would reject it; append to the command one of: {}",
                     first_rejected_variant->rejection_reason, fmt::join(suggestions, ", "));
}

/// Returns the configuration keys and flags that make the samples smaller.
std::vector<planner::SampleLimit> make_limits(const std::vector<SampleVariant>& variants,
                                              const PlanArguments& plan_arguments, const train::Config& plan_config) {
  const data::SampleShape& shape = variants.back().shape;
  const planner::Workload workload = make_workload(variants, plan_arguments, plan_config);
  std::vector<planner::SampleLimit> sample_limits;
  const auto add_limit = [&](planner::SampleLimit limit, const auto& change) {
    limit.measure = [plan_arguments, plan_config, change](int64_t value, bool /*all*/) {
      return make_limited_samples(plan_arguments, plan_config, [&](PlanArguments& arguments, train::Config& config) {
        change(value, arguments, config);
      });
    };
    sample_limits.push_back(std::move(limit));
  };
  if (shape.num_images + shape.num_videos > 0) {
    add_limit({.argument_format = fmt::format("{}={{}}", keys::data::kImageMaxPixels),
               .max_useful_value = train::compute_max_image_pixels(workload),
               .find_min = [pixels = train::compute_min_suggested_image_pixels(workload)] { return pixels; },
               .granularity = train::compute_pixel_granularity(workload),
               .description = "downscales larger images",
               .measure = {}},
              [](int64_t value, PlanArguments&, train::Config& config) { config.data.image_max_pixels = value; });
  }
  if (shape.video_frames > 0) {
    // With --fps, frames are sampled from the video, up to data.video_max_frames. Without it, all
    // frames are used, so only a shorter video helps.
    const bool has_fps = plan_arguments.samples.fps.has_value();
    add_limit({.argument_format = has_fps ? fmt::format("{}={{}}", keys::data::kVideoMaxFrames) : "--video-frames {}",
               .max_useful_value = shape.video_frames,
               .find_min = [] { return train::kMinSuggestedFrames; },
               .granularity = train::kFramesPerTemporalPatch,
               .description = has_fps ? "uses fewer frames per video" : "samples with fewer frames",
               .measure = {}},
              [has_fps](int64_t value, PlanArguments& arguments, train::Config& config) {
                if (has_fps) {
                  config.data.video_max_frames = value;
                } else {
                  arguments.samples.video_frames = value;
                }
              });
  }
  if (variants.size() > 1) {
    add_limit(
        {.argument_format = fmt::format("{}={{}} {}=skip", keys::data::kMaxImagesPerSample, keys::data::kOnBadSample),
         .max_useful_value = variants.back().num_images,
         .find_min = [images = std::max<int64_t>(1, variants.front().num_images)] { return images; },
         .granularity = 1,
         .description = "drops samples with more images",
         .measure = {}},
        [](int64_t value, PlanArguments&, train::Config& config) {
          config.data.max_images_per_sample = value;
          config.data.on_bad_sample = data::BadSamplePolicy::kSkip;
        });
  } else if (variants.back().num_images > 1) {
    add_limit({.argument_format = "--images {}",
               .max_useful_value = variants.back().num_images,
               .find_min = [] { return int64_t{1}; },
               .granularity = 1,
               .description = "samples with fewer images",
               .measure = {}},
              [](int64_t value, PlanArguments& arguments, train::Config&) { arguments.samples.num_images = value; });
  }
  if (shape.num_volumes > 1) {
    add_limit({.argument_format = "--volumes {}",
               .max_useful_value = shape.num_volumes,
               .find_min = [] { return int64_t{1}; },
               .granularity = 1,
               .description = "samples with fewer volumes",
               .measure = {}},
              [](int64_t value, PlanArguments& arguments, train::Config&) { arguments.samples.num_volumes = value; });
  }
  const int64_t text_tokens = shape.tokens - shape.image_tokens;
  add_limit({.argument_format = "--text-tokens {}",
             .max_useful_value = plan_arguments.samples.num_text_tokens.value_or(
                 std::min(text_tokens, models::SyntheticSample{}.text_tokens)),
             .find_min = [labels = shape.label_tokens] { return labels + 1; },  // the prompt needs a token
             .granularity = 1,
             .description = "samples with shorter text",
             .measure = {}},
            [](int64_t value, PlanArguments& arguments, train::Config&) { arguments.samples.num_text_tokens = value; });
  return sample_limits;
}

std::vector<std::string> list_remarks(const std::vector<SampleVariant>& variants, const PlanArguments& arguments,
                                      const train::Config& config) {
  std::vector<std::string> result;
  for (const auto& variant : variants) {
    if (!variant.rejection_reason.empty())
      result.push_back(variant.rejection_reason +
                       fmt::format("; such samples are skipped ({}=skip)", keys::data::kOnBadSample));
  }
  for (const auto& variant : variants) {
    if (variant.num_original_tokens == 0) continue;
    result.push_back(fmt::format(
        "a sample of {} tokens is longer than {}={}: its images are downscaled, and {} tokens remain ({}=shrink)",
        format_with_commas(variant.num_original_tokens), keys::data::kMaxLength, config.data.max_length,
        format_with_commas(variant.shape.tokens), keys::data::kOnTooLong));
  }
  const auto accepted_variants = select_accepted_variants(variants);
  if (accepted_variants.empty()) return result;
  const data::SampleShape& largest_shape = accepted_variants.back().shape;
  const int64_t requested_frames = arguments.samples.video_frames.value_or(0);
  if (!arguments.samples.fps && largest_shape.video_frames < requested_frames) {
    result.push_back(fmt::format("{} of the {} frames are used ({}={}, and the limit of the model's processor)",
                                 format_with_commas(largest_shape.video_frames), format_with_commas(requested_frames),
                                 keys::data::kVideoMaxFrames, config.data.video_max_frames));
  }
  const auto context_length = models::read_context_length(config.model.folder());
  if (largest_shape.tokens > context_length.tokens) {
    result.push_back(fmt::format(
        "a sample of {} tokens is longer than the model's context of {} ({}); it is used for training, but "
        "at positions that the model has not seen",
        format_with_commas(largest_shape.tokens), format_with_commas(context_length.tokens), context_length.key));
  }
  return result;
}

}  // namespace

SyntheticSamples make_synthetic_samples(const PlanArguments& arguments, const train::Config& config) {
  const auto variants = make_sample_variants(arguments.samples, config);
  const auto accepted_variants = select_accepted_variants(variants);
  auto limits = make_limits(variants, arguments, config);
  if (accepted_variants.size() < variants.size() && !drops_rejected_variants(config, variants))
    throw make_rejection_error(variants, limits);
  return {.workload = make_workload(accepted_variants, arguments, config),
          .limits = std::move(limits),
          .remarks = list_remarks(variants, arguments, config)};
}

}  // namespace vlmtrain::app
