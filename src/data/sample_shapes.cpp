#include "vlmtrain/data/sample_shapes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

uint64_t hash_media_shape(const SampleShape& media) {
  ContentHash hash;
  const auto add = [&hash](int64_t value) { hash.add(static_cast<uint64_t>(value)); };
  for (const int64_t value :
       {media.image_tokens, media.num_media, media.pixel_rows, media.row.height, media.row.width, media.num_videos,
        media.video_frames, media.num_volumes, media.masks, media.mask_pictures, media.mask_side}) {
    add(value);
  }
  for (const PatchGrid& grid : media.grids) {
    add(grid.frames);
    add(grid.rows);
    add(grid.columns);
  }
  return hash.value();
}

int32_t to_int32(int64_t tokens) {
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

const SampleShape* SampleShapes::find_media(int64_t index) const {
  return has(index) ? &media_[samples_[static_cast<size_t>(index)].media] : nullptr;
}

void SampleShapes::set(int64_t index, const SampleShape& shape) {
  Entry& entry = samples_.at(static_cast<size_t>(index));
  const bool was_known = entry.media != kUnknown;
  entry = {
      .media = intern_media(shape), .tokens = to_int32(shape.tokens), .label_tokens = to_int32(shape.label_tokens)};
  num_known_ += was_known ? 0 : 1;
}

void SampleShapes::push_back(const std::optional<SampleShape>& shape) {
  samples_.emplace_back();
  if (shape) set(size() - 1, *shape);
}

void SampleShapes::remove(int64_t index) {
  Entry& entry = samples_.at(static_cast<size_t>(index));
  num_known_ -= entry.media != kUnknown ? 1 : 0;
  entry = {};
}

uint32_t SampleShapes::intern_media(SampleShape media) {
  media.tokens = media.label_tokens = 0;
  const uint64_t hash = hash_media_shape(media);
  const auto [first, end] = media_ids_by_hash_.equal_range(hash);
  for (auto entry = first; entry != end; ++entry) {
    if (media_[entry->second] == media) return entry->second;
  }
  const auto media_id = static_cast<uint32_t>(media_.size());
  media_.push_back(std::move(media));
  media_ids_by_hash_.emplace(hash, media_id);
  return media_id;
}

bool SampleShapes::operator==(const SampleShapes& other) const {
  if (size() != other.size()) return false;
  for (int64_t index = 0; index < size(); ++index) {
    if ((*this)[index] != other[index]) return false;
  }
  return true;
}

bool SampleShapes::have_videos() const {
  return std::ranges::any_of(media_, [](const SampleShape& media) { return media.num_videos > 0; });
}

}  // namespace vlmtrain::data
