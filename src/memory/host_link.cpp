#include "vlmtrain/memory/host_link.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <functional>

#include "vlmtrain/memory/host_arena.h"

namespace vlmtrain::memory {

namespace {

constexpr int64_t kBytesPerDirection = int64_t{1} << 29;
constexpr int kCopies = 8;  // 4.3 GB per measurement: 0.1 to 0.3 s

/// Returns the bytes per second of one direction of `copy`, which starts kBytesPerDirection in each.
double measure_copies(at::Device device, const std::function<void()>& copy) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  copy();  // maps the memory
  guard.synchronizeDevice(device.index());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCopies; ++i) copy();
  guard.synchronizeDevice(device.index());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(kCopies * kBytesPerDirection) / seconds;
}

}  // namespace

HostLinkSpeed measure_host_link(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  HostArena arena(device);
  const at::Tensor host_source = arena.allocate({kBytesPerDirection}, at::kByte, "host link"),
                   host_target = arena.allocate({kBytesPerDirection}, at::kByte, "host link");
  const at::Tensor device_source = at::empty({kBytesPerDirection}, at::TensorOptions(at::kByte).device(device)),
                   device_target = at::empty_like(device_source);
  const c10::Stream in_stream = guard.getStreamFromGlobalPool(device),
                    out_stream = guard.getStreamFromGlobalPool(device);
  const auto fill_device = [&] {
    const c10::StreamGuard stream_guard(in_stream);
    device_target.copy_(host_source, /*non_blocking=*/true);
  };
  const auto fill_host = [&] {
    const c10::StreamGuard stream_guard(out_stream);
    host_target.copy_(device_source, /*non_blocking=*/true);
  };
  return {.in = measure_copies(device, fill_device),
          .out = measure_copies(device, fill_host),
          .both = measure_copies(device, [&] {
            fill_device();
            fill_host();
          })};
}

}  // namespace vlmtrain::memory
