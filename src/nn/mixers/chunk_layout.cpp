#include "vlmtrain/nn/mixers/chunk_layout.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::nn {

namespace {

int64_t count_chunks(int64_t rows) {
  return (rows + kChunkRows - 1) / kChunkRows;
}

/// A segment of the stream in the order of the layout.
struct SortedSegment {
  size_t index;
  int64_t first_row, length;
};

std::vector<SortedSegment> sort_segments(const std::vector<int64_t>& lengths) {
  std::vector<SortedSegment> segments;
  int64_t first_row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    segments.push_back({i, first_row, lengths[i]});
    first_row += lengths[i];
  }
  std::ranges::stable_sort(segments, std::greater(),
                           [](const SortedSegment& segment) { return count_chunks(segment.length); });
  return segments;
}

}  // namespace

ChunkLayout ChunkLayout::make(const Segments& segments, int64_t num_history_rows, at::Device device) {
  VLMTRAIN_CHECK(num_history_rows >= 0 && num_history_rows <= kChunkRows && !segments.lengths.empty(),
                 "no chunks for {} segments with {} rows of history", segments.lengths.size(), num_history_rows);
  const auto sorted = sort_segments(segments.lengths);
  ChunkLayout layout{.num_history_rows = num_history_rows};
  std::vector<int64_t> rows, history_rows, segment_order(sorted.size());
  std::vector<int64_t> slots(static_cast<size_t>(segments.rows)), history_slots(slots.size());
  for (size_t i = 0; i < sorted.size(); ++i) segment_order[sorted[i].index] = static_cast<int64_t>(i);
  const int64_t num_steps = count_chunks(sorted.front().length);
  for (int64_t step = 0; step < num_steps; ++step) {
    int64_t num_chunks = 0;
    for (const SortedSegment& segment : sorted) {
      if (count_chunks(segment.length) <= step) break;
      ++num_chunks;
      for (int64_t i = -num_history_rows; i < kChunkRows; ++i) {
        const int64_t row_in_segment = step * kChunkRows + i;
        const int64_t row = segment.first_row + std::clamp<int64_t>(row_in_segment, 0, segment.length - 1);
        if (i >= 0 && row_in_segment < segment.length) {
          slots[static_cast<size_t>(row)] = static_cast<int64_t>(rows.size());
          history_slots[static_cast<size_t>(row)] = static_cast<int64_t>(history_rows.size());
        }
        history_rows.push_back(row);
        if (i >= 0) rows.push_back(row);
      }
    }
    layout.chunks_per_step.push_back(num_chunks);
  }
  layout.num_chunks = static_cast<int64_t>(rows.size()) / kChunkRows;

  const at::Tensor is_row = at::zeros({static_cast<int64_t>(rows.size())}, at::kFloat);
  auto* is_row_values = is_row.mutable_data_ptr<float>();
  for (const int64_t slot : slots) is_row_values[slot] = 1;

  layout.rows = memory::copy_to_device(rows, device);
  layout.history_rows = memory::copy_to_device(history_rows, device);
  layout.slots = memory::copy_to_device(slots, device);
  layout.history_slots = memory::copy_to_device(history_slots, device);
  layout.segment_order = memory::copy_to_device(segment_order, device);
  layout.is_row = memory::copy_to_device(is_row, device).view({layout.num_chunks, kChunkRows, 1});
  return layout;
}

}  // namespace vlmtrain::nn
