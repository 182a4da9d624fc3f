#include "models/qwen2_vl/positions.h"

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

class PositionIdBuilder {
 public:
  PositionIdBuilder(int64_t tokens, data::VideoLayout layout)
      : tokens_(tokens), layout_(layout), ids_(static_cast<size_t>(data::kPositionAxes * tokens)) {}

  void add_text(int64_t token) {
    VLMTRAIN_CHECK(token >= next_token_ && token <= tokens_, "token {} of {} after {}", token, tokens_, next_token_);
    while (next_token_ < token) {
      add(next_position_, next_position_, next_position_);
      ++next_position_;
    }
  }

  void add(const VisionSpan& span) {
    for (int64_t frame = 0; frame < span.grid.frames; ++frame) {
      const int64_t time = compute_time(frame, span);
      for (int64_t row = 0; row < span.grid.rows; ++row) {
        for (int64_t column = 0; column < span.grid.columns; ++column)
          add(next_position_ + time, next_position_ + row, next_position_ + column);
      }
    }
    const int64_t side = std::max(span.grid.rows, span.grid.columns);
    const int64_t last_time = compute_time(span.grid.frames - 1, span);
    next_position_ += layout_ == data::VideoLayout::kReleased ? std::max(side, last_time + 1) : side;
  }

  std::vector<int64_t> finish() {
    add_text(tokens_);
    return std::move(ids_);
  }

 private:
  /// transformers multiplies in fp32 and cuts off.
  static int64_t compute_time(int64_t frame, const VisionSpan& span) {
    return static_cast<int64_t>(static_cast<float>(frame) * span.time_step);
  }

  void add(int64_t time, int64_t row, int64_t column) {
    const std::array<int64_t, data::kPositionAxes> axes{time, row, column};
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      ids_[axis * static_cast<size_t>(tokens_) + static_cast<size_t>(next_token_)] = axes[axis];
    }
    ++next_token_;
  }

  int64_t tokens_;
  data::VideoLayout layout_;
  std::vector<int64_t> ids_;
  int64_t next_token_ = 0;
  int64_t next_position_ = 0;  // position of the next text token
};

}  // namespace

std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans, data::VideoLayout layout) {
  if (spans.empty()) return {};
  PositionIdBuilder builder(tokens, layout);
  for (const VisionSpan& span : spans) {
    builder.add_text(span.first_token);
    builder.add(span);
  }
  return builder.finish();
}

}  // namespace vlmtrain::models::qwen2_vl
