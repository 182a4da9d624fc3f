#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <limits>

namespace vlmtrain {

/// A counter of the tensor memory that this process allocates on the host.
class HostAllocations {
 public:
  HostAllocations() { allocator(); }

  /// Returns the bytes allocated since construction.
  int64_t count() const { return allocator().allocations - initial_count_; }

 private:
  class CountingAllocator : public c10::Allocator {
   public:
    CountingAllocator() : wrapped_allocator_(c10::GetCPUAllocator()) {
      c10::SetCPUAllocator(this, std::numeric_limits<uint8_t>::max());
    }

    c10::DataPtr allocate(size_t bytes) override {
      ++allocations;
      return wrapped_allocator_->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return wrapped_allocator_->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      wrapped_allocator_->copy_data(to, from, bytes);
    }

    std::atomic<int64_t> allocations{0};

   private:
    c10::Allocator* wrapped_allocator_;
  };

  static CountingAllocator& allocator() {
    static CountingAllocator instance;
    return instance;
  }

  int64_t initial_count_ = allocator().allocations;
};

}  // namespace vlmtrain
