#include "app/described_samples.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/mixture.h"
#include "vlmtrain/train/sample_limits.h"

namespace vlmtrain::app {

namespace {

std::vector<SampleKind> taken(std::vector<SampleKind> kinds) {
  std::erase_if(kinds, [](const SampleKind& kind) { return !kind.refused.empty(); });
  return kinds;
}

/// Whether kinds are left out, and others not.
bool leaves_out(const train::Config& config, const std::vector<SampleKind>& kinds) {
  return kinds.size() > 1 && config.data.on_bad_sample == data::BadSamplePolicy::kSkip && !taken(kinds).empty();
}

/// A rank's samples of a usual step: each kind in its exact share, spread over the step.
std::vector<data::SampleShape> usual_step(const std::vector<SampleKind>& kinds, int64_t samples) {
  std::vector<double> shares;
  shares.reserve(kinds.size());
  for (const auto& kind : kinds) shares.push_back(kind.share);
  std::vector<data::SampleShape> shapes;
  shapes.reserve(static_cast<size_t>(samples));
  for (const size_t kind : planner::spread_evenly(planner::counts_by_share(shares, samples))) {
    shapes.push_back(kinds[kind].shape);
  }
  return shapes;
}

/// Kinds ascend, so that the last one is the largest: a step may be drawn that has no other.
planner::Workload workload_of(const std::vector<SampleKind>& kinds, const PlanArguments& arguments,
                              const train::Config& config) {
  planner::Workload workload{.candidates = {{.shapes = {kinds.back().shape}, .first_id = {}}},
                             .global_batch_size = config.training.global_batch_size,
                             .world_size = arguments.world_size};
  if (kinds.size() > 1) workload.average = usual_step(kinds, workload.samples_per_rank());
  return workload;
}

/// With another number of a limit; nothing where that is none, or where samples are refused with it.
template <class Change>
std::optional<planner::LimitedSamples> with_change(PlanArguments arguments, train::Config config,
                                                   const Change& change) {
  change(arguments, config);
  try {
    const auto kinds = sample_kinds(arguments.samples, config);
    const auto usable = taken(kinds);
    if (usable.empty() || (usable.size() < kinds.size() && !leaves_out(config, kinds))) return std::nullopt;
    planner::LimitedSamples limited{.workload = workload_of(usable, arguments, config)};
    if (usable.size() == kinds.size()) return limited;
    const double left = std::accumulate(usable.begin(), usable.end(), 0.0,
                                        [](double sum, const SampleKind& kind) { return sum + kind.share; });
    limited.samples = config.training.global_batch_size;
    limited.left_out = std::llround((1 - left) * static_cast<double>(limited.samples));
    return limited;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kUsage) return std::nullopt;  // a number that is none
    throw;
  }
}

/// The largest number of a limit with which every sample is taken; nothing if there is none.
std::optional<int64_t> largest_taken(const planner::SampleLimit& limit) {
  int64_t least = limit.least() / limit.unit, most = limit.now / limit.unit;
  if (least > most || !limit.measure(least * limit.unit, /*all=*/true)) return std::nullopt;
  while (least < most) {
    const int64_t middle = least + (most - least + 1) / 2;
    if (limit.measure(middle * limit.unit, /*all=*/true)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least * limit.unit;
}

UserError refusal(const std::vector<SampleKind>& kinds, const std::vector<planner::SampleLimit>& limits) {
  const auto refused = std::ranges::find_if(kinds, [](const SampleKind& kind) { return !kind.refused.empty(); });
  std::vector<std::string> remedies;
  const int64_t longest = std::ranges::max(kinds, {}, &SampleKind::needed_max_length).needed_max_length;
  if (longest > 0) remedies.push_back(fmt::format("data.max_length={}", longest));
  if (!taken(kinds).empty()) remedies.emplace_back("data.on_bad_sample=skip");
  for (const auto& limit : limits) {
    if (limit.form.starts_with("data.max_images_per_sample=")) continue;  // skipping does what it would
    const auto number = largest_taken(limit);
    if (number) remedies.push_back(fmt::format(fmt::runtime(limit.form), *number));
  }
  if (remedies.empty()) remedies.emplace_back("smaller samples");
  return usage_error("{}, so that training would refuse it; put behind the command one of: {}", refused->refused,
                     fmt::join(remedies, ", "));
}

}  // namespace

planner::Workload DescribedSamples::workload() const {
  const auto usable = taken(kinds_);
  if (usable.size() < kinds_.size() && !leaves_out(config_, kinds_)) throw refusal(kinds_, limits());
  return workload_of(usable, arguments_, config_);
}

std::vector<planner::SampleLimit> DescribedSamples::limits() const {
  const data::SampleShape& shape = kinds_.back().shape;
  const planner::Workload usual = workload_of(kinds_, arguments_, config_);
  std::vector<planner::SampleLimit> limits;
  const auto add = [&](planner::SampleLimit limit, const auto& change) {
    limit.measure = [this, change](int64_t number, bool /*all*/) {
      return with_change(arguments_, config_,
                         [&](PlanArguments& arguments, train::Config& config) { change(number, arguments, config); });
    };
    limits.push_back(std::move(limit));
  };
  if (shape.images > shape.volumes) {
    add({.form = "data.image_max_pixels={}",
         .now = train::most_pixels(usual),
         .least = [pixels = train::least_pixels(usual)] { return pixels; },
         .unit = train::pixel_unit(usual),
         .meaning = "makes larger pictures smaller",
         .measure = {}},
        [](int64_t number, PlanArguments&, train::Config& config) { config.data.image_max_pixels = number; });
  }
  if (shape.video_frames > 0) {
    const bool has_rate = arguments_.samples.fps.has_value();
    add({.form = has_rate ? "data.video_max_frames={}" : "--video-frames {}",
         .now = shape.video_frames,
         .least = [] { return train::kLeastFrames; },
         .unit = train::kFramesOfAPatch,
         .meaning = has_rate ? "looks at fewer frames of a video" : "samples of fewer frames",
         .measure = {}},
        [has_rate](int64_t number, PlanArguments& arguments, train::Config& config) {
          if (has_rate) {
            config.data.video_max_frames = number;
          } else {
            arguments.samples.video_frames = number;
          }
        });
  }
  if (kinds_.size() > 1) {
    add({.form = "data.max_images_per_sample={} data.on_bad_sample=skip",
         .now = kinds_.back().images,
         .least = [images = std::max<int64_t>(1, kinds_.front().images)] { return images; },
         .unit = 1,
         .meaning = "takes no sample with more images",
         .measure = {}},
        [](int64_t number, PlanArguments&, train::Config& config) {
          config.data.max_images_per_sample = number;
          config.data.on_bad_sample = data::BadSamplePolicy::kSkip;
        });
  } else if (kinds_.back().images > 1) {
    add({.form = "--images {}",
         .now = kinds_.back().images,
         .least = [] { return int64_t{1}; },
         .unit = 1,
         .meaning = "samples of fewer images",
         .measure = {}},
        [](int64_t number, PlanArguments& arguments, train::Config&) { arguments.samples.images = number; });
  }
  if (shape.volumes > 1) {
    add({.form = "--volumes {}",
         .now = shape.volumes,
         .least = [] { return int64_t{1}; },
         .unit = 1,
         .meaning = "samples of fewer volumes",
         .measure = {}},
        [](int64_t number, PlanArguments& arguments, train::Config&) { arguments.samples.volumes = number; });
  }
  const int64_t text_tokens = shape.tokens - shape.image_tokens;
  add({.form = "--text-tokens {}",
       .now = arguments_.samples.text_tokens.value_or(std::min(text_tokens, models::HypotheticalSample{}.text_tokens)),
       .least = [labels = shape.label_tokens] { return labels + 1; },
       .unit = 1,
       .meaning = "samples of shorter text",
       .measure = {}},
      [](int64_t number, PlanArguments& arguments, train::Config&) { arguments.samples.text_tokens = number; });
  return limits;
}

std::vector<std::string> DescribedSamples::remarks() const {
  std::vector<std::string> remarks;
  for (const auto& kind : kinds_) {
    if (!kind.refused.empty())
      remarks.push_back(kind.refused + "; such samples are left out (data.on_bad_sample=skip)");
  }
  for (const auto& kind : kinds_) {
    if (kind.shrunk_from == 0) continue;
    remarks.push_back(fmt::format(
        "a sample of {} tokens is longer than data.max_length={}: its images lose pixels, and {} tokens are "
        "left (data.on_too_long=shrink)",
        grouped(kind.shrunk_from), config_.data.max_length, grouped(kind.shape.tokens)));
  }
  const auto usable = taken(kinds_);
  if (usable.empty()) return remarks;
  const data::SampleShape& largest = usable.back().shape;
  const int64_t given = arguments_.samples.video_frames.value_or(0);
  if (!arguments_.samples.fps && largest.video_frames < given) {
    remarks.push_back(
        fmt::format("{} of the {} frames are looked at (data.video_max_frames={}, and what the model's "
                    "own processor takes)",
                    grouped(largest.video_frames), grouped(given), config_.data.video_max_frames));
  }
  const auto context = models::context_length_of(config_.model.path);
  if (largest.tokens > context.tokens) {
    remarks.push_back(
        fmt::format("a sample of {} tokens is longer than the {} that the model was made for "
                    "({}); it trains, but at positions that the model has not seen",
                    grouped(largest.tokens), grouped(context.tokens), context.key));
  }
  return remarks;
}

}  // namespace vlmtrain::app
