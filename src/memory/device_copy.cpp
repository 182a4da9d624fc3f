#include "vlmtrain/memory/device_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "vlmtrain/base/log.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/out_of_memory.h"

namespace vlmtrain::memory {

at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device) {
  const bool should_pin = device.is_cuda() && tensor.device().is_cpu();
  return (should_pin ? try_pin_memory(tensor) : tensor).to(device, /*non_blocking=*/true);
}

at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type) {
  const at::Tensor host = at::empty({std::ssize(values)}, type);
  if (type == at::kInt) {
    std::ranges::copy(values, host.mutable_data_ptr<int32_t>());
  } else {
    std::ranges::copy(values, host.mutable_data_ptr<int64_t>());
  }
  return copy_to_device(host, device);
}

namespace {

c10::impl::VirtualGuardImpl get_guard_impl(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

enum class CopyDirection : uint8_t { kToDevice, kToHost };

/// Returns the side stream for copies in one direction, one per device and process.
c10::Stream get_copy_stream(at::Device device, CopyDirection direction = CopyDirection::kToDevice) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceIndex, CopyDirection>, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const std::pair key(device.index(), direction);
  const auto it = streams.find(key);
  if (it != streams.end()) return it->second;
  return streams.emplace(key, get_guard_impl(device).getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

AsyncHostToDeviceCopier::AsyncHostToDeviceCopier(at::Device device) : device_(device), copy_event_(device.type()) {
  c10::Event ready_event(device.type());
  ready_event.record(get_guard_impl(device).getStream(device));
  ready_event.block(get_copy_stream(device));
}

AsyncHostToDeviceCopier::~AsyncHostToDeviceCopier() {
  try {
    wait();
  } catch (const c10::Error&) {
    // The device is broken; the next call that uses it reports the error.
  }
}

at::Tensor AsyncHostToDeviceCopier::copy_async(const at::Tensor& host) {
  at::Tensor device_tensor = at::empty(host.sizes(), host.options().device(device_));
  if (host.is_meta()) return device_tensor;
  const at::Tensor pinned_tensor = try_pin_memory(host);
  is_synchronized_ = false;
  const c10::StreamGuard stream_guard(get_copy_stream(device_));
  device_tensor.copy_(pinned_tensor, /*non_blocking=*/true);
  return device_tensor;
}

void AsyncHostToDeviceCopier::wait() {
  if (std::exchange(is_synchronized_, true)) return;
  copy_event_.record(get_copy_stream(device_));
  copy_event_.block(get_guard_impl(device_).getStream(device_));
}

SlotCopier::SlotCopier(at::Device device)
    : device_(device), buffer_free_event_(device.type()), copied_event_(device.type()) {}

void SlotCopier::start(const at::Tensor& to, const at::Tensor& from) {
  if (!device_.is_cuda()) {
    to.copy_(from);
    return;
  }
  const c10::Stream copy_stream =
      get_copy_stream(device_, to.is_cpu() ? CopyDirection::kToHost : CopyDirection::kToDevice);
  buffer_free_event_.record(get_guard_impl(device_).getStream(device_));
  buffer_free_event_.block(copy_stream);
  {
    const c10::StreamGuard stream_guard(copy_stream);
    to.copy_(from, /*non_blocking=*/true);
  }
  copied_event_.record(copy_stream);
}

void SlotCopier::run_after_copies(const std::function<void()>& queue_work) const {
  std::optional<c10::StreamGuard> stream_guard;
  if (device_.is_cuda()) stream_guard.emplace(get_copy_stream(device_));
  queue_work();
}

void SlotCopier::wait() {
  if (device_.is_cuda()) copied_event_.block(get_guard_impl(device_).getStream(device_));
}

namespace {

void warn_pinning_failed_once(const std::string& reason) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  spdlog::warn("pinned host memory is exhausted ({}); copies to and from the device block the run", reason);
}

/// Returns make_pinned(), or make_pageable() if no pinned memory is available even after LibTorch
/// released its cached pinned memory.
template <class MakePinned, class MakePageable>
at::Tensor make_pinned_or_pageable(const MakePinned& make_pinned, const MakePageable& make_pageable) {
  for (const bool may_retry : {true, false}) {
    try {
      return make_pinned();
    } catch (const std::exception& error) {
      const auto out_of_memory = detect_out_of_memory(error);
      if (!out_of_memory) throw;
      if (may_retry) {
        release_pinned_memory(at::kCUDA);
      } else {
        warn_pinning_failed_once(out_of_memory->reason);
      }
    }
  }
  return make_pageable();
}

}  // namespace

at::Tensor try_pin_memory(const at::Tensor& tensor) {
  return make_pinned_or_pageable([&] { return tensor.pin_memory(); }, [&] { return tensor; });
}

at::Tensor make_pinned_tensor(at::IntArrayRef sizes) {
  const at::TensorOptions fp32_options(at::kFloat);
  return make_pinned_or_pageable([&] { return at::empty(sizes, fp32_options.pinned_memory(true)); },
                                 [&] { return at::empty(sizes, fp32_options); });
}

}  // namespace vlmtrain::memory
