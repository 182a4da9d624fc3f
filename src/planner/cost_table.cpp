#include "vlmtrain/planner/cost_table.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kUnits = 1024;
constexpr std::array<const char*, CostTable::kTerms> kNames{
    "samples",    "tokens",    "padded_tokens", "label_tokens",  "loss_rows",
    "pixel_rows", "pass_rows", "masks",         "mask_pictures", "pass_pictures"};

int64_t up_to(int64_t number, int64_t most) {
  return most > 0 ? std::min(number, most) : number;
}

}  // namespace

SetSizes SetSizes::with(const SetSizes& more) const {
  return {.samples = samples + more.samples,
          .tokens = tokens + more.tokens,
          .longest = std::max(longest, more.longest),
          .label_tokens = label_tokens + more.label_tokens,
          .pixel_rows = pixel_rows + more.pixel_rows,
          .masks = masks + more.masks,
          .mask_pictures = mask_pictures + more.mask_pictures};
}

SetSizes sizes_of(const data::SampleShape& shape) {
  return {.samples = 1,
          .tokens = shape.tokens,
          .longest = shape.tokens,
          .label_tokens = shape.label_tokens,
          .pixel_rows = shape.pixel_rows,
          .masks = shape.masks,
          .mask_pictures = shape.mask_pictures};
}

SetSizes sizes_of(std::span<const data::SampleShape> shapes) {
  SetSizes sizes;
  for (const auto& shape : shapes) sizes = sizes.with(sizes_of(shape));
  return sizes;
}

std::array<int64_t, CostTable::kTerms> CostTable::terms_of(const SetSizes& sizes) const {
  return {sizes.samples,
          sizes.tokens,
          sizes.samples * sizes.longest,
          sizes.label_tokens,
          up_to(sizes.label_tokens, loss_chunk_rows),
          sizes.pixel_rows,
          up_to(sizes.pixel_rows, vision_tiles_per_pass),
          sizes.masks,
          sizes.mask_pictures,
          up_to(sizes.mask_pictures, vision_tiles_per_pass)};
}

int64_t CostTable::bytes(const SetSizes& sizes) const {
  const auto terms = terms_of(sizes);
  int64_t sum = 0;
  for (size_t term = 0; term < kTerms; ++term) sum += terms[term] * bytes_per_1024[term];
  return base_bytes + (sum + kUnits - 1) / kUnits;
}

bool CostTable::fits(const SetSizes& sizes) const {
  return (most_samples == 0 || sizes.samples <= most_samples) && bytes(sizes) <= limit_bytes;
}

nlohmann::ordered_json CostTable::to_json() const {
  nlohmann::ordered_json weights;
  for (size_t term = 0; term < kTerms; ++term) weights[kNames[term]] = bytes_per_1024[term];
  return {{"base_bytes", base_bytes},
          {"bytes_per_1024", weights},
          {"vision_tiles_per_pass", vision_tiles_per_pass},
          {"loss_chunk_rows", loss_chunk_rows},
          {"limit_bytes", limit_bytes},
          {"most_samples", most_samples}};
}

CostTable CostTable::of_json(const nlohmann::ordered_json& json, const std::string& source) {
  const auto number = [&](const nlohmann::ordered_json& object, const char* key) {
    const auto value = io::get<int64_t>(object, key, source);
    if (value < 0) throw data_error("{}: {}: is {}, which no cost can be", source, key, value);
    return value;
  };
  CostTable table{.base_bytes = number(json, "base_bytes"),
                  .vision_tiles_per_pass = number(json, "vision_tiles_per_pass"),
                  .loss_chunk_rows = number(json, "loss_chunk_rows"),
                  .limit_bytes = number(json, "limit_bytes"),
                  .most_samples = number(json, "most_samples")};
  const auto weights = json.value("bytes_per_1024", nlohmann::ordered_json());
  for (size_t term = 0; term < kTerms; ++term) {
    // Tables that are older than masks have none of their terms.
    const bool is_known = term < kMasks || weights.contains(kNames[term]);
    if (is_known) table.bytes_per_1024[term] = number(weights, kNames[term]);
  }
  return table;
}

}  // namespace vlmtrain::planner
