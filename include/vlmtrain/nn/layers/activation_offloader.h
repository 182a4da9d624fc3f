#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/memory/host_arena.h"

namespace vlmtrain::nn {

/// Host memory for the inputs of checkpointed blocks (activation offloading). An input is copied to
/// page-locked host memory while its block runs, and copied back while the backward pass of the next block
/// runs, so that the device holds at most two inputs. Copies use side streams. The current stream waits for
/// a copy before it uses or frees the tensor, so that the caching allocator gets the same calls in the same
/// order however long copies take. Values do not change.
///
/// Backward passes load tensors in the opposite order of save(). Other orders work, without copies ahead. On
/// other devices than CUDA, copies are complete at once. Not thread-safe; a backward pass may run on the
/// device's autograd thread.
class ActivationOffloader {
 public:
  /// A tensor in host memory. Its destructor releases the memory. The offloader must outlive it.
  class SavedTensor {
   public:
    ~SavedTensor() { offloader_.release(*this); }
    SavedTensor(const SavedTensor&) = delete;
    SavedTensor& operator=(const SavedTensor&) = delete;

    /// Returns the values on the device, and starts to copy back the tensor that was saved before this one.
    /// Releases the host memory. REQUIRES: called at most once.
    at::Tensor load() { return offloader_.load(*this); }

   private:
    friend class ActivationOffloader;
    SavedTensor(ActivationOffloader& offloader, const at::Tensor& tensor, at::Tensor elements)
        : offloader_(offloader),
          device_values_(std::move(elements)),
          options_(tensor.options()),
          sizes_(tensor.sizes().vec()),
          strides_(tensor.strides().vec()) {}

    ActivationOffloader& offloader_;
    // All elements of the tensor's range of memory, one-dimensional.
    at::Tensor device_values_;  // undefined while the values are in host memory only
    at::Tensor host_values_;    // undefined after release()
    at::TensorOptions options_;
    std::vector<int64_t> sizes_, strides_;
    size_t range_index_ = 0;
  };

  /// Allocates `max_bytes` of host memory; a virtual GPU, or nullopt for no limit, allocates as tensors need it.
  /// Throws the exceptions of memory::HostArena::allocate(), save() too if it allocates.
  ActivationOffloader(at::Device device, std::optional<int64_t> max_bytes);
  ActivationOffloader(const ActivationOffloader&) = delete;
  ActivationOffloader& operator=(const ActivationOffloader&) = delete;

  /// Starts to copy `tensor` to host memory. Returns null if the memory is full, the tensor is empty, or most of
  /// its range of memory belongs to other tensors, so that the caller has to keep the tensor.
  std::unique_ptr<SavedTensor> save(const at::Tensor& tensor);

  /// Returns the highest number of bytes so far that saved tensors took at a time.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  /// A part of the host memory, uint8 [bytes], filled from its beginning.
  struct Chunk {
    at::Tensor memory;
    int64_t used_bytes = 0;
  };
  /// The memory of a saved tensor.
  struct Range {
    SavedTensor* saved_tensor;  // null after release()
    size_t chunk_index;
    int64_t bytes;
  };

  void add_chunk(int64_t bytes);
  bool allocate(SavedTensor& saved);
  void finish_save();
  void start_load(SavedTensor& saved);
  at::Tensor load(SavedTensor& saved);
  void release(SavedTensor& saved) noexcept;

  memory::HostArena arena_;
  std::optional<int64_t> max_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<Range> ranges_;       // a stack, in the order of save()
  SavedTensor* saving_ = nullptr;   // its copy to the host may be in progress
  SavedTensor* loading_ = nullptr;  // its copy to the device may be in progress
  memory::SlotCopier save_copier_, load_copier_;
  int64_t used_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace vlmtrain::nn
