#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::data {

struct Sample;  // sample.h

/// The kind of a medium.
enum class MediaKind { kImage, kVideo, kVolume };

/// The type and size of one row of Sample::pixel_values. The model family decides whether a row is
/// a tile (a crop of an image), a patch of an image in native resolution, or a volume.
struct PixelRowShape {
  at::ScalarType dtype = kByteType;
  int64_t channels = 3;
  int64_t depth = 0;  ///< 0 for rows without this axis
  int64_t height = 0;
  int64_t width = 0;

  /// Returns the row type of `pixels` [rows, channels, height, width] or
  /// [rows, channels, depth, height, width].
  static PixelRowShape from_tensor(const at::Tensor& pixels);
  /// Returns the tensor sizes of `rows` rows.
  std::vector<int64_t> sizes(int64_t rows) const;
  /// Returns the bytes of one row.
  int64_t bytes() const;
  /// Returns the pixels or voxels of one row, per channel.
  int64_t pixels() const { return std::max<int64_t>(depth, 1) * height * width; }
  bool operator==(const PixelRowShape&) const = default;
};

/// The patches of one image or video in models of native resolution: frame by frame, with rows ·
/// columns patches each, in an order that the family defines. Patches attend to each other within a
/// frame, not across frames.
struct PatchGrid {
  int64_t frames = 1;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t patches_per_frame() const { return rows * columns; }
  int64_t patches() const { return frames * patches_per_frame(); }
  bool operator==(const PatchGrid&) const = default;
};

/// Number of axes of a three-dimensional position (time, height, width), as in M-RoPE of Qwen2-VL.
inline constexpr int64_t kNumPositionAxes = 3;

/// The part of a square of pixels that an image fills, starting at the upper left corner.
struct ValidRegion {
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t pixels() const { return rows * columns; }
  bool operator==(const ValidRegion&) const = default;
};

/// The sizes of a sample before and after its media were shrunk to fit data.max_length.
struct ShrinkInfo {
  int64_t tokens = 0;  ///< before
  int64_t pixels = 0;  ///< before, as given to the vision tower
  int64_t tokens_after = 0;
  int64_t pixels_after = 0;
  int64_t image_max_pixels = 0;  ///< limit of each image; 0 if only the settings limit it
  int64_t frame_max_pixels = 0;  ///< limit of each video frame; 0 if only the settings limit it

  bool operator==(const ShrinkInfo&) const = default;
};

/// Returns the members as an array in their order, for a cache or another process.
nlohmann::json to_json_array(const ShrinkInfo& shrink_info);

/// Parses the result of to_json_array(). Throws nlohmann::json::exception for other values.
ShrinkInfo parse_shrink_info(const nlohmann::json& numbers);

/// The sizes of a sample that determine the memory and time of a step, without its values.
struct SampleShape {
  int64_t tokens = 0;  ///< image tokens included
  int64_t label_tokens = 0;
  int64_t image_tokens = 0;              ///< tokens that take vision features
  int64_t num_images = 0;                ///< without videos and volumes
  int64_t pixel_rows = 0;                ///< rows of Sample::pixel_values
  PixelRowShape row{};                   ///< type and size of each row
  std::vector<PatchGrid> patch_grids{};  ///< see Sample::patch_grids
  int64_t num_videos = 0;
  int64_t video_frames = 0;  ///< sampled frames of all videos together
  int64_t num_volumes = 0;
  int64_t masks = 0;
  int64_t num_images_with_masks = 0;  ///< images in SegmentationMasks::pixels
  int64_t mask_image_size = 0;        ///< side length of these images, in pixels
  bool has_label_weights = false;     ///< whether the sample has Sample::label_weights
  bool has_position_axes = false;     ///< whether the sample has Sample::position_ids

  /// Returns the number of images, videos and volumes.
  int64_t num_media() const { return num_images + num_videos + num_volumes; }
  /// Returns the bytes of SegmentationMasks::pixels and SegmentationMasks::targets.
  int64_t mask_bytes() const { return (3 * num_images_with_masks + masks) * mask_image_size * mask_image_size; }
  bool operator==(const SampleShape&) const = default;
};

/// Returns the shape of a sample. Its tensors may be on the meta device.
SampleShape get_sample_shape(const Sample& sample);

/// Returns a phrase such as "2 images and 1 video of 16 frames", "2 volumes of 96x96x96" or
/// "no image".
std::string describe_media(const SampleShape& shape);

/// Returns the shape with a share of its pixels (0 < share <= 1) and the same text. It has fewer
/// rows, at least one, or in native resolution grids with fewer rows. The rows of a grid stay a
/// multiple of the patches per side of an image token.
SampleShape scale_pixels(SampleShape shape, double share);

/// Returns a sample of this shape without values: image tokens come first and label tokens last,
/// token ids and positions are 0, pixels are on the meta device. REQUIRES: image_tokens +
/// label_tokens <= tokens, label_tokens < tokens.
Sample make_meta_sample(const SampleShape& shape);

/// The known sample shapes of a data set, by index. Takes 12 bytes for each sample, and about 200
/// bytes for each different shape of media, which is stored once. Not thread-safe.
class SampleShapes {
 public:
  SampleShapes() = default;
  /// Creates `samples` unknown shapes.
  explicit SampleShapes(int64_t samples) : entries_(static_cast<size_t>(samples)) {}

  int64_t size() const { return std::ssize(entries_); }
  int64_t num_known_shapes() const { return num_known_shapes_; }
  bool is_known(int64_t index) const { return entries_.at(static_cast<size_t>(index)).media_shape_index != kUnknown; }

  /// REQUIRES: is_known(index).
  SampleShape at(int64_t index) const;
  /// Returns the shape; nothing if it is unknown.
  std::optional<SampleShape> operator[](int64_t index) const;
  /// Returns the shape of a sample with `tokens` and `label_tokens` set to 0; null if it is
  /// unknown. The pointer is valid until the next change.
  const SampleShape* find_media_shape(int64_t index) const;

  /// Sets the shape of a sample. REQUIRES: numbers of tokens are below 2^31.
  void set(int64_t index, const SampleShape& shape);
  /// Appends a sample, which is unknown if `shape` is not set.
  void push_back(const std::optional<SampleShape>& shape);
  /// Marks the shape as unknown.
  void mark_unknown(int64_t index);

  bool operator==(const SampleShapes& other) const;

  /// Returns whether any known sample has a video.
  bool has_videos() const;
  /// Returns whether any known sample has label weights.
  bool has_label_weights() const;

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  /// The shape of a sample, with its media stored separately.
  struct ShapeEntry {
    uint32_t media_shape_index = kUnknown;  // index in media_shapes_
    int32_t tokens = 0;
    int32_t label_tokens = 0;
  };

  /// Returns the index of an equal shape in media_shapes_, which is added if it is new. Ignores
  /// tokens and label tokens.
  uint32_t intern_media_shape(SampleShape media);

  std::vector<ShapeEntry> entries_;
  int64_t num_known_shapes_ = 0;
  std::vector<SampleShape> media_shapes_;                                    // shapes without tokens and label tokens
  std::unordered_multimap<uint64_t, uint32_t> media_shape_indices_by_hash_;  // hash -> index in media_shapes_
};

// Sort keys that rank the samples which may need the most memory. Later fields break ties.

inline std::tuple<int64_t, int64_t, int64_t> get_token_sort_key(const SampleShape& shape) {
  return {shape.tokens, shape.pixel_rows, shape.label_tokens};
}

inline std::tuple<int64_t, int64_t, int64_t> get_pixel_sort_key(const SampleShape& shape) {
  return {shape.pixel_rows * shape.row.bytes(), shape.tokens, shape.label_tokens};
}

inline std::tuple<int64_t, int64_t, int64_t> get_label_sort_key(const SampleShape& shape) {
  return {shape.label_tokens, shape.tokens, shape.pixel_rows};
}

inline std::tuple<int64_t, int64_t, int64_t> get_mask_sort_key(const SampleShape& shape) {
  return {shape.masks, shape.num_images_with_masks, shape.tokens};
}

/// Returns the indices of the `count` known samples with the largest `size(shape)`, or of all known
/// samples if they are fewer. The largest comes first; ties are in data set order. Takes O(n log
/// count).
template <class Size>
std::vector<int64_t> find_largest_samples(const SampleShapes& shapes, const Size& size, int64_t count) {
  using SizedSample = std::pair<decltype(size(std::declval<SampleShape>())), int64_t>;
  const auto comes_first = [](const SizedSample& left, const SizedSample& right) {
    return left.first != right.first ? left.first > right.first : left.second < right.second;
  };
  std::vector<SizedSample> largest;  // a heap with the smallest entry in front
  for (int64_t index = 0; index < shapes.size() && count > 0; ++index) {
    if (!shapes.is_known(index)) continue;
    SizedSample candidate{size(shapes.at(index)), index};
    if (std::ssize(largest) == count) {
      if (!comes_first(candidate, largest.front())) continue;
      std::ranges::pop_heap(largest, comes_first);
      largest.pop_back();
    }
    largest.push_back(std::move(candidate));
    std::ranges::push_heap(largest, comes_first);
  }
  std::ranges::sort_heap(largest, comes_first);
  std::vector<int64_t> indices;
  indices.reserve(largest.size());
  for (const auto& ranked : largest) indices.push_back(ranked.second);
  return indices;
}

}  // namespace vlmtrain::data
