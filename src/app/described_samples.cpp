#include "app/described_samples.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/train/sample_limits.h"

namespace vlmtrain::app {

namespace {

/// WIDTHxHEIGHT, in pixels.
void read_image_size(const std::string& text, models::HypotheticalSample& sample) {
  if (text.empty()) return;
  int64_t width = 0;
  int64_t height = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &width, &height, &rest) != 2 || width < 1 || height < 1) {
    throw usage_error("--image-size {}: must be WIDTHxHEIGHT in pixels, such as 1024x768", text);
  }
  sample.image_width = width;
  sample.image_height = height;
}

}  // namespace

planner::Workload DescribedSamples::workload(const PlanArguments& arguments, const train::Config& config) {
  models::HypotheticalSample sample;
  sample.images = arguments.images.value_or(sample.images);
  sample.text_tokens = arguments.text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = arguments.answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  read_image_size(arguments.image_size, sample);
  return {.candidates = {{.shapes = {models::shape_of(config.model.path, sample)}, .first_id = {}}},
          .global_batch_size = config.training.global_batch_size};
}

std::vector<planner::SampleLimit> DescribedSamples::limits() const {
  const planner::Workload usual = workload();
  const data::SampleShape& shape = usual.candidates.front().shapes.front();
  std::vector<planner::SampleLimit> limits;
  const auto add = [&](planner::SampleLimit limit, const auto& change) {
    limit.measure = [this, change](int64_t number, bool /*all*/) -> std::optional<planner::LimitedSamples> {
      PlanArguments arguments = arguments_;
      train::Config config = config_;
      change(number, arguments, config);
      try {
        return planner::LimitedSamples{.workload = workload(arguments, config)};
      } catch (const UserError& error) {
        if (error.code() == ExitCode::kUsage) return std::nullopt;  // a number that is none
        throw;
      }
    };
    limits.push_back(std::move(limit));
  };
  if (shape.images > 0) {
    add({.form = "data.image_max_pixels={}",
         .now = train::most_pixels(usual),
         .least = [pixels = train::least_pixels(usual)] { return pixels; },
         .unit = train::pixel_unit(usual),
         .meaning = "makes larger pictures smaller",
         .measure = {}},
        [](int64_t number, PlanArguments&, train::Config& config) { config.data.image_max_pixels = number; });
  }
  if (shape.images > 1) {
    add({.form = "--images {}",
         .now = shape.images,
         .least = [] { return int64_t{1}; },
         .unit = 1,
         .meaning = "samples of fewer images",
         .measure = {}},
        [](int64_t number, PlanArguments& arguments, train::Config&) { arguments.images = number; });
  }
  const int64_t text_tokens = shape.tokens - shape.image_tokens;
  add({.form = "--text-tokens {}",
       .now = arguments_.text_tokens.value_or(std::min(text_tokens, models::HypotheticalSample{}.text_tokens)),
       .least = [labels = shape.label_tokens] { return labels + 1; },
       .unit = 1,
       .meaning = "samples of shorter text",
       .measure = {}},
      [](int64_t number, PlanArguments& arguments, train::Config&) { arguments.text_tokens = number; });
  return limits;
}

}  // namespace vlmtrain::app
