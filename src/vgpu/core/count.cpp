#include "vgpu/core/count.h"

#include "vgpu/core/immortal.h"

namespace vlmtrain::vgpu {

namespace {

/// Calls `visit` with each count and its place in the public struct.
template <class From, class To, class Visit>
void each(From& from, To& to, const Visit& visit) {
  visit(from.launches, to.launches);
  visit(from.rejected_launches, to.rejected_launches);
  visit(from.products, to.products);
  visit(from.product_operations, to.product_operations);
  const auto visit_copies = [&visit](auto& copies, auto& place) {
    visit(copies.calls, place.calls);
    visit(copies.bytes, place.bytes);
  };
  visit_copies(from.host_to_device_pinned, to.host_to_device_pinned);
  visit_copies(from.host_to_device_pageable, to.host_to_device_pageable);
  visit_copies(from.device_to_host_pinned, to.device_to_host_pinned);
  visit_copies(from.device_to_host_pageable, to.device_to_host_pageable);
  visit_copies(from.device_to_device, to.device_to_device);
  visit(from.fills, to.fills);
  visit(from.stream_synchronizations, to.stream_synchronizations);
  visit(from.event_synchronizations, to.event_synchronizations);
  visit(from.device_synchronizations, to.device_synchronizations);
  visit_copies(from.copies_beside, to.copies_beside);
  visit(from.early_copies_beside, to.early_copies_beside);
  visit(from.stream_waits, to.stream_waits);
  visit(from.blocking_copies, to.blocking_copies);
  visit(from.host_allocations, to.host_allocations);
  visit(from.unknown_calls, to.unknown_calls);
}

}  // namespace

void Counts::read(Counters& counters) const {
  each(*this, counters, [](const std::atomic<uint64_t>& count, uint64_t& place) { place = count.load(); });
}

void Counts::reset() {
  Counters unused;
  each(*this, unused, [](std::atomic<uint64_t>& count, uint64_t&) { count = 0; });
}

Counts& counts() {
  return immortal<Counts>();
}

}  // namespace vlmtrain::vgpu
