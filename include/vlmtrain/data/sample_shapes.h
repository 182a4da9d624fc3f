#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "vlmtrain/data/shape.h"

namespace vlmtrain::data {

/// The shapes of the samples of a data set by index, where they are known. Each sample takes 12 bytes; the sizes of
/// media are kept once for all samples that have the same, some 200 bytes.
class SampleShapes {
 public:
  SampleShapes() = default;
  /// Of so many samples none is known.
  explicit SampleShapes(int64_t samples) : samples_(static_cast<size_t>(samples)) {}

  int64_t size() const { return std::ssize(samples_); }
  int64_t num_known() const { return num_known_; }
  bool has(int64_t index) const { return samples_.at(static_cast<size_t>(index)).media != kUnknown; }

  /// REQUIRES: has(index).
  SampleShape at(int64_t index) const;
  std::optional<SampleShape> operator[](int64_t index) const;
  /// Of a sample that is known, its shape without tokens and label tokens, which are 0; else null. Until the next
  /// change.
  const SampleShape* find_media(int64_t index) const;

  /// REQUIRES: token numbers below 2^31.
  void set(int64_t index, const SampleShape& shape);
  void push_back(const std::optional<SampleShape>& shape);
  /// Is not known any more.
  void remove(int64_t index);

  bool operator==(const SampleShapes& other) const;

  /// Whether a sample that was looked at has a video.
  bool have_videos() const;

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct Entry {
    uint32_t media = kUnknown;  // a place in media_
    int32_t tokens = 0;
    int32_t label_tokens = 0;
  };

  uint32_t intern_media(SampleShape media);

  std::vector<Entry> samples_;
  int64_t num_known_ = 0;
  std::vector<SampleShape> media_;                                 // shapes without tokens and label tokens
  std::unordered_multimap<uint64_t, uint32_t> media_ids_by_hash_;  // places in media_ by a hash of what is there
};

}  // namespace vlmtrain::data
