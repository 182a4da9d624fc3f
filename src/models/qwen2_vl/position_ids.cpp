#include "models/qwen2_vl/position_ids.h"

#include <algorithm>
#include <array>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Builder of position ids, [axes · tokens]: for all tokens their time, then their row, then their
/// column.
class PositionIdBuilder {
 public:
  PositionIdBuilder(int64_t tokens, data::VideoTokenLayout layout)
      : num_tokens_(tokens),
        video_layout_(layout),
        position_ids_(static_cast<size_t>(data::kNumPositionAxes * tokens)) {}

  /// Adds the text tokens before token `token`.
  void add_text(int64_t token) {
    VLMTRAIN_CHECK(token >= next_token_index_ && token <= num_tokens_, "token {} of {} after {}", token, num_tokens_,
                   next_token_index_);
    while (next_token_index_ < token) {
      add(next_position_, next_position_, next_position_);
      ++next_position_;
    }
  }

  /// Adds the tokens of an image or video.
  void add(const VisionSpan& span) {
    for (int64_t frame = 0; frame < span.grid.frames; ++frame) {
      const int64_t time = compute_time_position(frame, span);
      for (int64_t row = 0; row < span.grid.rows; ++row) {
        for (int64_t column = 0; column < span.grid.columns; ++column)
          add(next_position_ + time, next_position_ + row, next_position_ + column);
      }
    }
    const int64_t side = std::max(span.grid.rows, span.grid.columns);
    const int64_t last_frame_time = compute_time_position(span.grid.frames - 1, span);
    next_position_ +=
        video_layout_ == data::VideoTokenLayout::kReleasedCode ? std::max(side, last_frame_time + 1) : side;
  }

  /// Adds the remaining text tokens and returns all ids. Call once.
  std::vector<int64_t> finish() {
    add_text(num_tokens_);
    return std::move(position_ids_);
  }

 private:
  /// Returns the time of a temporal patch relative to the span. Multiplies in fp32 and truncates,
  /// as transformers does.
  static int64_t compute_time_position(int64_t frame, const VisionSpan& span) {
    return static_cast<int64_t>(static_cast<float>(frame) * span.time_step);
  }

  void add(int64_t time, int64_t row, int64_t column) {
    const std::array<int64_t, data::kNumPositionAxes> axes{time, row, column};
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      position_ids_[axis * static_cast<size_t>(num_tokens_) + static_cast<size_t>(next_token_index_)] = axes[axis];
    }
    ++next_token_index_;
  }

  int64_t num_tokens_;
  data::VideoTokenLayout video_layout_;
  std::vector<int64_t> position_ids_;
  int64_t next_token_index_ = 0;
  int64_t next_position_ = 0;  // position of the next text token
};

}  // namespace

std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans,
                                       data::VideoTokenLayout layout) {
  if (spans.empty()) return {};
  PositionIdBuilder builder(tokens, layout);
  for (const VisionSpan& span : spans) {
    builder.add_text(span.first_token);
    builder.add(span);
  }
  return builder.finish();
}

}  // namespace vlmtrain::models::qwen2_vl
