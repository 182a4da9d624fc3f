#include "vlmtrain/nn/layers/activation_offloader.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "nn/round_up.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::nn {

namespace {

/// Keeps tensors of all dtypes aligned, and rows on cache lines.
constexpr int64_t kAlignmentBytes = 512;
/// Bytes that a growing offloader allocates at a time, at least.
constexpr int64_t kMinChunkBytes = int64_t{1} << 26;

/// Maximum size of a tensor's range of memory as a multiple of its elements. Rows may have gaps: outputs of
/// Linears with adapters are columns of wider matrices (layers/bordered_weights.h).
constexpr int64_t kMaxRangeRatio = 2;

/// Returns the elements of the tensor's range of memory, [elements]; undefined if the range has too many others.
at::Tensor view_range(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension)
    last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
  const bool is_dense = last + 1 >= tensor.numel() && last + 1 <= kMaxRangeRatio * tensor.numel();
  return is_dense ? tensor.as_strided({last + 1}, {1}) : at::Tensor();
}

/// Tells a virtual GPU that the memory of `values` is free for other work of the current stream.
void announce_free_memory(const at::Tensor& values) {
  if (!values.is_cuda()) return;
  vgpu::announce_use(values.const_data_ptr(), static_cast<uint64_t>(values.nbytes()));
  vgpu::announce_end_of_use(values.const_data_ptr());
}

}  // namespace

ActivationOffloader::ActivationOffloader(at::Device device, std::optional<int64_t> max_bytes)
    : arena_(device), max_bytes_(max_bytes), save_copier_(device), load_copier_(device) {
  if (max_bytes.value_or(0) > 0 && !memory::is_virtual_gpu_loaded()) add_chunk(*max_bytes);
}

void ActivationOffloader::add_chunk(int64_t bytes) {
  chunks_.push_back({.memory = arena_.allocate({bytes}, at::kByte, keys::memory::kOffloadActivations.data())});
}

bool ActivationOffloader::allocate(SavedTensor& saved) {
  const at::Tensor& tensor = saved.device_values_;
  const auto tensor_bytes = static_cast<int64_t>(tensor.nbytes());
  const int64_t bytes = round_up(tensor_bytes, kAlignmentBytes);
  if (max_bytes_ && used_bytes_ + bytes > *max_bytes_) return false;
  const auto has_space = [bytes](const Chunk& chunk) { return chunk.used_bytes + bytes <= chunk.memory.numel(); };
  // Tensors are released in the opposite order, so earlier chunks have no space that a later one lacks.
  const size_t first_chunk = ranges_.empty() ? 0 : ranges_.back().chunk_index;
  auto chunk = std::find_if(chunks_.begin() + static_cast<std::ptrdiff_t>(first_chunk), chunks_.end(), has_space);
  if (chunk == chunks_.end()) {
    add_chunk(std::max(bytes, kMinChunkBytes));
    chunk = std::prev(chunks_.end());
  }
  saved.host_values_ = chunk->memory.narrow(0, chunk->used_bytes, tensor_bytes).view(tensor.scalar_type());
  saved.range_index_ = ranges_.size();
  chunk->used_bytes += bytes;
  ranges_.push_back(
      {.saved_tensor = &saved, .chunk_index = static_cast<size_t>(chunk - chunks_.begin()), .bytes = bytes});
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return true;
}

std::unique_ptr<ActivationOffloader::SavedTensor> ActivationOffloader::save(const at::Tensor& tensor) {
  // The previous block has been queued; its input may go as soon as it is copied.
  finish_save();
  at::Tensor elements = view_range(tensor.detach());
  if (!elements.defined()) return nullptr;
  std::unique_ptr<SavedTensor> saved(new SavedTensor(*this, tensor, std::move(elements)));
  if (!allocate(*saved)) return nullptr;
  save_copier_.start(saved->host_values_, saved->device_values_);
  saving_ = saved.get();
  return saved;
}

void ActivationOffloader::finish_save() {
  if (saving_ == nullptr) return;
  save_copier_.wait();
  announce_free_memory(saving_->device_values_);
  saving_->device_values_.reset();
  saving_ = nullptr;
}

void ActivationOffloader::start_load(SavedTensor& saved) {
  saved.device_values_ = at::empty(saved.host_values_.sizes(), saved.options_);
  load_copier_.start(saved.device_values_, saved.host_values_);
}

at::Tensor ActivationOffloader::load(SavedTensor& saved) {
  VLMTRAIN_CHECK(saved.host_values_.defined(), "a saved tensor is loaded twice");
  if (&saved == saving_) {
    // The last tensor of a forward pass: its values are on the device still.
    save_copier_.wait();
    saving_ = nullptr;
  } else {
    if (&saved != loading_) start_load(saved);
    load_copier_.wait();
    if (&saved == loading_) loading_ = nullptr;
  }
  at::Tensor values = std::exchange(saved.device_values_, at::Tensor());
  announce_free_memory(values);
  release(saved);
  if (loading_ == nullptr && !ranges_.empty() && ranges_.back().saved_tensor != saving_) {
    SavedTensor& next = *ranges_.back().saved_tensor;
    start_load(next);
    loading_ = &next;
  }
  return values.as_strided(saved.sizes_, saved.strides_);
}

void ActivationOffloader::release(SavedTensor& saved) noexcept {
  if (!saved.host_values_.defined()) return;
  try {
    if (&saved == saving_) save_copier_.wait();
    if (&saved == loading_) load_copier_.wait();
  } catch (const c10::Error&) {
    // The device is broken; the next call that uses it reports the error.
  }
  if (&saved == saving_) saving_ = nullptr;
  if (&saved == loading_) loading_ = nullptr;
  saved.device_values_.reset();
  saved.host_values_.reset();
  ranges_[saved.range_index_].saved_tensor = nullptr;
  for (; !ranges_.empty() && ranges_.back().saved_tensor == nullptr; ranges_.pop_back()) {
    const Range& last = ranges_.back();
    chunks_[last.chunk_index].used_bytes -= last.bytes;
    used_bytes_ -= last.bytes;
  }
}

}  // namespace vlmtrain::nn
