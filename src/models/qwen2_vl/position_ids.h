#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::models::qwen2_vl {

/// Image or video among the tokens of a sample.
struct VisionSpan {
  int64_t first_token;   ///< index of its first token in the sample
  data::PatchGrid grid;  ///< in tokens, not patches; `frames` are temporal patches
  float time_step = 1;   ///< positions between adjacent temporal patches
};

/// Returns data::Sample::position_ids of a sample with `tokens` tokens. Text advances all axes
/// together. The position of an image token is that of the span's start plus its time, row and
/// column. With data::VideoTokenLayout::kReleasedCode, text after a span continues after its
/// largest position on any axis. With kTransformers5, it continues after the larger of height and
/// width, so late frames of a video can exceed the positions of the following text (transformers'
/// get_rope_index from 5.3; issue 45381 there). Returns no ids without spans, since all axes are
/// equal then. REQUIRES: `spans` are in ascending order.
std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans,
                                       data::VideoTokenLayout layout);

}  // namespace vlmtrain::models::qwen2_vl
