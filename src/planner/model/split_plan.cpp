#include "vlmtrain/planner/split_plan.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kUnitsPerWeight = 1024;
constexpr std::array<const char*, MemoryCostTable::kNumTerms> kTermNames{
    "samples",    "tokens",    "padded_tokens", "label_tokens",  "loss_rows",
    "pixel_rows", "pass_rows", "masks",         "mask_pictures", "pass_pictures"};

int64_t apply_limit(int64_t number, int64_t limit) {
  return limit > 0 ? std::min(number, limit) : number;
}

}  // namespace

MicroBatchSizes MicroBatchSizes::merge(const MicroBatchSizes& other) const {
  return {.samples = samples + other.samples,
          .tokens = tokens + other.tokens,
          .max_tokens = std::max(max_tokens, other.max_tokens),
          .label_tokens = label_tokens + other.label_tokens,
          .pixel_rows = pixel_rows + other.pixel_rows,
          .masks = masks + other.masks,
          .mask_pictures = mask_pictures + other.mask_pictures};
}

MicroBatchSizes compute_sizes(const data::SampleShape& shape) {
  return {.samples = 1,
          .tokens = shape.tokens,
          .max_tokens = shape.tokens,
          .label_tokens = shape.label_tokens,
          .pixel_rows = shape.pixel_rows,
          .masks = shape.masks,
          .mask_pictures = shape.mask_pictures};
}

MicroBatchSizes compute_sizes(std::span<const data::SampleShape> shapes) {
  MicroBatchSizes sizes;
  for (const auto& shape : shapes) sizes = sizes.merge(compute_sizes(shape));
  return sizes;
}

std::array<int64_t, MemoryCostTable::kNumTerms> MemoryCostTable::compute_terms(const MicroBatchSizes& sizes) const {
  return {sizes.samples,
          sizes.tokens,
          sizes.samples * sizes.max_tokens,
          sizes.label_tokens,
          apply_limit(sizes.label_tokens, loss_chunk_rows),
          sizes.pixel_rows,
          apply_limit(sizes.pixel_rows, vision_tiles_per_pass),
          sizes.masks,
          sizes.mask_pictures,
          apply_limit(sizes.mask_pictures, vision_tiles_per_pass)};
}

int64_t MemoryCostTable::bytes(const MicroBatchSizes& sizes) const {
  const auto terms = compute_terms(sizes);
  int64_t sum = 0;
  for (size_t term = 0; term < kNumTerms; ++term) sum += terms[term] * bytes_per_1024[term];
  return base_bytes + (sum + kUnitsPerWeight - 1) / kUnitsPerWeight;
}

bool MemoryCostTable::fits(const MicroBatchSizes& sizes) const {
  return (max_samples == 0 || sizes.samples <= max_samples) && bytes(sizes) <= limit_bytes;
}

nlohmann::ordered_json MemoryCostTable::to_json() const {
  nlohmann::ordered_json weights;
  for (size_t term = 0; term < kNumTerms; ++term) weights[kTermNames[term]] = bytes_per_1024[term];
  return {{"base_bytes", base_bytes},
          {"bytes_per_1024", weights},
          {"vision_tiles_per_pass", vision_tiles_per_pass},
          {"loss_chunk_rows", loss_chunk_rows},
          {"limit_bytes", limit_bytes},
          {"most_samples", max_samples}};
}

MemoryCostTable MemoryCostTable::from_json(const nlohmann::ordered_json& json, const std::string& source) {
  const auto read_count = [&](const nlohmann::ordered_json& object, const char* key) {
    const auto value = io::get<int64_t>(object, key, source);
    if (value < 0) throw data_error("{}: {}: is {}, which no cost can be", source, key, value);
    return value;
  };
  MemoryCostTable table{.base_bytes = read_count(json, "base_bytes"),
                        .vision_tiles_per_pass = read_count(json, "vision_tiles_per_pass"),
                        .loss_chunk_rows = read_count(json, "loss_chunk_rows"),
                        .limit_bytes = read_count(json, "limit_bytes"),
                        .max_samples = read_count(json, "most_samples")};
  const auto weights = json.value("bytes_per_1024", nlohmann::ordered_json());
  for (size_t term = 0; term < kNumTerms; ++term) {
    // Tables without mask terms were written by versions without masks.
    const bool has_weight = term < kMasks || weights.contains(kTermNames[term]);
    if (has_weight) table.bytes_per_1024[term] = read_count(weights, kTermNames[term]);
  }
  return table;
}

}  // namespace vlmtrain::planner
