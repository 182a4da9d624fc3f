#include "models/qwen2_vl/positions.h"

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

class Positions {
 public:
  Positions(int64_t tokens, data::VideoLayout layout)
      : tokens_(tokens), layout_(layout), ids_(static_cast<size_t>(data::kPositionAxes * tokens)) {}

  void add_text_until(int64_t token) {
    VLMTRAIN_CHECK(token >= next_token_ && token <= tokens_, "token {} of {} after {}", token, tokens_, next_token_);
    while (next_token_ < token) {
      add(next_, next_, next_);
      ++next_;
    }
  }

  void add(const VisionSpan& span) {
    for (int64_t frame = 0; frame < span.grid.frames; ++frame) {
      const int64_t time = time_of(frame, span);
      for (int64_t row = 0; row < span.grid.rows; ++row) {
        for (int64_t column = 0; column < span.grid.columns; ++column) add(next_ + time, next_ + row, next_ + column);
      }
    }
    const int64_t side = std::max(span.grid.rows, span.grid.columns);
    const int64_t last_time = time_of(span.grid.frames - 1, span);
    next_ += layout_ == data::VideoLayout::kReleased ? std::max(side, last_time + 1) : side;
  }

  std::vector<int64_t> finish() {
    add_text_until(tokens_);
    return std::move(ids_);
  }

 private:
  /// transformers multiplies in fp32 and cuts off.
  static int64_t time_of(int64_t frame, const VisionSpan& span) {
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
  int64_t next_ = 0;  // position of the next text token
};

}  // namespace

std::vector<int64_t> position_ids(int64_t tokens, std::span<const VisionSpan> spans, data::VideoLayout layout) {
  if (spans.empty()) return {};
  Positions positions(tokens, layout);
  for (const VisionSpan& span : spans) {
    positions.add_text_until(span.first_token);
    positions.add(span);
  }
  return positions.finish();
}

}  // namespace vlmtrain::models::qwen2_vl
