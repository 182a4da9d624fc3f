#include "vlmtrain/memory/copy_beside.h"

#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <utility>

#include "vlmtrain/memory/pinned.h"

namespace vlmtrain::memory {

namespace {

c10::impl::VirtualGuardImpl get_guard_impl(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

/// One for each device of the process.
c10::Stream copy_stream(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto it = streams.find(device.index());
  if (it != streams.end()) return it->second;
  return streams.emplace(device.index(), get_guard_impl(device).getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

AsyncHostToDevice::AsyncHostToDevice(at::Device device) : device_(device), copy_event_(device.type()) {
  c10::Event ready_event(device.type());
  ready_event.record(get_guard_impl(device).getStream(device));
  ready_event.block(copy_stream(device));
}

AsyncHostToDevice::~AsyncHostToDevice() {
  try {
    wait();
  } catch (const c10::Error&) {
    // A device that broke: whoever uses it next hears of it.
  }
}

at::Tensor AsyncHostToDevice::add(const at::Tensor& host) {
  at::Tensor device_tensor = at::empty(host.sizes(), host.options().device(device_));
  if (host.is_meta()) return device_tensor;
  const at::Tensor pinned = try_pin_memory(host);
  is_synchronized_ = false;
  const c10::StreamGuard guard(copy_stream(device_));
  device_tensor.copy_(pinned, /*non_blocking=*/true);
  return device_tensor;
}

void AsyncHostToDevice::wait() {
  if (std::exchange(is_synchronized_, true)) return;
  copy_event_.record(copy_stream(device_));
  copy_event_.block(get_guard_impl(device_).getStream(device_));
}

}  // namespace vlmtrain::memory
