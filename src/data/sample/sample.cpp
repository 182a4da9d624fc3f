#include "vlmtrain/data/sample/sample.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/memory/device_copy.h"

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
    throw SampleError("unusable record",
                      fmt::format("sample {} ({}): {}", record.id, record.location, io::describe_problem(record)));
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

using SampleReferences = std::vector<std::reference_wrapper<const Sample>>;

template <class Number>
at::Tensor to_tensor(const std::vector<Number>& values) {
  at::Tensor tensor = at::empty({std::ssize(values)}, c10::CppTypeToScalarType<Number>::value);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<Number>());
  return tensor;
}

int64_t count_patches(const std::vector<PatchGrid>& grids) {
  int64_t patches = 0;
  for (const PatchGrid& grid : grids) patches += grid.patches();
  return patches;
}

/// Throws InternalError if parts of the sample do not match.
void check_sample(const Sample& sample) {
  VLMTRAIN_CHECK(std::ssize(sample.label_mask) == sample.tokens(), "sample {}: {} label flags for {} tokens", sample.id,
                 sample.label_mask.size(), sample.tokens());
  VLMTRAIN_CHECK(sample.label_mask.empty() || sample.label_mask.front() == 0,
                 "sample {}: its first token is a label, but no token precedes it", sample.id);
  VLMTRAIN_CHECK(sample.label_weights.empty() || std::ssize(sample.label_weights) == sample.tokens(),
                 "sample {}: {} label weights for {} tokens", sample.id, sample.label_weights.size(), sample.tokens());
  VLMTRAIN_CHECK(!sample.pixel_values.defined() || !sample.image_token_positions.empty(),
                 "sample {}: has pixels, but no image tokens", sample.id);
  VLMTRAIN_CHECK(sample.patch_grids.empty() || !sample.pixel_values.defined() ||
                     count_patches(sample.patch_grids) == sample.pixel_values.size(0),
                 "sample {}: grids of {} patches, but {} rows of pixels", sample.id, count_patches(sample.patch_grids),
                 sample.pixel_values.size(0));
  VLMTRAIN_CHECK(sample.modalities.empty() || !sample.pixel_values.defined() ||
                     std::ssize(sample.modalities) == sample.pixel_values.size(0),
                 "sample {}: {} modalities for {} volumes", sample.id, sample.modalities.size(),
                 sample.pixel_values.size(0));
  VLMTRAIN_CHECK(sample.position_ids.empty() || std::ssize(sample.position_ids) == kNumPositionAxes * sample.tokens(),
                 "sample {}: {} positions for {} tokens", sample.id, sample.position_ids.size(), sample.tokens());
}

/// Adds one dropout unit for each pixel row or frame, since a forward pass of the vision tower may
/// end after any of them.
void add_pixel_dropout_segments(const Sample& sample, std::vector<nn::DropoutSegment>& units) {
  if (!sample.pixel_values.defined()) return;
  uint64_t dropout_unit_index = 0;
  const auto add = [&](int64_t rows) {
    units.push_back({.seed = derive_stream_seed(sample.seed, "tile", {dropout_unit_index++}), .row_weight = rows});
  };
  if (sample.patch_grids.empty()) {
    for (int64_t row = 0; row < sample.pixel_values.size(0); ++row) add(1);
  }
  for (const PatchGrid& grid : sample.patch_grids) {
    for (int64_t frame = 0; frame < grid.frames; ++frame) add(grid.patches_per_frame());
  }
}

/// Returns [rows, …] of all samples; undefined if no sample has pixels.
at::Tensor concat_pixels(const SampleReferences& samples) {
  std::vector<at::Tensor> pixels;
  for (const Sample& sample : samples) {
    if (!sample.pixel_values.defined()) continue;
    const at::Tensor& sample_pixels = sample.pixel_values;
    VLMTRAIN_CHECK(
        pixels.empty() || PixelRowShape::from_tensor(sample_pixels) == PixelRowShape::from_tensor(pixels.front()),
        "sample {}: pixels {} [{}] in a batch with {} [{}]", sample.id, c10::toString(sample_pixels.scalar_type()),
        fmt::join(sample_pixels.sizes(), ", "), c10::toString(pixels.front().scalar_type()),
        fmt::join(pixels.front().sizes(), ", "));
    pixels.push_back(sample_pixels);
  }
  return pixels.empty() ? at::Tensor() : at::cat(pixels);
}

/// Returns [tokens], or [kNumPositionAxes, tokens] if a sample has position ids.
at::Tensor concat_position_ids(const SampleReferences& samples) {
  const bool has_position_axes =
      std::ranges::any_of(samples, [](const Sample& sample) { return !sample.position_ids.empty(); });
  std::vector<int64_t> positions;
  for (int64_t axis = 0; axis < (has_position_axes ? kNumPositionAxes : 1); ++axis) {
    for (const Sample& sample : samples) {
      const auto offset = std::ssize(positions);
      positions.resize(positions.size() + sample.token_ids.size());
      const auto begin = positions.begin() + offset;
      if (sample.position_ids.empty()) {
        std::iota(begin, positions.end(), int64_t{0});
      } else {
        std::copy_n(sample.position_ids.begin() + axis * sample.tokens(), sample.tokens(), begin);
      }
    }
  }
  const at::Tensor position_ids = to_tensor(positions);
  return has_position_axes ? position_ids.view({kNumPositionAxes, -1}) : position_ids;
}

at::Tensor copy_tensor_to_device(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined()) return tensor;
  // In a dry run, pixels have a shape, but no values.
  if (tensor.is_meta()) return at::empty(tensor.sizes(), tensor.options().device(device));
  return memory::copy_to_device(tensor, device);
}

/// Returns the weights of all labels, fp32 [labels]; undefined if all are 1.
at::Tensor concat_label_weights(const SampleReferences& samples) {
  const auto has_weights = [](const Sample& sample) { return !sample.label_weights.empty(); };
  if (std::ranges::none_of(samples, has_weights)) return {};
  std::vector<float> weights;
  for (const Sample& sample : samples) {
    for (size_t position = 1; position < sample.token_ids.size(); ++position) {
      if (sample.label_mask[position] == 0) continue;
      weights.push_back(has_weights(sample) ? sample.label_weights[position] : 1.0F);
    }
  }
  return to_tensor(weights);
}

/// Concatenates the masks of the samples that have any.
MaskBatch concat_masks(const SampleReferences& samples) {
  MaskBatch batch;
  std::vector<at::Tensor> pixels, targets;
  std::vector<int64_t> positions, image_indices;
  int64_t tokens = 0, image_offset = 0;
  for (const Sample& sample : samples) {
    const SegmentationMasks& masks = sample.masks;
    if (!masks.empty()) {
      VLMTRAIN_CHECK(
          std::ssize(masks.image_indices) == masks.count() && std::ssize(masks.valid_regions) == masks.count(),
          "sample {}: {} masks, but {} image indices and {} valid regions", sample.id, masks.count(),
          masks.image_indices.size(), masks.valid_regions.size());
      // The hidden state before a token predicts it.
      for (const int64_t position : masks.token_positions) positions.push_back(tokens + position - 1);
      for (const int64_t image : masks.image_indices) image_indices.push_back(image_offset + image);
      batch.valid_regions.insert(batch.valid_regions.end(), masks.valid_regions.begin(), masks.valid_regions.end());
      pixels.push_back(masks.pixels);
      if (masks.targets.defined()) targets.push_back(masks.targets);
      image_offset += masks.pixels.size(0);
    }
    tokens += sample.tokens();
  }
  if (pixels.empty()) return batch;
  batch.pixels = at::cat(pixels);
  if (targets.size() == pixels.size()) batch.targets = at::cat(targets);
  batch.prediction_positions = to_tensor(positions);
  batch.image_indices = to_tensor(image_indices);
  return batch;
}

MicroBatch collate(const SampleReferences& samples, bool with_tasks) {
  VLMTRAIN_CHECK(!samples.empty(), "a micro-batch needs at least one sample");
  MicroBatch batch;
  std::vector<int64_t> lengths;
  std::vector<int64_t> token_ids;
  std::vector<int64_t> image_token_positions;
  std::vector<int64_t> label_positions;
  std::vector<int64_t> labels;
  std::vector<int64_t> label_task_indices;
  std::vector<int64_t> modalities;
  for (const Sample& sample : samples) {
    check_sample(sample);
    const auto offset = std::ssize(token_ids);
    lengths.push_back(sample.tokens());
    token_ids.insert(token_ids.end(), sample.token_ids.begin(), sample.token_ids.end());
    for (const int64_t position : sample.image_token_positions) image_token_positions.push_back(offset + position);
    for (int64_t position = 1; position < sample.tokens(); ++position) {
      if (sample.label_mask[static_cast<size_t>(position)] == 0) continue;
      // The hidden state before a label predicts it.
      label_positions.push_back(offset + position - 1);
      labels.push_back(sample.token_ids[static_cast<size_t>(position)]);
    }
    label_task_indices.resize(labels.size(), sample.task_index);
    batch.patch_grids.insert(batch.patch_grids.end(), sample.patch_grids.begin(), sample.patch_grids.end());
    if (sample.pixel_values.defined()) {
      modalities.insert(modalities.end(), sample.modalities.begin(), sample.modalities.end());
    }
    batch.num_media += sample.num_media();
    batch.num_volumes += sample.num_volumes;
    batch.label_weight_sum += sample.label_weight();
    batch.text_dropout_segments.push_back({.seed = sample.seed, .row_weight = sample.tokens()});
    add_pixel_dropout_segments(sample, batch.pixel_dropout_segments);
  }
  batch.samples = std::ssize(samples);
  batch.token_ids = to_tensor(token_ids);
  batch.position_ids = concat_position_ids(samples);
  batch.segments = nn::Segments::from_lengths(std::move(lengths), at::kCPU);
  batch.image_token_positions = to_tensor(image_token_positions);
  batch.pixel_values = concat_pixels(samples);
  VLMTRAIN_CHECK(batch.patch_grids.empty() || !batch.pixel_values.defined() ||
                     count_patches(batch.patch_grids) == batch.pixel_values.size(0),
                 "only some samples with pixels have grids");
  VLMTRAIN_CHECK(modalities.empty() || std::ssize(modalities) == batch.pixel_values.size(0),
                 "only some volumes have modalities");
  if (!modalities.empty()) batch.modalities = to_tensor(modalities);
  batch.label_positions = to_tensor(label_positions);
  batch.labels = to_tensor(labels);
  batch.label_weights = concat_label_weights(samples);
  batch.masks = concat_masks(samples);
  if (with_tasks) batch.label_task_indices = to_tensor(label_task_indices);
  return batch;
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

std::array<at::Tensor*, 14> MicroBatch::tensors() {
  return {&token_ids,           &position_ids, &segments.offsets, &image_token_positions,
          &pixel_values,        &modalities,   &label_positions,  &labels,
          &label_task_indices,  &masks.pixels, &masks.targets,    &masks.prediction_positions,
          &masks.image_indices, &label_weights};
}

MicroBatch MicroBatch::to(at::Device device) const {
  MicroBatch result = *this;
  for (at::Tensor* tensor : result.tensors()) *tensor = copy_tensor_to_device(*tensor, device);
  return result;
}

MicroBatch collate(std::span<const Sample> samples, bool with_tasks) {
  return collate(SampleReferences(samples.begin(), samples.end()), with_tasks);
}

MicroBatch collate(std::span<const Sample> samples, std::span<const int64_t> indices, bool with_tasks) {
  SampleReferences selected_samples;
  selected_samples.reserve(indices.size());
  for (const int64_t index : indices) selected_samples.emplace_back(samples[static_cast<size_t>(index)]);
  return collate(selected_samples, with_tasks);
}

}  // namespace vlmtrain::data
