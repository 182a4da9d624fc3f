#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/data/video_layout.h"

namespace vlmtrain::models::qwen2_vl {

/// An image or video among a sample's tokens.
struct VisionSpan {
  int64_t first_token;
  data::PatchGrid grid;  ///< of tokens, not of patches
  float time_step = 1;   ///< positions from one frame to the next
};

/// data::Sample::position_ids: text advances all axes alike; the tokens of an image have their frame, row and column
/// beyond the position before them, and what follows goes on after the largest of them on any axis. With
/// data::VideoLayout::kTransformers5, after the larger of the sides alone, so that the frames of a video may come to
/// lie beyond the text behind it (transformers' get_rope_index since 5.3; issue 45381 there). Empty without spans,
/// where all axes are equal.
std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans, data::VideoLayout layout);

}  // namespace vlmtrain::models::qwen2_vl
