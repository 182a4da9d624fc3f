#include "vlmtrain/data/sample/sample.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::data {

namespace {

/// Returns the number of positions on the axis that has the most.
int64_t compute_max_axis_positions(const Sample& sample) {
  if (sample.position_ids.empty()) return sample.tokens();
  return 1 + *std::ranges::max_element(sample.position_ids);
}

void add_position_limit_notice(const PositionLimit& limit, Sample& sample) {
  const int64_t positions = compute_max_axis_positions(sample);
  if (positions <= limit.max_positions) return;
  sample.notices.push_back(
      {.kind = fmt::format("more positions than the model was made for ({} {})", limit.key, limit.max_positions),
       .example = fmt::format("{} positions of {} tokens", positions, sample.tokens())});
}

/// Returns the result of `make()`, after the checks and with the notices that all samples share.
template <class Make>
Sample make_checked_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                           const Make& make) {
  if (!record.problem.empty()) {
    throw SampleError("unusable record", fmt::format("sample {} ({}): {}", record.id, record.location, record.problem));
  }
  Sample sample = make();
  VLMTRAIN_CHECK(sample.index == index, "sample {} was returned as sample {}", index, sample.index);
  if (sample.label_tokens() == 0) {
    throw SampleError(
        "no label tokens",
        fmt::format("sample {} ({}) has no label tokens; give it a non-empty assistant turn that is learned", record.id,
                    record.location));
  }
  sample.notices.insert(sample.notices.begin(), record.notices.begin(), record.notices.end());
  if (const auto limit = processor.position_limit()) add_position_limit_notice(*limit, sample);
  return sample;
}

}  // namespace

void Sample::add_medium(MediaKind kind, int64_t frames) {
  if (kind == MediaKind::kImage) ++num_images;
  if (kind == MediaKind::kVideo) ++num_videos;
  if (kind == MediaKind::kVolume) ++num_volumes;
  video_frames += frames;
}

int64_t Sample::label_tokens() const {
  return std::count(label_mask.begin(), label_mask.end(), 1);
}

double Sample::label_weight() const {
  if (label_weights.empty()) return static_cast<double>(label_tokens());
  return std::accumulate(label_weights.begin(), label_weights.end(), 0.0);
}

int64_t SegmentationMasks::count_valid_pixels() const {
  int64_t sum = 0;
  for (const ValidRegion& region : valid_regions) sum += region.pixels();
  return sum;
}

int64_t Sample::bytes() const {
  const auto get_tensor_bytes = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.is_meta() ? tensor.nbytes() : 0;
  };
  const size_t pixel_bytes =
      get_tensor_bytes(pixel_values) + get_tensor_bytes(masks.pixels) + get_tensor_bytes(masks.targets);
  const size_t integer_bytes =
      (token_ids.size() + image_token_positions.size() + position_ids.size() + modalities.size()) * sizeof(int64_t);
  return static_cast<int64_t>(pixel_bytes + integer_bytes + label_mask.size() + label_weights.size() * sizeof(float));
}

Sample SampleProcessor::process_augmented(const io::Record& record, int64_t index, uint64_t /*seed*/) const {
  return process(record, index);
}

Sample make_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                   std::optional<uint64_t> augmentation_seed) {
  return make_checked_sample(processor, record, index, [&] {
    return augmentation_seed ? processor.process_augmented(record, index, *augmentation_seed)
                             : processor.process(record, index);
  });
}

Sample make_header_sample(const SampleProcessor& processor, const io::Record& record, int64_t index) {
  return make_checked_sample(processor, record, index, [&] { return processor.process_headers(record, index); });
}

}  // namespace vlmtrain::data
