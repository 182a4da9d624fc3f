#pragma once

#include <cstddef>
#include <new>

namespace vlmtrain::vgpu {

/// The one value of its type, made at the first call and never destroyed: LibTorch registers kernels before main and
/// still frees memory while the process exits, in an order that nobody controls.
template <class T>
T& leaky_singleton() {
  alignas(T) static std::byte storage[sizeof(T)];
  static T* const value = new (storage) T;
  return *value;
}

}  // namespace vlmtrain::vgpu
