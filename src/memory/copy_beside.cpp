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

c10::impl::VirtualGuardImpl streams_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

/// One for each device of the process.
c10::Stream copy_stream(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  return streams.emplace(device.index(), streams_of(device).getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

CopyBeside::CopyBeside(at::Device device) : device_(device), copied_(device.type()) {
  c10::Event before(device.type());
  before.record(streams_of(device).getStream(device));
  before.block(copy_stream(device));
}

CopyBeside::~CopyBeside() {
  try {
    wait();
  } catch (const c10::Error&) {
    // A device that broke: whoever uses it next hears of it.
  }
}

at::Tensor CopyBeside::add(const at::Tensor& host) {
  at::Tensor room = at::empty(host.sizes(), host.options().device(device_));
  if (host.is_meta()) return room;
  const at::Tensor pinned = pinned_copy(host);
  is_awaited_ = false;
  const c10::StreamGuard guard(copy_stream(device_));
  room.copy_(pinned, /*non_blocking=*/true);
  return room;
}

void CopyBeside::wait() {
  if (std::exchange(is_awaited_, true)) return;
  copied_.record(copy_stream(device_));
  copied_.block(streams_of(device_).getStream(device_));
}

}  // namespace vlmtrain::memory
