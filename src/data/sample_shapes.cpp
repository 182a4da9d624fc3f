#include "vlmtrain/data/sample_shapes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

uint64_t hash_of(const SampleShape& media) {
  ContentHash hash;
  const auto add = [&hash](int64_t number) { hash.add(static_cast<uint64_t>(number)); };
  for (const int64_t number :
       {media.image_tokens, media.images, media.pixel_rows, media.row.height, media.row.width, media.videos,
        media.video_frames, media.volumes, media.masks, media.mask_pictures, media.mask_side}) {
    add(number);
  }
  for (const PatchGrid& grid : media.grids) {
    add(grid.frames);
    add(grid.rows);
    add(grid.columns);
  }
  return hash.value();
}

int32_t small(int64_t tokens) {
  VLMTRAIN_CHECK(tokens >= 0 && tokens <= std::numeric_limits<int32_t>::max(), "{} tokens", tokens);
  return static_cast<int32_t>(tokens);
}

}  // namespace

SampleShape SampleShapes::at(int64_t index) const {
  VLMTRAIN_CHECK(has(index), "the shape of sample {} is not known", index);
  const Entry& entry = samples_[static_cast<size_t>(index)];
  SampleShape shape = media_[entry.media];
  shape.tokens = entry.tokens;
  shape.label_tokens = entry.label_tokens;
  return shape;
}

std::optional<SampleShape> SampleShapes::operator[](int64_t index) const {
  return has(index) ? std::optional{at(index)} : std::nullopt;
}

const SampleShape* SampleShapes::media_of(int64_t index) const {
  return has(index) ? &media_[samples_[static_cast<size_t>(index)].media] : nullptr;
}

void SampleShapes::set(int64_t index, const SampleShape& shape) {
  Entry& entry = samples_.at(static_cast<size_t>(index));
  const bool was_known = entry.media != kUnknown;
  entry = {.media = number_of(shape), .tokens = small(shape.tokens), .label_tokens = small(shape.label_tokens)};
  known_ += was_known ? 0 : 1;
}

void SampleShapes::push_back(const std::optional<SampleShape>& shape) {
  samples_.emplace_back();
  if (shape) set(size() - 1, *shape);
}

void SampleShapes::remove(int64_t index) {
  Entry& entry = samples_.at(static_cast<size_t>(index));
  known_ -= entry.media != kUnknown ? 1 : 0;
  entry = {};
}

uint32_t SampleShapes::number_of(SampleShape media) {
  media.tokens = media.label_tokens = 0;
  const uint64_t hash = hash_of(media);
  const auto [first, end] = numbers_.equal_range(hash);
  for (auto known = first; known != end; ++known) {
    if (media_[known->second] == media) return known->second;
  }
  const auto number = static_cast<uint32_t>(media_.size());
  media_.push_back(std::move(media));
  numbers_.emplace(hash, number);
  return number;
}

bool SampleShapes::operator==(const SampleShapes& other) const {
  if (size() != other.size()) return false;
  for (int64_t index = 0; index < size(); ++index) {
    if ((*this)[index] != other[index]) return false;
  }
  return true;
}

bool SampleShapes::have_videos() const {
  return std::ranges::any_of(media_, [](const SampleShape& media) { return media.videos > 0; });
}

}  // namespace vlmtrain::data
