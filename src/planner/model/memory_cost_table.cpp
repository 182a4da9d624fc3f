#include "vlmtrain/planner/memory_cost_table.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kCoefficientScale = 1024;  // of MemoryCostTable::bytes_per_1024_units
// JSON fields with their earlier names, which plans of earlier versions have.
constexpr io::FieldAlias kMaskImagesField{"mask_images", "mask_pictures"};
constexpr io::FieldAlias kVisionPassImagesField{"pass_images", "pass_pictures"};
constexpr io::FieldAlias kMaxSamplesField{"max_samples", "most_samples"};
constexpr std::array<const char*, MemoryCostTable::kNumTerms> kTermNames{
    "samples",    "tokens",    "padded_tokens", "label_tokens",        "loss_rows",
    "pixel_rows", "pass_rows", "masks",         kMaskImagesField.name, kVisionPassImagesField.name};

/// Returns the lower of both, or `number` if `limit` is 0.
int64_t clamp_to_limit(int64_t number, int64_t limit) {
  return limit > 0 ? std::min(number, limit) : number;
}

}  // namespace

MicroBatchSizes MicroBatchSizes::merge(const MicroBatchSizes& other) const {
  return {.samples = samples + other.samples,
          .tokens = tokens + other.tokens,
          .max_sample_tokens = std::max(max_sample_tokens, other.max_sample_tokens),
          .label_tokens = label_tokens + other.label_tokens,
          .pixel_rows = pixel_rows + other.pixel_rows,
          .masks = masks + other.masks,
          .num_images_with_masks = num_images_with_masks + other.num_images_with_masks};
}

MicroBatchSizes compute_micro_batch_sizes(const data::SampleShape& shape) {
  return {.samples = 1,
          .tokens = shape.tokens,
          .max_sample_tokens = shape.tokens,
          .label_tokens = shape.label_tokens,
          .pixel_rows = shape.pixel_rows,
          .masks = shape.masks,
          .num_images_with_masks = shape.num_images_with_masks};
}

MicroBatchSizes compute_micro_batch_sizes(std::span<const data::SampleShape> shapes) {
  MicroBatchSizes sizes;
  for (const auto& shape : shapes) sizes = sizes.merge(compute_micro_batch_sizes(shape));
  return sizes;
}

std::array<int64_t, MemoryCostTable::kNumTerms> MemoryCostTable::compute_term_values(
    const MicroBatchSizes& sizes) const {
  return {sizes.samples,
          sizes.tokens,
          sizes.samples * sizes.max_sample_tokens,
          sizes.label_tokens,
          clamp_to_limit(sizes.label_tokens, loss_chunk_rows),
          sizes.pixel_rows,
          clamp_to_limit(sizes.pixel_rows, vision_tiles_per_pass),
          sizes.masks,
          sizes.num_images_with_masks,
          clamp_to_limit(sizes.num_images_with_masks, vision_tiles_per_pass)};
}

int64_t MemoryCostTable::bytes(const MicroBatchSizes& sizes) const {
  const auto term_values = compute_term_values(sizes);
  int64_t sum = 0;
  for (size_t term = 0; term < kNumTerms; ++term) sum += term_values[term] * bytes_per_1024_units[term];
  return base_bytes + (sum + kCoefficientScale - 1) / kCoefficientScale;
}

bool MemoryCostTable::fits(const MicroBatchSizes& sizes) const {
  return (max_samples == 0 || sizes.samples <= max_samples) && bytes(sizes) <= limit_bytes;
}

nlohmann::ordered_json MemoryCostTable::to_json() const {
  nlohmann::ordered_json weights;
  for (size_t term = 0; term < kNumTerms; ++term) weights[kTermNames[term]] = bytes_per_1024_units[term];
  io::add_field_aliases(weights, {kMaskImagesField, kVisionPassImagesField});
  nlohmann::ordered_json json{{"base_bytes", base_bytes},
                              {"bytes_per_1024", weights},
                              {"vision_tiles_per_pass", vision_tiles_per_pass},
                              {"loss_chunk_rows", loss_chunk_rows},
                              {"limit_bytes", limit_bytes},
                              {kMaxSamplesField.name, max_samples}};
  io::add_field_aliases(json, {kMaxSamplesField});
  return json;
}

MemoryCostTable MemoryCostTable::from_json(const nlohmann::ordered_json& json, const std::string& source) {
  const auto read_count = [&](const nlohmann::ordered_json& object, const char* key) {
    const auto value = io::get<int64_t>(object, key, source);
    if (value < 0) throw data_error("{}: {}: must not be negative, is {}", source, key, value);
    return value;
  };
  MemoryCostTable table{.base_bytes = read_count(json, "base_bytes"),
                        .vision_tiles_per_pass = read_count(json, "vision_tiles_per_pass"),
                        .loss_chunk_rows = read_count(json, "loss_chunk_rows"),
                        .limit_bytes = read_count(json, "limit_bytes"),
                        .max_samples = read_count(json, io::find_field_name(json, kMaxSamplesField))};
  const auto weights = json.value("bytes_per_1024", nlohmann::ordered_json());
  for (size_t term = 0; term < kNumTerms; ++term) {
    const char* name = kTermNames[term];
    for (const io::FieldAlias field : {kMaskImagesField, kVisionPassImagesField}) {
      if (std::string_view(field.name) == name) name = io::find_field_name(weights, field);
    }
    // Tables without mask terms were written by versions without masks.
    if (term < kMasks || weights.contains(name)) table.bytes_per_1024_units[term] = read_count(weights, name);
  }
  return table;
}

}  // namespace vlmtrain::planner
